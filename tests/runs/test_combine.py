"""Runs combined into one folder, at the command line."""

import json
from pathlib import Path

import pytest
import torch

from nmln.model import load_run
from tests.runs.runs import run_here, whole_run, write_worlds

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("combining")
    people = write_worlds(folder)
    for seed in (0, 1):
        whole_run(people, f"seed{seed}", **{"training.seed": seed, "model.seed": seed})
    whole_run(people, "other", **{"data.split_seed": 1})
    whole_run(people, "wide", **{"model.hidden": 9})
    (folder / "file").touch()
    return folder


def test_two_runs_become_one_model(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    done = run_here(monkeypatch, capfd, "combine", "seed0", "seed1", "--output", "both")
    assert done.code == 0, done.said
    one, two, both = (load_run(Path(name)) for name in ("seed0", "seed1", "both"))
    worlds = torch.zeros(2, 1, one.space.groups, dtype=torch.uint8)
    mean = (one.potential.score(worlds) + two.potential.score(worlds)) / 2
    assert torch.allclose(both.potential.score(worlds), mean, atol=1e-5)
    assert not torch.allclose(one.potential.score(worlds), mean, atol=1e-5)
    head = json.loads(Path("both/config.json").read_text())
    assert head["combined"] == ["seed0", "seed1"]
    fitting = ("combine", "seed0", "seed1", "--output", "fitted", "--fit", 5, "--pieces")
    assert run_here(monkeypatch, capfd, *fitting).code == 0
    fitted = load_run(Path("fitted"))
    assert not torch.allclose(fitted.potential.score(worlds), mean, atol=1e-5)
    assert fitted.config.model.pieces
    assert bool((fitted.potential.get_parameter("parts.3.weight") != 0).all())
    drawing = ("--num-samples", 20, "--chains", 10, "--burn-in", 5)
    assert run_here(monkeypatch, capfd, "sample", "both", *drawing).code == 0
    few = ("--chains", 10, "--steps", 20, "--sweeps", 10)
    assert run_here(monkeypatch, capfd, "likelihood", "both", *few).code == 0
    done = run_here(monkeypatch, capfd, "train", "--resume", "both")
    assert done.code == 2
    assert "both: this model was combined" in done.said


@pytest.mark.parametrize(
    ("folders", "output", "said"),
    [
        (("seed0", "seed1", "--pieces"), "new", "--fit 300"),
        (("seed0",), "new", "at least two runs"),
        (("seed0", "other"), "new", "split"),
        (("seed0", "seed1"), "other", "already holds a run"),
        (("seed0", "nowhere"), "new", "there is no run in this folder"),
        (("seed0", "./seed0"), "new", "seed0: this run is named twice"),
        (("seed0", "seed1", "wide"), "new", "wide: the models differ in model.hidden: 8 and 9"),
        (("seed0", "seed1", "--fit", "9"), "file", "file is a file where a directory must be"),
    ],
)
def test_what_cannot_be_combined_is_said(
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    folders: tuple[str, ...],
    output: str,
    said: str,
) -> None:
    monkeypatch.chdir(runs)
    done = run_here(monkeypatch, capfd, "combine", *folders, "--output", output)
    assert done.code == 2
    assert said in done.said
    assert not Path("new").exists()
