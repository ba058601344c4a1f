"""The gradient of the likelihood: data raise the score, worlds of the model's chains lower it."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor

from nmln.potentials.base import BasePotential
from nmln.types import Values

_HIGH = 0.95  # share of the chains that ordinary data do not score above


class Phases(NamedTuple):
    """Mean scores of both phases of a step, level by level."""

    positive: Float[Tensor, " levels"]  # mean score of the data
    negative: Float[Tensor, " levels"]  # weighted mean score of the chains

    @property
    def gap(self) -> Float[Tensor, " levels"]:
        """How far the data lie above the chains: near zero when the model explains them."""
        return self.positive - self.negative


def accumulate_gradient(
    potential: BasePotential,
    positive: Integer[Tensor, "levels data groups"],
    negative: Values,
    weights: Float[Tensor, "levels chains"] | None = None,
    penalty: float = 0.0,
    spread: float = 0.0,
    share: float = 1.0,
) -> Phases:
    """Add the gradient of the negative log-likelihood to every parameter's.

    For each level: minus the mean score of `positive` plus the mean score of `negative`, which are
    chains at that level's distribution (with `weights` that sum to one, where they lag behind it).
    `penalty` times the mean squared score of both keeps energies from growing without bounds.
    `spread` is a number of nats: data that score above 95 % of the chains of their level are pulled
    down, as strongly as the likelihood pulls up when they are so far above. Kinds of worlds that chains
    hardly find would otherwise be raised above the others without limit, because no chain lowers them.
    Each level has parameters of its own, so that the sum over levels trains each on its own. `share` is
    that of these data among all, where several domains are learned together.
    """
    data, chains = positive.shape[1], negative.shape[1]
    scores = potential.score(torch.cat([positive, negative], dim=1))
    above, below = scores.split([data, chains], dim=1)
    if weights is None:
        weights = torch.full_like(below, 1 / chains)
    up, down = above.mean(1), (weights.to(below.dtype) * below).sum(1)
    loss = (down - up).sum()
    if penalty:
        loss = loss + penalty * (above.square().mean(1) + below.square().mean(1)).sum()
    if spread:
        # From the mean, not from a fixed number, so that the scores are not all pulled down together.
        # Not from the highest chain: one that has found such a kind seldom leaves it.
        limit = (below.detach().quantile(_HIGH, dim=1) - up).relu().detach()
        away = above - (up + limit)[:, None]
        loss = loss + (away.relu().square().mean(1) / (2 * spread)).sum()
    (loss if share == 1 else share * loss).backward()
    return Phases(up.detach(), down.detach())


def accumulate_local_gradient(
    potential: BasePotential,
    positive: Integer[Tensor, "levels data groups"],
    rng: Generator,
    share: float = 1.0,
) -> Phases:
    """Add the gradient of the negative pseudo-likelihood of one group of each world.

    The group is drawn at random, the same at every level, and predicted from all others. No chains
    are needed, so it is cheap; it teaches which single changes of the data are wrong, and nothing
    about worlds that are many changes away. The negative phase is the mean over the group's categories.
    """
    device = positive.device
    sizes = potential.space.sizes.to(device)
    groups = torch.randint(len(sizes), (positive.shape[1],), generator=rng, device=device)
    owners = torch.repeat_interleave(sizes[groups])  # of every category of every chosen group
    firsts = sizes[groups].cumsum(0) - sizes[groups]
    every = torch.arange(len(owners), device=device)
    categories = every - firsts[owners]
    changed = positive[:, owners].clone()
    changed[:, every, groups[owners]] = categories.to(positive.dtype)
    scores = potential.score(changed)
    own = firsts + positive[:, torch.arange(len(groups), device=device), groups].long()
    up = scores.gather(1, own)
    table = scores.new_full((len(scores), len(groups), int(sizes.max())), float("-inf"))
    table[:, owners, categories] = scores
    loss = (table.logsumexp(-1) - up).mean(1).sum()
    (loss if share == 1 else share * loss).backward()
    down = (table.softmax(-1) * table.nan_to_num(neginf=0.0)).sum(-1)
    return Phases(up.mean(1).detach(), down.mean(1).detach())
