"""Choosing step sizes and ladders from recorded statistics; nothing here runs a sampler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from nmln.diagnostics import suggested_levels
from nmln.errors import InputError
from nmln.kernels.combined import ByLevel, Composition, Lazy, Mixture, simple_kernels
from nmln.ladders import Ladder, LadderLike, Temperatures
from nmln.types import Info, Kernel, Tunable, Tuning

ACCEPTANCE = (
    0.574  # where moves of a Langevin kind are most efficient (Roberts and Rosenthal, 1998)
)


# Step sizes.


def start_tuning(kernel: Kernel, levels: int) -> Tuning:
    """Start from the sizes of the kernel."""
    rows = []
    for one in simple_kernels(kernel):
        sizes = one.step_sizes if isinstance(one, Tunable) else (float("nan"),)
        if len(sizes) not in (1, levels):
            raise InputError(
                f"{type(one).__name__} has {len(sizes)} step sizes for {levels} levels. Give one "
                "number, or one per level.",
                kind="conflict",
            )
        rows.append(torch.tensor(sizes, dtype=torch.float64).log().expand(levels))
    return Tuning(torch.stack(rows), torch.zeros(len(rows), dtype=torch.int64))


def tune(kernel: Kernel, tuning: Tuning, info: Info, least_gain: float = 0.0) -> Tuning:
    """Move every size towards the acceptance 0.574, level by level, by stochastic approximation.

    The steps shrink as 2 / (moves seen)^0.6. `least_gain` keeps them from shrinking further, for
    targets that change, as in training.
    """
    found = info.by_kernel.double().cpu()
    had_turn = ~found.isnan().any(1)
    seen = tuning.seen + had_turn
    gain = (2 / seen.clamp(min=1).double() ** 0.6).clamp(min=least_gain)
    change = torch.where(had_turn[:, None], gain[:, None] * (found - ACCEPTANCE), 0.0)
    moved = tuning.log_sizes + change
    # The search stays near sizes that the kernel can have, so that it returns quickly.
    limits = start_tuning(with_sizes(kernel, Tuning(moved, seen)), moved.shape[1]).log_sizes
    return Tuning(torch.where((moved - limits).abs() < 0.7, moved, limits), seen)


def with_sizes(kernel: Kernel, tuning: Tuning) -> Kernel:
    """The kernel with the present sizes of the search."""
    rows = iter(tuning.log_sizes.exp().tolist())

    def rebuild(one: Kernel) -> Kernel:
        if isinstance(one, Lazy):
            return replace(one, kernel=rebuild(one.kernel))
        if isinstance(one, Composition | Mixture | ByLevel):
            return replace(one, kernels=tuple(rebuild(part) for part in one.kernels))
        sizes = next(rows)
        return one.with_step_sizes(sizes) if isinstance(one, Tunable) else one

    return rebuild(kernel)


# Ladders.


@dataclass(frozen=True)
class Proposal:
    """A ladder with equal rejection between neighbours, and statistics of the ladder it is made from."""

    rates: tuple[float, ...]  # corruption rates or temperatures, noisiest or hottest first
    barrier: float  # the sum of the rejections
    suggested_levels: int  # about twice the barrier, at least 2
    expected_rejection: float  # of every pair of the new ladder

    def ladder(self) -> Ladder:
        return Ladder(self.rates)

    def temperatures(self) -> Temperatures:
        return Temperatures(self.rates)


def equal_rejection(
    ladder: LadderLike, rejections: Sequence[float], levels: int | None = None
) -> Proposal:
    """Place levels so that every pair of neighbours is expected to reject equally often.

    `rejections` are those of a pilot run, one for each pair: 1 minus the mean probability of a swap.
    Their running sum is interpolated between the levels (in the square root of corruption rates, in the
    inverse of temperatures) and cut into equal parts; both ends stay. A pilot whose pairs reject nearly
    always says little about where between them the barrier is: repeat with the proposal.
    """
    rejected = np.asarray(rejections, dtype=float)
    if len(rejected) != len(ladder) - 1 or len(ladder) < 2:
        raise InputError(
            f"a ladder of {len(ladder)} levels has {len(ladder) - 1} pairs, but {len(rejected)} "
            "rejections are given. A ladder of one level has nothing to adapt.",
            kind="conflict",
        )
    if not ((rejected >= 0) & (rejected <= 1)).all():
        raise InputError(f"rejections must be probabilities, got {list(rejections)}.")
    barrier = float(rejected.sum())
    count = suggested_levels(barrier) if levels is None else levels
    if count < 2:
        raise InputError(f"a ladder must have at least 2 levels, not {count}.", token="levels")
    places = np.array([ladder.coordinate(rate) for rate in ladder])
    # A pair that never rejects still has a length, or its levels would have no order.
    running = np.concatenate([[0.0], np.cumsum(rejected + 1e-6)])
    wanted = np.linspace(0, running[-1], count)
    found = np.interp(wanted, running, places)
    rates = [ladder.rate_at(place) for place in found]
    rates[0], rates[-1] = ladder.rates[0], ladder.rates[-1]
    return Proposal(tuple(rates), barrier, suggested_levels(barrier), barrier / (count - 1))
