"""Shares with the name of their denominator, and the Wilson interval."""

from dataclasses import dataclass
from math import nan, sqrt
from statistics import NormalDist
from typing import Any


@dataclass(frozen=True)
class Share:
    """A part of a whole; `of` names the whole, the denominator.

    `low` and `high` are the 95 % Wilson interval, which holds for independent draws. Samples of one
    Markov chain are correlated: the interval is then too narrow. Shares that depend on the number of
    draws, such as the share of different strings, have no `interval`.
    """

    count: float
    total: int
    of: str
    interval: bool = True

    @property
    def value(self) -> float:
        return self.count / self.total if self.total else nan

    @property
    def low(self) -> float:
        return wilson(self.count, self.total)[0] if self.interval else nan

    @property
    def high(self) -> float:
        return wilson(self.count, self.total)[1] if self.interval else nan

    def describe(self) -> dict[str, Any]:
        """The share as a dictionary for JSON."""
        content = {"value": self.value, "count": self.count, "total": self.total, "of": self.of}
        return {**content, "low": self.low, "high": self.high} if self.interval else content


def wilson(count: float, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of `count` successes in `total` trials; also valid at 0 and at all."""
    if not total:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2) / (1 + z * z / total)
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))
