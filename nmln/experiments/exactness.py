"""Exactness and swap acceptance by enumeration: the paper's propositions as numbers.

On a space of nine worlds with a random score for every world and level, the transition matrices of
moves, swaps and whole sweeps are built from the functions that the sampler itself calls, and applied to
the exact distribution. The same check is made with a broken twin, which must fail it. The tests do the
same for every kernel and more spaces (docs/explanation/exactness.md).
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from nmln.exchange import exchange, log_swap_ratio
from nmln.files import write_lines
from nmln.kernels.moves import conditionals, free_groups, set_groups
from nmln.language import Attribute, Language
from nmln.potentials.base import BasePotential
from nmln.potentials.function import ValuesPotential
from nmln.space import Space
from nmln.types import State

Matrix = Float64[Tensor, "states others"]

_DRAWN = 200_000  # pairs of worlds by which the sampler's own swaps are counted


@dataclass(frozen=True)
class ExactnessSettings:
    """The random scores: how many tables of them, and how far they spread."""

    tables: int = 20
    spread: float = 2.0
    seed: int = 0

    @property
    def ticks(self) -> int:
        return self.tables


class Check(NamedTuple):
    """The largest change of a probability by one step from the exact distribution, over all tables."""

    what: str
    change: float
    change_of_broken_twin: float


class ExactnessOutcome(NamedTuple):
    """The checks, and how far the mean swap probability is from the overlap of the levels."""

    checks: tuple[Check, ...]
    overlap_error: float
    counted_error: float  # of swaps that the sampler made, in standard errors
    overlaps: tuple[float, ...]
    seconds: float
    written: tuple[Path, ...]


def run(
    settings: ExactnessSettings, output: Path, tick: Callable[[], None] = lambda: None
) -> ExactnessOutcome:
    """Make all checks on all tables and write results.json."""
    began, rng = perf_counter(), Generator().manual_seed(settings.seed)
    space = Space(Language(Attribute("k", ("a",), tuple("xyz"))), {"a": 2})
    worlds, found = space.enumerate(), list[dict[str, tuple[float, float]]]()
    errors, counted, overlaps = list[float](), list[float](), list[float]()
    for _ in range(settings.tables):
        table = settings.spread * torch.randn(2, len(worlds), generator=rng, dtype=torch.float64)
        found.append(_changes(space, table))
        expected, overlap = _swaps(table)
        errors.append(abs(expected - overlap))
        counted.append(_counted(space, table, expected, rng))
        overlaps.append(overlap)
        tick()
    checks = tuple(
        Check(what, max(one[what][0] for one in found), min(one[what][1] for one in found))
        for what in found[0]
    )
    outcome = ExactnessOutcome(
        checks, max(errors), max(counted), tuple(overlaps), perf_counter() - began, ()
    )
    path = output / "results.json"
    write_lines(path, [json.dumps(_results(settings, outcome), indent=1)])
    return outcome._replace(written=(path,))


def _tabled(space: Space, table: Float64[Tensor, "levels worlds"]) -> BasePotential:
    def look_up(values: Tensor) -> Tensor:
        return table[torch.arange(len(values))[:, None], space.index(values)]

    return ValuesPotential(space, look_up, levels=len(table))


def _changes(
    space: Space, table: Float64[Tensor, "levels worlds"]
) -> dict[str, tuple[float, float]]:
    """How much moves, swaps and sweeps change the exact distribution, and how much broken ones do."""
    potential, pi = _tabled(space, table), table.softmax(1)
    moves = [_gibbs(potential, level) for level in (0, 1)]
    explore, joint = torch.kron(*moves), torch.outer(*pi).flatten()
    swap, wrong = _swap(potential), _swap(_tabled(space, table.flip(0)))
    return {
        "Gibbs moves at a fixed level": (
            max(_change(own, move) for own, move in zip(pi, moves, strict=True)),
            _change(pi[0], moves[1]),
        ),
        "swaps of neighbouring levels": (_change(joint, swap), _change(joint, wrong)),
        "a sweep of moves and swaps": (
            _change(joint, explore @ swap),
            _change(joint, explore @ wrong),
        ),
    }


def _change(pi: Float64[Tensor, " states"], matrix: Matrix) -> float:
    return float((pi @ matrix - pi).abs().max())


def _gibbs(potential: BasePotential, level: int) -> Matrix:
    """One move at a level, from the conditionals that the kernel draws from."""
    space = potential.space
    worlds, free = space.enumerate(), free_groups(space, None)
    values = worlds.expand(potential.levels, -1, -1)
    matrix = torch.zeros(len(worlds), len(worlds), dtype=torch.float64)
    here = torch.arange(len(worlds))
    for group in free:
        groups = group.expand(values.shape[:2])
        _, log_p = conditionals(potential, space, None, values, groups)
        for category in range(log_p.shape[-1]):
            moved = set_groups(values, groups, torch.full_like(groups, category))[level]
            chance = log_p[level, :, category].double().exp() / len(free)
            matrix.index_put_((here, space.index(moved)), chance, accumulate=True)
    return matrix


def _swap(potential: BasePotential) -> Matrix:
    """One swap of two levels, on all pairs of worlds, from the ratio that `exchange` uses."""
    worlds = potential.space.enumerate()
    pairs = _pairs(len(worlds))
    values = worlds[pairs]
    scores, cross = potential.score(values), potential.score(values.flip(0))
    chance = log_swap_ratio(scores, cross, (0,)).clamp(max=0).exp()[0]
    matrix, here = torch.diag(1 - chance), torch.arange(len(chance))
    matrix[here, pairs[1] * len(worlds) + pairs[0]] += chance
    return matrix


def _pairs(count: int) -> Int64[Tensor, "two pairs"]:
    return torch.tensor(list(product(range(count), repeat=2))).T


def _swaps(table: Float64[Tensor, "levels worlds"]) -> tuple[float, float]:
    """The mean swap probability in equilibrium, and the overlap of both orders of the levels."""
    one, other = table.softmax(1)
    first, second = _pairs(table.shape[1])
    scores = torch.stack((table[0][first], table[1][second]))
    cross = torch.stack((table[0][second], table[1][first]))
    chance = log_swap_ratio(scores, cross, (0,)).clamp(max=0).exp()[0]
    expected = (torch.outer(one, other).flatten() * chance).sum()
    overlap = torch.minimum(torch.outer(one, other), torch.outer(other, one)).sum()
    return float(expected), float(overlap)


def _counted(
    space: Space, table: Float64[Tensor, "levels worlds"], expected: float, rng: Generator
) -> float:
    """How far the share of swaps that `exchange` makes is from the expected, in standard errors."""
    potential, worlds = _tabled(space, table), space.enumerate()
    drawn = torch.multinomial(table.softmax(1), _DRAWN, replacement=True, generator=rng)
    values = worlds[drawn]
    found = exchange(potential, State(values, potential.score(values)), drawn, 0, rng)
    share = found.info.swapped.double().mean()
    error = (expected * (1 - expected) / _DRAWN) ** 0.5
    return float((share - expected).abs() / error)


def _results(settings: ExactnessSettings, outcome: ExactnessOutcome) -> dict[str, Any]:
    return {
        "experiment": "exactness",
        "command": f"nmln reproduce exactness --seed {settings.seed}",
        "seconds": round(outcome.seconds, 1),
        "settings": asdict(settings),
        "checks": [one._asdict() for one in outcome.checks],
        "swaps": {
            "largest_difference_from_overlap": outcome.overlap_error,
            "counted_in_standard_errors": outcome.counted_error,
            "draws": _DRAWN,
            "least_overlap": min(outcome.overlaps),
            "largest_overlap": max(outcome.overlaps),
        },
    }
