"""The rules by which two rows of a figure are compared: stated once, used by all claims.

Two samplings are compared by the share of the test set that is among their 1,000 most frequent
molecules, and by the share that was generated at all, at an equal number of samples. One is *ahead* in a
share if the 95 % interval of the difference (Newcombe's, from the intervals of Wilson; the test
molecules are the draws) lies above zero. With several seeds of both, it is ahead if its least share is
above the largest of the other. It is *above* if it is ahead in one of the two shares, and the other is
ahead in none.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any, Literal, NamedTuple

from nmln.evaluation import wilson

Row = Mapping[str, Any]
Order = Literal["above", "below", "open"]

RANK = 1_000
"""The rank at which the beginnings of rankings are compared."""


class Measured(NamedTuple):
    """A share of the test set that was found."""

    found: float
    size: int

    @property
    def share(self) -> float:
        return self.found / self.size


class Compared(NamedTuple):
    """Two methods on one data set, with their shares of all seeds, and which one is above."""

    data: str
    one: str
    other: str
    order: Order
    covered: tuple[tuple[float, ...], tuple[float, ...]]
    top: tuple[tuple[float, ...], tuple[float, ...]]

    def __str__(self) -> str:
        """The numbers in words: of the first and of the second method."""
        shown = [
            f"{_percent(first)} and {_percent(second)}"
            for first, second in (self.covered, self.top)
        ]
        return f"{shown[0]} generated, {shown[1]} among the first {RANK:,}"


def _percent(shares: Sequence[float]) -> str:
    return " / ".join(f"{100 * one:.1f} %" for one in shares)


def rows_of(numbers: Mapping[str, Any], method: str) -> list[Row]:
    """The rows of a method in a result, one per seed."""
    return [row for row in numbers["rows"] if row["method"] == method]


def compare(numbers: Mapping[str, Any], one: str, other: str) -> Compared | None:
    """Two methods of a figure; None if one of them is not there."""
    first, second = rows_of(numbers, one), rows_of(numbers, other)
    if not first or not second:
        return None
    covered = _both(first, second, lambda row: row["covered"]["count"], numbers["test"])
    top = _both(first, second, lambda row: row["recall"]["at"][str(RANK)], numbers["test"])
    signs = [ahead(*covered), ahead(*top)]
    order: Order = "open"
    if 1 in signs and -1 not in signs:
        order = "above"
    elif -1 in signs and 1 not in signs:
        order = "below"
    return Compared(
        numbers["data"],
        first[0]["title"],
        second[0]["title"],
        order,
        _shares(covered),
        _shares(top),
    )


def _both(first: Iterable[Row], second: Iterable[Row], read: Any, size: int) -> Any:
    return tuple(tuple(Measured(read(row), size) for row in rows) for rows in (first, second))


def _shares(pair: Any) -> Any:
    return tuple(tuple(one.share for one in side) for side in pair)


def ahead(first: Sequence[Measured], second: Sequence[Measured]) -> int:
    """1 if the first is ahead, -1 if the second is, 0 if neither."""
    if len(first) > 1 and len(second) > 1:
        ones, others = ([one.share for one in side] for side in (first, second))
        return (min(ones) > max(others)) - (min(others) > max(ones))
    low, high = difference(first[0], second[0])
    return (low > 0) - (high < 0)


def difference(one: Measured, other: Measured) -> tuple[float, float]:
    """The 95 % interval of the difference of two shares, by Newcombe's method."""
    (low, high), (lower, higher) = (wilson(*each) for each in (one, other))
    middle = one.share - other.share
    down = sqrt((one.share - low) ** 2 + (higher - other.share) ** 2)
    up = sqrt((high - one.share) ** 2 + (other.share - lower) ** 2)
    return middle - down, middle + up
