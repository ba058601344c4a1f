"""Discrete Langevin proposals with Metropolis-Hastings: all groups may move at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.moves import (
    Attributes,
    accept,
    allowed_entries,
    current_entries,
    differences,
    draw,
    free_groups,
    normalised,
)
from nmln.kernels.registry import KERNELS
from nmln.space import Space
from nmln.types import Info, Potential, Scores, Slopes, State, Values


@dataclass(frozen=True)
class DiscreteLangevin:
    """Propose every group independently with q_g(c) = softmax of D_gc / 2 - [c is not current] / alpha.

    `alpha` is the step size, one number or one for each level; the larger, the more groups move. Without
    the acceptance step the stationary distribution would be visibly wrong. With `attributes` only those
    are moved, and another kernel must move the others.
    """

    space: Space
    evidence: Evidence | None = None
    alpha: float | Sequence[float] = 1.0
    attributes: Attributes = None

    def __post_init__(self) -> None:
        free_groups(self.space, self.evidence, self.attributes)  # there must be some
        if not self.step_sizes or any(not size > 0 for size in self.step_sizes):
            raise InputError(f"step sizes must be positive, got alpha={self.alpha}.")

    @property
    def step_sizes(self) -> tuple[float, ...]:
        alpha = self.alpha
        return (float(alpha),) if isinstance(alpha, int | float) else tuple(map(float, alpha))

    def with_step_sizes(self, sizes: Sequence[float]) -> "DiscreteLangevin":
        """Sizes from 0.02, where hardly a group moves, to 1e4, where staying has no advantage."""
        return replace(self, alpha=tuple(min(1e4, max(0.02, size)) for size in sizes))

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, *potential.score_and_slopes(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        assert state.slopes is not None
        forward = self.proposal(state.values, state.slopes)
        values = self.propose(forward, rng).to(state.values.dtype)
        proposed = State(values, *potential.score_and_slopes(values))
        assert proposed.slopes is not None
        backward = self.proposal(values, proposed.slopes)
        there, back = self.chosen(forward, values), self.chosen(backward, state.values)
        gained = proposed.scores.double() - state.scores.double()
        return accept(state, proposed, gained + (back - there), rng)

    def proposal(self, values: Values, slopes: Slopes) -> Slopes:
        """The log-probability of each category of each group, the groups being independent."""
        logits = differences(self.space, values, slopes).div_(2)
        alpha = torch.as_tensor(self.alpha, dtype=slopes.dtype, device=values.device)
        # Staying gains 1 / alpha instead of every change losing it: the same distribution.
        stay = (1 / alpha).view(-1, 1, 1).expand(values.shape)
        if self.evidence is not None or self.attributes is not None:
            allowed = allowed_entries(self.space, self.evidence, self.attributes).to(values.device)
            logits.masked_fill_(~allowed, float("-inf"))
        logits.scatter_(2, current_entries(self.space, values), stay)
        for block in self.space.blocks:
            view = self.space.entries_of(logits, block)
            view.copy_(normalised(view)[0])
        return logits

    def propose(self, log_q: Slopes, rng: Generator) -> Values:
        """Draw a category for every group."""
        parts = [draw(self.space.entries_of(log_q, block), rng) for block in self.space.blocks]
        return torch.cat(parts, dim=-1)

    def chosen(self, log_q: Slopes, values: Values) -> Scores:
        """The log-probability of proposing given worlds, summed in double precision."""
        return log_q.gather(2, current_entries(self.space, values)).sum(-1, dtype=torch.float64)


KERNELS.add("langevin", DiscreteLangevin)
