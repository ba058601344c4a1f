"""The loop: explore at every level, exchange between neighbours, repeat.

Parallel noising and parallel tempering differ only in the potential that they are given.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from nmln.adaptation import start_tuning, tune, with_sizes
from nmln.devices import generator
from nmln.errors import InputError
from nmln.exchange import exchange, start_walkers
from nmln.formats.db import write_db
from nmln.kernels.combined import evidence_of, mean_info, simple_kernels
from nmln.kernels.repair import repair
from nmln.potentials.base import BasePotential, ScoreError
from nmln.potentials.counted import Counted
from nmln.signals import give_way
from nmln.types import (
    Evaluations,
    Info,
    Kernel,
    Potential,
    State,
    SwapInfo,
    Sweep,
    Tuning,
    Values,
    Walkers,
)

Phases = Literal["both", "alternate"]
_CHECK_EVERY = 100  # sweeps between two checks that the energy has not changed


class Snapshot(NamedTuple):
    """All that is needed to continue a run as if it had never stopped."""

    number: int
    state: State
    walkers: Walkers
    rng: Tensor
    tuning: Tuning
    evaluations: Evaluations


@runtime_checkable
class Observer(Protocol):
    """Sees every sweep after the burn-in, also those that `thin` leaves out."""

    def record(self, sweep: Sweep) -> None: ...


def snapshot(sweep: Sweep, rng: Generator) -> Snapshot:
    """The position of a run after a sweep, to resume it later."""
    return Snapshot(
        sweep.number, sweep.state, sweep.walkers, rng.get_state(), sweep.tuning, sweep.evaluations
    )


def sample(
    potential: Potential,
    kernel: Kernel,
    values: Values | None,
    sweeps: int,
    rng: Generator,
    *,
    moves: int = 1,
    phases: Phases = "both",
    burn_in: int = 0,
    thin: int = 1,
    warm_up: int | None = None,
    resume: Snapshot | None = None,
    recorder: Observer | None = None,
    progress: Callable[[int, int], None] | None = None,
    rescue: str | Path | None = None,
) -> Iterator[Sweep]:
    """Run chains at all levels and yield every `thin`-th sweep after the first `burn_in`.

    A sweep is `moves` steps of the kernel at every level, then the exchange of neighbouring levels. The
    same generator state gives the same run; a run resumed from a snapshot continues bit for bit. Chains
    that start in a world which a hard formula forbids are repaired first. A score that is NaN or plus
    infinity ends the run with a `ScoreError`, whose attribute `world` is the offending world.

    Args:
        potential: one score per level and world.
        kernel: moves every level.
        values: the worlds that the chains start from; None only with `resume`.
        sweeps: the number of sweeps in all, those before a `resume` included.
        rng: the source of all random numbers.
        moves: steps of the kernel per sweep.
        phases: `both` exchanges even, then odd pairs of levels after every exploration (the paper's
            order), `alternate` one parity in turn.
        burn_in: sweeps before the first that is yielded.
        thin: sweeps from one that is yielded to the next.
        warm_up: sweeps in which kernels with a step size adapt it to their acceptance, level by level;
            by default as many as `burn_in`. Afterwards it is fixed, and the chains are exact.
        resume: continues a run from where `snapshot` was taken.
        recorder: sees every sweep after the burn-in.
        progress: called with the number of sweeps done and of all.
        rescue: a `.db` file to write the offending world of a `ScoreError` to; by default none.
    """
    _check(sweeps, moves, phases, burn_in, thin)
    counted = Counted(potential, None if resume is None else resume.evaluations)
    warm_up = burn_in if warm_up is None else warm_up
    if resume is not None:
        first, state, walkers, tuning = resume.number, resume.state, resume.walkers, resume.tuning
        rng.set_state(resume.rng)
        if bool((tuning.seen > 0).any()):
            kernel = with_sizes(kernel, tuning)
    elif values is not None:
        with _rescue(rescue, potential):
            state = start(counted, kernel, values, rng)
        first, walkers = 0, start_walkers(values)
        tuning = start_tuning(kernel, potential.levels)
    else:
        raise InputError(
            "a run needs worlds to start from: give values, or a snapshot to resume.",
            kind="missing",
            token="values",
        )
    names = tuple(type(one).__name__ for one in simple_kernels(kernel))
    for number in range(first + 1, sweeps + 1):
        parities = (0, 1) if phases == "both" else (number % 2,)
        with _rescue(rescue, potential):
            state, walkers, info, swaps = advance(
                counted, kernel, state, walkers, rng, moves, parities
            )
            if number == first + 1 or number % _CHECK_EVERY == 0:
                check_energy(counted, state)
        if number <= warm_up:
            tuning = tune(kernel, tuning, info)
            kernel = with_sizes(kernel, tuning)
        sweep = Sweep(number, state, walkers, info, swaps, counted.evaluations, tuning, names)
        if progress is not None:
            progress(number, sweeps)
        if number > burn_in:
            if recorder is not None:
                recorder.record(sweep)
            if (number - burn_in) % thin == 0:
                yield sweep


class Advanced(NamedTuple):
    """The chains after one sweep, and what happened in it."""

    state: State
    walkers: Walkers
    moves: Info
    swaps: tuple[SwapInfo, ...]


def advance(
    potential: Potential,
    kernel: Kernel,
    state: State,
    walkers: Walkers,
    rng: Generator,
    moves: int = 1,
    parities: tuple[int, ...] = (0, 1),
) -> Advanced:
    """One sweep: explore with some moves at every level, then exchange."""
    infos, swaps = [], []
    for _ in range(moves):
        give_way(step=True)
        state, info = kernel.step(potential, state, rng)
        infos.append(info)
    for parity in parities:
        state, walkers, swap = exchange(potential, state, walkers, parity, rng)
        swaps.append(swap)
    return Advanced(state, walkers, mean_info(infos), tuple(swaps))


def start(
    potential: Potential, kernel: Kernel, values: Values, rng: Generator | None = None
) -> State:
    """The state of chains at their first worlds, repaired where a hard formula forbids one."""
    if values.ndim != 3 or not values.shape[1]:
        raise InputError(
            f"values must have the shape (levels, chains, groups) with at least one chain, got "
            f"{tuple(values.shape)}.",
            token="values",
        )
    if len(values) != potential.levels:
        raise InputError(
            f"the potential has {potential.levels} levels, but the chains start at {len(values)}. Give "
            f"each level its worlds: worlds.expand({potential.levels}, -1, -1).",
            kind="conflict",
            token="values",
        )
    evidence = evidence_of(kernel)
    if evidence is not None and not bool(evidence.allows(values).all()):
        level, chain = torch.nonzero(~evidence.allows(values))[0].tolist()
        raise InputError(
            f"chain {chain} of level {level} starts in a world that contradicts the evidence. Make the "
            "worlds agree first: evidence.clamp(worlds).",
            kind="conflict",
        )
    state = kernel.init(potential, values)
    forbidden = torch.nonzero(state.scores == float("-inf"))
    if not len(forbidden):
        return state
    inner = potential.potential if isinstance(potential, Counted) else potential
    if not isinstance(inner, BasePotential):
        level, chain = forbidden[0].tolist()
        raise InputError(
            f"chain {chain} of level {level} starts in a world of score minus infinity. Start it from a "
            "world that is possible.",
            kind="conflict",
        )
    mended = repair(inner, values, rng or generator(values.device), evidence)
    return kernel.init(potential, mended)


def check_energy(potential: Potential, state: State) -> None:
    """Score the worlds again: if the energy has changed, every swap and move is wrong."""
    with torch.no_grad():
        again = potential.score(state.values)
    # Batches of another size round differently; such differences are not a change.
    tolerance = 1e-3 * (1 + state.scores.abs())
    changed = torch.nonzero((again - state.scores).abs() > tolerance)
    if len(changed):
        level, chain = changed[0].tolist()
        raise InputError(
            f"the energy changes between calls: the world of chain {chain} at level {level} scored "
            f"{state.scores[level, chain]:.6g} and now {again[level, chain]:.6g}. A potential must give "
            "one world one score: no dropout or random numbers inside (call .eval()), no dependence on "
            "the other worlds of a batch, and a new start after a change of parameters.",
            kind="numeric",
        )


@contextmanager
def _rescue(path: str | Path | None, potential: Potential) -> Iterator[None]:
    """Write the offending world of a `ScoreError` to a file, and name the file in the error."""
    try:
        yield
    except ScoreError as error:
        if path is None or not isinstance(potential, BasePotential):
            raise
        write_db(path, potential.space, error.world[None])
        raise ScoreError(f"{error} It was saved as {path}.", error.world) from None


def _check(sweeps: int, moves: int, phases: str, burn_in: int, thin: int) -> None:
    for name, number, least in (
        ("sweeps", sweeps, 0),
        ("moves", moves, 1),
        ("burn_in", burn_in, 0),
        ("thin", thin, 1),
    ):
        if number < least:
            raise InputError(f"{name} must be at least {least}, got {number}.", token=name)
    if phases not in ("both", "alternate"):
        raise InputError(f"phases must be 'both' or 'alternate', got {phases!r}.", token="phases")
