"""The recall curve: how much of a reference set is among the most frequently generated strings."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmln.evaluation.counts import Counts, as_set
from nmln.evaluation.shares import Share

MARKS = (100, 300, 1_000, 3_000, 10_000)
"""The ranks at which a recall curve is read off by default."""


@dataclass(frozen=True)
class RecallCurve:
    """The number of strings of a reference set among the t most frequently generated different strings.

    Strings of equal count have no order, so that each place in their block holds its expected value:
    the curve is linear from (ranks[i], found[i]) to the next point, exactly. It starts at (0, 0) and
    stays at its last value when there are no more strings. `size` is that of the reference set.
    """

    ranks: tuple[int, ...]
    found: tuple[int, ...]
    size: int
    marks: tuple[int, ...] = MARKS

    def at(self, rank: float) -> float:
        """The expected number of reference strings among the first `rank`."""
        if rank >= self.ranks[-1]:
            return float(self.found[-1])
        if rank <= 0:
            return 0.0
        end = bisect_left(self.ranks, rank)
        start = end - 1
        width = self.ranks[end] - self.ranks[start]
        gain = self.found[end] - self.found[start]
        return self.found[start] + (rank - self.ranks[start]) * gain / width

    def share(self, rank: float) -> Share:
        """The value at a rank as a share of the reference set.

        Its interval is that of a reference set drawn at random: how far the number would move if as
        many other strings had been held out.
        """
        return Share(self.at(rank), self.size, "reference set")

    @property
    def table(self) -> dict[int, float]:
        """The values at the marks."""
        return {mark: self.at(mark) for mark in self.marks}

    def describe(self) -> dict[str, Any]:
        """The curve at its marks, with intervals, as a dictionary for JSON."""
        at = {}
        for mark, value in self.table.items():
            share = self.share(mark)
            low, high = share.low * self.size, share.high * self.size
            at[str(mark)] = {"value": value, "low": low, "high": high}
        return {"size": self.size, "ranked": self.ranks[-1], "at": at}


def recall_curve(
    samples: Counts | Mapping[str, int] | Iterable[str | None],
    reference: Collection[str],
    *,
    at: Sequence[int] = MARKS,
    without: Collection[str] = (),
) -> RecallCurve:
    """The recall curve of samples. Their order does not matter, and invalid attempts are not ranked.

    Args:
        samples: counts, a mapping from strings to counts, or the samples with None for invalid ones.
        reference: the strings to find.
        at: the ranks at which the curve is read off.
        without: strings that are taken out of the ranking, such as those of the training set.
    """
    wanted, removed = as_set(reference), as_set(without)
    widths: Counter[int] = Counter()
    gains: Counter[int] = Counter()
    for string, count in Counts.of(samples).counts.items():
        if string not in removed:
            widths[count] += 1
            gains[count] += string in wanted
    ranks, found = [0], [0]
    for count in sorted(widths, reverse=True):
        ranks.append(ranks[-1] + widths[count])
        found.append(found[-1] + gains[count])
    return RecallCurve(tuple(ranks), tuple(found), len(wanted), tuple(at))
