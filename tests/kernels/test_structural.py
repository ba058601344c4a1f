"""Structural moves: exact matrices on small spaces, steps against their rows, and broken twins."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float64
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.balanced import BalancedMetropolis, log_factor
from nmln.kernels.combined import ByLevel
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.moves import Proposing, log_ratio
from nmln.kernels.structural import (
    MOVES,
    LocalSlide,
    Regraft,
    Rewiring,
    Slide,
    Switch,
    beyond,
    graphs,
)
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.potentials.base import BasePotential
from nmln.potentials.fragment import FragmentPotential
from nmln.space import Space

Matrix = Float64[Tensor, "worlds worlds"]


def bonds(*values: str, name: str = "bond", reflexive: bool = False) -> Attribute:
    return Attribute(
        name, ("node", "node"), values, symmetric=True, reflexive=reflexive, optional=True
    )


LABELS = Attribute("type", ("node",), ("C", "N"), value_sort="kind")
LABELLED = Space(Language(LABELS, bonds("single", "double", "triple")), {"node": 3})
FOUR = Space(Language(bonds("single", "double")), {"node": 4})
FOUR_LABELLED = Space(Language(LABELS, bonds("single", "double")), {"node": 4})
TWO = Space(
    Language(
        predicate("likes", "node", "node", symmetric=True),
        bonds("single", "double"),
        predicate("tagged", "node"),
    ),
    {"node": 3},
)
FIVE = Space(Language(predicate("tied", "node", "node", symmetric=True, reflexive=False)), {"node": 5})


def said(space: Space, *literals: tuple[str, tuple[str, ...], bool]) -> Evidence:
    return Evidence.of(space, [Literal(*literal) for literal in literals])


CASES: dict[str, tuple[Space, Evidence | None]] = {
    "labels and four categories": (LABELLED, None),
    "four constants": (FOUR, None),
    "evidence on some groups, and on some categories": (
        FOUR_LABELLED,
        said(
            FOUR_LABELLED,
            ("type", ("0", "C"), True),
            ("type", ("1", "N"), True),
            ("type", ("2", "N"), True),
            ("bond", ("0", "1", "double"), False),
            ("bond", ("2", "3", "single"), False),
            ("bond", ("0", "3", "single"), True),
        ),
    ),
    "two attributes, one reflexive": (
        TWO,
        said(TWO, ("tagged", ("0",), True), ("tagged", ("1",), True), ("tagged", ("2",), False),
             ("bond", ("0", "1", "double"), False), ("bond", ("1", "2", "single"), False)),
    ),
    "five constants": (FIVE, said(FIVE, ("tied", ("3", "4"), True))),
}
NAMED = pytest.mark.parametrize("case", CASES)
MOVED = pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)


@dataclass(frozen=True)
class Exact:
    """A space with a peaked target, and all its worlds."""

    space: Space
    evidence: Evidence | None
    potential: BasePotential
    worlds: Tensor
    scores: Tensor

    @property
    def rules(self) -> Evidence:
        return self.evidence or Evidence.none(self.space)

    @property
    def target(self) -> Tensor:
        return self.scores.softmax(0)


def exact(case: str, levels: int = 1, level: int = 0) -> Exact:
    space, evidence = CASES[case]
    potential = FragmentPotential(space, levels, 2, (16,), rng=Generator().manual_seed(1)).double()
    with torch.no_grad():
        potential.networks[0].layers[-1].weight.mul_(8.0)  # pyright: ignore
        worlds = (evidence or Evidence.none(space)).enumerate()
        scores = potential.score(worlds.expand(levels, -1, -1))[level]
    assert len(worlds) <= 1000
    return Exact(space, evidence, potential, worlds, scores)


def matrix_of(kernel: Rewiring, found: Exact) -> Matrix:
    """Sums over all ties, options and turns that `propose` may draw."""
    worlds, rules = found.worlds, found.rules
    here = torch.arange(len(worlds))
    matrix = torch.zeros(len(worlds), len(worlds), dtype=torch.float64)
    for graph in kernel.graphs:
        ties = kernel.first(graph, worlds)
        for pair in range(ties.shape[1]):
            tie = torch.full_like(here, pair)
            options = kernel.second(graph, worlds, tie)
            for choice in range(options.shape[1]):
                chance = ties[:, pair].double() / ties.sum(1).clamp(min=1)
                chance *= options[:, choice].double() / options.sum(1).clamp(min=1)
                chance /= kernel.turns * len(kernel.graphs)
                option = torch.full_like(here, choice)
                for number in range(kernel.turns):
                    turn = torch.full_like(here, number)
                    changed, factor = kernel.moved(graph, worlds, tie, options, option, turn)
                    real = (chance > 0) & (factor > float("-inf"))
                    to = rules.index(changed[real])
                    scores = found.scores
                    ratio = log_ratio(scores[None, real], scores[None, to], factor[None, real])
                    weight = chance[real] * ratio[0].clamp(max=0).exp()
                    matrix.index_put_((here[real], to), weight, accumulate=True)
    return fill(matrix)


def fill(matrix: Matrix) -> Matrix:
    return matrix + torch.diag(1 - matrix.sum(1))


def balanced_matrix(found: Exact) -> Matrix:
    kernel = BalancedMetropolis(found.space, found.evidence)
    changes = Metropolis(found.space, found.evidence)
    values, scores = found.worlds[None], found.scores[None]
    here = torch.arange(len(found.worlds))
    matrix = torch.zeros(len(here), len(here), dtype=torch.float64)
    choice = kernel.choice(values)
    chosen = choice.softmax(-1)
    for place, group in enumerate(torch.nonzero(found.rules.counts > 1).flatten()):
        groups = group.expand(values.shape[:2])
        others = int(changes.others(groups)[0, 0])
        for shift in range(1, others + 1):
            to = found.rules.index(changes.change(values, groups, torch.full_like(groups, shift))[0])
            factor = log_factor(choice, choice[:, to], torch.full_like(groups, place))
            ratio = log_ratio(scores, scores[:, to], factor)
            matrix[here, to] += chosen[0, :, place] / others * ratio[0].clamp(max=0).exp()
    return fill(matrix)


def error(matrix: Matrix, found: Exact) -> float:
    return float((found.target @ matrix - found.target).abs().max())


@NAMED
@MOVED
def test_the_matrix_keeps_the_exact_distribution(move: type[Rewiring], case: str) -> None:
    found = exact(case)
    matrix = matrix_of(move(found.space, found.evidence), found)
    assert found.target.max() > 5 / len(found.target), "the target must be peaked"
    assert (matrix >= -1e-15).all()
    assert error(matrix, found) < 1e-12
    if len(found.worlds[0]) > 6 or move not in (Switch,):
        assert matrix.diag().min() < 0.99, "something moves"


