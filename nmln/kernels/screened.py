"""Screened moves: many balanced moves by the cheap part of a potential, then one score of the whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Generator

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
from nmln.types import Info, Potential, State, Values

LENGTH = 10
LONGEST = 100


@dataclass(frozen=True)
class Screened:
    """Walk some balanced moves by the stand-in of the potential, and accept where they lead by the rest.

    A walk of m reversible moves is reversible under the stand-in s, so that a walk from x to y is accepted
    with probability min{1, exp(rho(y) - rho(x) - s(y) + s(x))}. One score of the potential per walk. `length`
    is m, one number or one for each level. Every move of a walk rests with a small probability, so that no
    parity is kept. A potential without a stand-in is moved by single balanced moves.
    """

    space: Space
    evidence: Evidence | None = None
    length: int | Sequence[int] = LENGTH

    def __post_init__(self) -> None:
        if not self.step_sizes or any(m < 1 for m in self.step_sizes):
            raise InputError(f"a walk takes at least one move, got {self.length}.", token="length")

    @property
    def step_sizes(self) -> tuple[float, ...]:
        length = self.length
        return (float(length),) if isinstance(length, int) else tuple(map(float, length))

    def with_step_sizes(self, sizes: Sequence[float]) -> "Screened":
        """Whole lengths, from 1 to 100."""
        return replace(self, length=tuple(min(LONGEST, max(1, round(m))) for m in sizes))

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        stand_in = stand_in_of(potential)
        if stand_in is None:
            return self._balanced.step(potential, state, rng)
        lengths = [round(m) for m in self.step_sizes]
        if len(lengths) == 1:
            lengths *= potential.levels
        walked = self._walk.run(stand_in, state.values, lengths, rng)
        proposed = State(walked.values, potential.score(walked.values))
        ratio = proposed.scores.double() - state.scores.double() - walked.gained
        return accept(state, proposed, ratio, rng)

    @cached_property
    def _walk(self) -> Walk:
        return Walk(self.space, self.evidence)

    @cached_property
    def _balanced(self) -> Lazy:
        return Lazy(BalancedMetropolis(self.space, self.evidence))


def stand_in_of(potential: Potential) -> StandIn | None:
    """The stand-in of a potential, if it has one."""
    if isinstance(potential, BasePotential | Counted):
        return potential.stand_in()
    return None


KERNELS.add("screened", Screened)
