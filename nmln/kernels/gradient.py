"""Gibbs with gradients: slopes say which single change to propose."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.kernels.combined import Lazy
from nmln.kernels.moves import (
    Attributes,
    accept,
    allowed_entries,
    current_entries,
    differences,
    draw,
    free_groups,
)
from nmln.kernels.registry import KERNELS
from nmln.space import Space
from nmln.types import Info, Potential, Scores, Slopes, State, Values


@dataclass(frozen=True)
class GibbsWithGradients:
    """Propose one change (g, c) with probability softmax of D_gc / 2, where D_gc is the slope of c less
    that of the current category; accept by Metropolis-Hastings.

    One score with slopes per move, for any number of groups. On two-valued groups under a flat target
    it keeps the parity of the number of moves for ever: mix it with `Gibbs`. With `attributes` only
    those are moved, and another kernel must move the others.
    """

    space: Space
    evidence: Evidence | None = None
    attributes: Attributes = None

    def __post_init__(self) -> None:
        free_groups(self.space, self.evidence, self.attributes)  # there must be some

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, *potential.score_and_slopes(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        assert state.slopes is not None
        forward = self.proposal(state.values, state.slopes)
        entry = draw(forward, rng)
        values, back = self.change(state.values, entry)
        proposed = State(values, *potential.score_and_slopes(values))
        assert proposed.slopes is not None
        backward = self.proposal(values, proposed.slopes)
        ratio = log_ratio(state.scores, proposed.scores, forward, backward, entry, back)
        return accept(state, proposed, ratio, rng)

    def proposal(self, values: Values, slopes: Slopes) -> Slopes:
        """The log-probability of proposing each entry; minus infinity if it is current or forbidden."""
        return self.logits(values, slopes).log_softmax(-1)

    def logits(self, values: Values, slopes: Slopes) -> Slopes:
        """D / 2, and minus infinity for entries that are current or forbidden."""
        logits = differences(self.space, values, slopes).div_(2)
        if self.evidence is not None or self.attributes is not None:
            allowed = allowed_entries(self.space, self.evidence, self.attributes).to(values.device)
            logits.masked_fill_(~allowed, float("-inf"))
        return logits.scatter_(2, current_entries(self.space, values), float("-inf"))

    def change(
        self, values: Values, entry: Int64[Tensor, "levels chains"]
    ) -> tuple[Values, Int64[Tensor, "levels chains"]]:
        """The worlds with these entries made true, and the entries that would undo it."""
        offsets = self.space.offsets.to(values.device)
        group = self.space.group_of_entry.to(values.device)[entry]
        now = values.gather(2, group[..., None]).squeeze(2).long()
        category = (entry - offsets[group]).to(values.dtype)
        return values.scatter(2, group[..., None], category[..., None]), offsets[group] + now


def log_ratio(
    scores: Scores,
    new_scores: Scores,
    forward: Float[Tensor, "levels chains entries"],
    backward: Float[Tensor, "levels chains entries"],
    entry: Int64[Tensor, "levels chains"],
    back: Int64[Tensor, "levels chains"],
) -> Scores:
    """The logarithm of the Metropolis-Hastings ratio of one proposed change."""
    there = forward.gather(2, entry[..., None]).squeeze(2)
    returning = backward.gather(2, back[..., None]).squeeze(2)
    return new_scores.double() - scores.double() + (returning.double() - there.double())


KERNELS.add("gradients", lambda space, evidence: Lazy(GibbsWithGradients(space, evidence)))
