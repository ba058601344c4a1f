"""Corruption of worlds at the rates of a ladder, sampled and exact.

At rate nu every free group keeps its category with probability 1 - nu and otherwise takes one of its
other allowed categories, all equally likely. For two categories this is the bit-flip channel.
"""

import warnings
from math import inf, log, log1p, prod

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Generator, Tensor

from nmln.counting import more_than, worlds_text
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.memory import in_digits, refuse_size
from nmln.space import Space
from nmln.types import Values, Worlds

_CHUNK = 2**16  # groups corrupted at a time: the uniform numbers stay in the cache
_TAIL = 9.0  # standard deviations beyond which the numbers of changed groups do not count
_SPARSE = 0.07  # below this rate it is cheaper to draw the groups that change than to visit all


class NoiseWarning(UserWarning):
    """A corruption rate that is allowed but probably a mistake: it is noisier than uniform."""


def corrupt(
    space: Space, values: Worlds, rate: float, rng: Generator, evidence: Evidence | None = None
) -> Worlds:
    """A corrupted copy of worlds; observed groups stay as they are.

    Costs about one uniform number per group, and far less at small rates, where the cost is
    proportional to the number of changes.

    Args:
        space: the space of the worlds.
        values: the worlds to corrupt; they must agree with the evidence.
        rate: the probability that a free group changes.
        rng: the generator that all random numbers are drawn from.
        evidence: the categories that are allowed; without it, all of them.
    """
    counts = _counts(space, evidence)
    check_corruptible(space, values, rate, evidence)
    _warn_if_noisier_than_uniform(counts, rate)
    corrupted = values.clone(memory_format=torch.contiguous_format)
    if rate > 0 and corrupted.numel():
        change = _change_few if rate < _SPARSE else _change_many
        change(space, corrupted.view(-1, space.groups), counts, rate, rng, evidence)
    return corrupted


def check_corruptible(space: Space, values: Worlds, rate: float, evidence: Evidence | None) -> None:
    """Refuse worlds of another space, or that contradict the evidence, and rates that are none."""
    check_rate(rate, "a corruption rate")
    if values.shape[-1] != space.groups:
        raise InputError(
            f"worlds of this space have {space.groups} groups, but these have {values.shape[-1]}.",
            kind="conflict",
        )
    _counts(space, evidence)
    if evidence is not None and not bool(evidence.allows(values).all()):
        raise InputError(
            "these worlds contradict the evidence, so they cannot be corrupted under it. "
            "Make them agree first: evidence.clamp(worlds).",
            kind="conflict",
        )


def refuse_chains(space: Space, levels: int, chains: int) -> None:
    """Refuse more chains than the memory holds, before any is made."""
    refuse_size(
        levels * chains * space.groups * (16 + space.dtype.itemsize),
        f"{in_digits(chains)} chains at {in_digits(levels)} levels, over {in_digits(space.groups)} "
        "groups,",
        "Take fewer chains or levels.",
    )


def uniform(
    space: Space, levels: int, chains: int, rng: Generator, evidence: Evidence | None = None
) -> Values:
    """Worlds in which every allowed category of a group is equally likely: pure noise to start from.

    Args:
        space: the space of the worlds.
        levels: the number of levels.
        chains: the number of chains at each level.
        rng: the generator that all random numbers are drawn from.
        evidence: the categories that are allowed; without it, all of them.
    """
    if levels < 1 or chains < 1:
        raise InputError(
            f"there must be at least one level and one chain, got {levels} levels of {chains} chains."
        )
    rules = evidence or Evidence.none(space)
    counts = _counts(space, rules).to(rng.device)
    refuse_chains(space, levels, chains)
    shape = (levels, chains, space.groups)
    draws = torch.rand(shape, generator=rng, dtype=torch.float64, device=rng.device)
    groups = torch.arange(space.groups, device=rng.device).expand(shape)
    return rules.choices(groups, (draws * counts).long()).to(space.dtype)


def _change_few(
    space: Space,
    worlds: Integer[Tensor, "worlds groups"],
    counts: Int64[Tensor, " groups"],
    rate: float,
    rng: Generator,
    evidence: Evidence | None,
) -> None:
    """Draw the groups that change, then their new categories."""
    flat, device = worlds.view(-1), worlds.device
    places = bernoulli_places(flat.numel(), rate, rng, device)
    groups = places % space.groups
    if evidence is not None:
        free = evidence.free.to(device)[groups]
        places, groups = places[free], groups[free]
    left = counts.to(device)[groups]
    uniform = torch.rand(len(places), generator=rng, dtype=torch.float64, device=device)
    shift = 1 + (uniform * (left - 1)).long()
    old = flat[places].long()
    if evidence is None:
        new = (old + shift) % left
    else:
        ranks = evidence.ranks.to(device)[space.offsets.to(device)[groups] + old]
        new = evidence.choices(groups, (ranks + shift) % left)
    flat[places] = new.to(flat.dtype)


def bernoulli_places(
    total: int, rate: float, rng: Generator, device: torch.device
) -> Int64[Tensor, " places"]:
    """The successes among `total` independent trials, by the geometric gaps between them."""
    found: list[Tensor] = []
    last = -1
    while last < total:
        expected = (total - last) * rate
        draws = int(expected + 4 * expected**0.5) + 8
        uniform = torch.rand(draws, generator=rng, dtype=torch.float64, device=device)
        gaps = 1 + torch.log1p(-uniform) / torch.log1p(torch.tensor(-rate, dtype=torch.float64))
        places = last + gaps.clamp(max=total + 1).long().cumsum(0)
        found.append(places)
        last = int(places[-1])
    places = torch.cat(found)
    return places[places < total]


def _change_many(
    space: Space,
    worlds: Integer[Tensor, "worlds groups"],
    counts: Int64[Tensor, " groups"],
    rate: float,
    rng: Generator,
    evidence: Evidence | None,
) -> None:
    """Visit every group: a uniform number u shifts it by 1 + floor(u (k-1) / rate), at most by k.

    A shift by k among k categories keeps the category, which happens with probability 1 - rate.
    """
    device = worlds.device
    sizes = space.sizes
    scale = (sizes - 1) / rate
    least = torch.zeros(space.groups)
    partly = torch.zeros(0, dtype=torch.int64)
    if evidence is not None:
        least[~evidence.free] = 1e30  # an observed group is always shifted by all of its categories
        partly = torch.nonzero(evidence.free & (counts < sizes)).flatten()
    fits = worlds.dtype == torch.uint8 and int(sizes.max()) <= 128
    small = torch.uint8 if fits else torch.int32
    partly = partly.to(device)
    scale, stay = scale.to(device, torch.float32), (sizes - 1).to(device, torch.float32)
    least = least.to(device)
    if rate == 1.0:
        below = torch.nextafter(stay, torch.zeros_like(stay))
        stay = torch.where(least > 0, stay, below)
    left = sizes.to(device, small)
    rows = max(1, _CHUNK // space.groups)
    for start in range(0, len(worlds), rows):
        part = worlds[start : start + rows]
        before = part[:, partly]
        uniform = torch.rand(part.shape, generator=rng, device=device)
        torch.addcmul(least, uniform, scale, out=uniform)
        shift = torch.minimum(uniform, stay, out=uniform).to(small)
        part.copy_(_wrap(shift.add_(part).add_(1), left))
        if evidence is not None and len(partly):
            part[:, partly] = _move_among_allowed(before, partly, rate, rng, evidence)


def _move_among_allowed(
    before: Integer[Tensor, "worlds some"],
    groups: Int64[Tensor, " some"],
    rate: float,
    rng: Generator,
    evidence: Evidence,
) -> Integer[Tensor, "worlds some"]:
    """Corrupt groups that have lost some of their categories, but not all."""
    device = before.device
    left = evidence.counts.to(device)[groups]
    ranks = evidence.ranks.to(device)[evidence.space.offsets.to(device)[groups] + before]
    uniform = torch.rand(before.shape, generator=rng, dtype=torch.float64, device=device)
    shift = 1 + (uniform * (left - 1) / rate).long().minimum(left - 1 - int(rate == 1.0))
    return evidence.choices(groups.expand_as(ranks), (ranks + shift) % left).to(before.dtype)


def _wrap(moved: Tensor, left: Tensor) -> Tensor:
    """`moved` modulo `left` for numbers below twice `left`."""
    return moved.sub_(left * (moved >= left))


# The channel, exactly.


def channel_matrix(
    space: Space, rate: float, evidence: Evidence | None = None, limit: int = 2**12
) -> Float64[Tensor, "worlds worlds"]:
    """P(corrupted world | world), both in the order of `enumerate`.

    For spaces of at most `limit` worlds. With evidence, only the worlds that agree with it.
    """
    counts = _enumerable(space, evidence, rate, limit)
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for count in counts:
        matrix = torch.kron(matrix, _group_channel(count, rate))
    return matrix


def noised(
    space: Space,
    probabilities: Float[Tensor, " worlds"],
    rate: float,
    evidence: Evidence | None = None,
    limit: int = 2**24,
) -> Float64[Tensor, " worlds"]:
    """The distribution of a corrupted draw, exactly; worlds in the order of `enumerate`.

    The channel is applied group by group, so that the cost is the number of worlds times the number of
    groups, and the matrix is never built.

    Args:
        space: the space of the worlds.
        probabilities: the distribution before corruption, one number per world.
        rate: the probability that a free group changes.
        evidence: the categories that are allowed; only worlds that agree with it are listed.
        limit: the largest number of worlds that is accepted.
    """
    counts = _enumerable(space, evidence, rate, limit)
    if len(probabilities) != prod(counts):
        raise InputError(
            f"a distribution over these worlds must have {prod(counts):,} numbers, one per world, "
            f"got {len(probabilities):,}.",
            kind="conflict",
        )
    current = probabilities.to(torch.float64).reshape(-1)
    for count in counts:
        # Take the first digit to the back: after all groups the order is the original one.
        rest = current.view(count, -1).T
        current = (rest @ _group_channel(count, rate)).reshape(-1)
    return current


def _counts(space: Space, evidence: Evidence | None) -> Int64[Tensor, " groups"]:
    """The number of allowed categories of each group."""
    if evidence is None:
        return space.sizes
    if evidence.space != space:
        raise InputError(
            "the evidence is about another space. Build it with the space of the worlds.",
            kind="conflict",
        )
    return evidence.counts


def _enumerable(space: Space, evidence: Evidence | None, rate: float, limit: int) -> list[int]:
    check_rate(rate, "a corruption rate")
    _warn_if_noisier_than_uniform(_counts(space, evidence), rate)
    return counts_allowed(space, evidence, limit)


def counts_allowed(space: Space, evidence: Evidence | None, limit: int) -> list[int]:
    """The number of allowed categories of each group; refused where there are too many worlds."""
    counts = _counts(space, evidence)
    if more_than(counts, limit):
        raise InputError(
            f"there are {worlds_text(counts)} worlds, too many for an exact channel (the limit is "
            f"{limit:,}). Observe more groups, or take fewer constants.",
            kind="size",
        )
    return counts.tolist()


def _group_channel(count: int, rate: float) -> Float64[Tensor, "before after"]:
    """One group: it keeps its category with probability 1 - rate; the others are equally likely."""
    if count == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    channel = torch.full((count, count), rate / (count - 1), dtype=torch.float64)
    return channel.fill_diagonal_(1 - rate)


# The paper's bounds, which hold for any distribution.


def total_variation_bound(free_groups: int, rate: float, other: float) -> float:
    """An upper bound on the total variation between two noised versions of one distribution.

    Proposition "Total variation between adjacent noise levels": d |nu - nu'|, where d is the number
    of free groups. Assumes that both come from the same distribution through the channel above, at
    the two rates; nothing about the distribution. A total variation is at most 1, so the bound says
    nothing once it reaches 1, which on large worlds it soon does. The proof couples the two channels
    through one uniform number per group, and holds for groups of any number of categories.
    """
    for number in (rate, other):
        check_rate(number, "a corruption rate")
    return min(1.0, free_groups * abs(rate - other))


def acceptance_bound(free_groups: int, rate: float, other: float) -> float:
    """A lower bound on the mean probability of a swap between two neighbouring levels.

    Corollary "Lower bound on expected swap acceptance": 1 - 2 d |nu - nu'|. Assumes that the two
    levels are exactly the noised versions of one distribution (fitted networks are so only
    approximately) and that both chains are stationary. Zero, which says nothing, where the formula is
    negative.
    """
    return max(0.0, 1 - 2 * total_variation_bound(free_groups, rate, other))


def swap_bound(free_groups: int, rate: float, other: float) -> float:
    """A lower bound on the mean probability of a swap that is far sharper than `acceptance_bound`.

    With N and N' the numbers of changed groups, binomial with the two rates, it is

        E min{1, [a (1 - b) / (b (1 - a))]^(N' - N)},

    the overlap of the two pairs of changes in either order: a swap of the worlds is accepted at least
    as often as one of the changes that made them, because worlds are a function of the changes and of
    draws from one distribution. Assumes the same as `acceptance_bound`.
    """
    for number in (rate, other):
        check_rate(number, "a corruption rate")
    if rate == other or not free_groups:
        return 1.0
    high, low = max(rate, other), min(rate, other)
    certain = high == 1.0 or low == 0.0
    odds = inf if certain else log(high) - log1p(-high) - log(low) + log1p(-low)
    (first, many), (start, few) = _binomial(free_groups, high), _binomial(free_groups, low)
    # The distribution of N' - N: a convolution, with one of the two reversed.
    count = len(few) + len(many) - 1
    product = np.fft.rfft(few, count) * np.fft.rfft(many[::-1], count)
    shares = np.fft.irfft(product, count)
    less = np.arange(len(shares)) + start - (first + len(many) - 1)
    factor = np.where(less < 0, np.exp(odds * np.minimum(less, -1)), 1.0)
    return float(min(1.0, (shares * factor).sum()))


def _binomial(count: int, rate: float) -> tuple[int, np.ndarray]:
    """Binomial probabilities, without tails that do not count; and the first number of successes."""
    if rate in (0.0, 1.0):
        return round(count * rate), np.ones(1)
    spread = _TAIL * (count * rate * (1 - rate)) ** 0.5 + _TAIL
    first = max(0, int(count * rate - spread))
    last = min(count, int(count * rate + spread))
    numbers = np.arange(first, last)
    steps = np.log((count - numbers) / (numbers + 1)) + log(rate) - log1p(-rate)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    shares = np.exp(logs - logs.max())
    return first, shares / shares.sum()


def check_rate(rate: float, what: str) -> None:
    """Refuse a corruption rate that is not a probability; `what` names it in the message."""
    if not 0 <= rate <= 1:
        raise InputError(f"{what} must be between 0 and 1, got {rate}. Give a probability.")


def _warn_if_noisier_than_uniform(counts: Int64[Tensor, " groups"], rate: float) -> None:
    if rate <= 0.5:
        return  # (k - 1) / k is at least one half for every group that can change
    fewest = counts[counts > 1].min() if bool((counts > 1).any()) else None
    if fewest is not None and rate > (int(fewest) - 1) / int(fewest):
        most = (int(fewest) - 1) / int(fewest)
        warnings.warn(
            f"rate {rate} is noisier than uniform for groups of {int(fewest)} categories: at "
            f"{most:.4g} nothing of the world is left, above it the channel prefers change.",
            NoiseWarning,
            stacklevel=3,
        )
