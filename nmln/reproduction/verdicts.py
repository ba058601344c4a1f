"""Verdicts on claims, and how several comparisons make one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nmln.reproduction.comparing import Compared

Verdict = Literal["holds", "does not hold", "cannot be told here", "not run yet"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
OPEN: Verdict = "cannot be told here"
MISSING: Verdict = "not run yet"

Results = Mapping[str, Mapping[str, Any]]
"""Result files of one budget and of the experiments, by their names."""


@dataclass(frozen=True)
class Judgement:
    """What the numbers say about a claim.

    Args:
        verdict: whether the claim holds.
        numbers: what decided, each in words.
        why: the reason in a sentence.
        figures: the results whose figures show it.
    """

    verdict: Verdict
    numbers: tuple[str, ...] = ()
    why: str = ""
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        name: C1 to C12.
        sentence: what the paper says.
        rule: when it holds here and when it does not.
        command: what makes the numbers.
        judge: the rule as a function.
    """

    name: str
    sentence: str
    rule: str
    command: str
    judge: Callable[[Results], Judgement]


def missing(*names: str) -> Judgement:
    """The judgement where results are missing."""
    return Judgement(MISSING, why=f"Missing: {', '.join(names)}.")


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim that has several parts."""
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and set(verdicts) == {HOLDS} else OPEN


def every_above(found: Sequence[Compared]) -> Verdict:
    """Holds if the first is above in all comparisons; fails if it is below in one."""
    orders = [one.order for one in found]
    if "below" in orders:
        return FAILS
    return HOLDS if orders and set(orders) == {"above"} else OPEN


def mostly_above(found: Sequence[Compared]) -> Verdict:
    """Holds if the first is above in more than half of the comparisons; fails if below in half."""
    orders = [one.order for one in found]
    if 2 * orders.count("above") > len(orders):
        return HOLDS
    return FAILS if orders and 2 * orders.count("below") >= len(orders) else OPEN


def in_words(one: Compared) -> str:
    """A comparison as one line."""
    relation = {"above": "is above", "below": "is below", "open": "is not told apart from"}
    return f"{one.data}: {one.one} {relation[one.order]} {one.other} ({one})"


def counted(found: Sequence[Compared]) -> str:
    """How often the first was above, below and neither."""
    orders = [one.order for one in found]
    counts = {order: orders.count(order) for order in ("above", "below", "open")}
    return (
        f"above in {counts['above']} of {len(orders)} comparisons, below in {counts['below']}, not "
        f"told apart in {counts['open']}"
    )
