"""Gibbs sampling: redraw groups from their conditional distribution."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, Integer
from torch import Generator, Tensor

from nmln.counting import count_up
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.moves import allowed_entries, conditionals, draw, free_groups, set_groups
from nmln.kernels.registry import KERNELS
from nmln.space import Space
from nmln.types import Groups, Info, Potential, State, Values


@dataclass(frozen=True)
class Gibbs:
    """Redraw one group, chosen at random and independently in every chain.

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


@dataclass(frozen=True)
class BlockedGibbs:
    """Redraw several groups jointly, chosen at random and independently in every chain.

    Crosses barriers that no single group can. A step scores a world for every combination of categories
    of the chosen groups: keep `size` small.
    """

    space: Space
    evidence: Evidence | None = None
    size: int = 2

    def __post_init__(self) -> None:
        free = len(free_groups(self.space, self.evidence))
        if not 1 <= self.size <= free:
            raise InputError(
                f"size must be from 1 to {free}, the number of free groups, got {self.size}."
            )

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        free = free_groups(self.space, self.evidence).to(state.values.device)
        shape = (*state.values.shape[:2], len(free))
        uniform = torch.rand(shape, generator=rng, dtype=torch.float64, device=free.device)
        order = uniform.topk(self.size, dim=-1).indices
        scores, worlds = self.joint(potential, state.values, free[order])
        choice = draw(scores.log_softmax(-1), rng)
        index = choice[..., None, None].expand(-1, -1, 1, self.space.groups)
        values = worlds.gather(2, index).squeeze(2)
        chosen = scores.gather(2, choice[..., None]).squeeze(2)
        moved = (values != state.values).any(-1).to(chosen.dtype).mean(1)
        return State(values, chosen), Info(torch.ones_like(moved), moved)

    def joint(
        self, potential: Potential, values: Values, groups: Int64[Tensor, "levels chains size"]
    ) -> tuple[
        Float[Tensor, "levels chains worlds"], Integer[Tensor, "levels chains worlds groups"]
    ]:
        """All worlds that differ from these in the chosen groups only, and their scores.

        Combinations that do not exist or are not allowed repeat the world, with minus infinity.
        """
        device = values.device
        most = int(self.space.sizes.max())
        radices = torch.full((self.size,), most)
        categories = count_up(radices, 2**16, torch.int64).to(device)
        entry = self.space.offsets.to(device)[groups][:, :, None] + categories
        exists = categories < self.space.sizes.to(device)[groups][:, :, None]
        allowed = allowed_entries(self.space, self.evidence).to(device)
        possible = (exists & allowed[entry.clamp(max=self.space.entries - 1)]).all(-1)
        worlds = values[:, :, None].expand(-1, -1, len(categories), -1)
        index = groups[:, :, None].expand(-1, -1, len(categories), -1)
        now = values.gather(2, groups)[:, :, None].long()
        chosen = torch.where(possible[..., None], categories, now).to(values.dtype)
        worlds = worlds.scatter(3, index, chosen)
        scores = potential.score(worlds.flatten(1, 2)).unflatten(1, possible.shape[1:])
        return scores.masked_fill(~possible, float("-inf")), worlds


def choose(free: Int64[Tensor, " free"], values: Values, rng: Generator) -> Groups:
    """A free group for every chain, all equally likely."""
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


def _pairs(space: Space, evidence: Evidence | None) -> BlockedGibbs:
    """Blocks of two groups, or of one where no more are free."""
    return BlockedGibbs(space, evidence, min(2, len(free_groups(space, evidence))))


KERNELS.add("gibbs", Gibbs)
KERNELS.add("systematic", SystematicGibbs)
KERNELS.add("blocked", _pairs)
