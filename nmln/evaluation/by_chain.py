"""Statistics of the samples of every level, with intervals over chains.

Samples of one chain are correlated, so that intervals for independent draws are too narrow. Chains are
independent of each other: the spread of their shares gives the error of the share of all samples.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import nan, sqrt
from statistics import NormalDist
from typing import NamedTuple

from nmln.errors import InputError
from nmln.evaluation.comparison import Evaluation
from nmln.evaluation.recall import recall_curve
from nmln.evaluation.shares import wilson

GROUPS = 20
"""Groups of chains; the interval of a recall leaves out one of them at a time."""

_FEWEST = 5  # chains, or groups of them, that an interval is estimated from

_NONE_SEEN = 3.7  # the upper end of the 95 % interval of a Poisson mean after a count of 0

Attempt = tuple[int, int, str, str]
"""An attempt: its number, level, status, and string if it is valid."""


class Estimate(NamedTuple):
    """A number with its 95 % interval over chains; the ends are NaN if there are too few chains."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LevelEvaluation:
    """One level: its evaluation, and the main numbers with intervals over chains.

    `valid` is a share of the attempts, `known_train` and `known_test` are shares of the valid ones.
    `recall` is the number of test strings among the `rank` most frequent different strings.
    """

    number: int
    name: str  # its corruption rate or temperature
    found: Evaluation
    valid: Estimate
    known_train: Estimate
    known_test: Estimate
    rank: int
    recall: Estimate


@dataclass
class ByChain:
    """Counts of one level: attempts, valid ones and known ones by chain; strings by group of chains."""

    chains: int
    attempts: Counter[int] = field(default_factory=Counter)
    valid: Counter[int] = field(default_factory=Counter)
    train: Counter[int] = field(default_factory=Counter)
    test: Counter[int] = field(default_factory=Counter)
    groups: list[Counter[str]] = field(default_factory=list)

    def share(self, part: Counter[int], whole: Counter[int]) -> Estimate:
        """The share of `part` in `whole`, both counted by chain."""
        each = range(self.chains)
        return clustered_share([part[chain] for chain in each], [whole[chain] for chain in each])


def count_by_chain(
    rows: Iterable[Attempt], chains: int, train: Collection[str], test: Collection[str]
) -> dict[int, ByChain]:
    """Count attempts by level and chain. The chain of an attempt is its number modulo `chains`.

    Args:
        rows: the attempts, as `nmln sample` writes them.
        chains: the number of chains.
        train: the strings of the training set.
        test: the strings of the test set.
    """
    groups = min(GROUPS, chains)
    found: dict[int, ByChain] = {}
    for number, level, status, string in rows:
        chain = number % chains
        one = found.get(level)
        if one is None:
            one = found[level] = ByChain(chains, groups=[Counter() for _ in range(groups)])
        one.attempts[chain] += 1
        if status == "valid":
            one.valid[chain] += 1
            one.train[chain] += string in train
            one.test[chain] += string in test
            one.groups[chain % groups][string] += 1
    return found


def judge_levels(
    evaluated: Sequence[tuple[int, Evaluation]],
    counted: dict[int, ByChain],
    names: Sequence[str],
    test: Collection[str],
    rank: int = 1_000,
) -> tuple[LevelEvaluation, ...]:
    """Combine the evaluation of each level with its counts by chain; noisiest first, the target last.

    Args:
        evaluated: the number and the evaluation of each level.
        counted: the counts by chain of each level.
        names: the names of all levels: their corruption rates or temperatures.
        test: the strings of the test set.
        rank: the rank at which the recall is read off.
    """
    if missing := {number for number, _ in evaluated} - counted.keys():
        raise InputError(
            f"every evaluated level must have samples, but level {min(missing)} has none. Sample that "
            "level too.",
            kind="missing",
        )
    return tuple(
        LevelEvaluation(
            number,
            names[number],
            found,
            one.share(one.valid, one.attempts),
            one.share(one.train, one.valid),
            one.share(one.test, one.valid),
            rank,
            recall_estimate(one.groups, test, rank),
        )
        for number, found in evaluated
        for one in [counted[number]]
    )


def clustered_share(parts: Sequence[int], wholes: Sequence[int]) -> Estimate:
    """A share over clusters (here: chains) with Wilson's interval for their effective number of draws.

    As many independent draws would have the spread that the clusters show; there are at most as many as
    samples. If all clusters have the share 0, or all have 1, each of them counts as one draw.
    """
    total, clusters = sum(wholes), sum(whole > 0 for whole in wholes)
    if not total:
        return Estimate(nan, nan, nan)
    share = sum(parts) / total
    if clusters < _FEWEST:
        return Estimate(share, nan, nan)
    spread = sum((part - share * whole) ** 2 for part, whole in zip(parts, wholes, strict=True))
    variance = clusters / (clusters - 1) * spread / total**2
    if share in (0, 1):
        worth = clusters
    elif not variance:
        worth = total
    else:
        worth = min(total, max(1, round(share * (1 - share) / variance)))
    return Estimate(share, *wilson(share * worth, worth))


def recall_estimate(
    groups: Sequence[Counter[str]], reference: Collection[str], rank: int
) -> Estimate:
    """Recall at a rank with a jackknife interval, which leaves out one group of chains at a time.

    A bootstrap would repeat chains and so change how often strings repeat, on which the ranking rests;
    leaving a few chains out hardly does. If that never changes the number, as when no string was found,
    the interval is that of a Poisson count.
    """
    reference = frozenset(reference)
    whole = sum(groups, Counter[str]())
    value = recall_curve(whole, reference).at(rank)
    count = len(groups)
    if count < _FEWEST:
        return Estimate(value, nan, nan)
    without = [recall_curve(whole - group, reference).at(rank) for group in groups]
    mean = sum(without) / count
    error = sqrt((count - 1) / count * sum((one - mean) ** 2 for one in without))
    reach = error * student(count - 1) if error else _NONE_SEEN
    return Estimate(value, max(0.0, value - reach), min(float(len(reference)), value + reach))


def student(freedom: int, confidence: float = 0.95) -> float:
    """The two-sided quantile of Student's t by the first terms of its expansion, for `freedom` >= 4."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + (z**3 + z) / (4 * freedom) + second


def fallen(levels: Sequence[LevelEvaluation]) -> list[tuple[LevelEvaluation, LevelEvaluation]]:
    """Neighbouring levels of which the less noisy one is less valid, beyond both intervals."""
    return [(one, other) for one, other in pairwise(levels) if other.valid.high < one.valid.low]


def ahead(levels: Sequence[LevelEvaluation]) -> list[LevelEvaluation]:
    """Levels whose recall is above that of the target, beyond both intervals."""
    target = levels[-1]
    return [one for one in levels[:-1] if one.recall.low > target.recall.high]
