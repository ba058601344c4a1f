"""Events for TensorBoard, read back with its own reader."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nmln.errors import InputError
from nmln.runs import tensorboard as watching
from nmln.runs import train as training
from nmln.runs.tensorboard import Several, TensorBoard
from nmln.runs.train import TrainingJob, begin
from nmln.training import Metrics
from tests.runs.test_pages import settings


def job(folder: Path, steps: int = 8) -> TrainingJob:
    config = settings(folder, training__steps=steps, training__checkpoint_seconds=0)
    return begin(folder / "run", config)


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def scalars(folder: Path, name: str) -> dict[int, float]:
    """By step; a step that stands there twice is an error."""
    told = events(folder).Scalars(name)
    assert len({one.step for one in told}) == len(told)
    return {one.step: one.value for one in told}


def metrics(step: int, gap: float) -> Metrics:
    return Metrics(step, 0.1, (gap, gap), (1.0, 1.0), (2.0, 2.0), (0.5, 0.5), (0.4, 0.4), (0.3,), 7)


class Collector:
    def __init__(self, stop_at: int = 0) -> None:
        self.notes: list[str] = []
        self.steps: list[int] = []
        self.stop_at = stop_at

    def on_start(self, job: TrainingJob) -> None: ...

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        self.steps.append(metrics.step)
        if metrics.step == self.stop_at:
            raise RuntimeError("as if killed")

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def test_the_events_are_what_the_lines_tell(tmp_path: Path) -> None:
    this = job(tmp_path)
    watcher = TensorBoard(tmp_path / "events")
    training.run(this, watcher)
    told = [json.loads(one) for one in (this.folder / "metrics.jsonl").read_text().splitlines()]
    assert watcher.close.alive, "nobody closed it, and all is on disk"
    for name in ("gap", "gradient", "acceptance", "moved", "swaps", "score"):
        for level in range(len(told[0][name])):
            found = scalars(tmp_path / "events", f"{name}/level {level}")
            assert found == pytest.approx({one["step"]: one[name][level] for one in told}, rel=1e-5)
    found = scalars(tmp_path / "events", "learning rate")
    assert found == pytest.approx({one["step"]: one["learning_rate"] for one in told}, rel=1e-5)


def test_a_resumed_run_replaces_the_events_of_steps_that_it_takes_again(tmp_path: Path) -> None:
    this, folder = job(tmp_path), tmp_path / "events"
    with pytest.raises(RuntimeError, match="as if killed"):
        training.run(this, Several((TensorBoard(folder), Collector(stop_at=5))))
    resumed = training.resume(this.folder)
    assert resumed.trainer.step_number == 4, "step 5 was told, but not kept"
    training.run(resumed, TensorBoard(folder))
    assert list(scalars(folder, "gap/level 0")) == list(range(1, 9))
    assert len(list(folder.iterdir())) == 2


def test_a_run_that_goes_back_replaces_events_but_keeps_the_note(tmp_path: Path) -> None:
    watcher = TensorBoard(tmp_path / "events")
    watcher.on_start(job(tmp_path))
    for step in (1, 2, 3):
        watcher.on_step(metrics(step, 1.0), {"valid": 0.5})
    watcher.on_note("step 4: frozen; back to step 1")
    for step in (2, 3, 4):
        watcher.on_step(metrics(step, 2.0), {})
    watcher.close()
    assert scalars(tmp_path / "events", "gap/level 1") == {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert scalars(tmp_path / "events", "valid") == {1: 0.5}
    (note,) = events(tmp_path / "events").Tensors("notes/text_summary")
    assert b"back to step 1" in note.tensor_proto.string_val[0]


def test_events_reach_the_disk_while_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_FLUSH_SECONDS", 0.0)
    watcher = TensorBoard(tmp_path / "events")
    watcher.on_start(job(tmp_path, steps=1000))
    watcher.on_step(metrics(1, 1.0), {})
    assert scalars(tmp_path / "events", "gap/level 0") == {1: 1.0}


def test_events_are_kept_when_the_watcher_is_released(tmp_path: Path) -> None:
    watcher = TensorBoard(tmp_path / "events")
    watcher.on_start(job(tmp_path, steps=1000))
    for step in range(1, 50):
        watcher.on_step(metrics(step, 1.0), {})
    close = watcher.close
    del watcher
    assert not close.alive
    assert len(scalars(tmp_path / "events", "swaps/level 0")) == 49


def test_several_watchers_receive_the_same(tmp_path: Path) -> None:
    one, other = Collector(), Collector()
    both = Several((one, other))
    both.on_start(job(tmp_path))
    both.on_step(metrics(3, 0.0), {})
    both.on_note("hello")
    assert one.steps == other.steps == [3]
    assert one.notes == other.notes == ["hello"]


def test_events_that_cannot_be_written_end_the_run_in_one_line_and_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    this = job(tmp_path)
    folder = this.folder / "tensorboard"
    flush = watching.EventFile.flush

    def full(self: watching.EventFile) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(watching, "_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(watching.EventFile, "flush", full)
    with pytest.raises(InputError, match=r"tensorboard: the disk is full\."):
        training.run(this, TensorBoard(folder))
    monkeypatch.setattr(watching.EventFile, "flush", flush)
    training.run(training.resume(this.folder), TensorBoard(folder))
    assert list(scalars(folder, "gap/level 0")) == list(range(1, 9))
    assert "Traceback" not in capfd.readouterr().err


def test_the_writer_of_events_starts_no_thread(tmp_path: Path) -> None:
    """An error in a thread would end in a traceback that no command can turn into a line."""
    before = threading.active_count()
    watcher = TensorBoard(tmp_path / "events")
    watcher.on_start(job(tmp_path))
    watcher.on_step(metrics(1, 1.0), {})
    assert threading.active_count() == before
