"""Gibbs sampling: redraw groups from their conditional distribution."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.kernels.moves import conditionals, draw, free_groups, set_groups
from nmln.space import Space
from nmln.types import Groups, Info, Potential, State, Values


@dataclass(frozen=True)
class Gibbs:
    """Redraw one group, chosen at random by every chain for itself.

    A step scores every other category of the chosen group, and the world as it is.
    """

    space: Space
    evidence: Evidence | None = None

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        groups = choose(free_groups(self.space, self.evidence), state.values, rng)
        return redraw(potential, self.space, self.evidence, state, groups, rng)


@dataclass(frozen=True)
class SystematicGibbs:
    """Redraw all free groups, one after the other, in the order of the space."""

    space: Space
    evidence: Evidence | None = None

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        before = state.values
        for group in free_groups(self.space, self.evidence).tolist():
            groups = torch.full(before.shape[:2], group, device=before.device)
            state, _ = redraw(potential, self.space, self.evidence, state, groups, rng)
        moved = (state.values != before).any(-1).to(state.scores.dtype).mean(1)
        return state, Info(torch.ones_like(moved), moved)


def choose(free: Int64[Tensor, " free"], values: Values, rng: Generator) -> Groups:
    """A free group for every chain, all alike."""
    index = torch.randint(len(free), values.shape[:2], generator=rng, device=values.device)
    return free.to(values.device)[index]


def redraw(
    potential: Potential,
    space: Space,
    evidence: Evidence | None,
    state: State,
    groups: Groups,
    rng: Generator,
) -> tuple[State, Info]:
    """Redraw one group per chain from its conditional distribution."""
    scores, log_probabilities = conditionals(potential, space, evidence, state.values, groups)
    category = draw(log_probabilities, rng)
    values = set_groups(state.values, groups, category)
    chosen = scores.gather(2, category[..., None]).squeeze(2)
    moved = (values != state.values).any(-1).to(chosen.dtype).mean(1)
    return State(values, chosen), Info(torch.ones_like(moved), moved)
