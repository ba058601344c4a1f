"""Run folders of earlier versions load, resume, sample and report; see tests/fixtures/README.md."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmln import checkpoint
from nmln.errors import InputError, InterruptedRunError
from nmln.runs import combine as combining
from nmln.runs import knowledge, likelihood, pages, stream
from nmln.runs import sample as sampling
from nmln.runs import train as training
from nmln.runs.folder import RunFolder
from tests.fixtures.make_runs import StopAt, metrics_hash, model_hash, rows_hash, tree_hash
from tests.runs.runs import run_here

RUNS = Path(__file__).parent.parent / "fixtures" / "runs-1"
KNOWLEDGE = ("kb-stopped", "kb-finished")
EXPECTED = json.loads((RUNS / "expected.json").read_text())


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of all folders; their data are named as seen from here."""
    shutil.copytree(RUNS, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["finished", "both", "molecules"])
def test_the_models_are_those_that_were_saved(old: Path, name: str) -> None:
    assert model_hash(old / name) == EXPECTED[name]
    assert sampling.open_run(old / name).model.space.groups > 0
    assert len(RunFolder(old / name).read_source().train)


def test_a_stopped_run_resumes_from_the_state_that_was_kept(old: Path) -> None:
    """What its chains draw from there on is of this version: random streams have changed since."""
    folder, twice = old / "stopped", old / "twice"
    shutil.copytree(folder, twice)
    before = (folder / "metrics.jsonl").read_text()
    assert tree_hash(checkpoint.load(folder).tensors) == EXPECTED["stopped state"]
    job = training.resume(folder)
    assert job.trainer.step_number == 6
    tensors, _ = checkpoint.flatten({**job.trainer.tree(), "guard": job.guard.tree()})
    assert tree_hash(tensors) == EXPECTED["stopped state"]
    training.run(job)
    lines = (folder / "metrics.jsonl").read_text()
    assert lines.startswith(before)
    assert [json.loads(line)["step"] for line in lines.splitlines()] == list(range(1, 13))
    assert "split" in checkpoint.load(folder).content

    with pytest.raises(InterruptedRunError):
        training.run(training.resume(twice), StopAt(9))
    training.run(training.resume(twice))
    assert model_hash(twice) == model_hash(folder)
    assert metrics_hash(twice) == metrics_hash(folder)


def test_a_finished_run_is_resumed_reported_sampled_and_measured(old: Path) -> None:
    folder = old / "finished"
    training.run(training.resume(folder))
    assert model_hash(folder) == EXPECTED["finished"]
    assert metrics_hash(folder) == EXPECTED["finished metrics"]
    assert pages.read_run(folder).step == 12
    assert sampling.run(folder, 4, old / "drawn", chains=2, burn_in=1).count == 4
    assert likelihood.run(folder, chains=4, steps=5, sweeps=5).worlds > 0


def test_a_combined_model_is_sampled_and_not_trained(old: Path) -> None:
    assert sampling.run(old / "both", 4, old / "drawn", chains=2, burn_in=1).count == 4
    with pytest.raises(InputError, match="was combined"):
        training.resume(old / "both")
    with pytest.raises(InputError, match="the data and the split"):
        combining.combine([old / "both", old / "molecules"], old / "all")


def test_finished_samples_are_read(old: Path) -> None:
    samples = old / "molecules" / "samples"
    assert rows_hash(samples) == EXPECTED["molecules samples"]
    assert checkpoint.read_json(samples / stream.SUMMARY)["attempts"] == 60


def test_samples_stopped_in_the_old_layout_are_finished_or_refused_in_one_line(
    old: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = old / "sampling"
    before = {path: path.read_bytes() for path in (folder / "samples").rglob("*") if path.is_file()}
    done = run_here(monkeypatch, capfd, "sample", folder, "--resume", "--processes", "1")
    if done.code == 0:
        assert checkpoint.read_json(folder / "samples" / stream.SUMMARY)["attempts"] == 60
    else:
        assert done.code == 2
        assert len(done.lines) == 1
        assert all(path.read_bytes() == content for path, content in before.items())


def test_a_stopped_knowledge_base_resumes_to_the_model_of_the_finished_one(old: Path) -> None:
    """Up to rounding, which differs between processors; the folder is of another machine."""
    shutil.rmtree(old / "camps")  # the run has all of it
    knowledge.run(knowledge.resume(old / "kb-stopped"))
    found, known = (checkpoint.load_model(old / name / "model")[0] for name in KNOWLEDGE)
    assert found.keys() == known.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, known[name], rtol=1e-3, atol=1e-4)
    kept = checkpoint.load_model(RUNS / "kb-stopped" / "model")[0]
    assert any(not torch.allclose(kept[name], known[name], atol=1e-3) for name in known)


def test_a_finished_knowledge_base_is_ranked_and_completed(old: Path) -> None:
    folder = old / "kb-finished"
    assert model_hash(folder) == EXPECTED["kb-finished"]
    trained = knowledge.load(folder)
    assert knowledge.rank(trained, folder).keys() == {"valid", "test"}
    assert knowledge.complete(trained, folder / "missing.csv", top=3)


SPLITS: dict[str, Callable[[dict[str, list[int]]], Any]] = {
    "one index too few": lambda split: {**split, "test": split["test"][1:]},
    "one index twice": lambda split: {**split, "test": [*split["test"], split["test"][0]]},
}


@pytest.mark.parametrize("name", SPLITS)
def test_splits_without_a_hash_are_checked_as_before(old: Path, name: str) -> None:
    path = old / "finished" / "split.json"
    path.write_text(json.dumps(SPLITS[name](json.loads(path.read_text()))))
    with pytest.raises(InputError, match="does not fit the data"):
        training.resume(old / "finished")
