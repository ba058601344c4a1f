"""What the kernels share: which groups may move, drawing from logits, accepting proposals."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.files import InputError
from nmln.space import Space
from nmln.types import Alternatives, Groups, Info, Potential, Scores, State, Values


def free_groups(space: Space, evidence: Evidence | None) -> Int64[Tensor, " free"]:
    """The groups that a kernel may move; refuses evidence that leaves none."""
    counts = space.sizes if evidence is None else evidence.counts
    free = torch.nonzero(counts > 1).flatten()
    if not len(free):
        raise InputError("every group is observed, so there is nothing to sample.")
    return free


def allowed_entries(space: Space, evidence: Evidence | None) -> Bool[Tensor, " entries"]:
    """The entries that evidence leaves open."""
    if evidence is None:
        return torch.ones(space.entries, dtype=torch.bool)
    if evidence.space != space:
        raise InputError("this evidence is about another space. Make it with the space at hand.")
    return evidence.allowed


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


def draw(logits: Float[Tensor, "*batch choices"], rng: Generator) -> Int64[Tensor, "*batch"]:
    """One choice per row with probabilities softmax(logits), by Gumbel's trick."""
    return perturbed(logits, rng).argmax(-1)


def perturbed(
    logits: Float[Tensor, "*batch choices"], rng: Generator
) -> Float[Tensor, "*batch choices"]:
    """Logits with Gumbel noise: the largest is a draw, the order a draw without replacement."""
    uniform = torch.rand(logits.shape, generator=rng, dtype=torch.float64, device=logits.device)
    return logits.double() - torch.log(-torch.log(uniform.clamp(min=1e-300)))


def accept(state: State, proposed: State, log_ratio: Scores, rng: Generator) -> tuple[State, Info]:
    """Take each proposal with probability min(1, exp(log_ratio))."""
    probability = log_ratio.clamp(max=0).exp()
    uniform = torch.rand(
        probability.shape, generator=rng, dtype=probability.dtype, device=probability.device
    )
    taken = uniform < probability
    values = torch.where(taken[..., None], proposed.values, state.values)
    scores = torch.where(taken, proposed.scores, state.scores)
    slopes = None
    if proposed.slopes is not None and state.slopes is not None:
        slopes = torch.where(taken[..., None], proposed.slopes, state.slopes)
    moved = (values != state.values).any(-1).to(scores.dtype).mean(1)
    return State(values, scores, slopes), Info(probability.mean(1), moved)
