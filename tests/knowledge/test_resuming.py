"""Runs that were stopped, killed or damaged, and go on as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from typer.testing import CliRunner, Result

from nmln import checkpoint
from nmln.cli.kb import KnowledgeDisplay, kb
from nmln.errors import InputError, InterruptedRunError
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.knowledge.settings import KnowledgeSettings
from nmln.knowledge.storing import load_training, save_training
from nmln.knowledge.training import Progress, Training
from nmln.runs import knowledge
from tests.knowledge.families import rows_of, write_family

SHAPE = Shape(hidden=8, embedding=2, rank=4)
CONDITIONAL = KnowledgeSettings(epochs=4, batch=8, rate=0.02, check_every=2, seed=5)
WAYS = {
    "conditional": CONDITIONAL,
    "drawn wrong answers": replace(CONDITIONAL, negatives=3, average=0, epochs=2, check_every=1),
    "likelihood": replace(CONDITIONAL, objective="likelihood", chains=2, epochs=2, check_every=1),
}
OPTIONS = ("--hidden", "8", "--embedding", "2", "--rank", "4", "--batch", "8", "--rate", "0.02")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    return KnowledgeBase.read(write_family(tmp_path_factory.mktemp("kb"), people=6))


def new_training(base: KnowledgeBase, settings: KnowledgeSettings) -> Training:
    potential = KnowledgePotential(base.space, SHAPE, rng=Generator().manual_seed(settings.seed))
    return Training(potential, base, settings)


def advance(training: Training, steps: int | None = None) -> Training:
    for _ in islice(training.steps(), steps):
        pass
    return training


def outcome(training: Training) -> tuple[list[Tensor], list[Any]]:
    """All that must not depend on whether a run was interrupted."""
    result = training.result()
    history = [step._replace(seconds=0) for step in result.history]
    tensors = [parameter.detach() for parameter in training.potential.parameters()]
    return tensors, [result.epoch, result.epochs, result.interrupted, result.valid, history]


def same(one: tuple[list[Tensor], list[Any]], other: tuple[list[Tensor], list[Any]]) -> bool:
    return one[1] == other[1] and all(map(torch.equal, one[0], other[0]))


@pytest.mark.parametrize("way", WAYS)
def test_a_training_kept_after_any_step_ends_as_the_undisturbed_one(
    base: KnowledgeBase, tmp_path: Path, way: str
) -> None:
    undisturbed = advance(new_training(base, WAYS[way]))
    steps, each = undisturbed.steps_taken, undisturbed.objective.steps
    expected = outcome(undisturbed)
    moving = new_training(base, WAYS[way])
    for kept in (0, each - 1, each, each + 3, steps):  # also amid an epoch
        save_training(advance(moving, kept - moving.steps_taken), tmp_path)
        resumed = load_training(tmp_path)
        assert resumed.steps_taken == kept
        assert resumed.settings == WAYS[way]
        assert same(outcome(advance(resumed)), expected), f"kept after step {kept} of {steps}"


@pytest.mark.parametrize("part", ["potential", "optimiser", "best", "objective", "rng", "losses"])
@pytest.mark.parametrize("way", ["conditional", "likelihood"])
def test_the_comparison_notices_any_part_that_is_not_brought_back(
    base: KnowledgeBase, way: str, part: str
) -> None:
    settings = WAYS[way]
    fresh = new_training(base, settings)
    stopped = advance(new_training(base, settings), fresh.objective.steps + 3)
    forgetful = {**stopped.tree(), part: fresh.tree()[part]}
    fresh.restore(forgetful)
    assert not same(outcome(advance(fresh)), outcome(advance(stopped)))


def test_waiting_for_something_better_continues_where_it_was(
    base: KnowledgeBase, tmp_path: Path
) -> None:
    settings = replace(CONDITIONAL, epochs=200, check_every=1, patience=4)
    undisturbed = advance(new_training(base, settings))
    epochs = len(undisturbed.history)
    assert epochs < 200
    stopped = advance(new_training(base, settings), undisturbed.steps_taken - 3)
    assert stopped.best.epoch == epochs - 4, "it is waiting"
    save_training(stopped, tmp_path)
    assert same(outcome(advance(load_training(tmp_path))), outcome(undisturbed))


def test_minutes_that_were_spent_count(base: KnowledgeBase, tmp_path: Path) -> None:
    settings = replace(CONDITIONAL, epochs=1000, minutes=5)
    stopped = advance(new_training(base, settings), 3)
    for seconds, epochs in ((60.0, 2), (301.0, 1)):
        stopped.seconds = seconds
        save_training(stopped, tmp_path)
        resumed = load_training(tmp_path)
        for _ in islice(resumed.steps(), 2 * resumed.objective.steps - 3):
            pass
        assert (len(resumed.history), resumed.ended) == (epochs, epochs == 1)
        assert seconds < resumed.history[-1].seconds < seconds + 60


# At the command line.


def nmln_kb(*arguments: str) -> Result:
    return CliRunner().invoke(kb, list(arguments), catch_exceptions=False)


def train(source: Path, run: Path, *more: str) -> Result:
    return nmln_kb("train", str(source), "--output", str(run), *OPTIONS, *more)


def resume(run: Path, *more: str) -> Result:
    return nmln_kb("train", "--resume", str(run), *more)


def stop_after(monkeypatch: pytest.MonkeyPatch, epoch: int, number: signal.Signals) -> None:
    """Let a signal come while the display shows an epoch, once."""
    shown = KnowledgeDisplay.__call__

    def show(self: KnowledgeDisplay, step: Progress) -> None:
        shown(self, step)
        if step.epoch == epoch:
            monkeypatch.setattr(KnowledgeDisplay, "__call__", shown)
            signal.raise_signal(number)

    monkeypatch.setattr(KnowledgeDisplay, "__call__", show)


def equal_runs(one: Path, other: Path) -> bool:
    models = [(run / "model" / "tensors.safetensors").read_bytes() for run in (one, other)]
    told = [json.loads((run / "training.json").read_text()) for run in (one, other)]
    rows = [rows_of(run / "history.csv") for run in (one, other)]
    for row in (*told, *rows[0], *rows[1]):
        del row["seconds"]
    return models[0] == models[1] and told[0] == told[1] and rows[0] == rows[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run in `run`, of the triples in `camps`."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_family(folder / "camps", people=6)
    assert train(folder / "camps", folder / "run", "--epochs", "12").exit_code == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_asked_to_stop_has_a_model_and_can_continue(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    stop_after(monkeypatch, 6, number)
    with pytest.raises(InterruptedRunError, match=rf"after 6 epochs.*kb train --resume {run}"):
        train(undisturbed / "camps", run, "--epochs", "12")
    assert json.loads((run / "training.json").read_text())["interrupted"]
    assert knowledge.load(run).settings["epochs"] == 12
    assert nmln_kb("rank", str(run)).exit_code == 0
    with pytest.raises(InputError, match=rf"unfinished.*--resume {run}"):
        train(undisturbed / "camps", run)

    done = resume(run)
    assert done.exit_code == 0, done.output
    assert "after epoch 6" in done.output
    assert equal_runs(run, undisturbed / "run")
    assert not (run / "checkpoints").exists()
    again = resume(run)
    assert again.exit_code == 0
    assert again.output.startswith("This run is finished.")
    with pytest.raises(InputError, match="this run is finished"):
        knowledge.resume(run)


def test_a_killed_run_ends_where_the_undisturbed_one_does(
    undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = ["--output", str(run), "--epochs", "12", "--checkpoint-seconds", "0", *OPTIONS]
    code = "from nmln.cli import main; main()"
    command = [sys.executable, "-c", code, "kb", "train", str(undisturbed / "camps"), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while max(checkpoint.saved_steps(run), default=0) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
            assert process.poll() is None, "it must not end before the blow"
        process.kill()
    assert not (run / "model").exists()
    with pytest.raises(InputError, match=rf"has no model yet.*--resume {run}"):
        nmln_kb("rank", str(run))
    assert resume(run, "--checkpoint-seconds", "5").exit_code == 0
    assert equal_runs(run, undisturbed / "run")


def stopped_run(source: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 12 epochs, stopped after the third; of its two checkpoints the last is returned."""
    stop_after(monkeypatch, 3, signal.SIGTERM)
    with pytest.raises(InterruptedRunError):
        train(source, run, "--epochs", "12")
    first, last = sorted((run / "checkpoints").iterdir())
    assert first.name == "step-000000000"
    return last


def test_a_damaged_checkpoint_is_passed_over_and_no_sound_one_is_reported_in_one_line(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    last = stopped_run(undisturbed / "camps", run, monkeypatch)
    for directory in (last, last.with_name("step-000000000")):
        with open(directory / "tensors.safetensors", "r+b") as file:
            file.seek(-5, os.SEEK_END)
            file.write(b"\xff")
        if directory == last:
            with pytest.warns(checkpoint.CheckpointWarning, match="going back to .* step 0"):
                earlier = knowledge.resume(run)
            assert earlier.training.steps_taken == 0
    with pytest.raises(InputError, match=r"no checkpoint can be used.*has changed") as caught:
        resume(run)
    assert "\n" not in str(caught.value)


def test_what_was_written_by_something_else_is_reported_in_one_line(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    stopped_run(undisturbed / "camps", run, monkeypatch)
    found = checkpoint.load(run)
    tree = checkpoint.unflatten(found.tensors, found.content)
    training = tree["training"]
    changes: dict[str, tuple[Any, str]] = {
        "settings": ({**tree["settings"], "colour": "red"}, "colour"),
        "shape": ({**tree["shape"], "rank": 5}, "size mismatch"),
        "triples": ({}, "'train' is missing"),
        "training": ({**training, "rng": training["rng"][:7]}, "RNG|state"),
        "training/optimiser": ({**training, "optimiser": {0: {}}}, "optimiser state"),
        "training/objective": (
            {**training, "objective": {"rows": [torch.arange(3)] * 2, "order": torch.arange(2)}},
            "order must be",
        ),
        "training/history": ({**training, "history": []}, "step must be .* got 0"),
    }
    for name, (change, reason) in changes.items():
        broken = {**tree, name.split("/")[0]: change}
        tensors, content = checkpoint.flatten(broken)
        checkpoint.save(run, found.step, tensors, {**found.content, **content})
        with pytest.raises(InputError, match=f"inconsistent.*({reason})") as caught:
            resume(run)
        assert "\n" not in str(caught.value), name
    checkpoint.save(run, found.step, found.tensors, {"tree": {}})
    with pytest.raises(InputError, match="checkpoints must be those of nmln kb train"):
        resume(run)


def test_mistakes_in_resuming_are_reported_in_one_line(undisturbed: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("--resume", str(tmp_path)), "there is no checkpoint of nmln kb train in this folder"),
        (("--resume", str(tmp_path / "nowhere")), "there is no checkpoint of nmln kb train"),
        (("--resume", "run", "--seed", "0"), "--resume continues a run"),
        (("--resume", "run", "--hidden", "0"), "--resume continues a run"),
        (("nations", "--resume", "run"), "--resume continues a run"),
        (("--resume", "run", "--output", "other"), "--resume continues a run"),
        ((), "there is nothing to train on"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            nmln_kb("train", *arguments)
        assert "\n" not in str(caught.value)


def test_a_run_that_diverges_leaves_its_folder_free(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, run = undisturbed / "camps", tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("nmln.knowledge.settings._FASTEST", 1e31)
        with pytest.raises(InputError, match="NaN after epoch 1"):
            train(source, run, "--epochs", "2", "--rate", "1e30")
    assert train(source, run, "--epochs", "1").exit_code == 0


def test_a_folder_whose_model_was_removed_can_hold_a_new_run(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the old run says that it is finished; the new one is not."""
    source, run = undisturbed / "camps", tmp_path / "run"
    train(source, run, "--epochs", "1")
    for file in (run / "model").iterdir():
        file.unlink()
    (run / "model").rmdir()
    stopped_run(source, run, monkeypatch)
    assert resume(run).exit_code == 0
    assert equal_runs(run, undisturbed / "run")
