"""A baseline in its folder: trained, resumed, opened, and its likelihood measured."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from nmln import checkpoint
from nmln.baselines.base import BASELINES, Budget, Generator, load, seeded, settings_from
from nmln.baselines.training import BaselineTraining
from nmln.config import DataConfig, fill
from nmln.errors import InputError, InterruptedRunError
from nmln.files import write_json
from nmln.runs import data as sources
from nmln.runs.baseline_folder import (
    BaselineHead,
    finished,
    model_fingerprint,
    new_head,
    read_head,
    write_head,
)
from nmln.runs.data import Source
from nmln.runs.folder import RunFolder, moved, split_hash
from nmln.runs.metrics import MetricsLog
from nmln.signals import interruption

SAVE_EVERY = 60.0  # seconds between two checkpoints
_KEEP = 2  # checkpoints
_SCORED = 100  # molecules whose likelihood is measured together, with one random stream

Watch = Callable[[int, int, float], None]
"""Called with the updates done, those of all, and the loss."""


@dataclass(frozen=True)
class BaselineJob:
    """The training of a baseline in its folder."""

    folder: Path
    head: BaselineHead
    source: Source
    training: BaselineTraining

    @property
    def home(self) -> RunFolder:
        return RunFolder(self.folder)


def begin(
    folder: Path,
    name: str,
    data: DataConfig,
    budget: Budget | None = None,
    seed: int = 0,
    changes: dict[str, Any] | None = None,
) -> BaselineJob:
    """Start a training; refuses a folder that holds a run already, or files that are not a run's.

    Args:
        folder: the folder of the run.
        name: the name of the baseline.
        data: the molecules.
        budget: how long to train; by default as the settings of the baseline say.
        seed: the seed of all random numbers.
        changes: settings of the baseline that differ from those that belong to its name.
    """
    named = BASELINES.named(name)
    settings = fill(named.settings, changes or {}, name, None)
    if settings.batch < 1:
        raise InputError(f"{name}.batch must be at least 1, got {settings.batch}.", token="batch")
    home = RunFolder(folder)
    home.check_new()
    data = sources.located(data)
    source = _molecules(data)
    baseline = named.family(name, settings)
    training = BaselineTraining.start(baseline, _smiles(source, "train"), budget or Budget(), seed)
    head = new_head(name, asdict(settings), training.updates, seed, data, source, training.dropped)
    with home.locked():
        home.check_new(source)  # again: another process may have written here in the meantime
        write_head(home, head, source)
    return BaselineJob(folder, head, source, training)


def resume(folder: Path, data: str | None = None) -> BaselineJob:
    """Continue a training from its newest intact checkpoint; `data` is where its data are now."""
    home = RunFolder(folder)
    head = read_head(home)
    with home.locked():  # refused before the data are read
        home.check_model()
    where = moved(head.run.config, data).data
    source = home.read_source(head.run, where)
    if where != head.data:
        home.record_data(where)
        head = read_head(home)
    family = BASELINES.named(head.name).family
    try:
        settings = family.settings_type(**settings_from(family, head.settings))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"its settings do not fit this version of {head.name} ({error}). Train again.",
            str(home.baseline),
            kind="damaged",
        ) from None
    baseline = family(head.name, settings)
    budget = Budget(updates=head.updates)
    training = BaselineTraining.start(baseline, _smiles(source, "train"), budget, head.seed)
    if checkpoint.saved_steps(folder):  # else it was killed before the first was written
        kept = checkpoint.load(folder)
        if kept.content.get("split") != split_hash(source):
            raise _strange(kept.path, "it was made with another split of the data")
        try:
            training.restore(checkpoint.unflatten(kept.tensors, kept.content))
        except checkpoint.FOREIGN as error:
            raise _strange(kept.path, " ".join(str(error).split())[:200]) from None
    return BaselineJob(folder, head, source, training)


def run(job: BaselineJob, watch: Watch | None = None, save_every: float = SAVE_EVERY) -> Generator:
    """Train to the end, or until a signal arrives; the progress is saved in both cases."""
    training, log = job.training, MetricsLog(job.folder)
    with job.home.locked(), interruption(True) as interrupted:
        if read_head(job.home).trained is not None and job.home.model.exists():
            return load(job.home.model)
        job.home.check_model()
        log.cut(training.update)
        saved = time.monotonic()
        while not training.done:
            loss = training.step()
            seconds = round(training.seconds, 3)
            log.append({"step": training.update, "loss": loss, "cpu_seconds": seconds})
            if watch is not None:
                watch(training.update, training.updates, loss)
            stop = interrupted() and not training.done
            if stop or training.done or time.monotonic() - saved >= save_every:
                save(job)
                saved = time.monotonic()
            if stop:
                raise InterruptedRunError(
                    f"stopped after update {training.update}. The progress is kept.",
                    job.home.resume_command,
                )
        training.finish()
        training.baseline.save(job.home.model)
        write_head(job.home, finished(job.head, _trained(training)))
    return training.baseline


def save(job: BaselineJob) -> None:
    """Save a checkpoint of a training."""
    tensors, content = checkpoint.flatten(job.training.tree())
    content["split"] = split_hash(job.source)
    MetricsLog(job.folder).synchronise()  # so that no line is missing after a power cut
    checkpoint.save(job.folder, job.training.update, tensors, content, keep=_KEEP)


def _trained(training: BaselineTraining) -> dict[str, Any]:
    parameters = training.baseline.network.parameters()
    return {
        "updates": training.update,
        "molecules": training.baseline.size,
        "parameters": sum(one.numel() for one in parameters),
        "cpu_seconds": training.seconds,
    }


@dataclass(frozen=True)
class OpenedBaseline:
    """A trained baseline, its description, and the hash of its model."""

    folder: Path
    head: BaselineHead
    generator: Generator
    fingerprint: str


def open_baseline(folder: Path) -> OpenedBaseline:
    """Open a trained baseline; one whose training is not finished is refused."""
    home = RunFolder(folder)
    head = read_head(home)
    if head.trained is None or not home.model.exists():
        raise InputError(
            f"the training of this baseline is not finished. Continue it: {home.resume_command}",
            str(folder),
            kind="missing",
        )
    return OpenedBaseline(folder, head, load(home.model), model_fingerprint(home.model))


# The likelihood.


def likelihood(
    folder: Path,
    most: int | None = None,
    seed: int = 0,
    data: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The mean log-probability of training and test molecules; writes `likelihood.json`.

    Args:
        folder: the folder of a trained baseline.
        most: the most molecules of either set; by default all.
        seed: the seed of all random numbers.
        data: where the data are now, if they have moved.
        progress: called with the number of molecules done, and of all.
    """
    opened = open_baseline(folder)
    home = RunFolder(folder)
    source = home.read_source(opened.head.run, data)
    parts = {part: _smiles(source, part)[:most] for part in ("train", "test")}
    total, done, began = sum(map(len, parts.values())), 0, time.process_time()
    found: dict[str, list[Float64[Tensor, " some"]]] = {part: [] for part in parts}
    exact = True
    for part, molecules in parts.items():
        for number in range(0, len(molecules), _SCORED):
            some = molecules[number : number + _SCORED]
            with torch.no_grad(), seeded(seed, f"likelihood {part}", number // _SCORED):
                scored = opened.generator.log_prob(some, int(torch.randint(2**62, ())))
            if scored is None:
                raise InputError(
                    f"{opened.head.name} has no correct likelihood of molecules. Compare it by its "
                    "samples: nmln evaluate.",
                    str(folder),
                    kind="unsupported",
                )
            found[part].append(scored.values)
            exact, done = exact and scored.exact, done + len(some)
            if progress is not None:
                progress(done, total)
    content: dict[str, Any] = {
        "baseline": opened.head.name,
        "model": opened.fingerprint,
        "exact": exact,
        "seed": seed,
        "cpu_seconds": time.process_time() - began,
    }
    for part, logs in found.items():
        content |= _numbers(f"{part}_molecules", logs)
    write_json(home.likelihood, content)
    return content


def _numbers(name: str, parts: Sequence[Float64[Tensor, " some"]]) -> dict[str, Any]:
    """The mean with its standard error, and how many molecules are impossible for the baseline."""
    logs = torch.cat([*parts, torch.zeros(0, dtype=torch.float64)])
    impossible = int((logs == -math.inf).sum())
    mean = float(logs.mean()) if len(logs) and not impossible else None
    possible = logs[logs > -math.inf]
    return {
        name: mean,
        f"{name}_error": float(logs.std()) / len(logs) ** 0.5
        if mean is not None and len(logs) > 1
        else None,
        f"{name}_count": len(logs),
        f"{name}_impossible": impossible,
        f"{name}_possible": float(possible.mean()) if len(possible) else None,
    }


# The data.


def _molecules(data: DataConfig) -> Source:
    """The molecules of a source; refuses other data."""
    if sources.kind_of(data.source) != "molecules":
        raise InputError(
            "baselines learn from molecules, but this is another kind of data. Give SMILES (.smi, .csv) "
            "or a named set such as pubchem-10.",
            data.source,
            kind="unsupported",
        )
    return sources.load(data)


def _smiles(source: Source, part: str) -> list[str]:
    places = source.train if part == "train" else source.test
    return [source.names[at] for at in places.tolist()]


def _strange(path: Path, why: str) -> InputError:
    return InputError(
        f"this checkpoint does not belong to this training ({why}). Restore the folder from a copy.",
        str(path),
        kind="damaged",
    )
