"""Metropolised Gibbs: never propose to stay."""

from dataclasses import dataclass

import torch
from torch import Generator

from nmln.evidence import Evidence
from nmln.kernels.combined import Lazy
from nmln.kernels.gibbs import choose
from nmln.kernels.moves import accept, conditionals, draw, free_groups, set_groups
from nmln.kernels.registry import KERNELS
from nmln.space import Space
from nmln.types import Alternatives, Groups, Info, Potential, Scores, State, Values


@dataclass(frozen=True)
class MetropolisedGibbs:
    """Propose another category c of a random group with p_c / (1 - p_now), then accept or reject.

    Moves more often than Gibbs sampling for the same scores. On two-valued groups under a flat target it
    always moves, and so keeps the parity of the number of moves for ever: mix it with `Gibbs`.
    """

    space: Space
    evidence: Evidence | None = None

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        groups = choose(free_groups(self.space, self.evidence), state.values, rng)
        scores, log_p = conditionals(potential, self.space, self.evidence, state.values, groups)
        category = draw(proposal(log_p, state.values, groups), rng)
        proposed = State(
            set_groups(state.values, groups, category),
            scores.gather(2, category[..., None]).squeeze(2),
        )
        return accept(state, proposed, log_ratio(log_p, state.values, groups, category), rng)


def proposal(log_p: Alternatives, values: Values, groups: Groups) -> Alternatives:
    """Log-probabilities of proposing each category: the conditional without the current one.

    Where nothing else is possible they are all minus infinity, and `log_ratio` refuses any proposal.
    """
    now = values.gather(2, groups[..., None]).long()
    others = log_p.scatter(2, now, float("-inf"))
    stuck = (others == float("-inf")).all(-1, keepdim=True)
    return others.log_softmax(-1).masked_fill(stuck, float("-inf"))


def log_ratio(log_p: Alternatives, values: Values, groups: Groups, category: Groups) -> Scores:
    """log (1 - p_now) / (1 - p_c), through sums of what is left, which do not cancel."""
    now = values.gather(2, groups[..., None]).long()
    others = log_p.scatter(2, now, float("-inf")).logsumexp(-1)
    rest = log_p.scatter(2, category[..., None], float("-inf")).logsumexp(-1)
    return (others - rest).masked_fill(others == float("-inf"), float("-inf"))


KERNELS.add("metropolised", lambda space, evidence: Lazy(MetropolisedGibbs(space, evidence)))
