"""Likelihood, evaluation and report of a model of several sizes, by size and overall."""

import json
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from nmln.buckets import Bucket
from nmln.config import configure
from nmln.evaluation import Counts
from nmln.language import Language, predicate
from nmln.model import Model, load_run
from nmln.molecules.sample_files import Reference, Samples, heavy_atoms, read_samples
from nmln.partition import LogZBracket
from nmln.report.history import read_history, table
from nmln.runs import evaluate as evaluation
from nmln.runs import likelihood, pages
from nmln.runs.folder import RunFolder
from nmln.space import Space
from tests.molecules.test_sizes import FIVE, THREE
from tests.runs.main_jobs import MOLECULES
from tests.runs.runs import Outcome, settings, whole_run

pytestmark = pytest.mark.usefixtures("unchecked")

CHANGES: dict[str, Any] = {"chains__replicas": 24, "training__batch": 24, "training__steps": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on 10 molecules of 3 atoms and 40 of 4, whose worlds can be enumerated."""
    place = tmp_path_factory.mktemp("sizes")
    (place / "mixed.smi").write_text("\n".join([*THREE, *MOLECULES]) + "\n")
    return whole_run(place / "mixed.smi", **CHANGES)


# Likelihood.


def test_log_p_is_that_of_the_size_and_of_the_world_given_the_size(folder: Path) -> None:
    found = likelihood.run(folder, chains=100, steps=60, sweeps=30)
    model, source = load_run(folder), RunFolder(folder).read_source()
    shares = [8 / 40, 32 / 40]
    assert [model.share_of(space) for space in source.spaces] == pytest.approx(shares)
    logs = []
    for (size, (share, one)), bucket in zip(found.by_size.items(), source.learned, strict=True):
        grounded = model.on(bucket.space)
        target = grounded.level(-1)
        with torch.no_grad():
            scores = [
                target.score(some[None])[0].double()
                for some in bucket.space.enumerate().split(8192)
            ]
            exact = float(torch.cat(scores).logsumexp(0))
            own = target.score(bucket.worlds[None])[0].double() - one.log_z
        assert one.partition.interval[0] < exact < one.partition.interval[1], size
        assert one.train == pytest.approx(float(own.mean()))
        logs.append(own + log(share))
    whole = torch.cat(logs)
    assert found.train == pytest.approx(float(whole.mean()))
    assert found.train_worlds.error == pytest.approx(float(whole.std()) / len(whole) ** 0.5)
    each = found.by_size["3"].given_size.log_z, found.by_size["4"].given_size.log_z
    assert found.log_z == pytest.approx(0.2 * each[0] + 0.8 * each[1])
    parts = [one.given_size.test_molecules for one in found.by_size.values()]
    assert all(one is not None for one in parts)
    kept = json.loads((folder / "likelihood.json").read_text())
    assert kept["by_size"].keys() == {"3", "4"}
    assert kept["by_size"]["4"]["share"] == pytest.approx(0.8)
    assert kept["worlds"] == sum(one["worlds"] for one in kept["by_size"].values()) == 50


def test_domains_of_one_size_have_numbers_of_their_own() -> None:
    language = Language(predicate("smokes", "person"))
    domains = {("Anna", "Bob"): 100, ("X", "Y"): 300, ("a", "b", "c"): 100}
    data = [
        Bucket(space, space.enumerate()[-1:].repeat(count, 1))
        for names, count in domains.items()
        for space in [Space(language, {"person": names})]
    ]
    config = configure({"ladder": {"rates": [0.2, 0.1]}, "model": {"layers": 1, "hidden": 4}})
    found = likelihood.measure(
        Model.build(data, config=config), data, data, chains=4, steps=3, sweeps=3
    )
    shares = {size: one.share for size, one in found.by_size.items()}
    assert shares == {"2 #1": 0.2, "2 #2": 0.6, "3": 0.2}
    assert found.worlds == sum(one.given_size.worlds for one in found.by_size.values()) == 1000


def test_the_command_shows_every_size(
    folder: Path, here: Callable[..., Outcome], capfd: pytest.CaptureFixture[str]
) -> None:
    from nmln.cli.likelihood import likelihood as command

    command(folder, chains=4, steps=3, sweeps=3, seed=1)
    said = capfd.readouterr().out
    assert said.count("log Z: ") == 2
    assert "size 3, 20.0% of the data; given the size:" in said


def test_the_mean_of_one_bracket_is_itself_and_errors_of_several_are_independent() -> None:
    one, other = LogZBracket(1, 3, 0, 0, 2, 0, 50), LogZBracket(3, 4, 2, 0, 4, 0, 70)
    assert LogZBracket.mean([one], [1.0]) is one
    mean = LogZBracket.mean([one, other], [0.5, 0.5])
    assert (mean.value, mean.error, mean.low, mean.high) == (2, 2.5, 1, 3)


# Evaluation.


def test_the_number_of_heavy_atoms_is_read_off_a_name() -> None:
    names = {
        "c1ccccc1": 6,
        "[nH]1cccc1": 5,
        "C[N+](=O)[O-]": 4,
        "ClCBr": 3,
        "[Hg]": 1,
        "C[Si](C)C": 4,
    }
    assert {name: heavy_atoms(name) for name in names} == names
    for size, lines in ((3, THREE), (4, MOLECULES), (5, FIVE)):
        assert {heavy_atoms(line) for line in lines} == {size}


def test_every_size_is_compared_with_its_own_molecules() -> None:
    train = Reference("train", frozenset({"CCO", "CCN", "CCCO", "CCCN"}), frozenset({3, 4}))
    test = Reference("test", frozenset({"CCC", "CCCC", "CCOC"}), frozenset({3, 4}))
    counts = Counts({"CCO": 3, "CCC": 1, "CCCC": 4, "CCNC": 2}, 20)
    samples = Samples("a", None, counts, (), {3: 5, 4: 15})
    (found,) = evaluation.compare(
        [("a", samples, None)], train, test, sizes=(3, 4), with_fcd=False
    ).evaluated
    three, four = found.by_size[3].found, found.by_size[4].found
    assert (three.samples.attempts, three.samples.valid, four.samples.valid) == (5, 4, 6)
    assert (three.coverage_test.value, four.coverage_test.value) == (1.0, 0.5)
    assert three.coverage_train.value == 0.5
    assert found.describe()["by_size"]["4"]["attempts"] == 15
    unknown = Samples("a", None, counts, ())
    (found,) = evaluation.compare(
        [("a", unknown, None)], train, test, sizes=(3, 4), with_fcd=False
    ).evaluated
    assert "valid" not in found.describe()["by_size"]["4"]


def test_samples_of_other_sizes_than_those_of_the_data_are_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    rows = ["0,1,valid,CCO", "1,1,valid,CCCC", "2,1,valid,CCCCC", "3,1,invalid,"]
    path.write_text("\n".join(["sample,level,status,smiles", *rows]) + "\n")
    (found,) = read_samples(path, size=(3, 4))
    assert found.counts.counts == {"CCO": 1, "CCCC": 1}
    assert {one.reason for one in found.refused} == {"another size", "invalid"}


def test_a_run_of_several_sizes_is_evaluated_by_size(
    folder: Path, tmp_path: Path, here: Callable[..., Outcome], capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        done = here("sample", folder, "--num-samples", 60, "--burn-in", 2, "--chains", 12,
                    "--processes", 1, "--output", tmp_path / name)  # fmt: skip
        assert done.code == 0, done.said
    outcome = evaluation.run(
        [tmp_path / "one", tmp_path / "two"], tmp_path / "out", folder=folder, with_fcd=False
    )
    assert outcome.sizes == (3, 4)
    content = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert content["heavy_atoms"] == [3, 4]
    for one in content["samples"]:
        assert sum(part["attempts"] for part in one["by_size"].values()) == one["attempts"] == 60
    assert any("3, 4 heavy atoms" in note for note in outcome.notes)


# The report.


def test_curves_by_size_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 1, "valid": 0.5},
        {
            "step": 2,
            "valid": 0.6,
            "by_size": {"3": {"valid": 0.7, "swaps": [0.4, None]}, "4": {"valid": 0.5}},
        },
        {"step": 3, "valid": 0.6, "by_size": {"3": {"valid": 0.8, "swaps": [0.3, 0.2]}, "4": 3}},
        {"step": 4, "by_size": [1]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_history(path)
    assert found.curves.keys() == {"valid"}
    assert found.by_size["valid"]["3"].numbers[:, 0].tolist() == [0.7, 0.8]
    assert found.by_size["valid"]["4"].steps.tolist() == [2]
    head, *_ = table(found, {})
    assert '"valid, size 3"' in head
    assert '"swaps, size 3 1"' in head


def test_the_report_shows_every_size_and_all_together(folder: Path) -> None:
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert all(len(one["swaps"]) == 1 and "log_z" in one for one in last["by_size"].values())
    shares = {"3": 0.2, "4": 0.8}
    overall = sum(shares[size] * one["log_z"] for size, one in last["by_size"].items())
    assert last["log_z"][-1] == pytest.approx(overall)
    mean = sum(shares[size] * one["swaps"][0] for size, one in last["by_size"].items())
    assert last["swaps"][0] == pytest.approx(mean)
    pages.write_report(folder)
    page = (folder / "report.html").read_text()
    assert "By size" in page
    assert "80.0&nbsp;%" in page


def test_settings_of_one_size_have_no_table_of_sizes(tmp_path: Path) -> None:
    (tmp_path / "four.smi").write_text("\n".join(MOLECULES) + "\n")
    folder = whole_run(tmp_path / "four.smi", training__steps=1)
    assert pages.read_run(folder).shares == {}
    assert settings(tmp_path / "four.smi").data.sizes is None
    assert "By size" not in [one.title for one in pages.training_sections(pages.read_run(folder))]
