"""Data of several domains: one bucket of worlds for each, and how replicas are dealt out to them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.language import Language
from nmln.space import Space

LEAST = 4  # replicas, and data of a minibatch, that a bucket has at least, if there are enough


@dataclass(frozen=True)
class Bucket:
    """The worlds of one domain."""

    space: Space
    worlds: Integer[Tensor, "worlds groups"]


@dataclass(frozen=True)
class Bucketed:
    """Worlds of one or several domains over one language, in the order of their file.

    Args:
        buckets: the worlds of every domain, in rising order of their sizes; inside a bucket in the order
            of the file.
        homes: the number of the bucket of every world, in the order of the file.
    """

    buckets: tuple[Bucket, ...]
    homes: Int64[Tensor, " worlds"]

    def __len__(self) -> int:
        return len(self.homes)

    @property
    def space(self) -> Space:
        """The language and the domain; of several domains the first one."""
        return self.buckets[0].space

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The language on every domain."""
        return tuple(bucket.space for bucket in self.buckets)

    @property
    def worlds(self) -> Integer[Tensor, "worlds groups"]:
        """All worlds, which must be of one domain: worlds of several have different lengths."""
        if len(self.buckets) != 1:
            raise InputError(
                f"this needs worlds of one domain, got {len(self.buckets)} domains "
                f"({names_of(self.spaces)}). Choose one of them.",
                kind="unsupported",
            )
        return self.buckets[0].worlds

    def chosen(self, places: Int64[Tensor, " places"]) -> tuple[Bucket, ...]:
        """The worlds at some positions, in their order; a bucket without any of them is empty."""
        found = []
        for number, bucket in enumerate(self.buckets):
            mine = self.homes == number
            row = mine.cumsum(0) - 1  # of a position in its bucket
            here = places[mine[places]]
            found.append(Bucket(bucket.space, bucket.worlds.index_select(0, row[here])))
        return tuple(found)


def in_buckets(
    space: Space | Sequence[Bucket], worlds: Integer[Tensor, "worlds groups"] | None
) -> list[Bucket]:
    """Data given as a space and its worlds, or in buckets already; refuses those without worlds."""
    if isinstance(space, Space):
        found = [] if worlds is None else [Bucket(space, worlds)]
    elif worlds is not None:
        raise InputError(
            "buckets have their worlds in them. Give either a space and worlds, or buckets.",
            kind="conflict",
        )
    else:
        found = list(space)
    if not found or not all(len(bucket.worlds) for bucket in found):
        raise InputError("there are no worlds to learn from. Give at least one.", kind="empty")
    return found


def sorted_out(
    spaces: Sequence[Space], rows: Sequence[Integer[Tensor, "..."]], homes: Sequence[int]
) -> tuple[tuple[Bucket, ...], Int64[Tensor, " worlds"]]:
    """Buckets of worlds that are given one by one, each with the number of its space."""
    parts: list[list[Tensor]] = [[] for _ in spaces]
    for row, home in zip(rows, homes, strict=True):
        parts[home].append(row)
    buckets = [Bucket(space, torch.stack(part)) for space, part in zip(spaces, parts, strict=True)]
    return tuple(buckets), torch.tensor(homes, dtype=torch.int64)


# Domains in words and in files.


def size_of(space: Space) -> tuple[int, ...]:
    """The numbers of constants, by which domains are ordered: that of all sorts first."""
    counts = [len(names) for names in space.domain.values()]
    return (sum(counts), *counts)


def name_of(space: Space) -> str:
    """A domain in words: the number of its constants, by sort if there are several."""
    counts = [(sort, len(names)) for sort, names in space.domain.items()]
    if len(counts) == 1:
        return str(counts[0][1])
    return " and ".join(f"{count} {sort}" for sort, count in counts)


def labels_of(spaces: Sequence[Space]) -> list[str]:
    """The names of several domains, each only once: those of one size are numbered, `2 #1`, `2 #2`."""
    names = [name_of(space) for space in spaces]
    totals = Counter(names)
    numbers = {name: count(1) for name in totals}
    return [name if totals[name] == 1 else f"{name} #{next(numbers[name])}" for name in names]


def names_of(spaces: Sequence[Space], most: int = 8) -> str:
    """Several domains in words."""
    shown = ", ".join(name_of(space) for space in spaces[:most])
    return f"{shown} and {len(spaces) - most} more" if len(spaces) > most else shown


def domain_in_json(space: Space) -> dict[str, Any]:
    """The constants of every sort; only their number where they are named 0, 1, ...."""
    return {
        sort: len(names) if names == tuple(map(str, range(len(names)))) else list(names)
        for sort, names in space.domain.items()
    }


def space_in_json(language: Language, content: Any) -> Space:
    """The space that `domain_in_json` described; a `ValueError` if it describes none."""
    if not isinstance(content, Mapping):
        raise InputError("a domain must be a table of sorts.", kind="damaged")
    for sort, names in content.items():
        listed = isinstance(names, list) and all(type(name) is str for name in names)
        if not listed and (type(names) is not int or names < 0):
            raise InputError(
                f"the constants of {sort} must be a list of names or a number.",
                token=sort,
                kind="damaged",
            )
    return Space(language, content)


# Shares.


def shares_of(buckets: Sequence[Bucket]) -> tuple[float, ...]:
    """The share of the data in each bucket: the probabilities of the domains."""
    total = sum(len(bucket.worlds) for bucket in buckets)
    return tuple(len(bucket.worlds) / total for bucket in buckets)


def floor_of(total: int, domains: int) -> int:
    """How many of `total` things each of some domains has at least: `LEAST`, or fewer if it must be."""
    return max(1, min(LEAST, total // domains))


def deal(total: int, shares: Sequence[float], least: int, setting: str = "the number") -> list[int]:
    """`total` things by shares, in whole numbers that add up to it, at least `least` each.

    What the small ones need to reach the floor is taken from the others in proportion. An error names
    the `setting` that `total` comes from.
    """
    if len(shares) == 1:
        return [total]
    if least * len(shares) > total:
        raise InputError(
            f"{setting} must be at least {least * len(shares)} for {len(shares)} domains with at least "
            f"{least} each, got {total}. Raise chains.replicas and training.batch, learn from fewer "
            "sizes (--sizes or --max-size), or take fewer processes or blocks.",
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
