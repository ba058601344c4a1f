"""Data of several domains: one bucket of worlds for each, and how replicas are dealt out to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.space import Space

LEAST = 4  # replicas, and data of a minibatch, that a bucket has at least


@dataclass(frozen=True)
class Bucket:
    """The worlds of one domain."""

    space: Space
    worlds: Integer[Tensor, "worlds groups"]


def shares_of(buckets: Sequence[Bucket]) -> tuple[float, ...]:
    """The share of the data in each bucket: the probabilities of the domains."""
    total = sum(len(bucket.worlds) for bucket in buckets)
    return tuple(len(bucket.worlds) / total for bucket in buckets)


def deal(total: int, shares: Sequence[float], least: int) -> list[int]:
    """`total` things by shares, in whole numbers that add up to it, at least `least` each.

    What the small ones need to reach the floor is taken from the others in proportion.
    """
    if len(shares) == 1:
        return [total]
    if least * len(shares) > total:
        raise InputError(
            f"{total} replicas or data of a step must be dealt out to {len(shares)} domains, at least "
            f"{least} to each, which takes {least * len(shares)}. Raise chains.replicas and "
            "training.batch, or learn from fewer sizes.",
            kind="conflict",
        )
    small = {place for place, share in enumerate(shares) if share * total < least}
    while True:
        left = total - least * len(small)
        whole = sum(share for place, share in enumerate(shares) if place not in small)
        wanted = [
            float(least) if place in small else left * share / whole
            for place, share in enumerate(shares)
        ]
        below = {place for place, number in enumerate(wanted) if number < least} - small
        if not below:
            break
        small |= below
    found = [int(number) for number in wanted]
    rest = sorted(range(len(found)), key=lambda place: (found[place] - wanted[place], place))
    for place in rest[: total - sum(found)]:
        found[place] += 1
    return found
