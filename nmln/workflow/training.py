"""A run of training in its folder: begun, watched, kept, resumed."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nmln import checkpoint
from nmln.config import Config, configure
from nmln.distributed import Ranks
from nmln.files import InputError, InterruptedRunError, only_one, plain, write_lines
from nmln.model import Model
from nmln.signals import interruption as interruption
from nmln.training import Metrics, Return, Trainer, train
from nmln.training.loop import Guard
from nmln.training.pilot import steps_in
from nmln.workflow import sources
from nmln.workflow.heads import check_new, other_data, read_head, read_source, write_head, writing
from nmln.workflow.restoring import restore
from nmln.workflow.sources import Source

_QUALITY_EVERY = 50  # steps between two looks at the chains' worlds
_HELD_OUT = 500  # worlds kept apart whose likelihood is watched


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on; the command line shows a table, a test collects."""

    def on_start(self, job: "Job") -> None: ...

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None: ...

    def on_note(self, text: str) -> None: ...


class Silent:
    """Looks away."""

    def on_start(self, job: "Job") -> None: ...

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None: ...

    def on_note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Job:
    """A run of training: what it learns from, the model, and the folder it is kept in."""

    folder: Path
    config: Config
    source: Source
    model: Model
    trainer: Trainer
    guard: Guard
    seconds_before: float = 0.0

    @property
    def finished(self) -> bool:
        return self.trainer.step_number >= self.config.training.steps


def begin(folder: Path, config: Config, ranks: Ranks | None = None) -> Job:
    """A new run; refuses a folder that holds one already."""
    ranks = ranks or Ranks()
    check_new(folder)
    blocks = max(
        config.training.blocks, ranks.count
    )  # recorded: later, any number of processes does
    config = replace(config, training=replace(config.training, blocks=blocks))
    config = replace(config, data=sources.located(config.data))
    source = sources.load(config.data)
    worlds = sources.pick(source.worlds, source.train)
    model = Model.build(source.space, worlds, config, source.formulas)
    trainer = Trainer(model.potential, worlds, config, ranks)
    if config.training.minutes is not None:
        steps = steps_in(config.training.minutes, trainer)
        config = replace(config, training=replace(config.training, steps=steps, minutes=None))
        model = replace(model, config=config)
        trainer.config = config
    ranks.wait()
    if ranks.first:
        write_head(folder, model, source)
    return Job(folder, config, source, model, trainer, Guard.of(trainer))


def resume(folder: Path, ranks: Ranks | None = None) -> Job:
    """Go on with a run from its newest good checkpoint."""
    head = read_head(folder)
    if "combined" in head:
        raise InputError(
            "this model was combined from others and is finished. Train one of those on, and combine "
            "them again.",
            str(folder),
        )
    config = configure(head["config"], str(folder / "config.json"))
    source = read_source(folder, head)
    worlds = sources.pick(source.worlds, source.train)
    model = Model.build(source.space, worlds, config, source.formulas)
    if str(model.describe()["program"]) != head["program"]:
        raise other_data(folder, source, config.data.source)
    trainer = Trainer(model.potential, worlds, config, ranks)
    guard, seconds = Guard.of(trainer), 0.0
    if checkpoint.saved_steps(folder):  # else it was killed before the first was written
        seconds = restore(checkpoint.load(folder), trainer, guard)
    return Job(folder, config, source, model, trainer, guard, seconds)


def run(job: Job, watcher: Watcher | None = None) -> Model:
    """Train to the end, or until somebody asks to stop; what was reached is kept either way."""
    if not job.trainer.ranks.first:
        return _run(job, Silent())
    with only_one(job.folder / "config.json", "training"):
        return _run(job, watcher or Silent())


def _run(job: Job, watcher: Watcher) -> Model:
    trainer, training = job.trainer, job.config.training
    first = trainer.ranks.first
    quality = sources.Quality.of(job.source.kind, job.source.space, job.source.names)
    held_out = sources.pick(job.source.worlds, job.source.test[:_HELD_OUT])
    start = saved = time.perf_counter()
    if first:
        watcher.on_start(job)
        _cut_metrics(job.folder, trainer.step_number)
    with interruption(trainer.ranks.count == 1) as interrupted, _log(job.folder, first) as log:
        for event in train(trainer, guard=job.guard):
            if isinstance(event, Return):
                save(job, job.seconds_before + time.perf_counter() - start)
                if first:
                    # What came after is the run that went wrong: nobody may go on from it.
                    checkpoint.discard_after(job.folder, trainer.step_number)
                    watcher.on_note(str(event))
                    _cut_metrics(job.folder, trainer.step_number)
                continue
            now = time.perf_counter()
            told = {}
            if event.step % _QUALITY_EVERY == 0 or event.step == training.steps:
                told = quality.measure(trainer.blocks[0].chains.values[-1])
                if len(held_out) and job.config.chains.weighted:  # else log Z lags with the chains
                    told["held_out"] = float(trainer.log_likelihood(held_out)[-1])
            seconds = job.seconds_before + now - start
            log({**asdict(event), **told, "seconds": round(seconds, 3)})
            if first:
                watcher.on_step(event, told)
            stop = trainer.ranks.agree(interrupted())
            due = trainer.ranks.agree(now - saved >= training.checkpoint_seconds)
            if stop or due or event.step == training.steps:
                save(job, seconds)
                saved = time.perf_counter()
            if stop:
                raise InterruptedRunError(
                    f"stopped after step {event.step}, and kept. Go on with: nmln train --resume "
                    f"{job.folder}"
                )
    model = job.model.averaged(trainer)
    if first:
        model.save(job.folder / "model")
    return model


def save(job: Job, seconds: float) -> None:
    """Keep the whole run as a checkpoint; every rank hands in its chains, the first one writes."""
    tree = {**job.trainer.tree(), "guard": job.guard.tree()}
    if job.trainer.ranks.first:
        tensors, content = checkpoint.flatten(tree)
        whole = {"tree": content, "seconds": seconds, **job.model.describe()}
        step = job.trainer.step_number
        checkpoint.save(job.folder, step, tensors, whole, keep=job.config.training.keep)
    job.trainer.ranks.wait()


def _cut_metrics(folder: Path, step: int) -> None:
    """Drop the lines of steps that come after the state that a run goes on from."""
    path = folder / "metrics.jsonl"
    if path.is_symlink():
        raise InputError(
            "links within a run folder are not followed. Link the run folder as a whole.", str(path)
        )
    for left in folder.glob(f".{path.name}.*"):  # of a run that was killed just here
        left.unlink(missing_ok=True)
    if not path.exists():
        return
    kept = []
    with writing(path):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                if json.loads(line)["step"] > step:
                    break
            except (ValueError, KeyError, TypeError):
                break  # the last line of a run that was killed while it wrote
            kept.append(line)
        write_lines(path, kept)


@contextmanager
def _log(folder: Path, first: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Append one JSON line a step."""
    if not first:
        yield lambda line: None
        return
    path = folder / "metrics.jsonl"

    def write(line: dict[str, Any]) -> None:
        # Opened anew for each line: a return to an earlier step may have replaced the file.
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(plain(line)) + "\n")

    yield write
