"""Balanced Metropolis: rare categories are chosen as often as common ones."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.combined import Lazy
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.moves import Attributes, Proposal, draw, free_groups, offer
from nmln.kernels.registry import KERNELS
from nmln.signals import give_way
from nmln.space import Space
from nmln.types import Groups, Info, Potential, State, Values


class _Tables(NamedTuple):
    """A kind is a category of an attribute, counted over all attributes."""

    free: Int64[Tensor, " free"]
    first_kind: Int64[Tensor, " free"]  # of the attribute of each free group
    same: Float64[Tensor, "kinds kinds"]  # 1 for two kinds of one attribute
    logs: Float64[Tensor, " counts"]


@dataclass(frozen=True)
class BalancedMetropolis:
    """Choose an attribute, one of the categories that its groups have now, a group that has it, each
    uniformly, and propose another allowed category; accept by Metropolis-Hastings.

    In a sparse world nearly all groups are none, and a change of a random group is nearly always
    rejected. Here groups that are not none are chosen as often as groups that are (the "tie, no tie"
    proposal of Morris, Handcock and Hunter, 2008, for any number of categories). One score per move.
    On two-valued groups it may keep the parity of the number of moves: let chains rest, or mix it with
    `Gibbs`. With `attributes` only those are moved, and another kernel must move the others.
    """

    space: Space
    evidence: Evidence | None = None
    attributes: Attributes = None
    moves: int = 1  # per step

    def __post_init__(self) -> None:
        if self.moves < 1:
            raise InputError(f"moves must be at least 1, got {self.moves}.")

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        before, infos = state.values, []
        for _ in range(self.moves):
            give_way(step=True)
            state, info = offer(potential, state, self.propose(state.values, rng), rng)
            infos.append(info)
        moved = (state.values != before).any(-1).to(state.scores.dtype).mean(1)
        return state, Info(torch.stack([info.acceptance for info in infos]).mean(0), moved)

    @torch.no_grad()
    def propose(self, values: Values, rng: Generator) -> Proposal:
        """Another category of one group, the same group on the way back."""
        changes = Metropolis(self.space, self.evidence)
        forward = self.choice(values)
        place = draw(forward, rng)
        groups = self._tables.free.to(place.device)[place]
        others = changes.others(groups)
        uniform = torch.rand(others.shape, generator=rng, dtype=torch.float64, device=others.device)
        changed = changes.change(values, groups, 1 + (uniform * others).long())
        return Proposal(changed, log_factor(forward, self.choice(changed), place))

    @cached_property
    def _tables(self) -> _Tables:
        free = free_groups(self.space, self.evidence, self.attributes)
        sizes = torch.tensor([block.size for block in self.space.blocks])
        counts = torch.tensor([block.count for block in self.space.blocks])
        first = (sizes.cumsum(0) - sizes).repeat_interleave(counts)
        attribute = torch.arange(len(sizes)).repeat_interleave(sizes)
        same = (attribute[:, None] == attribute).double()
        logs = torch.arange(self.space.groups + 1).double().log()
        return _Tables(free, first[free], same, logs)

    def choice(self, values: Values) -> Float64[Tensor, "levels chains free"]:
        """The log-probability of choosing each free group, up to a constant that is always the same."""
        free, first, same, logs = (table.to(values.device) for table in self._tables)
        kind = values.index_select(2, free) + first
        ones = torch.ones((), dtype=torch.float64, device=values.device).expand(kind.shape)
        counts = ones.new_zeros(*values.shape[:2], len(same)).scatter_add_(2, kind, ones)
        present = (counts > 0).double() @ same  # kinds of the same attribute that occur
        return -(logs[counts.long()] + logs[present.long()]).gather(2, kind)


def log_factor(
    forward: Float64[Tensor, "levels chains free"],
    backward: Float64[Tensor, "levels chains free"],
    place: Groups,
) -> Float64[Tensor, "levels chains"]:
    """The factor of a proposal: the same group must be chosen on the way back."""
    there = forward.gather(2, place[..., None]).squeeze(2)
    returning = backward.gather(2, place[..., None]).squeeze(2)
    return returning - there


KERNELS.add("balanced", lambda space, evidence: Lazy(BalancedMetropolis(space, evidence)))
