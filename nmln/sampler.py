"""The loop: explore at every level, exchange between neighbours, repeat.

Parallel noising and parallel tempering differ only in the potential that they are given.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from nmln.exchange import SwapInfo, Walkers, exchange, start_walkers
from nmln.files import InputError
from nmln.types import Info, Kernel, Potential, State, Values

Phases = Literal["both", "alternate"]


class Sweep(NamedTuple):
    """Where the chains stand after a sweep, and what happened in it."""

    number: int  # counted from the start of the run, burn-in included
    state: State
    walkers: Walkers
    moves: Info  # mean over the moves of the sweep
    swaps: tuple[SwapInfo, ...]


class Snapshot(NamedTuple):
    """All that is needed to go on with a run as if it had never stopped."""

    number: int
    state: State
    walkers: Walkers
    rng: Tensor


def snapshot(sweep: Sweep, rng: Generator) -> Snapshot:
    """Keep where a run stands."""
    return Snapshot(sweep.number, sweep.state, sweep.walkers, rng.get_state())


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
    resume: Snapshot | None = None,
) -> Iterator[Sweep]:
    """Run chains at all levels and give every `thin`-th sweep after the first `burn_in`.

    A sweep is `moves` steps of the kernel at every level, then the exchange of even and of odd pairs of
    neighbouring levels (`both`, the paper's order), or of one parity, in turn (`alternate`). `sweeps`
    counts all of them, those of an earlier part of a resumed run included. The same generator state
    gives the same run; a run resumed from a snapshot goes on bit for bit.
    """
    _check(sweeps, moves, phases, burn_in, thin)
    if resume is not None:
        first, state, walkers = resume.number, resume.state, resume.walkers
        rng.set_state(resume.rng)
    elif values is not None:
        first, state, walkers = 0, start(potential, kernel, values), start_walkers(values)
    else:
        raise InputError("a run needs worlds to start from: give values, or a snapshot to resume.")
    for number in range(first + 1, sweeps + 1):
        infos = []
        for _ in range(moves):
            state, info = kernel.step(potential, state, rng)
            infos.append(info)
        swaps = []
        for parity in (0, 1) if phases == "both" else (number % 2,):
            state, walkers, swap = exchange(potential, state, walkers, parity, rng)
            swaps.append(swap)
        if number > burn_in and (number - burn_in) % thin == 0:
            mean = Info(*(torch.stack(column).mean(0) for column in zip(*infos, strict=True)))
            yield Sweep(number, state, walkers, mean, tuple(swaps))


def start(potential: Potential, kernel: Kernel, values: Values) -> State:
    """The state of chains at their first worlds; refuses worlds that a hard formula forbids."""
    if values.ndim != 3 or not values.shape[1]:
        raise InputError(
            f"chains start from values of shape (levels, chains, groups) with at least one chain, but "
            f"these have the shape {tuple(values.shape)}."
        )
    state = kernel.init(potential, values)
    forbidden = torch.nonzero(state.scores == float("-inf"))
    if len(forbidden):
        level, chain = forbidden[0].tolist()
        raise InputError(
            f"chain {chain} of level {level} starts in a world that a hard formula forbids. Start it "
            "from a world that satisfies all hard formulas."
        )
    return state


def _check(sweeps: int, moves: int, phases: str, burn_in: int, thin: int) -> None:
    for name, number, least in (
        ("sweeps", sweeps, 0),
        ("moves", moves, 1),
        ("burn_in", burn_in, 0),
        ("thin", thin, 1),
    ):
        if number < least:
            raise InputError(f"{name} must be at least {least}, but is {number}.")
    if phases not in ("both", "alternate"):
        raise InputError(f"phases are 'both' or 'alternate', but these are {phases!r}.")
