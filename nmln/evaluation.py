"""How good generated strings are beside a training and a test set, whatever the strings stand for.

An *attempt* is one draw of a generator. It is *valid* if it gave a string, which the caller has brought
into one form, so that equal things are equal strings. Every number says what it is a share of.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, expm1, inf, lgamma, log1p, nan, sqrt
from statistics import NormalDist
from typing import Any, cast

import numpy as np

from nmln.files import InputError

MARKS = (100, 300, 1_000, 3_000, 10_000)
"""The ranks that a recall curve is read off at, where nobody asks for others."""

_FIRST = 1_000  # the smallest k of unique@k; the others are 10, 100, ... times as many
_ONE_BY_ONE = 100_000  # counts up to here are summed factor by factor, larger ones by lgamma


@dataclass(frozen=True)
class Share:
    """A part of a whole, with the name of the whole: its denominator.

    `low` and `high` are the 95 % Wilson interval, for a whole of independent draws. Samples of one
    Markov chain resemble each other: then it is too narrow. What depends on how many draws there were,
    such as the share of different ones, has no `interval`.
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
        """The same for JSON."""
        told = {"value": self.value, "count": self.count, "total": self.total, "of": self.of}
        return {**told, "low": self.low, "high": self.high} if self.interval else told


def wilson(count: float, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of `count` successes in `total` trials; sound at none and at all."""
    if not total:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2) / (1 + z * z / total)
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))


@dataclass(frozen=True, repr=False)
class Counts:
    """How often each valid string was generated, in how many attempts, invalid ones included.

    `firsts[k]` is the number of different strings among the first k valid ones, for k = 1,000, 10,000
    and so on; it is empty if the order was not seen.
    """

    counts: Mapping[str, int]
    attempts: int
    firsts: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.counts and (least := min(self.counts.values())) < 1:
            raise InputError(f"what was generated was generated at least once, not {least} times.")
        if self.attempts < self.valid:
            raise InputError(
                f"{self.valid:,} valid strings cannot come from {self.attempts:,} attempts. Count "
                "every attempt, also the invalid ones."
            )

    def __repr__(self) -> str:
        return f"Counts({self.unique:,} different in {self.valid:,} of {self.attempts:,} attempts)"

    @staticmethod
    def of(samples: "Counts | Mapping[str, int] | Iterable[str | None]") -> "Counts":
        """The counts of what a user has: counts, or the samples in order, None for an invalid one."""
        if isinstance(samples, Counts):
            return samples
        if isinstance(samples, Mapping):
            given = cast("Mapping[str, int]", samples)
            return Counts(dict(given), sum(given.values()))
        tally = Tally()
        for sample in samples:
            tally.add(sample)
        return tally.close()

    @cached_property
    def valid(self) -> int:
        """How many attempts gave a string."""
        return sum(self.counts.values())

    @property
    def unique(self) -> int:
        """How many different strings there are."""
        return len(self.counts)


class Tally:
    """Counts samples as they come. Its memory grows with the different strings only."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.attempts = 0
        self._valid, self._next = 0, _FIRST
        self._firsts: dict[int, int] = {}
        self._ordered = True

    def add(self, string: str | None, times: int = 1) -> None:
        """One attempt, or several at once: then the order of the samples is lost."""
        self.attempts += times
        self._ordered &= times == 1
        if string is None:
            return
        self.counts[string] = self.counts.get(string, 0) + times
        self._valid += times
        if self._valid == self._next:
            self._firsts[self._next] = len(self.counts)
            self._next *= 10

    def close(self, attempts: int | None = None, ordered: bool = True) -> Counts:
        """What was counted; `attempts` may say that there were more than were added."""
        firsts = self._firsts if ordered and self._ordered else {}
        return Counts(self.counts, self.attempts if attempts is None else attempts, firsts)


# The recall curve.


@dataclass(frozen=True)
class RecallCurve:
    """How many of a reference set are among the t most frequently generated different strings.

    Strings of equal count stand in no order, so that each place in their block holds its expected
    value: the curve is linear from (ranks[i], found[i]) to the next, exactly. It starts at (0, 0) and
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
        """The same as a share of the reference set.

        Its interval is that of a reference set drawn at random: how far the number would move, had
        as many other strings been held out.
        """
        return Share(self.at(rank), self.size, "reference set")

    @property
    def table(self) -> dict[int, float]:
        """The values at the marks."""
        return {mark: self.at(mark) for mark in self.marks}


def recall_curve(
    samples: Counts | Mapping[str, int] | Iterable[str | None],
    reference: Collection[str],
    *,
    at: Sequence[int] = MARKS,
    without: Collection[str] = (),
) -> RecallCurve:
    """The recall curve of samples: how many of a reference set are among the most frequent ones.

    The order in which samples were generated or stand in a file does not matter. Invalid attempts are
    not ranked.

    Args:
        samples: strings, None for an invalid attempt; or how often each string was drawn.
        reference: the strings that should be found, such as a held-out set.
        at: the ranks at which the curve is read off.
        without: strings that are taken out of the ranking, such as those that were trained on.
    """
    wanted, removed = _as_set(reference), _as_set(without)
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


# Single numbers.


def coverage(samples: Counts, reference: Collection[str], of: str = "reference set") -> Share:
    """The share of the reference set that was generated at least once."""
    wanted = _as_set(reference)
    return Share(sum(string in samples.counts for string in wanted), len(wanted), of)


def ideal_coverage(size: int, draws: int) -> float:
    """What a sampler that draws uniformly from `size` strings would cover on average: 1-(1-1/M)^draws.

    It is the same share for every part of the `size` strings.
    """
    if size < 1 or draws < 0:
        raise InputError(
            f"coverage needs a set of at least one string and no negative number of draws, not {size} "
            f"and {draws}."
        )
    return -expm1(draws * (log1p(-1 / size) if size > 1 else -inf)) if draws else 0.0


def expected_unique(samples: Counts, draws: int) -> float:
    """How many different strings so many of the valid samples hold on average, whichever are taken.

    Drawn without replacement: a string that was generated c times among N is missing with the chance
    C(N-c, k) / C(N, k).
    """
    total = samples.valid
    if not 0 <= draws <= total:
        raise InputError(
            f"{draws:,} cannot be drawn from {total:,} valid samples without replacement."
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
    """How many different strings there are among k valid samples: unique@k is `value`.

    They are the first k in order, or, if the order is not known, the average over all choices of k.
    """

    draws: int
    different: float
    first: bool

    @property
    def value(self) -> float:
        return self.different / self.draws

    def describe(self) -> dict[str, Any]:
        """The same for JSON."""
        which = "the first" if self.first else "any, on average:"
        return {
            "value": self.value, "count": self.different, "total": self.draws,
            "of": f"{which} {self.draws} valid samples",
        }  # fmt: skip


def unique_at(samples: Counts) -> tuple[Unique, ...]:
    """unique@k for k = 1,000, 10,000 and so on, as far as there are valid samples."""
    if samples.firsts:
        return tuple(Unique(k, n, first=True) for k, n in samples.firsts.items())
    found, draws = [], _FIRST
    while draws <= samples.valid:
        found.append(Unique(draws, expected_unique(samples, draws), first=False))
        draws *= 10
    return tuple(found)


# All of them.


@dataclass(frozen=True)
class Evaluation:
    """What can be said of samples by comparing strings. Every `Share` names its denominator.

    `novelty` is of the different strings, `vun` (valid, unique and novel) of all attempts. Both change
    with the number of attempts, and compare only between equal numbers. `known_train` and
    `known_test` are of the valid samples, repeats included. `ideal` is what a sampler of the training
    and test strings together would cover with as many attempts.
    """

    samples: Counts
    valid: Share
    unique: Share
    unique_at: tuple[Unique, ...]
    novelty: Share
    vun: Share
    known_train: Share
    known_test: Share
    coverage_train: Share
    coverage_test: Share
    ideal: float
    test: RecallCurve
    train: RecallCurve
    new: RecallCurve
    """The test set in the ranking without the training set."""

    def describe(self) -> dict[str, Any]:
        """The same for JSON."""
        shares = (
            "valid", "unique", "novelty", "vun", "known_train", "known_test",
            "coverage_train", "coverage_test",
        )  # fmt: skip
        curves = {"test": self.test, "train": self.train, "test_without_train": self.new}
        return {
            "attempts": self.samples.attempts,
            **{name: getattr(self, name).describe() for name in shares},
            "unique_at": {str(one.draws): one.describe() for one in self.unique_at},
            "ideal_coverage": self.ideal,
            "recall": {name: _describe_curve(curve) for name, curve in curves.items()},
        }


def evaluate(
    samples: Counts | Mapping[str, int] | Iterable[str | None],
    train: Collection[str],
    test: Collection[str],
    at: Sequence[int] = MARKS,
) -> Evaluation:
    """Compare samples with the strings that were trained on and those that were held out."""
    counts = Counts.of(samples)
    learnt, held_out = _as_set(train), _as_set(test)
    if not learnt or not held_out:
        raise InputError(
            f"the training set has {len(learnt)} strings and the test set {len(held_out)}; both need "
            "at least one."
        )
    repeated = sum(count for string, count in counts.counts.items() if string in learnt)
    found = sum(count for string, count in counts.counts.items() if string in held_out)
    novel = sum(string not in learnt for string in counts.counts)
    return Evaluation(
        counts,
        valid=Share(counts.valid, counts.attempts, "attempts"),
        unique=Share(counts.unique, counts.valid, "valid samples", interval=False),
        unique_at=unique_at(counts),
        novelty=Share(novel, counts.unique, "different valid samples", interval=False),
        vun=Share(novel, counts.attempts, "attempts", interval=False),
        known_train=Share(repeated, counts.valid, "valid samples"),
        known_test=Share(found, counts.valid, "valid samples"),
        coverage_train=coverage(counts, learnt, "training set"),
        coverage_test=coverage(counts, held_out, "test set"),
        ideal=ideal_coverage(len(learnt | held_out), counts.attempts),
        test=recall_curve(counts, held_out, at=at),
        train=recall_curve(counts, learnt, at=at),
        new=recall_curve(counts, held_out, at=at, without=learnt),
    )


def _describe_curve(curve: RecallCurve) -> dict[str, Any]:
    at = {}
    for mark, value in curve.table.items():
        share = curve.share(mark)
        low, high = share.low * curve.size, share.high * curve.size
        at[str(mark)] = {"value": value, "low": low, "high": high}
    return {"size": curve.size, "ranked": curve.ranks[-1], "at": at}


def _as_set(strings: Collection[str]) -> frozenset[str]:
    if isinstance(strings, str):
        raise InputError(
            "a set of strings is needed, but this is a single one. Put it into a list."
        )
    return strings if isinstance(strings, frozenset) else frozenset(strings)
