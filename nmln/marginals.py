"""Noise by marginals: a corrupted group is redrawn from the frequencies of its categories.

Uniform noise fills a sparse world with ties that no datum has. Redrawn from their frequencies, groups
keep their marginals at every rate: a molecule keeps its number of bonds on average, and at rate 1 the
groups are independent. At rate nu a group keeps its category c with probability 1 - nu + nu m_c, and
takes another category d with probability nu m_d, where m are the frequencies.
"""

from math import log

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.noise import bernoulli_places, check_corruptible, check_rate, counts_allowed
from nmln.space import Block, Space
from nmln.types import Worlds

Shares = Float[Tensor, " entries"]
"""The frequency of every category of every group."""

SMOOTHING = 0.02
"""The part of the frequencies of a base term that is uniform, so that no category is lost."""

_STEP, _PLACES = 0.002, 2**13  # nats between two places of the lattice that changes are counted on
_LEAST_RATE = 1e-9  # stands for no noise at all, where the ratio of two rates would be infinite
_TAIL = 12.0  # standard deviations on each side of the mean that the lattice holds


def shares_of(space: Space, logs: Float[Tensor, " entries"]) -> Shares:
    """The frequencies whose logarithms these are, up to a constant of each group; on the CPU."""
    logs = logs.detach().cpu().double()  # not every device has double precision
    found = torch.empty(space.entries, dtype=torch.float64)
    for block in space.blocks:
        own = space.entries_of(logs[None], block).softmax(-1)
        space.entries_of(found[None], block).copy_(own)
    return found


def redraw(
    space: Space,
    values: Worlds,
    rate: float,
    shares: Shares,
    rng: Generator,
    evidence: Evidence | None = None,
) -> Worlds:
    """A corrupted copy of worlds; observed groups stay as they are.

    Args:
        space: the space of the worlds.
        values: the worlds to corrupt; they must agree with the evidence.
        rate: the probability that a free group is redrawn; it may be the same as before.
        shares: the frequencies that it is drawn from; with evidence, those of its allowed categories.
        rng: the generator that all random numbers are drawn from.
        evidence: the categories that are allowed; without it, all of them.
    """
    check_corruptible(space, values, rate, evidence)
    drawn = values.clone(memory_format=torch.contiguous_format)
    if not rate or not drawn.numel():
        return drawn
    flat, device = drawn.view(-1), drawn.device
    if rate == 1.0:
        places = torch.arange(flat.numel(), device=device)
    else:
        places = bernoulli_places(flat.numel(), rate, rng, device)
    groups = places % space.groups
    reached = _reached(space, shares, evidence).to(device)
    uniform = torch.rand(len(places), generator=rng, dtype=torch.float64, device=device)
    flat[places] = _category(reached, groups, uniform).to(flat.dtype)
    return drawn


def _category(
    reached: Float64[Tensor, "groups categories"],
    groups: Int64[Tensor, " places"],
    uniform: Float64[Tensor, " places"],
) -> Int64[Tensor, " places"]:
    """The first category whose sum is above a uniform number, for each place of a group.

    The sums of group g lie between g and g + 1 in one sorted list, so that memory does not grow with
    the number of categories.
    """
    width = reached.shape[1]
    last = (reached < 1).sum(1)  # the last possible category: rounding must not lead beyond it
    steps = torch.arange(len(reached), dtype=torch.float64, device=reached.device)
    listed = (reached + steps[:, None]).flatten()
    found = torch.searchsorted(listed, uniform + groups, right=True) - width * groups
    return torch.minimum(found, last[groups])


def _reached(
    space: Space, shares: Shares, evidence: Evidence | None
) -> Float64[Tensor, "groups categories"]:
    """The sums of the frequencies up to each category; one from the last possible one."""
    table = by_group(space, shares, evidence)
    possible = (table > 0).long()
    after = possible.flip(1).cumsum(1).flip(1) - possible
    return table.cumsum(1).clamp(max=1 - 2**-53).masked_fill(after == 0, 1.0)


def by_group(
    space: Space, shares: Shares, evidence: Evidence | None = None
) -> Float64[Tensor, "groups categories"]:
    """The frequencies of the categories that evidence allows, one row for each group, padded with zeros.

    An observed group has one category. Where no allowed category has a frequency, all are equally
    likely.
    """
    allowed = torch.ones(space.entries, dtype=torch.float64, device=shares.device)
    if evidence is not None:
        allowed = evidence.allowed.to(shares.device).double()
    most = int(space.sizes.max())
    groups = space.group_of_entry.to(shares.device)
    place = (
        torch.arange(space.entries, device=shares.device) - space.offsets.to(shares.device)[groups]
    )
    table = torch.zeros(space.groups, most, dtype=torch.float64, device=shares.device)
    left = table.clone()
    table[groups, place] = shares.double() * allowed
    left[groups, place] = allowed
    table = torch.where(table.sum(1, keepdim=True) > 0, table, left)
    return table / table.sum(1, keepdim=True)


def redraw_matrix(
    space: Space, rate: float, shares: Shares, evidence: Evidence | None = None, limit: int = 2**12
) -> Float64[Tensor, "worlds worlds"]:
    """P(corrupted world | world), both in the order of `enumerate`; for at most `limit` worlds."""
    check_rate(rate, "a corruption rate")
    counts = counts_allowed(space, evidence, limit)
    table = by_group(space, shares, evidence)
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for group, count in enumerate(counts):
        own = table[group][_allowed(space, group, evidence)]
        channel = (1 - rate) * torch.eye(count, dtype=torch.float64) + rate * own.expand(count, -1)
        matrix = torch.kron(matrix, channel)
    return matrix


def _allowed(space: Space, group: int, evidence: Evidence | None) -> Int64[Tensor, " categories"]:
    size, first = int(space.sizes[group]), int(space.offsets[group])
    if evidence is None:
        return torch.arange(size)
    return torch.nonzero(evidence.allowed[first : first + size]).flatten()


def changes_of(space: Space, shares: Shares) -> float:
    """How many groups of a world change on average when all are redrawn; the others stay by chance."""
    return sum(
        block.count * (1 - float(_of_block(space, shares, block).square().sum()))
        for block in space.blocks
        if block.count
    )


def swap_prediction(space: Space, shares: Shares, rate: float, other: float) -> float:
    """A lower bound on the mean probability of a swap, for worlds of independent groups of these shares.

    It is found as `nmln.noise.swap_bound` is: a swap of two corrupted worlds is accepted at least as
    often as a swap of the two pairs (datum, corrupted datum), whose ratio depends only on how many
    groups of each category were kept, and on how many changed. The groups of real data are not
    independent, so that it is a prediction for them, not a bound.
    """
    for number in (rate, other):
        check_rate(number, "a corruption rate")
    if rate == other:
        return 1.0
    high, low = max(rate, other), max(min(rate, other), _LEAST_RATE)
    steps, chances, counts = [], [], []
    for block in space.blocks:
        if block.size == 1 or not block.count:
            continue
        own = _of_block(space, shares, block).numpy()
        kept = np.log((1 - low + low * own) / (1 - high + high * own))
        # What every group adds cancels between the two worlds: most groups then add nothing.
        steps.append(np.concatenate([kept, [log(low / high)]]) - kept[own.argmax()])
        stay = [own * (1 - rate + rate * own) for rate in (high, low)]
        chances.append([np.append(one, 1 - one.sum()) for one in stay])
        counts.append(block.count)
    means = [(pair @ step) for step, pair in zip(steps, map(np.array, chances), strict=True)]
    squares = [(pair @ step**2) for step, pair in zip(steps, map(np.array, chances), strict=True)]
    mean = sum(count * (one[0] - one[1]) for count, one in zip(counts, means, strict=True))
    spread = sum(
        count * (two - one**2).sum() for count, one, two in zip(counts, means, squares, strict=True)
    )
    width = max(_STEP, 2 * (abs(mean) + _TAIL * spread**0.5 + 1) / _PLACES)
    # Half of the characteristic function: that of real chances mirrors in the other half.
    where, law = np.arange(_PLACES // 2 + 1), np.ones(_PLACES // 2 + 1, dtype=complex)
    turns = np.exp(2j * np.pi * np.arange(_PLACES) / _PLACES)
    for step, pair, count in zip(steps, chances, counts, strict=True):
        places = np.rint(step / width).astype(int)
        for chance, sign in zip(pair, (1, -1), strict=True):
            one = sum(
                share * turns[sign * place * where % _PLACES]
                for share, place in zip(chance, places, strict=True)
            )
            law *= one**count
    change = width * _PLACES * np.fft.fftfreq(_PLACES)
    at = np.fft.irfft(law.conj(), _PLACES)
    return float(np.clip((at * np.exp(np.minimum(change, 0))).sum(), 0.0, 1.0))


def _of_block(space: Space, shares: Shares, block: Block) -> Float64[Tensor, " categories"]:
    """The frequencies of an attribute: all of its groups have the same."""
    return shares[block.entries][: block.size].double().cpu()
