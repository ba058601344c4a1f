"""Runs that start from the weights of another one: other sizes, levels and kinds of atoms."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmln.config import Config
from nmln.errors import InputError
from nmln.language import new_values
from nmln.model import load_run
from nmln.molecules.chemistry import encode_all
from nmln.potentials.base import BasePotential
from nmln.potentials.total import TotalPotential
from nmln.runs import pages, pipeline
from nmln.runs import train as training
from nmln.runs.folder import RunFolder
from nmln.runs.job import read_settings, repeating
from nmln.runs.start import read_start
from nmln.space import Space
from tests.molecules.test_sizes import FIVE, LINES
from tests.runs.main_jobs import CHANGES, MOLECULES
from tests.runs.runs import Outcome, equal, settings, weights

RATES = [0.3, 0.12, 0.018, 0.001]  # near those of the first run (0.2, 0.02): 0, 0, 1, 1
MORE = ["CCCF", "CCF", "CC(F)F", "NCCF", "CCS", "CSC", "CCCS", "FCF"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on molecules of four atoms; its weights differ from level to level."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "four.smi").write_text("\n".join(MOLECULES) + "\n")
    run = folder / "run"
    training.run(
        training.begin(
            run, settings(folder / "four.smi", optimiser__common=0.0, training__steps=12)
        )
    )
    return run


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Molecules of three to five atoms, with fluorine and sulphur, which the first run has not seen."""
    path = tmp_path / "mixed.smi"
    path.write_text("\n".join([*LINES, *MORE]) + "\n")
    return path


def started(data: Path, run: Path, name: str = "next", **changes: object) -> training.TrainingJob:
    given: dict[str, object] = {"chains__replicas": 24, "training__batch": 24, "training__steps": 3}
    config: Config = settings(data, **{**given, "ladder__rates": RATES, **changes})
    return training.begin(data.parent / name, config, start=read_start(str(run)))


def network_scores(potential: BasePotential, smiles: list[str]) -> Tensor:
    """The scores of molecules without the base term, which depends on the data."""
    assert isinstance(potential, TotalPotential)
    network = potential.parts[0]
    assert isinstance(network, BasePotential)
    worlds = encode_all(potential.space, smiles).worlds
    return network.score(worlds.expand(potential.levels, -1, -1))


def test_old_worlds_keep_their_scores_up_to_the_base_term(first: Path, mixed: Path) -> None:
    old, job = load_run(first), started(mixed, first)
    assert set(new_values(old.space.language, job.source.space.language)) == {"atom F", "atom S"}
    for smiles, size in ((MOLECULES[:20], 4), (FIVE, 5)):
        here = next(one for one in job.source.spaces if len(one.domain["node"]) == size)
        there = Space(old.space.language, here.domain)
        mine = network_scores(job.model.potential.on(here), smiles)
        known = network_scores(old.potential.on(there), smiles)
        assert torch.allclose(mine, known[[0, 0, 1, 1]], atol=1e-5)
        assert not torch.allclose(known[0], known[1], atol=1e-3)


def test_it_trains_is_recorded_and_reported(first: Path, mixed: Path) -> None:
    job = started(mixed, first)
    training.run(job)
    head = RunFolder(job.folder).read_head()
    expected = RunFolder(first).read_head().fingerprint
    assert head.start == {
        "run": str(first),
        "step": 12,
        "fingerprint": expected,
        "weights": read_start(str(first)).weights,
    }
    pages.write_report(job.folder)
    page = (job.folder / "report.html").read_text()
    assert f"starts from {first}, step 12" in page
    assert f"--from {first}" in page
    assert [len(one.space.domain["node"]) for one in load_run(job.folder).domains] == [3, 4, 5]


def test_resumed_before_and_after_the_first_checkpoint_it_is_the_same_run(
    first: Path, mixed: Path
) -> None:
    whole = started(mixed, first, "whole")
    training.run(whole)
    killed = started(mixed, first, "killed")  # before its first step
    training.run(training.resume(killed.folder))
    assert equal(weights(killed.folder), weights(whole.folder))

    class Stop(training.Silent):
        def on_step(self, metrics: Any, quality: dict[str, float]) -> None:
            if metrics.step == 2:
                raise InputError("the lights go out")

    copy = mixed.parent / "copy"
    shutil.copytree(first, copy)
    with pytest.raises(InputError, match="lights"):
        training.run(started(mixed, copy, "part"), Stop())
    shutil.rmtree(copy)  # not needed any more
    training.run(training.resume(mixed.parent / "part"))
    assert equal(weights(mixed.parent / "part"), weights(whole.folder))


def test_a_start_that_has_changed_or_gone_is_noticed(first: Path, mixed: Path) -> None:
    copy = mixed.parent / "copy"
    shutil.copytree(first, copy)
    job = started(mixed, copy)
    shutil.rmtree(copy)
    with pytest.raises(InputError, match="copy"):
        training.resume(job.folder)
    training.run(training.begin(copy, settings(first.parent / "four.smi", training__steps=1)))
    with pytest.raises(InputError, match="have changed since") as error:
        training.resume(job.folder)
    assert error.value.kind == "conflict"
    head = json.loads((job.folder / "config.json").read_text())
    head["from"]["run"] = 3
    (job.folder / "config.json").write_text(json.dumps(head))
    with pytest.raises(InputError, match="must name the run"):
        training.resume(job.folder)


def test_an_unfinished_run_and_a_run_of_several_sizes_are_starts(first: Path, mixed: Path) -> None:
    job = started(mixed, first)

    class Stop(training.Silent):
        def on_step(self, metrics: Any, quality: dict[str, float]) -> None:
            if metrics.step == 3:
                raise InputError("the lights go out")

    with pytest.raises(InputError, match="lights"):
        training.run(job, Stop())
    four = first.parent / "four.smi"
    folder = mixed.parent / "again"
    begun = training.begin(folder, settings(four), start=read_start(str(job.folder)))
    assert begun.start is not None
    assert begun.start.step == 2
    known = dict(load_run(job.folder).potential.named_parameters())
    mine = dict(begun.model.potential.named_parameters())
    assert torch.equal(
        mine["parts.0.potential.update.0"], known["parts.0.potential.update.0"][[1, 2]]
    )


def test_settings_of_the_potential_come_from_the_old_run(
    first: Path, mixed: Path, here: Callable[..., Outcome]
) -> None:
    words = ("train", mixed, "--from", first, "--steps", 1, "--output", mixed.parent / "next",
             "--set", "chains.replicas=24", "--set", "training.batch=24", "--processes", 1)  # fmt: skip
    refused = here(*words, "--set", "model.hidden=64")
    assert refused.code == 2
    assert "model.hidden is 64, but 8" in refused.said
    refused = here(*words, "--preset", "paper")
    assert refused.code == 2
    assert "model.layers is 10, but 1" in refused.said
    done = here(*words, "--preset", "molecules", "--set", "model.hidden=8")
    assert done.code == 0, done.said
    assert f"starts from {first}, step 12; new values: atom F, atom S" in " ".join(
        done.said.split()
    )
    config = RunFolder(mixed.parent / "next").read_head().config
    assert (config.model.layers, config.model.hidden, config.model.pieces) == (1, 8, True)


def test_other_languages_and_formulas_are_refused_by_name(first: Path, tmp_path: Path) -> None:
    people = tmp_path / "people.db"
    people.write_text("smokes(Anna)\n---\nsmokes(Bob)\nfriends(Anna, Bob)\n")
    with pytest.raises(
        InputError, match=r"only the new data set has friends\(constant, constant\)"
    ) as error:
        training.begin(tmp_path / "next", settings(people), start=read_start(str(first)))
    assert (error.value.source, error.value.kind) == (str(first), "conflict")
    assert not (tmp_path / "next").exists()
    language = tmp_path / "people.mln"
    language.write_text("smokes(constant)\nfriends(constant, constant)\n1 smokes(x)\n")
    with_formula = tmp_path / "with"
    config = settings(people, data__language=str(language), training__steps=1)
    training.run(training.begin(with_formula, config))
    with pytest.raises(InputError, match="the new data have none"):
        training.begin(tmp_path / "next", settings(people), start=read_start(str(with_formula)))
    begun = training.begin(tmp_path / "next", config, start=read_start(str(with_formula)))
    assert torch.equal(
        begun.model.potential.state_dict()["parts.1.weights"],
        load_run(with_formula).potential.state_dict()["parts.1.weights"],
    )


def test_pictures_stay_on_their_domain(tmp_path: Path) -> None:
    for name, size in (("small.db", 2), ("large.db", 3)):
        cells = [f"queen({row}, {row})" for row in range(size)]
        (tmp_path / name).write_text("\n---\n".join(cells) + "\n" + "\n".join(cells) + "\n")
    changes = {"model__potential": "image", "model__hidden": 4, "training__steps": 1}
    run = tmp_path / "run"
    training.run(training.begin(run, settings(tmp_path / "small.db", **changes)))
    start = read_start(str(run))
    with pytest.raises(InputError, match="ImagePotential belongs to the constants"):
        training.begin(tmp_path / "next", settings(tmp_path / "large.db", **changes), start=start)
    training.begin(tmp_path / "same", settings(tmp_path / "small.db", **changes), start=start)


@pytest.mark.slow
def test_the_main_job_starts_from_a_run(first: Path, tmp_path: Path) -> None:
    data = tmp_path / "four.smi"
    data.write_text("\n".join(MOLECULES) + "\n")
    changes = {name: value for name, value in CHANGES.items() if not name.startswith("model.")}
    job = pipeline.JobSettings(
        str(data), 4, samples=24, changes=changes, chains=4, burn_in=2, start=str(first)
    )
    folder = tmp_path / "job"
    pipeline.run(folder, job)
    head = RunFolder(folder).read_head()
    assert head.start is not None
    assert head.start["run"] == str(first)
    assert head.config.model.hidden == 8
    assert f"starts from {first}, step 12" in (folder / "report.html").read_text()
    recorded = read_settings(folder)
    assert recorded is not None
    assert recorded.start == str(first)
    assert f"--from {first}" in repeating(folder, 24)
    with pytest.raises(InputError, match="other settings"):
        pipeline.run(folder, pipeline.JobSettings(str(data), 4, samples=24, changes=changes, chains=4,
                                                  burn_in=2))  # fmt: skip
    wrong = {**changes, "model.layers": 3}
    with pytest.raises(InputError, match=r"model\.layers is 3, but 1"):
        pipeline.run(
            tmp_path / "other", pipeline.JobSettings(str(data), 4, changes=wrong, start=str(first))
        )


def test_a_run_is_either_started_or_resumed(first: Path, here: Callable[..., Outcome]) -> None:
    done = here("train", "--resume", first, "--from", first)
    assert done.code == 2
    assert "--resume continues a run with its recorded settings" in done.said
