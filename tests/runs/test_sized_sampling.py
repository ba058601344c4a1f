"""Samples of a model of several sizes: their shares, conditions, extrapolation and resumption."""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest

from nmln import checkpoint
from nmln.config import configure, override
from nmln.errors import InputError
from nmln.formats.db import read_facts
from nmln.model import Model, load_run
from nmln.model.domains import Domain, draw_counts
from nmln.molecules.chemistry import Molecule, parse
from nmln.runs import data as sources
from nmln.runs import sample as sampling
from nmln.runs import stream
from nmln.runs.parts import join
from nmln.runs.specification import SamplingSettings, fingerprint
from nmln.runs.workspace import Part
from tests.molecules.test_sizes import LINES
from tests.runs.runs import Outcome, command, wait_until
from tests.runs.sampling_runs import files, read, summary
from tests.runs.several_domains import write_graphs, write_people

SIZES = {"size", "share", "attempts", "chains", "extrapolation", "levels"}


def untrained(folder: Path, source: Path, **data: object) -> Path:
    """The folder of a run whose model has learned nothing but the marginals of every size."""
    config = configure(
        {
            "ladder": {"rates": [0.2, 0.02]},
            "model": {"layers": 1, "hidden": 4},
            "sampling": {"kernel": "gradients", "moves": 2},
        }
    )
    config = override(config, {f"data.{name}": value for name, value in data.items()})
    config = override(config, {"data.source": str(source)})
    found = sources.load(config.data)
    model = Model.build(found.learned, config=config)
    model.save(folder / "model")
    (folder / "config.json").write_text(json.dumps({**model.describe(), "kind": found.kind}))
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on 8 molecules of 3 atoms, 32 of 4 and 5 of 5; without figures, which take seconds."""
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    path = tmp_path / "mixed.smi"
    path.write_text("\n".join(LINES) + "\n")
    return untrained(tmp_path / "run", path)


def atoms(smiles: str) -> int:
    found = parse(smiles)
    assert isinstance(found, Molecule)
    return len(found.atoms)


def begin(run: Path, name: str, **options: object) -> stream.SamplingJob:
    given = {"count": 105, "chains": 20, "burn_in": 3, "thin": 2, "block": 4, **options}
    asked = {key: given.pop(key) for key in ("size", "sizes", "scaffold", "formulas", "evidence")
             if key in given}  # fmt: skip
    opened = sampling.open_run(run)
    conditions = opened.conditions(**asked)  # type: ignore[arg-type]
    return sampling.begin(opened, conditions, output=run.parent / name, **given)  # type: ignore[arg-type]


def drawn(run: Path, name: str = "out", **options: object) -> Path:
    job = begin(run, name, **options)
    stream.work(job)
    stream.finish(job)
    return job.folder


# Numbers.


def test_the_sizes_of_samples_have_the_shares_of_the_data() -> None:
    model = Domain(None, 0.2), Domain(None, 0.5), Domain(None, 0.3)  # type: ignore[arg-type]
    counts = [draw_counts(model, 100, seed) for seed in range(400)]
    for place, share in enumerate((0.2, 0.5, 0.3)):
        mean = sum(one[place] for one in counts) / len(counts)
        assert abs(mean - 100 * share) < 1.0  # 4 standard errors
        assert all(sum(one) == 100 for one in counts)
    assert draw_counts(model, 100, 3) == draw_counts(model, 100, 3)


def test_every_sample_has_a_number_of_its_own_and_its_chain_is_known(run: Path) -> None:
    job = begin(run, "out")
    settings, numbers = job.settings, []
    for block in range(settings.parts):
        first, count = settings.slice(block)
        own = settings.sections[settings.home(block)]
        for draw in range(own.draws):
            wanted = settings.wanted(block, draw)
            numbers += wanted
            assert {number % settings.chains for number in wanted} <= set(
                range(first, first + count)
            )
    assert len(numbers) == len(set(numbers)) == 105
    assert sum(one.samples for one in settings.sections) == 105
    assert sum(one.chains for one in settings.sections) == settings.chains == 20
    assert all(one.chains >= 3 for one in settings.sections)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_few_samples_and_chains_are_dealt_out_too(run: Path, count: int) -> None:
    folder = drawn(run, count=count, chains=1)
    rows = read(folder)
    assert len(rows) == len({row[0] for row in rows}) == count


# The files.


def test_samples_of_all_sizes_are_written_and_counted(run: Path) -> None:
    folder = drawn(run, count=300)
    told = summary(folder)
    assert [one["size"] for one in told["sizes"]] == ["3", "4", "5"]
    assert all(one.keys() == SIZES and not one["extrapolation"] for one in told["sizes"])
    assert sum(one["attempts"] for one in told["sizes"]) == told["attempts"] == len(read(folder))
    found = Counter(atoms(smiles) for _, _, status, smiles in read(folder) if status == "valid")
    for one in told["sizes"]:
        assert one["levels"][-1]["valid"] == found[int(one["size"])]
    assert told["levels"][-1]["valid"] == sum(found.values()) > 0
    counts = (folder / "counts.csv").read_text().splitlines()[1:]
    assert sum(int(line.split(",")[1]) for line in counts) == sum(found.values())


def test_a_size_can_be_chosen(run: Path, here: Callable[..., Outcome]) -> None:
    folder = drawn(run, size=4)
    assert {atoms(row[3]) for row in read(folder) if row[3]} == {4}
    assert [one["share"] for one in summary(folder)["sizes"]] == [1.0]
    done = here("sample", run, "--sizes", "3,5", "--num-samples", 60, "--burn-in", 2,
                "--output", run.parent / "two", "--processes", 1)  # fmt: skip
    assert done.code == 0, done.said
    assert {atoms(row[3]) for row in read(run.parent / "two") if row[3]} <= {3, 5}
    shares = [one["share"] for one in summary(run.parent / "two")["sizes"]]
    assert shares == pytest.approx([8 / 13, 5 / 13])


def test_a_size_that_was_not_in_the_data_is_marked(run: Path, cli: Callable[..., Outcome]) -> None:
    done = cli("sample", run, "--size", 6, "--num-samples", 20, "--burn-in", 2,
                "--output", run.parent / "new", "--processes", 1)  # fmt: skip
    assert done.code == 0, done.said
    said = " ".join(done.said.split())
    assert "has not seen worlds of size 6: it was trained on 3, 4, 5" in said
    assert [one["extrapolation"] for one in summary(run.parent / "new")["sizes"]] == [True]


def test_one_size_is_sampled_as_by_a_model_of_this_size(run: Path) -> None:
    model = load_run(run)
    alone = sampling.OpenedRun("run", run, model.on(model.domains[1].space), "molecules")
    job = sampling.begin(
        alone, alone.conditions(), 105, run.parent / "own", chains=20, block=4, burn_in=3, thin=2
    )
    stream.work(job)
    stream.finish(job)
    assert files(drawn(run, size=4)) == files(job.folder)
    assert "sizes" not in summary(job.folder)


# Stopping and dividing.


def test_blocks_in_any_order_and_parts_give_the_same_bytes(run: Path) -> None:
    whole = files(drawn(run, all_levels=True))
    job = begin(run, "backwards", all_levels=True)
    for block in reversed(job.blocks):
        stream.work(job, [block])
    stream.finish(job)
    assert files(job.folder) == whole
    for number in (1, 2):
        stream.work(begin(run, "parts", part=Part(number, 2), all_levels=True))
    opened = sampling.open_run(run)
    stream.finish(join(sampling.place_of(opened, run.parent / "parts"), opened.model))
    assert files(run.parent / "parts") == whole


@pytest.mark.slow
def test_a_killed_sampling_is_resumed_to_the_same_bytes(run: Path) -> None:
    words = ("sample", str(run), "--num-samples", "600", "--chains", "20", "--block-size", "2",
             "--burn-in", "20", "--output")  # fmt: skip
    done = subprocess.run(command(*words, str(run.parent / "whole"), "--processes", "1"),
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    killed = run.parent / "killed"
    with subprocess.Popen(
        command(*words, str(killed), "--processes", "2"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        work = killed / ".nmln-sampling"
        wait_until(lambda: any(checkpoint.saved_steps(one) for one in work.glob("block-*")))
        os.killpg(process.pid, signal.SIGKILL)
    assert (work / "settings.json").exists()
    done = subprocess.run(
        command("sample", str(run), "--resume", "--output", str(killed), "--processes", "1"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert files(killed) == files(run.parent / "whole")
    assert "size 4: " in done.stdout


def test_other_sizes_are_another_sampling(run: Path) -> None:
    job = begin(run, "out")
    stream.work(job, [0])
    with pytest.raises(InputError, match="domains"):
        begin(run, "out", size=4)
    assert begin(run, "out").settings == job.settings
    assert SamplingSettings.read(json.loads(json.dumps(job.settings.described()))) == job.settings


def test_damaged_domains_are_refused(run: Path) -> None:
    content = json.loads(json.dumps(begin(run, "out").settings.described()))
    for change in (
        {"samples": 1}, {"samples": "1"}, {"share": 2.0}, {"domain": 3}, {"colour": 1},
    ):  # fmt: skip
        first, *others = content["domains"]
        with pytest.raises(ValueError, match=r"domain|numbers"):
            SamplingSettings.read({**content, "domains": [{**first, **change}, *others]})


def test_shares_are_a_part_of_the_fingerprint(run: Path) -> None:
    model = load_run(run)
    first, second, third = model.domains
    moved = (first, second._replace(share=third.share), third._replace(share=second.share))
    other = Model(model.space, model.potential, model.config, model.formulas, moved)
    assert fingerprint(model) != fingerprint(other)


# Conditions.


def test_a_scaffold_leaves_out_the_sizes_that_it_does_not_fit(run: Path) -> None:
    with pytest.warns(UserWarning, match="size 3, which are left out"):
        job = begin(run, "out", scaffold="CCO")
    stream.work(job)
    stream.finish(job)
    told = summary(job.folder)
    assert [one["size"] for one in told["sizes"]] == ["4", "5"]
    assert [one["share"] for one in told["sizes"]] == pytest.approx([32 / 37, 5 / 37])
    valid = [row[3] for row in read(job.folder) if row[3]]
    assert valid
    assert all("O" in smiles for smiles in valid)
    assert {atoms(smiles) for smiles in valid} <= {4, 5}


def test_a_scaffold_that_fits_no_size_is_one_line(run: Path, here: Callable[..., Outcome]) -> None:
    done = here("sample", run, "--scaffold", "CCCCC")
    assert done.code == 2
    assert len(done.lines) == 1
    assert "must have fewer atoms than molecules of this model, 5" in done.lines[0]


def test_formulas_hold_at_every_size(run: Path) -> None:
    folder = drawn(run, formulas=["!atom(x, N) ."])
    assert all("N" not in row[3].upper() for row in read(folder))
    assert {atoms(row[3]) for row in read(folder) if row[3]} == {3, 4, 5}


def test_evidence_must_fit_every_size(run: Path, here: Callable[..., Outcome]) -> None:
    path = run.parent / "known.db"
    path.write_text("atom(2, O)\n")
    assert all("O" in row[3] for row in read(drawn(run, evidence=path)) if row[3])
    path.write_text("atom(3, O)\n")
    done = here("sample", run, "--evidence", path)
    assert done.code == 2
    assert len(done.lines) == 1
    assert "size 3" in done.lines[0]
    assert "known.db:1" in done.lines[0]


# Other worlds.


def test_graphs_of_several_sizes_are_written(tmp_path: Path) -> None:
    folder = write_graphs(tmp_path / "graphs")
    run = untrained(tmp_path / "run", folder)
    found = sampling.run(run, 30, burn_in=2, chains=12, sizes=(4, 6))
    written = sorted(found.written[0].iterdir())
    sizes = Counter(len(nx.read_graphml(path)) for path in written)
    assert len(written) == 30
    assert sizes.keys() == {4, 6}


def test_databases_of_several_domains_are_written(tmp_path: Path) -> None:
    path = write_people(tmp_path / "people.db")
    run = untrained(tmp_path / "run", path, domains="each")
    found = sampling.run(run, 30, burn_in=2, chains=10)
    assert len(list(read_facts(found.written[0]))) == 30
