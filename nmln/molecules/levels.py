"""What the samples of every level are worth, with intervals that know that samples come from chains.

Samples of one chain resemble each other, so that intervals for independent draws are too narrow. Chains
are independent of each other: how far their shares spread tells how much all samples together know.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import nan, sqrt
from statistics import NormalDist
from typing import NamedTuple

from nmln.evaluation import Evaluation, recall_curve, wilson
from nmln.files import InputError

GROUPS = 20
"""Of chains, of which one at a time is left out for the interval of a recall."""

_FEWEST = 5  # chains or groups of them, whose spread still tells something

_NONE_SEEN = 3.7  # what a Poisson number that came out as none may be, at 95 %

Row = tuple[int, int, str, str]
"""An attempt: its number, level, status, and SMILES if it is valid."""


class Estimate(NamedTuple):
    """A number with its 95 % interval over chains; NaN where there are too few of them."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Level:
    """One level: all that comparing strings tells, and what the chains say about how sure it is.

    `valid` is a share of the attempts, `known_train` and `known_test` of the valid ones. `recall` is the
    number of test molecules among the `rank` most frequent different ones.
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
    """What each chain of a level came to: attempts, valid ones, those in either set; counts by group."""

    chains: int
    attempts: Counter[int] = field(default_factory=Counter)
    valid: Counter[int] = field(default_factory=Counter)
    train: Counter[int] = field(default_factory=Counter)
    test: Counter[int] = field(default_factory=Counter)
    groups: list[Counter[str]] = field(default_factory=list)

    def share(self, part: Counter[int], whole: Counter[int]) -> Estimate:
        """A share of what the chains did."""
        each = range(self.chains)
        return clustered_share([part[chain] for chain in each], [whole[chain] for chain in each])


def count_by_chain(
    rows: Iterable[Row], chains: int, train: Collection[str], test: Collection[str]
) -> dict[int, ByChain]:
    """Count the rows of `nmln sample` by level and chain, which is the sample's number modulo chains."""
    groups = min(GROUPS, chains)
    found: dict[int, ByChain] = {}
    for sample, level, status, smiles in rows:
        chain = sample % chains
        one = found.get(level)
        if one is None:
            one = found[level] = ByChain(chains, groups=[Counter() for _ in range(groups)])
        one.attempts[chain] += 1
        if status == "valid":
            one.valid[chain] += 1
            one.train[chain] += smiles in train
            one.test[chain] += smiles in test
            one.groups[chain % groups][smiles] += 1
    return found


def judge_levels(
    evaluated: Sequence[tuple[int, Evaluation]],
    counted: dict[int, ByChain],
    names: Sequence[str],
    test: Collection[str],
    rank: int = 1_000,
) -> tuple[Level, ...]:
    """Put evaluations of levels beside what their chains say; noisiest first, the target last."""
    if missing := {number for number, _ in evaluated} - counted.keys():
        raise InputError(f"there are no samples of level {min(missing)}.")
    return tuple(
        Level(
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
    """A share over clusters (here: chains) with Wilson's interval for as many draws as they are worth.

    So many independent draws would spread as far as the clusters do, but no more than there are. Where
    all clusters agree on none or all, each of them counts as one draw.
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
    """Recall at a rank with an interval by the jackknife, which leaves out a group of chains at a time.

    Resampling chains would repeat some of them and so change how often molecules come again, on which
    the ranking rests; leaving a few out hardly does. Where that never changes the number, as when
    nothing was found, the interval is that of a count of rare things.
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
    """The two-sided quantile of Student's t by the first terms of its expansion: good from 4 on."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + (z**3 + z) / (4 * freedom) + second


def fallen(levels: Sequence[Level]) -> list[tuple[Level, Level]]:
    """Neighbours of which the less noisy one is less valid, beyond both intervals."""
    return [(one, other) for one, other in pairwise(levels) if other.valid.high < one.valid.low]


def ahead(levels: Sequence[Level]) -> list[Level]:
    """Levels whose recall is above that of the target, beyond both intervals."""
    target = levels[-1]
    return [one for one in levels[:-1] if one.recall.low > target.recall.high]
