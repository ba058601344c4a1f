"""Screened moves: a walk by the cheap part of a potential, then one score of the whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.balanced import BalancedMetropolis
from nmln.kernels.combined import Lazy
from nmln.kernels.moves import accept
from nmln.kernels.registry import KERNELS
from nmln.kernels.walk import Walk
from nmln.potentials.base import BasePotential
from nmln.potentials.counted import Counted
from nmln.potentials.stand_in import StandIn
from nmln.space import Space
from nmln.types import Info, Potential, Scores, State, Values

LENGTH = 10
LONGEST = 100


@dataclass(frozen=True)
class Screened:
    """Walk some balanced moves by the stand-in of the potential, then accept or reject the whole walk.

    A walk of m equal reversible moves is reversible under the stand-in s, so accepting a walk from x to
    y with probability min{1, exp(rho(y) - rho(x) - s(y) + s(x))} is exact. One score of the potential
    per walk. `length` is m, one number or one for each level. Each move of a walk is rejected with a
    small probability, whatever it is, so that no parity is kept. Where a potential has no stand-in, a
    step is a single balanced move.
    """

    space: Space
    evidence: Evidence | None = None
    length: int | Sequence[int] = LENGTH

    def __post_init__(self) -> None:
        lengths = self.step_sizes
        if not lengths or any(not 1 <= m <= LONGEST or m != round(m) for m in lengths):
            raise InputError(
                f"a walk takes a whole number of moves from 1 to {LONGEST}, got length={self.length}.",
                token="length",
            )

    @property
    def step_sizes(self) -> tuple[float, ...]:
        length = self.length
        return (float(length),) if isinstance(length, int | float) else tuple(map(float, length))

    def with_step_sizes(self, sizes: Sequence[float]) -> "Screened":
        """Whole lengths, from 1 to 100."""
        return replace(self, length=tuple(min(LONGEST, max(1, round(m))) for m in sizes))

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        stand_in = stand_in_of(potential)
        if stand_in is None or not stand_in.sound:  # single moves find the world that is not sound
            return self._balanced.step(potential, state, rng)
        lengths = self._lengths(potential.levels)
        walked = self._walk.run(stand_in, state.values, lengths, rng)
        proposed = State(walked.values, potential.score(walked.values))
        ratio = log_ratio(state.scores, proposed.scores, walked.gained)
        return accept(state, proposed, ratio, rng)

    def _lengths(self, levels: int) -> list[int]:
        """The length at each level."""
        lengths = [round(m) for m in self.step_sizes]
        if len(lengths) not in (1, levels):
            raise InputError(
                f"Screened has {len(lengths)} lengths for {levels} levels. Give one number, or one per "
                "level.",
                token="length",
                kind="conflict",
            )
        return lengths * levels if len(lengths) == 1 else lengths

    @cached_property
    def _walk(self) -> Walk:
        return Walk(self.space, self.evidence)

    @cached_property
    def _balanced(self) -> Lazy:
        return Lazy(BalancedMetropolis(self.space, self.evidence))


def log_ratio(
    scores: Scores, new_scores: Scores, gained: Float64[Tensor, "levels chains"]
) -> Float64[Tensor, "levels chains"]:
    """The logarithm of the Metropolis-Hastings ratio of a walk that has gained this by the stand-in."""
    return new_scores.double() - scores.double() - gained


def stand_in_of(potential: Potential) -> StandIn | None:
    """The stand-in of a potential, if it has one."""
    if isinstance(potential, BasePotential | Counted):
        return potential.stand_in()
    return None


KERNELS.add("screened", Screened)
