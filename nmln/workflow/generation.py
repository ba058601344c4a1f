"""Molecules from a trained model by the million: streamed to files, kept, resumed, in several processes.

The chains are dealt out to parts. A part has its own generator, file of rows and checkpoints and knows
nothing of the others, so any number of processes can work on them, and what comes out does not depend
on timing. In the end the parts are put together and counted.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator

from nmln import checkpoint
from nmln.diagnostics import Diagnostics, diagnose
from nmln.distributed import Ranks
from nmln.files import InputError, InterruptedRunError, only_one, plain, write_lines
from nmln.kernels.defaults import kernel_named
from nmln.model import Model
from nmln.molecules.chemistry import STATUSES
from nmln.molecules.decoding import Decoder
from nmln.noise import uniform
from nmln.potentials.total import TotalPotential
from nmln.report.summary import write_summary
from nmln.sampler import Snapshot, sample, snapshot
from nmln.types import Evaluations, State, Sweep, Tuning
from nmln.workflow.generation_settings import Settings, fingerprint
from nmln.workflow.recorded import KeptRecorder, joined
from nmln.workflow.rows import Rows, Tally, join_rows, write_counts
from nmln.workflow.training import interruption

SAMPLES, COUNTS, SUMMARY = "samples.csv.gz", "counts.csv", "sampling.json"
_PARTS, _SETTINGS, _ROWS, _LOCK = "parts", "settings.json", "rows.csv.gz", "lock"
_REMEMBERED = 100_000  # worlds that the decoder of a part keeps
_DRAWS = 500  # that are kept to judge how well the chains mix
_SAVE_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class Job:
    """Sampling in a folder. `about` is told in the summary: the command, the scaffold, and so on."""

    folder: Path
    model: Model
    settings: Settings
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels that rows are written of."""
        count = self.model.method.chain_levels
        return tuple(range(count)) if self.settings.all_levels else (count - 1,)

    @property
    def lock(self) -> Path:
        """Held by who sees to all parts; each part has one of its own."""
        return self.folder / _PARTS / _LOCK

    @property
    def again(self) -> str:
        """What to type to go on."""
        return self.about.get("resume", "the same again")

    def part(self, number: int) -> Path:
        return self.folder / _PARTS / f"part-{number}"

    def sweeps_done(self, number: int) -> int:
        """How far a part has come."""
        return checkpoint.latest_step(self.part(number)) or 0


def begin(
    folder: Path,
    model: Model,
    settings: Settings,
    about: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> Job:
    """Sampling in a folder; goes on if the same was begun there, refuses to spoil anything else.

    A beginning of which no part has kept anything, such as one that failed at once, gives way.
    """
    if overwrite:
        _clear(folder)
    if (folder / _PARTS / _SETTINGS).exists():
        try:
            return _go_on(folder, model, settings)
        except InputError:
            if _kept_anything(folder):
                raise
            _take_back(folder)
    for name in (SUMMARY, SAMPLES, COUNTS):
        if (folder / name).exists():
            raise InputError(
                f"there are samples in this folder already ({name}). Choose another one (--output), or "
                "give --overwrite.",
                str(folder),
            )
    content = {"settings": asdict(settings), "about": about or {}}
    write_lines(folder / _PARTS / _SETTINGS, [json.dumps(content, indent=2)])
    return Job(folder, model, settings, about or {})


def _go_on(folder: Path, model: Model, settings: Settings) -> Job:
    """What was begun in a folder, if it is the same."""
    job = resume(folder, model)
    settings = replace(settings, parts=job.settings.parts)  # any number of processes can go on
    if job.settings != settings:
        raise InputError(
            f"sampling with other settings was begun in this folder ({_differences(job, settings)})."
            " Go on with it (--resume), choose another folder (--output), or give --overwrite.",
            str(folder),
        )
    return job


def _kept_anything(folder: Path) -> bool:
    """Whether there is a checkpoint; rows without one are begun anew in any case."""
    return any(checkpoint.saved_steps(part) for part in (folder / _PARTS).glob("part-*"))


def _take_back(folder: Path) -> None:
    """Remove what was begun, unless somebody is still at it."""
    for lock in (folder / _PARTS).rglob(_LOCK):
        with only_one(lock, "sampling"):
            pass
    shutil.rmtree(folder / _PARTS)


def resume(folder: Path, model: Model) -> Job:
    """Go on with what was begun in a folder."""
    path = folder / _PARTS / _SETTINGS
    if not path.exists():
        done = " It is finished." if (folder / SUMMARY).exists() else ""
        raise InputError(f"there is no sampling here to go on with.{done}", str(folder))
    content = json.loads(path.read_text(encoding="utf-8"))
    recorded = {**content["settings"], "formulas": tuple(content["settings"]["formulas"])}
    settings = Settings(**recorded)
    if settings.model != fingerprint(model):
        raise InputError(
            "the model has changed since this sampling was begun. Begin anew with --overwrite, or "
            "choose another folder (--output).",
            str(folder),
        )
    return Job(folder, model, settings, content["about"])


def _differences(job: Job, settings: Settings) -> str:
    names = [entry.name for entry in fields(Settings)]
    told = [
        f"{name} {getattr(job.settings, name)!r} instead of {getattr(settings, name)!r}"
        for name in names
        if getattr(job.settings, name) != getattr(settings, name)
    ]
    return ", ".join(told)


def _clear(folder: Path) -> None:
    """Remove what sampling has written, and nothing else."""
    shutil.rmtree(folder / _PARTS, ignore_errors=True)
    for path in (folder / SUMMARY, folder / SAMPLES, *folder.glob("counts*.csv")):
        path.unlink(missing_ok=True)


# One part.


def chains_of(
    job: Job, part: int, rng: Generator, resumed: Snapshot | None = None
) -> Iterator[Sweep]:
    """Every sweep of a part, those of the burn-in included, so that it can be kept at any time."""
    model, settings = job.model, job.settings
    method, config = model.method, model.config
    conditions = settings.conditions(model.space)
    potential = method.sampled(model.potential)
    if (added := conditions.added(model)) is not None:
        potential = TotalPotential([potential]).add(added)
    kernel = kernel_named(
        settings.kernel or config.sampling.kernel, model.space, conditions.evidence
    )
    start = None
    if resumed is None:
        chains = Ranks(part, settings.parts).share(settings.chains)
        start = uniform(model.space, method.chain_levels, chains, rng, conditions.evidence)
    return sample(
        potential,
        kernel,
        start,
        settings.sweeps,
        rng,
        moves=settings.moves or config.sampling.moves,
        phases=config.chains.phases,
        warm_up=settings.burn_in,
        resume=resumed,
        rescue=job.part(part) / "offending.db",
    )


class Kept(NamedTuple):
    """Where a part stands when it is kept."""

    snapshot: Snapshot | None = None
    offset: int = 0
    pending: bytes = b""
    recorder: KeptRecorder | None = None
    seconds: float = 0.0
    decoding: float = 0.0  # seconds of these that decoding and writing took

    @staticmethod
    def load(folder: Path) -> "Kept":
        if checkpoint.latest_step(folder) is None:
            return Kept()
        found = checkpoint.load(folder)
        tree = checkpoint.unflatten(found.tensors, found.content)
        number, state, walkers, rng, tuning, evaluations = tree["snapshot"]
        point = Snapshot(
            number, State(*state), walkers, rng, Tuning(*tuning), Evaluations(*evaluations)
        )
        recorder = KeptRecorder.restored(tree["recorder"])
        pending = tree["pending"].numpy().tobytes()
        return Kept(point, tree["offset"], pending, recorder, tree["seconds"], tree["decoding"])

    def save(self, folder: Path) -> None:
        assert self.snapshot is not None
        assert self.recorder is not None
        tree = {
            **self._asdict(),
            "pending": torch.from_numpy(np.frombuffer(self.pending, dtype=np.uint8).copy()),
            "recorder": self.recorder.tree(),
        }
        checkpoint.save(folder, self.snapshot.number, *checkpoint.flatten(tree), keep=2)


def work(
    job: Job,
    parts: Sequence[int] | None = None,
    tick: Callable[[], None] | None = None,
    save_every: float = _SAVE_EVERY,
) -> None:
    """Bring parts (all, unless some are named) to their end, or until somebody asks to stop."""
    alone = parts is None or len(parts) == job.settings.parts
    chosen = range(job.settings.parts) if parts is None else parts
    with interruption(alone) as interrupted:
        for part in chosen:
            if job.sweeps_done(part) < job.settings.sweeps:
                with only_one(job.part(part) / _LOCK, "sampling"), _said_alike(job, alone):
                    _work_on(job, part, interrupted, tick, save_every)


@contextmanager
def _said_alike(job: Job, alone: bool) -> Iterator[None]:
    """Of several processes each stops after another sweep: all say the same, so that it is told once."""
    try:
        yield
    except InterruptedRunError:
        if alone:
            raise
        raise InterruptedRunError(f"stopped, and kept. Go on with: {job.again}") from None


def _work_on(
    job: Job,
    part: int,
    interrupted: Callable[[], bool],
    tick: Callable[[], None] | None,
    save_every: float,
) -> None:
    folder, settings = job.part(part), job.settings
    kept = Kept.load(folder)
    rng = Generator().manual_seed((settings.seed + part * 0x9E3779B97F4A7C15) % 2**63)
    recorder = kept.recorder or KeptRecorder(keep=_DRAWS)
    decoder = Decoder(job.model.space, most=_REMEMBERED)
    decoding = kept.decoding
    begun = saved = time.perf_counter()
    with Rows(folder / _ROWS, kept.offset, kept.pending) as rows:
        for sweep in chains_of(job, part, rng, kept.snapshot):
            draw, between = divmod(sweep.number - settings.burn_in, settings.thin)
            if sweep.number > settings.burn_in:
                recorder.record(sweep)
                if between == 0:
                    before = time.perf_counter()
                    rows.add(_lines(job, part, draw - 1, sweep, decoder))
                    decoding += time.perf_counter() - before
            if tick is not None:
                tick()
            last, stop = sweep.number == settings.sweeps, interrupted()
            now = time.perf_counter()
            if last or stop or now - saved >= save_every:
                if last:
                    rows.end_member()
                rows.synchronise()
                Kept(
                    snapshot(sweep, rng),
                    rows.offset,
                    bytes(rows.pending),
                    recorder,
                    kept.seconds + now - begun,
                    decoding,
                ).save(folder)
                saved = time.perf_counter()
            if stop and not last:
                raise InterruptedRunError(
                    f"stopped after sweep {sweep.number} of {settings.sweeps}, and kept. Go on with: "
                    f"{job.again}"
                )


def _lines(job: Job, part: int, draw: int, sweep: Sweep, decoder: Decoder) -> Iterator[str]:
    """The rows of one sweep. Sample s of chain c is number s * chains + c, whatever the parts."""
    settings = job.settings
    first, chains = Ranks(part, settings.parts).slice(settings.chains)
    number = draw * settings.chains + first
    wanted = max(0, min(chains, settings.samples - number))
    levels = list(job.levels)
    found = iter(decoder.decode(sweep.state.values[levels, :wanted]))
    for level in levels:
        for row in range(number, number + wanted):
            one = next(found)
            yield f"{row},{level},{one.status},{one.smiles or ''}"


# All parts together.


@dataclass(frozen=True)
class Generated:
    """What came out. `summary` is the content of sampling.json."""

    summary: dict[str, Any]
    written: tuple[Path, ...]

    @property
    def valid(self) -> float:
        """The share of valid molecules at the target."""
        return self.summary["levels"][-1]["valid"] / self.summary["attempts"]


def finish(job: Job, processes: int = 1) -> Generated:
    """Put the parts together, count, judge the chains; afterwards the parts are gone.

    `processes` is how many worked on them, for the samples a second.
    """
    behind = [
        part for part in range(job.settings.parts) if job.sweeps_done(part) < job.settings.sweeps
    ]
    if behind:
        raise InputError(
            f"part {behind[0]} of {job.settings.parts} is not done yet. Go on with: {job.again}",
            str(job.folder),
        )
    kept = [Kept.load(job.part(part)) for part in range(job.settings.parts)]
    files = [job.part(part) / _ROWS for part in range(job.settings.parts)]
    tally = Tally(job.levels)
    for path in files:
        tally.add(path)
    join_rows(job.folder / SAMPLES, files)
    written = [job.folder / SAMPLES, job.folder / COUNTS]
    write_counts(written[1], tally.most_frequent(job.levels[-1]))
    for level in job.levels if job.settings.all_levels else ():
        written.append(job.folder / f"counts-{level}.csv")
        write_counts(written[-1], tally.most_frequent(level))
    judged = _judge(job, kept)
    if judged is not None:
        title = f"Chains of {job.about.get('run', job.folder.name)}"
        written += write_summary(job.folder / "chains.html", judged, title)
    summary = _summary(job, kept, processes, tally, judged)
    write_lines(job.folder / SUMMARY, [json.dumps(plain(summary), indent=2)])
    (job.folder / _PARTS / _SETTINGS).unlink()  # first: without it the rest is only litter
    shutil.rmtree(job.folder / _PARTS)
    return Generated(summary, (*written[:2], job.folder / SUMMARY, *written[2:]))


def _judge(job: Job, kept: Sequence[Kept]) -> Diagnostics | None:
    recorders = [one.recorder for one in kept if one.recorder is not None]
    if min(recorder.seen for recorder in recorders) < 2:
        return None
    recording = joined([recorder.recording() for recorder in recorders])
    return diagnose(recording, job.model.method.ladder)


def _summary(
    job: Job, kept: Sequence[Kept], processes: int, tally: Tally, judged: Diagnostics | None
) -> dict[str, Any]:
    settings = job.settings
    counted = [one.snapshot.evaluations for one in kept if one.snapshot is not None]
    seconds = [one.seconds for one in kept]
    longest = max(sum(seconds[rank::processes]) for rank in range(processes))
    ladder = job.model.method.ladder
    moves = settings.moves or job.model.config.sampling.moves
    return {
        **{name: value for name, value in job.about.items() if name != "resume"},
        "attempts": settings.samples,
        "levels": [
            {
                "level": level,
                "rate": ladder.rates[level],
                **{name: tally.statuses[level][name] for name in STATUSES},
                "unique": len(tally.molecules[level]),
            }
            for level in job.levels
        ],
        "settings": asdict(settings),
        "moves_per_sample": settings.thin * moves,
        "moves_before_the_first": settings.burn_in * moves,
        "evaluations": {
            "scores": sum(one.scores for one in counted),
            "slopes": sum(one.slopes for one in counted),
        },
        "processes": processes,
        "seconds": longest,
        "samples_per_second": settings.samples / longest,
        "decoding_share": sum(one.decoding for one in kept) / sum(seconds),
        "findings": [] if judged is None else judged.findings(),
    }
