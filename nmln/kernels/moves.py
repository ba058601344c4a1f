"""Shared parts of the kernels: which groups may move, drawing categories, accepting proposals."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.space import Space
from nmln.types import (
    Alternatives,
    Groups,
    Info,
    Kernel,
    Potential,
    Scores,
    Slopes,
    State,
    Values,
)

Attributes = Sequence[str] | None
"""The names of the attributes that a kernel moves; None: all of them."""


class Proposal(NamedTuple):
    """Worlds that a kernel proposes.

    `factor` is the logarithm of the probability of proposing the way back over that of the way there;
    minus infinity where nothing could be proposed, and the world is the present one.
    """

    values: Values
    factor: Float64[Tensor, "levels chains"]


@runtime_checkable
class Proposing(Kernel, Protocol):
    """A kernel that proposes one world per chain, whatever its level, and accepts it by the score."""

    def propose(self, values: Values, rng: Generator) -> Proposal: ...


def free_groups(
    space: Space, evidence: Evidence | None, attributes: Attributes = None
) -> Int64[Tensor, " free"]:
    """The groups that a kernel may move; refuses evidence that leaves none."""
    counts = space.sizes if evidence is None else evidence.counts
    free = counts > 1
    if attributes is not None:
        chosen = torch.zeros_like(free)
        for name in attributes:
            chosen[space.block(name).groups] = True
        free = free & chosen
    if not bool(free.any()):
        raise InputError("every group is observed, so there is nothing to sample.", kind="empty")
    return torch.nonzero(free).flatten()


def allowed_entries(
    space: Space, evidence: Evidence | None, attributes: Attributes = None
) -> Bool[Tensor, " entries"]:
    """The entries that evidence leaves open, of the chosen attributes."""
    allowed = torch.ones(space.entries, dtype=torch.bool)
    if evidence is not None:
        if evidence.space != space:
            raise InputError(
                "this evidence is about another space. Make it with the space of the kernel.",
                kind="conflict",
            )
        allowed = evidence.allowed
    if attributes is None:
        return allowed
    chosen = torch.zeros_like(allowed)
    for name in attributes:
        chosen[space.block(name).entries] = True
    return allowed & chosen


def conditionals(
    potential: Potential,
    space: Space,
    evidence: Evidence | None,
    values: Values,
    groups: Groups,
) -> tuple[Alternatives, Alternatives]:
    """Scores and log-probabilities of every category of one group per chain, the others as they are.

    Categories that evidence or a hard formula forbids have minus infinity.
    """
    scores = potential.score_alternatives(values, groups)
    if evidence is not None:
        first = space.offsets.to(values.device)[groups]
        entry = first[..., None] + torch.arange(scores.shape[-1], device=values.device)
        allowed = evidence.allowed.to(values.device)[entry.clamp(max=space.entries - 1)]
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores, scores.log_softmax(-1)


def set_groups(values: Values, groups: Groups, categories: Groups) -> Values:
    """Worlds with one group per chain set to a category."""
    return values.scatter(2, groups[..., None], categories[..., None].to(values.dtype))


def draw(log_p: Float[Tensor, "*batch choices"], rng: Generator) -> Int64[Tensor, "*batch"]:
    """One choice per row with these log-probabilities, from one uniform number per row.

    A choice of probability zero is never drawn, unless all have it.
    """
    reached = log_p.exp().cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(
        reached.shape[:-1], generator=rng, dtype=torch.float64, device=reached.device
    )
    wanted = ((1 - uniform) * reached[..., -1])[..., None]  # above zero, at most the sum
    return torch.searchsorted(reached, wanted).squeeze(-1)


def normalised(
    logits: Float[Tensor, "*batch choices"],
) -> tuple[Float[Tensor, "*batch choices"], Float[Tensor, "*batch"]]:
    """log_softmax and logsumexp of short rows, several times faster than torch has them.

    A row that is minus infinity throughout has the sum minus infinity and stays as it is.
    """
    most = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
    below = logits - most
    sums = below.exp().sum(-1, keepdim=True).log()
    return below - sums.clamp(min=0), (most + sums).squeeze(-1)


def differences(space: Space, values: Values, slopes: Slopes) -> Slopes:
    """D: how much larger the slope of each entry is than that of its group's category."""
    now = slopes.gather(2, current_entries(space, values))
    result = torch.empty_like(slopes)
    for block in space.blocks:
        here = now[..., block.groups, None]
        torch.sub(space.entries_of(slopes, block), here, out=space.entries_of(result, block))
    return result


def current_entries(space: Space, values: Values) -> Int64[Tensor, "levels chains groups"]:
    """The entry of every group's category."""
    return values + space.offsets.to(values.device)


def perturbed(
    logits: Float[Tensor, "*batch choices"], rng: Generator
) -> Float[Tensor, "*batch choices"]:
    """Logits with Gumbel noise: the largest is a draw, the order a draw without replacement."""
    uniform = torch.rand(logits.shape, generator=rng, dtype=torch.float64, device=logits.device)
    return logits.double() - torch.log(-torch.log(uniform.clamp(min=1e-300)))


@torch.no_grad()
def offer(
    potential: Potential, state: State, proposal: Proposal, rng: Generator
) -> tuple[State, Info]:
    """Score the proposed worlds, and accept them by Metropolis-Hastings."""
    proposed = State(proposal.values, potential.score(proposal.values))
    return accept(state, proposed, log_ratio(state.scores, proposed.scores, proposal.factor), rng)


def log_ratio(
    scores: Scores, new_scores: Scores, factor: Float64[Tensor, "levels chains"]
) -> Float64[Tensor, "levels chains"]:
    """The logarithm of the Metropolis-Hastings ratio, in double precision."""
    return new_scores.double() - scores.double() + factor


def accept(state: State, proposed: State, log_ratio: Scores, rng: Generator) -> tuple[State, Info]:
    """Take each proposal with probability min(1, exp(log_ratio)).

    Drawn and compared in double precision: a uniform number of single precision is 0 once in 2^24
    times, and would accept a proposal of almost no probability.
    """
    probability = log_ratio.double().clamp(max=0).exp()
    taken = happens(probability, rng)
    values = torch.where(taken[..., None], proposed.values, state.values)
    scores = torch.where(taken, proposed.scores, state.scores)
    slopes = None
    if proposed.slopes is not None and state.slopes is not None:
        slopes = torch.where(taken[..., None], proposed.slopes, state.slopes)
    moved = (values != state.values).any(-1).to(scores.dtype).mean(1)
    return State(values, scores, slopes), Info(probability.mean(1).to(scores.dtype), moved)


def happens(probability: Float[Tensor, "*batch"], rng: Generator) -> Bool[Tensor, "*batch"]:
    """Toss a coin for each of these probabilities, with uniform numbers of double precision."""
    uniform = torch.rand(
        probability.shape, generator=rng, dtype=torch.float64, device=probability.device
    )
    return uniform < probability.double()
