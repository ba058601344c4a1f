"""One block of chains: drawn, kept and resumed by itself, so that any process anywhere can do it.

A block has its own random stream, file of samples and checkpoints, and knows nothing of the others.
How chains are dealt into blocks depends on the settings only: what comes out does not depend on the
number of processes, on timing, or on the order in which blocks are drawn.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator

from nmln import checkpoint
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
from nmln.types import Evaluations, State, Sweep, Tuning

REMEMBERED = 100_000  # worlds that the decoder of a process keeps
_DRAWS = 500  # that are kept to judge how well the chains mix
SAVE_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class SamplingJob:
    """Sampling at a place. `about` is told in the summary: the command, the scaffold, and so on.

    `folders` are those of its blocks, which lie elsewhere if parts are joined. `overwrite` says whether
    older samples may be replaced.
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
        """The sampling that a working folder tells of."""
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
        """Where the samples go."""
        return self.place.output

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels that rows are written of."""
        count = self.model.method.chain_levels
        return tuple(range(count)) if self.settings.all_levels else (count - 1,)

    @property
    def counted(self) -> tuple[int, ...]:
        """The levels that have a file of counts each."""
        return self.levels if self.settings.all_levels else ()

    @property
    def again(self) -> str:
        """What to type to go on."""
        return self.about.get("resume", "the same again")

    @property
    def blocks(self) -> range:
        """The blocks that are drawn here: all, or the share of a part."""
        if self.place.part is None:
            return range(self.settings.parts)
        number, count = self.place.part
        return range(number - 1, self.settings.parts, count)

    @property
    def joins(self) -> bool:
        """Whether its blocks were drawn elsewhere, as parts."""
        return self.folders[0].parent != self.work

    def block(self, number: int) -> Path:
        return self.folders[number]

    def lock(self, number: int) -> Path:
        """The lock of a block, held by the process that draws it."""
        return self.block(number) / LOCK

    def data(self, number: int) -> Path:
        """The samples of a block."""
        return self.block(number) / (ROWS if self.settings.kind == "molecules" else WORLDS)

    def sweeps_done(self, number: int) -> int:
        """How far a block has come."""
        return checkpoint.latest_step(self.block(number)) or 0

    @property
    def left(self) -> float:
        """Sweeps that are left to do, as a mean over the blocks drawn here."""
        done = [min(self.settings.sweeps, self.sweeps_done(block)) for block in self.blocks]
        return self.settings.sweeps - sum(done) / len(done)


def _chains(job: SamplingJob) -> ModelChains:
    """What runs the chains of a sampling, under its conditions."""
    model, settings = job.model, job.settings
    conditions = settings.conditions(model.space)
    return model.chains(
        moves=settings.moves,
        kernel=settings.kernel,
        evidence=conditions.evidence,
        added=conditions.added(model),
    )


def check_start(job: SamplingJob) -> None:
    """Refuse what cannot be drawn: too many chains, or conditions that contradict each other.

    Conditions are tried by starting one chain of every level.
    """
    levels = job.model.method.chain_levels
    refuse_chains(job.model.space, levels, job.settings.slice(0)[1])
    chains = _chains(job)
    if job.settings.formulas:
        rng = Generator().manual_seed(job.settings.stream(0))
        start(chains.potential, chains.kernel, chains.noise(1, rng), rng)


def chains_of(
    job: SamplingJob, block: int, rng: Generator, resumed: Snapshot | None = None
) -> Iterator[Sweep]:
    """Every sweep of a block, those of the burn-in included, so that it can be kept at any time."""
    settings, chains = job.settings, _chains(job)
    _, count = settings.slice(block)
    return chains.run(
        chains.noise(count, rng) if resumed is None else None,
        settings.sweeps,
        rng,
        warm_up=settings.burn_in,
        resume=resumed,
        rescue=job.block(block) / "offending.db",
    )


class Kept(NamedTuple):
    """Where a block stands when it is kept."""

    snapshot: Snapshot | None = None
    offset: int = 0
    pending: bytes = b""
    recorder: KeptRecorder | None = None
    seconds: float = 0.0
    decoding: float = 0.0  # seconds of these that decoding and writing took

    @property
    def sweeps(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.number

    @staticmethod
    def load(job: SamplingJob, block: int) -> "Kept":
        """Where a block was kept last; refuses what is not of this sampling and this block."""
        folder = job.block(block)
        if not checkpoint.saved_steps(folder):
            return Kept()
        found = checkpoint.load(folder)
        try:
            tree = checkpoint.unflatten(found.tensors, found.content)
            if job.settings.block and (tree["settings"], tree["block"]) != _mark(job, block):
                raise ValueError("it is of another sampling")
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
    """What says in a checkpoint which sampling and block it is of."""
    return job.settings.digest, block


def _checked(job: SamplingJob, block: int, tree: dict[str, Any]) -> Kept:
    """What a checkpoint holds, if it can be of this block."""
    number, state, walkers, rng, tuning, evaluations = tree["snapshot"]
    point = Snapshot(
        number, State(*state), walkers, rng, Tuning(*tuning), Evaluations(*evaluations)
    )
    settings, (_, chains) = job.settings, job.settings.slice(block)
    levels = job.model.method.chain_levels
    if not 0 < number <= settings.sweeps:
        raise ValueError(f"it is of sweep {number} of {settings.sweeps}")
    shape = (levels, chains, job.model.space.groups)
    if point.state.values.shape != shape or point.state.scores.shape != shape[:2]:
        raise ValueError("its chains are others")
    if walkers.shape != shape[:2]:
        raise ValueError("its walkers are others")
    recorder = KeptRecorder.restored(tree["recorder"])
    if recorder.seen != max(0, number - settings.burn_in):
        raise ValueError(f"it has recorded {recorder.seen} sweeps")
    offset, seconds, decoding = tree["offset"], float(tree["seconds"]), float(tree["decoding"])
    if type(offset) is not int or offset < 0:
        raise ValueError("it does not say how long its file is")
    pending = tree["pending"].numpy().tobytes()
    return Kept(point, offset, pending, recorder, seconds, decoding)


def work_on(
    job: SamplingJob,
    block: int,
    kept: Kept,
    decoder: Decoder | None,
    interrupted: Callable[[], bool],
    tick: Callable[[], None] | None,
    save_every: float,
) -> None:
    """Bring a block from where it was kept to its end; only molecules have a decoder."""
    settings = job.settings
    rng = Generator().manual_seed(settings.stream(block))
    recorder = kept.recorder or KeptRecorder(keep=_DRAWS)
    record = _recording(job, block, decoder)
    decoding = kept.decoding
    begun = saved = time.perf_counter()
    point = kept.snapshot

    def keep(rows: SampleFile) -> None:
        rows.synchronise()
        seconds = kept.seconds + time.perf_counter() - begun
        pending = bytes(rows.pending)
        Kept(point, rows.offset, pending, recorder, seconds, decoding).save(job, block)

    def stopped() -> InterruptedRunError:
        number = 0 if point is None else point.number
        return InterruptedRunError(
            f"stopped after sweep {number} of {settings.sweeps}, and kept.", job.again
        )

    with SampleFile(job.data(block), kept.offset, kept.pending) as rows:
        chains = chains_of(job, block, rng, kept.snapshot)
        while True:
            try:
                sweep = next(chains, None)
            except (
                GivenUpError
            ):  # within a sweep, which is taken again: all else is as after the last
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
            last, stop = sweep.number == settings.sweeps, interrupted()
            if last or stop or time.perf_counter() - saved >= save_every:
                if last:
                    rows.end_member()
                keep(rows)
                saved = time.perf_counter()
            if stop and not last:
                raise stopped()


def decoder_of(job: SamplingJob) -> Decoder | None:
    """One for all blocks of a process: what it remembers saves time and changes nothing."""
    molecules = job.settings.kind == "molecules"
    return Decoder(job.model.space, most=REMEMBERED) if molecules else None


def _recording(
    job: SamplingJob, block: int, decoder: Decoder | None
) -> Callable[[int, Sweep], bytes]:
    """What is written of one draw."""
    settings, space = job.settings, job.model.space
    if decoder is None:
        return lambda draw, sweep: packed(
            space, sweep.state.values[-1, : len(settings.wanted(block, draw))]
        )
    levels = list(job.levels)

    def lines(draw: int, sweep: Sweep) -> bytes:
        wanted = settings.wanted(block, draw)
        found = iter(decoder.decode(sweep.state.values[levels, : len(wanted)]))
        told = (
            f"{row},{level},{one.status},{one.smiles or ''}\n"
            for level in levels
            for row, one in zip(wanted, found, strict=False)
        )
        return "".join(told).encode()

    return lines
