"""Discrete Langevin proposals with Metropolis-Hastings: all groups may move at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.files import InputError
from nmln.kernels.moves import accept, allowed_entries, draw
from nmln.space import Space
from nmln.types import Info, Potential, Scores, Slopes, State, Values


@dataclass(frozen=True)
class DiscreteLangevin:
    """Propose every group for itself with q_g(c) = softmax of D_gc / 2 - [c is not current] / alpha.

    `alpha` is the step size, one number or one for each level; the larger, the more groups move. Without
    the acceptance step the stationary distribution would be visibly wrong.
    """

    space: Space
    evidence: Evidence | None = None
    alpha: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        sizes = [self.alpha] if isinstance(self.alpha, int | float) else list(self.alpha)
        if not sizes or any(not size > 0 for size in sizes):
            raise InputError(f"step sizes must be positive, but alpha is {self.alpha}.")

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
        return accept(state, proposed, proposed.scores - state.scores + back - there, rng)

    def proposal(self, values: Values, slopes: Slopes) -> Slopes:
        """The log-probability of each category of each group, the groups being independent."""
        device = values.device
        entries = values.long() + self.space.offsets.to(device)
        alpha = torch.as_tensor(self.alpha, dtype=slopes.dtype, device=device).view(-1, 1, 1)
        stay = torch.zeros_like(slopes).scatter(2, entries, 1.0)
        logits = slopes / 2 + (stay - 1) / alpha
        allowed = allowed_entries(self.space, self.evidence).to(device)
        logits = logits.masked_fill(~allowed, float("-inf"))
        result = torch.empty_like(logits)
        for block in self.space.blocks:
            view = self.space.entries_of(logits, block)
            self.space.entries_of(result, block).copy_(view.log_softmax(-1))
        return result

    def propose(self, log_q: Slopes, rng: Generator) -> Values:
        """Draw a category for every group."""
        parts = [draw(self.space.entries_of(log_q, block), rng) for block in self.space.blocks]
        return torch.cat(parts, dim=-1)

    def chosen(self, log_q: Slopes, values: Values) -> Scores:
        """The log-probability of proposing given worlds."""
        entries: Tensor = values.long() + self.space.offsets.to(values.device)
        return log_q.gather(2, entries).sum(-1)
