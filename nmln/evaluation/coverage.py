"""Coverage of a reference set, and the number of different strings among k samples (unique@k)."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from math import exp, expm1, inf, lgamma, log1p
from typing import Any

import numpy as np

from nmln.errors import InputError
from nmln.evaluation.counts import FIRST, Counts, as_set
from nmln.evaluation.shares import Share

_ONE_BY_ONE = 100_000  # counts up to here are summed factor by factor, larger ones by lgamma


def coverage(samples: Counts, reference: Collection[str], of: str = "reference set") -> Share:
    """The share of the reference set that was generated at least once."""
    wanted = as_set(reference)
    return Share(sum(string in samples.counts for string in wanted), len(wanted), of)


def ideal_coverage(size: int, draws: int) -> float:
    """The mean coverage of a sampler that draws uniformly from `size` strings: 1-(1-1/size)^draws.

    It is the same share for every part of the `size` strings.
    """
    if size < 1 or draws < 0:
        raise InputError(
            f"coverage needs a set of at least one string and at least 0 draws, got {size} and "
            f"{draws}."
        )
    return -expm1(draws * (log1p(-1 / size) if size > 1 else -inf)) if draws else 0.0


def expected_unique(samples: Counts, draws: int) -> float:
    """The mean number of different strings over all choices of `draws` of the valid samples.

    Drawn without replacement: a string that was generated c times among N is missing with the
    probability C(N-c, k) / C(N, k).
    """
    total = samples.valid
    if not 0 <= draws <= total:
        raise InputError(
            f"{draws:,} cannot be drawn from {total:,} valid samples without replacement. Draw at "
            f"most {total:,}."
        )
    sizes = Counter(samples.counts.values())
    reach = min(max(sizes, default=0), total - draws, _ONE_BY_ONE)
    kept = np.cumsum(np.log1p(-draws / (total - np.arange(reach, dtype=float))))

    def missing(count: int) -> float:
        if count > total - draws:
            return 0.0
        if count <= reach:
            return exp(kept[count - 1])
        return exp(
            lgamma(total - count + 1) - lgamma(total - count - draws + 1)
            - lgamma(total + 1) + lgamma(total - draws + 1)
        )  # fmt: skip

    return sum(strings * (1 - missing(count)) for count, strings in sizes.items())


@dataclass(frozen=True)
class Unique:
    """The number of different strings among k valid samples: unique@k is `value`.

    The samples are the first k in order, or, if the order is not known, the mean over all choices.
    """

    draws: int
    different: float
    first: bool

    @property
    def value(self) -> float:
        return self.different / self.draws

    def describe(self) -> dict[str, Any]:
        """unique@k as a dictionary for JSON."""
        which = "the first" if self.first else "any, on average:"
        return {
            "value": self.value, "count": self.different, "total": self.draws,
            "of": f"{which} {self.draws} valid samples",
        }  # fmt: skip


def unique_at(samples: Counts) -> tuple[Unique, ...]:
    """unique@k for k = 1,000, 10,000 and so on, as far as there are valid samples."""
    if samples.firsts:
        return tuple(Unique(k, n, first=True) for k, n in samples.firsts.items())
    found, draws = [], FIRST
    while draws <= samples.valid:
        found.append(Unique(draws, expected_unique(samples, draws), first=False))
        draws *= 10
    return tuple(found)
