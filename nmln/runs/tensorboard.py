"""Watchers of a training run: several as one, and events for TensorBoard."""

import os
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from nmln.extras import load
from nmln.files import open_regular
from nmln.runs.folder import writing
from nmln.runs.train import TrainingJob, Watcher
from nmln.training import Metrics

_FLUSH_SECONDS = 5.0  # the longest delay until events are on disk


@dataclass(frozen=True)
class Several:
    """Several watchers as one."""

    watchers: tuple[Watcher, ...]

    def on_start(self, job: TrainingJob) -> None:
        for watcher in self.watchers:
            watcher.on_start(job)

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        for watcher in self.watchers:
            watcher.on_step(metrics, quality)

    def on_note(self, text: str) -> None:
        for watcher in self.watchers:
            watcher.on_note(text)


class EventFile:
    """A new file of events for TensorBoard, which replaces events of steps after `done`.

    It is written in this thread, so that errors of the disk are raised where a caller can report them.
    """

    _numbers = count()

    def __init__(self, folder: Path, done: int) -> None:
        events = load("tensorboard.compat.proto.event_pb2")
        records = load("tensorboard.summary.writer.record_writer")
        started = events.SessionLog(status=events.SessionLog.START)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(self._numbers)}"
        self._event = events.Event
        self._writer = records.RecordWriter(
            open_regular(folder / f"events.out.tfevents.{name}", "wb")
        )
        self._add(file_version="brain.Event:2")
        self._add(step=done + 1, session_log=started)

    def _add(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        self._writer.write(event.SerializeToString())

    def number(self, name: str, number: float, step: int) -> None:
        from torch.utils.tensorboard.summary import scalar

        self._add(step=step, summary=scalar(name, number))

    def text(self, name: str, text: str) -> None:
        """A text without a step, which is kept when a run returns to an earlier step."""
        from torch.utils.tensorboard.summary import text as summary

        self._add(summary=summary(name, text))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        """Close the file; an error of the disk was reported earlier, or another error ends the run."""
        with suppress(OSError):
            self._writer.close()


class TensorBoard:
    """Writes the metrics of each step as events for TensorBoard, one curve per level.

    Events of steps that are repeated, after resuming or a return, replace the old ones. Events are
    flushed to disk every few seconds, after the last step, at the end of the process and when the
    watcher is deleted: no call is needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_start(self, job: TrainingJob) -> None:
        self.last_step = job.config.training.steps
        self._open(job.trainer.step_number)

    def _open(self, done: int) -> None:
        with writing(self.folder):
            self.file = EventFile(self.folder, done)
        self.close = weakref.finalize(self, self.file.close)  # also at the end of the process
        self.step, self.flushed = done, time.monotonic()

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        if metrics.step <= self.step:  # the run returned to an earlier step
            self.close()
            self._open(metrics.step - 1)
        self.step = metrics.step
        numbers = asdict(metrics)
        del numbers["step"]
        with writing(self.folder):
            for key, found in {**numbers, **quality}.items():
                name = key.replace("_", " ")
                if isinstance(found, int | float):
                    self.file.number(name, found, metrics.step)
                    continue
                for level, number in enumerate(found):
                    self.file.number(f"{name}/level {level}", number, metrics.step)
            if metrics.step >= self.last_step or time.monotonic() - self.flushed > _FLUSH_SECONDS:
                self.file.flush()
                self.flushed = time.monotonic()

    def on_note(self, text: str) -> None:
        with writing(self.folder):
            self.file.text("notes", text)
