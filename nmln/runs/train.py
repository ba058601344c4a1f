"""A training run in its folder: started, watched, saved, resumed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nmln import checkpoint
from nmln.config import Config, DataConfig
from nmln.devices import chosen, device_of
from nmln.distributed import Ranks
from nmln.errors import InputError, InterruptedRunError, placed
from nmln.model import Model
from nmln.model.replicas import Replicas
from nmln.model.start import start_from
from nmln.runs import data as sources
from nmln.runs.data import Source
from nmln.runs.folder import RunFolder, moved, split_hash
from nmln.runs.metrics import MetricsLog
from nmln.runs.quality import ChainQuality
from nmln.runs.start import Start, read_again
from nmln.signals import GivenUpError
from nmln.signals import interruption as interruption
from nmln.training import Metrics, Return, Trainer, train
from nmln.training.loop import Guard
from nmln.training.mixing import mixing_sweeps
from nmln.training.pilot import planned
from nmln.training.rates import predicted_of, with_rates
from nmln.training.restore import restore

_QUALITY_EVERY = 50  # steps between two measurements of the chains' worlds
_TELL_EVERY = 20.0  # seconds between two messages about the mixing
_PATIENCE = 5.0  # seconds in which a step may end after a signal, so that it can be saved


@runtime_checkable
class Watcher(Protocol):
    """Receives the events of a run, for example to show or to record them."""

    def on_start(self, job: "TrainingJob") -> None: ...

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None: ...

    def on_note(self, text: str) -> None: ...


class Silent:
    """A watcher that ignores every event."""

    def on_start(self, job: "TrainingJob") -> None: ...

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None: ...

    def on_note(self, text: str) -> None: ...


@dataclass(frozen=True)
class TrainingJob:
    """A training run: its data, its model and its folder."""

    folder: Path
    config: Config
    source: Source
    model: Model
    trainer: Trainer
    guard: Guard
    seconds_before: float = 0.0
    seen: tuple[int, ...] = ()  # steps of the checkpoints that were there when it was opened
    start: Start | None = None  # whose weights it starts with, if it is new

    @property
    def home(self) -> RunFolder:
        return RunFolder(self.folder)

    @property
    def finished(self) -> bool:
        return self.trainer.step_number >= self.config.training.steps


def begin(
    folder: Path,
    config: Config,
    ranks: Ranks | None = None,
    source: Source | None = None,
    start: Start | None = None,
) -> TrainingJob:
    """A new run; refuses a folder that holds one already, or files that are not a run's.

    `source` is what `config.data` names, if the caller has parsed it already; `start` is the run whose
    weights it starts with.
    """
    ranks = ranks or Ranks()
    home = RunFolder(folder)
    home.check_new()
    _refuse_unused(config.data)
    # Recorded: later, any number of processes continues with the same blocks.
    blocks = max(config.training.blocks, ranks.count)
    config = replace(config, training=replace(config.training, blocks=blocks))
    config = replace(config, data=sources.located(config.data))
    device = chosen(config.training.device)
    if device != "cpu":  # recorded: a run continues on its device
        config = replace(config, training=replace(config.training, device=device))
    source = source or sources.load(config.data)
    config = with_rates(config, source.learned)
    model = _model(source, config, start).to(device_of(device))
    trainer = Trainer(model.potential, source.learned, config, ranks)
    if config.training.minutes is not None:
        config = planned(config.training.minutes, trainer)
        model = replace(model, config=config)
        trainer.configure(config)
    ranks.wait()
    if ranks.first:
        with home.locked():
            home.check_new(source)  # again: another process may have written here in the meantime
            more: dict[str, Any] = {} if start is None else {"from": start.record}
            if trainer.method.marginal:
                more["predicted_swaps"] = predicted_of(trainer)
            home.write_head(model, source, **more)
    return TrainingJob(folder, config, source, model, trainer, Guard.of(trainer), start=start)


def _model(source: Source, config: Config, start: Start | None) -> Model:
    """The model that training starts with."""
    model = Model.build(source.learned, config=config, formulas=source.formulas)
    if start is not None:
        with placed(start.run):
            start_from(start.model, model.potential, config, model.formulas)
    return model


def _refuse_unused(data: DataConfig) -> None:
    """Refuse settings of `.db` worlds for data of another kind."""
    given = {
        "a language (--language)": data.language is not None,
        "--domains": data.domains == "each",
    }
    for name, used in given.items():
        if used and not sources.format_of(data.source).declarable:
            raise InputError(
                f"{name} is used only with .db files, and this is another kind of data. Leave it out.",
                data.source,
                kind="unsupported",
            )


def resume(
    folder: Path,
    ranks: Ranks | None = None,
    data: str | None = None,
    language: str | None = None,
    device: str | None = None,
) -> TrainingJob:
    """Continue a run from its newest intact checkpoint.

    `data` and `language` are the new locations of its data, if they have moved. It continues on the
    device that it records, the CPU if it records none, or on another `device`.
    """
    home = RunFolder(folder)
    head = home.read_head()
    if head.combined:
        raise InputError(
            "this model was combined from other runs and cannot be trained. Continue those runs, and "
            "combine them again.",
            str(folder),
            kind="unsupported",
        )
    if ranks is None or ranks.first:
        with home.locked():  # refused before the data are read
            home.check_model()
    config = moved(head.config, data, language)
    source = home.read_source(head, config.data)
    seen = tuple(checkpoint.saved_steps(folder))
    # Without a checkpoint it was killed before the first was written, and starts again.
    start = None if seen or head.start is None else read_again(head.start, folder)
    model = _model(source, config, start).to(device_of(device or recorded_device(config)))
    if str(model.describe()["program"]) != head.program:
        raise home.other_data(source, config.data.source)
    trainer = Trainer(model.potential, source.learned, config, ranks)
    guard, seconds = Guard.of(trainer), 0.0
    if seen:
        kept = checkpoint.load(folder)
        if kept.content.get("split", split_hash(source)) != split_hash(source):
            raise InputError(
                "this checkpoint was made with another split of the data than the one in split.json. "
                "Restore the folder from a copy.",
                str(kept.path),
                kind="damaged",
            )
        seconds = restore(kept, trainer, guard)
    return TrainingJob(folder, config, source, model, trainer, guard, seconds, seen, start)


def recorded_device(config: Config) -> str:
    """The device that a run was started on; no name stands for the CPU."""
    return "cpu" if config.training.device == "auto" else config.training.device


def run(job: TrainingJob, watcher: Watcher | None = None) -> Model:
    """Train to the end, or until a signal arrives; the progress is saved in both cases."""
    if not job.trainer.ranks.first:
        return _run(job, Silent())
    with job.home.locked():
        _check_unchanged(job)
        return _run(job, watcher or Silent())


def _check_unchanged(job: TrainingJob) -> None:
    """Check, under the lock, that the run has not changed since it was opened, and can be finished."""
    head = job.home.read_head()
    job.home.check_model()
    if tuple(checkpoint.saved_steps(job.folder)) != job.seen:
        raise InputError(
            "another process has trained in this folder in the meantime. Continue with: "
            f"{job.home.resume_command}",
            str(job.folder),
            kind="busy",
        )
    if head.config.data != job.config.data:
        job.home.record_data(job.config.data)


def _run(job: TrainingJob, watcher: Watcher) -> Model:
    trainer, training = job.trainer, job.config.training
    first, log = trainer.ranks.first, MetricsLog(job.folder)
    quality = ChainQuality(job.source, trainer)
    start = saved = time.perf_counter()
    if first:
        watcher.on_start(job)
        for note in job.source.notes if trainer.step_number == 0 else ():
            watcher.on_note(note)
        if trainer.reseeded:
            watcher.on_note(
                "continued on another kind of device, whose random numbers are others: the result is "
                "not that of a run on one device."
            )
        if gap := log.cut(trainer.step_number):
            watcher.on_note(gap)
    with interruption(trainer.ranks.count == 1, _PATIENCE) as interrupted:
        for event in _obeying(job, train(trainer, guard=job.guard)):
            if isinstance(event, Return):
                save(job, job.seconds_before + time.perf_counter() - start)
                if first:
                    # Later checkpoints belong to the diverged run and must not be resumed.
                    checkpoint.discard_after(job.folder, trainer.step_number)
                    watcher.on_note(str(event))
                    log.cut(trainer.step_number)
                continue
            now = time.perf_counter()
            measured, by_size = {}, {}
            if event.step % _QUALITY_EVERY == 0 or event.step == training.steps:
                measured, by_size = quality.measure()
            seconds = job.seconds_before + now - start
            if first:
                line = {**asdict(event), **measured, **by_size, "seconds": round(seconds, 3)}
                log.append(line)
                watcher.on_step(event, measured)
            stop = trainer.ranks.agree(interrupted())
            due = trainer.ranks.agree(now - saved >= training.checkpoint_seconds)
            if stop or due or event.step == training.steps:
                save(job, seconds)
                saved = time.perf_counter()
            if stop:
                raise InterruptedRunError(
                    f"stopped after step {event.step}. The progress is kept.",
                    job.home.resume_command,
                )
        model = replace(job.model.averaged(trainer), replicas=_mixed(job, watcher, interrupted))
    if first:
        model.save(job.home.model)
    return model


def _mixed(job: TrainingJob, watcher: Watcher, interrupted: Callable[[], bool]) -> Replicas | None:
    """The chains under the final parameters, to be kept in the model so that sampling starts from them.

    An interruption loses nothing: the last step is saved, and the same sweeps are made when the run is
    continued.
    """
    sweeps, ranks = mixing_sweeps(job.trainer), job.trainer.ranks
    if not sweeps:
        return None
    start = told = time.perf_counter()
    if ranks.first:
        watcher.on_note(f"mixing the chains under the final weights: {sweeps} sweeps")

    def report(done: int, total: int) -> None:
        nonlocal told
        now = time.perf_counter()
        if ranks.first and now - told >= _TELL_EVERY and done < total:
            told, left = now, round((now - start) * (total - done) / done)
            watcher.on_note(f"mixing: sweep {done} of {total}, {left // 60}:{left % 60:02d} left")
        if ranks.agree(interrupted()):
            raise InterruptedRunError(
                f"stopped while the chains are mixed. All {job.trainer.step_number} steps are kept.",
                job.home.resume_command,
            )

    try:
        found = Replicas.mixed(job.trainer, report)
    except GivenUpError:
        raise InterruptedRunError(
            "stopped while the chains are mixed. All steps are kept.", job.home.resume_command
        ) from None
    if ranks.first:
        seconds = time.perf_counter() - start
        watcher.on_note(
            "no chains are kept in the model: a score is not a number"
            if found is None
            else f"after {sweeps} sweeps in {seconds:.0f} s, {found.count:,} chains are kept in the "
            "model: nmln sample starts from them"
        )
    return found


def _obeying(job: TrainingJob, events: Iterator[Metrics | Return]) -> Iterator[Metrics | Return]:
    """The same events, until a step takes too long after a signal and is abandoned.

    A step changes parameters, chains and random numbers, so an unfinished one cannot be saved.
    """
    try:
        yield from events
    except GivenUpError:
        steps = checkpoint.saved_steps(job.folder)
        kept = f"step {max(steps)} is kept" if steps else "nothing was kept yet"
        raise InterruptedRunError(
            f"stopped within a long step; {kept}.", job.home.resume_command
        ) from None


def save(job: TrainingJob, seconds: float) -> None:
    """Save a checkpoint of the run; every rank contributes its chains, the first one writes."""
    tree = {**job.trainer.tree(), "guard": job.guard.tree()}
    if job.trainer.ranks.first:
        tensors, content = checkpoint.flatten(tree)
        whole = {"tree": content, "seconds": seconds, **job.model.describe()}
        whole["split"] = split_hash(job.source)
        step = job.trainer.step_number
        MetricsLog(job.folder).synchronise()  # so that no line is missing after a power cut
        checkpoint.save(job.folder, step, tensors, whole, keep=job.config.training.keep)
    job.trainer.ranks.wait()
