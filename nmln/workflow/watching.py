"""Watchers of a run of training."""

import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from nmln.training import Metrics
from nmln.workflow.training import Job, Watcher

_FLUSH_SECONDS = 5.0  # a reader of the events is at most so far behind


@dataclass(frozen=True)
class Several:
    """Several watchers as one."""

    watchers: tuple[Watcher, ...]

    def on_start(self, job: Job) -> None:
        for watcher in self.watchers:
            watcher.on_start(job)

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        for watcher in self.watchers:
            watcher.on_step(metrics, quality)

    def on_note(self, text: str) -> None:
        for watcher in self.watchers:
            watcher.on_note(text)


class TensorBoard:
    """Writes what a step tells as events for TensorBoard, one curve for each level.

    Events of steps that are taken again, after resuming or going back, replace the old ones. All that
    was told is on disk after the last step, after a few seconds, and when the process ends or nobody
    holds the watcher any more: no call is needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_start(self, job: Job) -> None:
        self.last_step = job.config.training.steps
        self._open(job.trainer.step_number)

    def _open(self, done: int) -> None:
        """A new file of events, after which those of steps beyond `done` in older files are void."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder), purge_step=done + 1)
        self.close = weakref.finalize(self, self.writer.close)  # at the exit of the process too
        self.step, self.flushed = done, time.monotonic()

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        if metrics.step <= self.step:  # the run went back
            self.close()
            self._open(metrics.step - 1)
        self.step = metrics.step
        told = asdict(metrics)
        del told["step"]
        for key, found in {**told, **quality}.items():
            name = key.replace("_", " ")
            if isinstance(found, int | float):
                self.writer.add_scalar(name, found, metrics.step)
                continue
            for level, number in enumerate(found):
                self.writer.add_scalar(f"{name}/level {level}", number, metrics.step)
        if metrics.step >= self.last_step or time.monotonic() - self.flushed > _FLUSH_SECONDS:
            self.writer.flush()
            self.flushed = time.monotonic()

    def on_note(self, text: str) -> None:
        # Without a step: a return to an earlier one would wipe out the note that tells of it.
        self.writer.add_text("notes", text)
