"""One block of chains, drawn, saved and resumed independently, so that any process can do it.

A block has its own random stream, file of samples and checkpoints, and does not depend on other blocks.
The division of chains into blocks depends only on the settings: the samples do not depend on the number
of processes, on timing, or on the order in which blocks are drawn.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator

from nmln import checkpoint
from nmln.devices import generator, of_worlds
from nmln.errors import InputError, InterruptedRunError
from nmln.model import Model
from nmln.model.chains import ModelChains
from nmln.molecules.decoding import Decoder
from nmln.noise import refuse_chains
from nmln.recording import KeptRecorder
from nmln.runs.sample_rows import SampleFile
from nmln.runs.specification import SamplingSettings
from nmln.runs.workspace import LOCK, ROWS, WORLDS, Begun, SamplePlace
from nmln.runs.world_files import packed
from nmln.sampler import Snapshot, snapshot, start
from nmln.signals import GivenUpError
from nmln.types import Evaluations, State, Sweep, Tuning, Values

REMEMBERED = 100_000  # decoded worlds in the cache of a process
_DRAWS = 500  # draws kept for the diagnostics of the chains
SAVE_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class SamplingJob:
    """A sampling at a place. The summary includes `about`: the command, the scaffold, and so on.

    `folders` are those of the blocks, which lie elsewhere if parts are joined. `overwrite` allows older
    samples to be replaced.
    """

    place: SamplePlace
    model: Model
    settings: SamplingSettings
    about: dict[str, Any] = field(default_factory=dict)
    work: Path = Path()
    folders: tuple[Path, ...] = ()
    overwrite: bool = False

    @staticmethod
    def of(place: SamplePlace, model: Model, begun: Begun) -> "SamplingJob":
        """The sampling that a working folder describes."""
        folders = [begun.work / f"{begun.blocks}-{n}" for n in range(begun.settings.parts)]
        for number, source in enumerate(begun.sources):
            for block in range(number, begun.settings.parts, len(begun.sources)):
                folders[block] = source / f"{begun.blocks}-{block}"
        return SamplingJob(
            place,
            model,
            begun.settings,
            begun.about,
            begun.work,
            tuple(folders),
            begun.overwrite,
        )

    @property
    def folder(self) -> Path:
        """The output folder."""
        return self.place.output

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels whose samples are written."""
        count = self.model.method.chain_levels
        return tuple(range(count)) if self.settings.all_levels else (count - 1,)

    @property
    def counted(self) -> tuple[int, ...]:
        """The levels with a file of counts of their own."""
        return self.levels if self.settings.all_levels else ()

    @property
    def again(self) -> str:
        """The command that continues this sampling."""
        return self.about.get("resume", "the same command")

    @property
    def blocks(self) -> range:
        """The blocks drawn here: all, or those of a part."""
        if self.place.part is None:
            return range(self.settings.parts)
        number, count = self.place.part
        return range(number - 1, self.settings.parts, count)

    @property
    def joins(self) -> bool:
        """Whether the blocks were drawn elsewhere, as parts."""
        return self.folders[0].parent != self.work

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """The model on every domain, on the device of this sampling."""
        return self.settings.models(self.model.to(self.settings.device))

    def model_of(self, block: int) -> Model:
        """The model on the domain of a block."""
        return self.models[self.settings.home(block)]

    def block(self, number: int) -> Path:
        return self.folders[number]

    def lock(self, number: int) -> Path:
        """The lock of a block, held by the process that draws it."""
        return self.block(number) / LOCK

    def data(self, number: int) -> Path:
        """The file of a block's samples."""
        return self.block(number) / (ROWS if self.settings.kind == "molecules" else WORLDS)

    def sweeps_done(self, number: int) -> int:
        """The number of sweeps in the last checkpoint of a block."""
        return checkpoint.latest_step(self.block(number)) or 0

    @property
    def left(self) -> float:
        """The number of remaining sweeps, as a mean over the blocks drawn here."""
        left = [self.sweeps_left(block) for block in self.blocks]
        return sum(left) / len(left)

    def sweeps_left(self, number: int) -> int:
        """The number of remaining sweeps of a block."""
        return max(0, self.settings.sweeps_of(number) - self.sweeps_done(number))


def _chains(job: SamplingJob, block: int) -> ModelChains:
    """The chains of a block, under its conditions."""
    model, settings = job.model_of(block), job.settings
    conditions = settings.conditions(model.space, settings.home(block))
    return model.chains(
        moves=settings.moves,
        kernel=settings.kernel,
        evidence=conditions.evidence,
        added=conditions.added(model),
        sharpen=settings.sharpen,
    )


def check_start(job: SamplingJob) -> None:
    """Refuse too many chains, and conditions that contradict each other.

    Formulas are tried by starting one chain at every level.
    """
    levels = job.model.method.chain_levels
    for block in [one.first_block for one in job.settings.sections if one.parts]:
        refuse_chains(job.model_of(block).space, levels, job.settings.slice(block)[1])
        chains = _chains(job, block)
        if job.settings.formulas:
            rng = generator(chains.potential.device, job.settings.stream(block))
            start(chains.potential, chains.kernel, chains.noise(1, rng), rng)


def chains_of(
    job: SamplingJob, block: int, rng: Generator, resumed: Snapshot | None = None
) -> Iterator[Sweep]:
    """All sweeps of a block, including the burn-in, so that it can be saved after each of them."""
    settings, chains = job.settings, _chains(job, block)
    return chains.run(
        _first_worlds(job, block, chains, rng) if resumed is None else None,
        settings.sweeps_of(block),
        rng,
        warm_up=settings.burn_in,
        resume=resumed,
        rescue=job.block(block) / "offending.db",
    )


def _first_worlds(job: SamplingJob, block: int, chains: ModelChains, rng: Generator) -> Values:
    """Where the chains of a block start: at replicas that come with the model, or at noise."""
    settings, replicas = job.settings, job.model_of(block).replicas
    if not settings.start or replicas is None:
        return chains.noise(settings.slice(block)[1], rng)
    (values,) = replicas.values
    return values[:, settings.replicas_of(block, values.shape[1])].to(rng.device)


class Kept(NamedTuple):
    """The content of a block's checkpoint."""

    snapshot: Snapshot | None = None
    offset: int = 0
    pending: bytes = b""
    recorder: KeptRecorder | None = None
    seconds: float = 0.0
    decoding: float = 0.0  # part of `seconds` spent on decoding and writing
    cpu_seconds: float = 0.0

    def finished(self, job: "SamplingJob", block: int) -> bool:
        """Whether the block has all its sweeps, or has used up its processor time."""
        settings = job.settings
        if self.sweeps >= settings.sweeps_of(block):
            return True
        return self.draws(settings) > 0 and self.cpu_seconds >= settings.seconds_of_block

    def draws(self, settings: SamplingSettings) -> int:
        """The samples of each of its chains."""
        return max(0, self.sweeps - settings.burn_in) // settings.thin

    @property
    def sweeps(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.number

    @staticmethod
    def load(job: SamplingJob, block: int) -> "Kept":
        """The last checkpoint of a block; refuses one of another sampling or block."""
        folder = job.block(block)
        if not checkpoint.saved_steps(folder):
            return Kept()
        found = checkpoint.load(folder)
        try:
            tree = checkpoint.unflatten(found.tensors, found.content)
            if job.settings.block and (tree["settings"], tree["block"]) != _mark(job, block):
                raise ValueError("its settings are those of another sampling")
            return _checked(job, block, tree)
        except (
            KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError,
        ) as error:  # fmt: skip
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InputError(
                f"this checkpoint does not belong to this sampling ({why}). Restore it from a copy, or "
                "restart with --overwrite.",
                str(found.path),
                kind="damaged",
            ) from None

    def save(self, job: SamplingJob, block: int) -> None:
        assert self.snapshot is not None
        assert self.recorder is not None
        mark, number = _mark(job, block)
        tree = {
            **self._asdict(),
            "pending": torch.from_numpy(np.frombuffer(self.pending, dtype=np.uint8).copy()),
            "recorder": self.recorder.tree(),
            "settings": mark,
            "block": number,
        }
        flat = checkpoint.flatten(tree)
        checkpoint.save(job.block(block), self.snapshot.number, *flat, keep=2)


def _mark(job: SamplingJob, block: int) -> tuple[str, int]:
    """The sampling and the block, as recorded in a checkpoint."""
    return job.settings.digest, block


def _checked(job: SamplingJob, block: int, tree: dict[str, Any]) -> Kept:
    """The content of a checkpoint, checked against the settings of this block."""
    number, state, walkers, rng, tuning, evaluations = tree["snapshot"]
    device = of_worlds(job.model_of(block).potential.device)
    values, scores, slopes = state
    moved = None if slopes is None else slopes.to(device)
    state = State(values.to(device), scores.to(device), moved)
    point = Snapshot(
        number, state, walkers.to(device), rng, Tuning(*tuning), Evaluations(*evaluations)
    )
    settings, (_, chains) = job.settings, job.settings.slice(block)
    levels = job.model.method.chain_levels
    if not 0 < number <= (sweeps := settings.sweeps_of(block)):
        raise ValueError(f"its sweep must be from 1 to {sweeps}, got {number}")
    shape = (levels, chains, job.model_of(block).space.groups)
    if point.state.values.shape != shape or point.state.scores.shape != shape[:2]:
        raise ValueError("its chains have another shape")
    if walkers.shape != shape[:2]:
        raise ValueError("its walkers have another shape")
    recorder = KeptRecorder.restored(tree["recorder"])
    if recorder.seen != max(0, number - settings.burn_in):
        raise ValueError(
            f"the number of recorded sweeps, {recorder.seen}, does not fit sweep {number}"
        )
    offset, seconds, decoding = tree["offset"], float(tree["seconds"]), float(tree["decoding"])
    if type(offset) is not int or offset < 0:
        raise ValueError("offset must be a whole number of at least 0")
    pending = tree["pending"].numpy().tobytes()
    spent = float(tree.get("cpu_seconds", 0.0))
    return Kept(point, offset, pending, recorder, seconds, decoding, spent)


def work_on(
    job: SamplingJob,
    block: int,
    kept: Kept,
    decoder: Decoder | None,
    interrupted: Callable[[], bool],
    tick: Callable[[], None] | None,
    save_every: float,
) -> None:
    """Draw a block from its last checkpoint to its end; only molecules have a decoder."""
    settings, sweeps = job.settings, job.settings.sweeps_of(block)
    rng = generator(job.model_of(block).potential.device, settings.stream(block))
    recorder = kept.recorder or KeptRecorder(keep=_DRAWS)
    record = _recording(job, block, decoder)
    decoding = kept.decoding
    begun = saved = time.perf_counter()
    working = time.process_time()
    point = kept.snapshot

    def spent() -> float:
        return kept.cpu_seconds + time.process_time() - working

    def keep(rows: SampleFile) -> None:
        rows.synchronise()
        seconds = kept.seconds + time.perf_counter() - begun
        pending = bytes(rows.pending)
        now = Kept(point, rows.offset, pending, recorder, seconds, decoding, spent())
        now.save(job, block)

    def stopped() -> InterruptedRunError:
        number = 0 if point is None else point.number
        return InterruptedRunError(
            f"stopped after sweep {number} of {sweeps}. The progress is kept.", job.again
        )

    with SampleFile(job.data(block), kept.offset, kept.pending) as rows:
        chains = chains_of(job, block, rng, kept.snapshot)
        while True:
            try:
                sweep = next(chains, None)
            except (
                GivenUpError
            ):  # within a sweep, which is repeated later: the rest is as after the last sweep
                if point is not None:
                    keep(rows)
                raise stopped() from None
            if sweep is None:
                return
            point = snapshot(sweep, rng)
            draw, between = divmod(sweep.number - settings.burn_in, settings.thin)
            if sweep.number > settings.burn_in:
                recorder.record(sweep)
                if between == 0:
                    before = time.perf_counter()
                    rows.append(record(draw - 1, sweep))
                    decoding += time.perf_counter() - before
            if tick is not None:
                tick()
            last, stop = sweep.number == sweeps, interrupted()
            if sweep.number > settings.burn_in and between == 0:
                last = last or spent() >= settings.seconds_of_block
            if last or stop or time.perf_counter() - saved >= save_every:
                if last:
                    rows.end_member()
                keep(rows)
                saved = time.perf_counter()
            if stop and not last:
                raise stopped()
            if last:
                return


def decoders_of(job: SamplingJob) -> list[Decoder | None]:
    """A decoder for every domain, which all blocks of a process share.

    Their caches do not affect the results.
    """
    if job.settings.kind != "molecules":
        return [None] * len(job.models)
    return [Decoder(model.space, most=REMEMBERED // len(job.models)) for model in job.models]


def _recording(
    job: SamplingJob, block: int, decoder: Decoder | None
) -> Callable[[int, Sweep], bytes]:
    """A function that gives the bytes to write for one draw."""
    settings, space = job.settings, job.model_of(block).space
    if decoder is None:
        return lambda draw, sweep: packed(
            space, sweep.state.values[-1, : len(settings.wanted(block, draw))]
        )
    levels = list(job.levels)

    def lines(draw: int, sweep: Sweep) -> bytes:
        wanted = settings.wanted(block, draw)
        found = iter(decoder.decode(sweep.state.values[levels, : len(wanted)]))
        rows = (
            f"{row},{level},{one.status},{one.smiles or ''}\n"
            for level in levels
            for row, one in zip(wanted, found, strict=False)
        )
        return "".join(rows).encode()

    return lines
