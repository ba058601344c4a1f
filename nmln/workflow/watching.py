"""Watchers of a run of training."""

from dataclasses import dataclass
from pathlib import Path

from nmln.training import Metrics
from nmln.workflow.training import Job, Watcher


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
    """Writes what a step tells as events for TensorBoard, one curve for each level."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_start(self, job: Job) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder), purge_step=job.trainer.step_number + 1)

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        curves = {
            "gap": metrics.gap,
            "gradient": metrics.gradient,
            "acceptance": metrics.acceptance,
            "moved": metrics.moved,
            "swaps": metrics.swaps,
        }
        for name, numbers in curves.items():
            for level, number in enumerate(numbers):
                self.writer.add_scalar(f"{name}/level {level}", number, metrics.step)
        self.writer.add_scalar("learning rate", metrics.learning_rate, metrics.step)
        for name, number in quality.items():
            self.writer.add_scalar(name, number, metrics.step)

    def on_note(self, text: str) -> None:
        self.writer.add_text("notes", text)
