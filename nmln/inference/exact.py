"""Answers by enumeration: every world that the evidence allows, weighed by its probability."""

from collections.abc import Callable, Mapping
from math import exp, log
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.inference.queries import Questions
from nmln.potentials.base import BasePotential
from nmln.types import Worlds

LIMIT = 2**20
"""Worlds that are enumerated by default: this takes seconds where formulas score them."""

_AT_ONCE = 2**14

Statistic = Callable[[Tensor], Tensor]
"""A number for every world: (levels, chains, groups) to (levels, chains)."""

Progress = Callable[[int, int], None]
"""Called with the amount of work done and the total."""


class Exact(NamedTuple):
    """Results of enumeration; `best` is the most probable world, `largest` the largest |score|."""

    log_sum: float  # of exp(score - best_score) over all worlds
    probabilities: Float64[Tensor, " queries"]
    expectations: Float64[Tensor, " functions"]
    best: Worlds
    best_score: float
    largest: float
    worlds: int

    @property
    def log_z(self) -> float:
        return self.best_score + self.log_sum


@torch.no_grad()
def enumerated(
    target: BasePotential,
    evidence: Evidence,
    questions: Questions | None = None,
    functions: Mapping[str, Statistic] | None = None,
    *,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Exact:
    """Probabilities, expectations, log Z and the best world, exactly.

    `target` has one level. Scores every world once; memory is bounded by the list of worlds. The largest
    score is subtracted before anything is summed, so that probabilities sum to one whatever its size.
    """
    worlds = evidence.enumerate(limit)
    functions = functions or {}
    counted = len(questions) if questions is not None else 0
    sums = torch.zeros(counted + len(functions), dtype=torch.float64)
    whole, largest = 0.0, 0.0  # the sum of exp(score - best_score)
    best, best_score = worlds[0], float("-inf")
    for start in range(0, len(worlds), _AT_ONCE):
        some = worlds[start : start + _AT_ONCE]
        scores = target.score(some[None])[0].double()
        highest, place = scores.max(0)
        if float(highest) > best_score:
            shrunk = exp(best_score - float(highest))
            sums, whole = shrunk * sums, shrunk * whole
            best, best_score = some[int(place)], float(highest)
        if best_score > float("-inf"):
            weights = (scores - best_score).exp()
            parts = [] if questions is None else [weights @ questions.truths(some).double()]
            parts += [_sum(name, f, some, weights) for name, f in functions.items()]
            sums, whole = sums + torch.cat([*parts, sums[:0]]), whole + float(weights.sum())
            largest = max(largest, size_of(scores))
        if progress is not None:
            progress(min(start + _AT_ONCE, len(worlds)), len(worlds))
    if best_score == float("-inf"):
        raise InputError(impossible(target, evidence, worlds), kind="conflict")
    means = sums / whole
    return Exact(
        log(whole), means[:counted], means[counted:], best, best_score, largest, len(worlds)
    )


def size_of(scores: Tensor) -> float:
    """The largest absolute value among the finite scores; 0 if there is none."""
    finite = scores[scores.isfinite()]
    return float(finite.abs().max()) if len(finite) else 0.0


def _sum(name: str, function: Statistic, worlds: Worlds, weights: Tensor) -> Tensor:
    return (weights * numbers(name, function, worlds)).sum()[None]


def numbers(name: str, function: Statistic, worlds: Worlds) -> Float64[Tensor, " worlds"]:
    """The number that a user's function gives for each world, checked."""
    found = torch.as_tensor(function(worlds[None])).double()
    if found.shape != (1, len(worlds)):
        raise InputError(
            f"the function {name!r} must give one number for every world, shape (1, {len(worlds)}) for "
            f"values of shape {tuple(worlds[None].shape)}, got {tuple(found.shape)}.",
            token=name,
        )
    return found[0]


def impossible(target: BasePotential, evidence: Evidence, worlds: Worlds) -> str:
    """Why no world is left: every world violates one hard formula, or several formulas conflict."""
    violated: set[str] | None = None
    for world in worlds[:256]:
        found = set(target.forbidden_by(0, world))
        violated = found if violated is None else violated & found
    given = "the evidence leaves no world" if bool((~evidence.free).any()) else "no world is left"
    if violated:
        return f"{given} that satisfies the hard formula {min(violated)} Change one of the two."
    names = target.forbidden_by(0, worlds[0])
    shown = f" One of them: {names[0]}" if names else ""
    return f"{given} that satisfies all hard formulas together.{shown}"
