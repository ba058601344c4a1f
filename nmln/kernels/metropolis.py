"""Metropolis: propose any other category, all equally likely."""

from dataclasses import dataclass

import torch
from torch import Generator

from nmln.evidence import Evidence
from nmln.kernels.combined import Lazy
from nmln.kernels.gibbs import choose
from nmln.kernels.moves import accept, free_groups, set_groups
from nmln.kernels.registry import KERNELS
from nmln.space import Space
from nmln.types import Groups, Info, Potential, Scores, State, Values


@dataclass(frozen=True)
class Metropolis:
    """Propose another allowed category of a random group, all equally likely, and accept by the score.

    On two-valued groups this is the local bit flip. One score per move, for any number of categories.
    On two-valued groups under a flat target it always moves, and so keeps the parity of the number of
    moves for ever: mix it with `Gibbs`, or swap with levels that are not flat.
    """

    space: Space
    evidence: Evidence | None = None

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        groups = choose(free_groups(self.space, self.evidence), state.values, rng)
        others = self.others(groups)
        uniform = torch.rand(others.shape, generator=rng, dtype=torch.float64, device=others.device)
        values = self.change(state.values, groups, 1 + (uniform * others).long())
        proposed = State(values, potential.score(values))
        return accept(state, proposed, log_ratio(state.scores, proposed.scores), rng)

    def others(self, groups: Groups) -> Groups:
        """How many categories can be proposed: the allowed ones without the current one."""
        counts = self.space.sizes if self.evidence is None else self.evidence.counts
        return counts.to(groups.device)[groups] - 1

    def change(self, values: Values, groups: Groups, shift: Groups) -> Values:
        """The worlds with the chosen groups moved by `shift` places, cyclically, among the allowed ones.

        The shifts from 1 to `others` lead to every other allowed category once.
        """
        now = values.gather(2, groups[..., None]).squeeze(2).long()
        count = self.others(groups) + 1
        if self.evidence is None:
            return set_groups(values, groups, (now + shift) % count)
        entries = self.space.offsets.to(values.device)[groups] + now
        ranks = self.evidence.ranks.to(values.device)[entries]
        return set_groups(values, groups, self.evidence.choices(groups, (ranks + shift) % count))


def log_ratio(scores: Scores, new_scores: Scores) -> Scores:
    """The logarithm of the Metropolis ratio: the proposal is symmetric, so only scores count."""
    return new_scores.double() - scores.double()


KERNELS.add("metropolis", lambda space, evidence: Lazy(Metropolis(space, evidence)))
