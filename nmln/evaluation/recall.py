"""The recall curve: how much of a reference set is among the first of a ranking of generated strings.

The different strings are ranked by how often they were generated, or by a number that a model gives each
of them, such as its log-probability.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from nmln.errors import InputError
from nmln.evaluation.counts import Counts, as_set
from nmln.evaluation.shares import Share

MARKS = (100, 300, 1_000, 3_000, 10_000)
"""The ranks at which a recall curve is read off by default."""


@dataclass(frozen=True)
class RecallCurve:
    """The number of strings of a reference set among the first t different strings of a ranking.

    Strings of equal count (or score) have no order, so that each place in their block holds its
    expected value: the curve is linear from (ranks[i], found[i]) to the next point, exactly. It starts
    at (0, 0) and stays at its last value when there are no more strings. `size` is that of the
    reference set.
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
    counts = Counts.of(samples).counts
    ranks, found = _blocks(counts, as_set(reference), as_set(without))
    return RecallCurve(tuple(ranks), tuple(found), len(as_set(reference)), tuple(at))


@dataclass(frozen=True)
class Scores:
    """A number for each different string, by which they are ranked, such as its log-probability.

    `exact` says whether the numbers are what they stand for, or only lower bounds.
    """

    values: Mapping[str, float]
    exact: bool = True


def recall_by_score(
    scores: Scores | Mapping[str, float],
    reference: Collection[str],
    *,
    at: Sequence[int] = MARKS,
    without: Collection[str] = (),
) -> RecallCurve:
    """The recall curve of different strings that are ranked by a score, the highest first.

    Only strings with a score are ranked, so that the reference set cannot enter the ranking by itself.

    Args:
        scores: a number for each string that was generated.
        reference: the strings to find.
        at: the ranks at which the curve is read off.
        without: strings that are taken out of the ranking, such as those of the training set.
    """
    values = scores.values if isinstance(scores, Scores) else scores
    if wrong := [string for string, value in values.items() if isnan(value)]:
        raise InputError(
            f"strings are ranked by numbers, but the score of {wrong[0]!r} is NaN. Leave it out.",
            token=wrong[0],
            kind="numeric",
        )
    ranks, found = _straightened(*_blocks(values, as_set(reference), as_set(without)))
    return RecallCurve(tuple(ranks), tuple(found), len(as_set(reference)), tuple(at))


def _blocks(
    keys: Mapping[str, float], wanted: frozenset[str], removed: frozenset[str]
) -> tuple[list[int], list[int]]:
    """The ends of the blocks of strings with equal keys, highest first, and what is found by then."""
    widths: Counter[float] = Counter()
    gains: Counter[float] = Counter()
    for string, key in keys.items():
        if string not in removed:
            widths[key] += 1
            gains[key] += string in wanted
    ranks, found = [0], [0]
    for key in sorted(widths, reverse=True):
        ranks.append(ranks[-1] + widths[key])
        found.append(found[-1] + gains[key])
    return ranks, found


def _straightened(ranks: list[int], found: list[int]) -> tuple[list[int], list[int]]:
    """The same curve without the points inside straight parts: most blocks hold one string."""
    kept = [0]
    for place in range(1, len(ranks)):
        if len(kept) > 1:
            before, last = kept[-2], kept[-1]
            one = (found[last] - found[before]) * (ranks[place] - ranks[last])
            other = (found[place] - found[last]) * (ranks[last] - ranks[before])
            if one == other:
                kept.pop()
        kept.append(place)
    return [ranks[place] for place in kept], [found[place] for place in kept]
