"""Structural moves: exact matrices on small spaces, steps against their rows, and broken twins."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from jaxtyping import Float64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.balanced import BalancedMetropolis, log_factor
from nmln.kernels.combined import ByLevel, Lazy, simple_kernels
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.moves import log_ratio
from nmln.kernels.registry import kernel_named
from nmln.kernels.structural import (
    MOVES,
    Graph,
    LocalSlide,
    Regraft,
    Rewiring,
    Switch,
    graphs,
)
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.potentials.base import BasePotential
from nmln.potentials.function import TablePotential
from nmln.space import Space
from nmln.types import Kernel

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
FIVE = Space(
    Language(predicate("tied", "node", "node", symmetric=True, reflexive=False)), {"node": 5}
)


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
        said(
            TWO,
            ("tagged", ("0",), True),
            ("tagged", ("1",), True),
            ("tagged", ("2",), False),
            ("bond", ("0", "1", "double"), False),
            ("bond", ("1", "2", "single"), False),
        ),
    ),
    "five constants": (FIVE, said(FIVE, ("tied", ("3", "4"), True))),
}
NAMED = pytest.mark.parametrize("case", CASES)
MOVED = pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)


@dataclass(frozen=True)
class Exact:
    """A space with a peaked target at every level, and all the worlds that agree with the evidence."""

    space: Space
    evidence: Evidence | None
    potential: BasePotential
    worlds: Tensor
    scores: Tensor  # of every level

    @property
    def rules(self) -> Evidence:
        return self.evidence or Evidence.none(self.space)

    def target(self, level: int = 0) -> Tensor:
        return self.scores[level].softmax(0)


def exact(case: str) -> Exact:
    """Every world has a score of its own, so that no symmetry can hide a mistake."""
    space, evidence = CASES[case]
    rng = Generator().manual_seed(1)
    table = 1.5 * torch.randn(2, space.number_of_worlds, generator=rng, dtype=torch.float64)
    worlds = (evidence or Evidence.none(space)).enumerate()
    assert len(worlds) <= 1000
    potential = TablePotential(space, table)
    return Exact(space, evidence, potential, worlds, potential.score(worlds.expand(2, -1, -1)))


def matrix_of(kernel: Rewiring, found: Exact, level: int = 0) -> Matrix:
    """Sums over all ties, options and turns that `propose` may draw."""
    worlds, rules = found.worlds, found.rules
    here = torch.arange(len(worlds))
    matrix = torch.zeros(len(worlds), len(worlds), dtype=torch.float64)
    for graph in kernel.graphs:
        view = kernel.view(graph, worlds)
        ties = kernel.first(graph, worlds, view)
        for pair in range(ties.shape[1]):
            tie = torch.full_like(here, pair)
            options = kernel.second(graph, worlds, view, tie)
            for choice in torch.nonzero(options.any(0)).flatten().tolist():
                chance = ties[:, pair].double() / ties.sum(1).clamp(min=1)
                chance *= options[:, choice].double() / options.sum(1).clamp(min=1)
                chance /= kernel.turns * len(kernel.graphs)
                option = torch.full_like(here, choice)
                for number in range(kernel.turns):
                    turn = torch.full_like(here, number)
                    changed, factor = kernel.moved(graph, worlds, tie, options, option, turn)
                    real = (chance > 0) & (factor > float("-inf"))
                    to = rules.index(changed[real])
                    scores = found.scores[level]
                    ratio = log_ratio(scores[None, real], scores[None, to], factor[None, real])
                    weight = chance[real] * ratio[0].clamp(max=0).exp()
                    matrix.index_put_((here[real], to), weight, accumulate=True)
    return fill(matrix)


def fill(matrix: Matrix) -> Matrix:
    return matrix + torch.diag(1 - matrix.sum(1))


def balanced_matrix(found: Exact, level: int) -> Matrix:
    kernel = BalancedMetropolis(found.space, found.evidence)
    changes = Metropolis(found.space, found.evidence)
    values, scores = found.worlds[None], found.scores[level][None]
    here = torch.arange(len(found.worlds))
    matrix = torch.zeros(len(here), len(here), dtype=torch.float64)
    choice = kernel.choice(values)
    chosen = choice.softmax(-1)
    for place, group in enumerate(torch.nonzero(found.rules.counts > 1).flatten()):
        groups = group.expand(values.shape[:2])
        others = int(changes.others(groups)[0, 0])
        for shift in range(1, others + 1):
            to = found.rules.index(
                changes.change(values, groups, torch.full_like(groups, shift))[0]
            )
            factor = log_factor(choice, choice[:, to], torch.full_like(groups, place))
            ratio = log_ratio(scores, scores[:, to], factor)
            matrix[here, to] += chosen[0, :, place] / others * ratio[0].clamp(max=0).exp()
    return fill(matrix)


def mixed(found: Exact) -> ByLevel:
    """Mostly balanced moves at the upper level, mostly structural ones at the target."""
    kernels = (BalancedMetropolis, *MOVES)
    rows = ((5.0, 1.0, 0.0, 0.0), (2.0, 1.0, 2.0, 3.0))
    return ByLevel(tuple(kernel(found.space, found.evidence) for kernel in kernels), rows)


def mixed_matrix(kernel: ByLevel, found: Exact, level: int) -> Matrix:
    parts = [
        matrix_of(one, found, level) if isinstance(one, Rewiring) else balanced_matrix(found, level)
        for one in kernel.kernels
    ]
    return torch.einsum("k,kij->ij", kernel.shares(2)[level], torch.stack(parts))


def error(matrix: Matrix, found: Exact, level: int = 0) -> float:
    target = found.target(level)
    return float((target @ matrix - target).abs().max())


class Unfactored(LocalSlide):
    """A broken twin: as if the options were as many on the way back."""

    even = True


class UnfactoredSwitch(Switch):
    even = True


class OneEnd(Regraft):
    """A broken twin: only the end with the higher number moves, which the way back may not allow."""

    def second(self, graph: Graph, worlds: Tensor, view: Tensor, tie: Tensor) -> Tensor:
        options = super().second(graph, worlds, view, tie)
        options[:, graph.constants :] = False
        return options


@pytest.mark.usefixtures("unchecked")
@NAMED
@MOVED
def test_the_matrix_keeps_the_exact_distribution(move: type[Rewiring], case: str) -> None:
    found = exact(case)
    matrix = matrix_of(move(found.space, found.evidence), found)
    assert found.target().max() > 5 / len(found.worlds), "the target must be peaked"
    assert (matrix >= -1e-15).all()
    assert error(matrix, found) < 1e-12
    assert matrix.diag().min() < 0.9 or (move is Switch and len(found.space.domain["node"]) < 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", list(CASES)[::2])
def test_a_mixture_by_level_keeps_the_distribution_of_every_level(case: str) -> None:
    found = exact(case)
    kernel = mixed(found)
    matrices = [mixed_matrix(kernel, found, level) for level in (0, 1)]
    for level, matrix in enumerate(matrices):
        assert error(matrix, found, level) < 1e-12
        assert error(matrix, found, 1 - level) > 1e-4, "the check rejects the other level's target"


@pytest.mark.parametrize("twin", [Unfactored, UnfactoredSwitch, OneEnd])
def test_the_check_rejects_a_broken_twin(twin: type[Rewiring]) -> None:
    found = exact("five constants")
    assert error(matrix_of(twin(found.space, found.evidence), found), found) > 1e-4


def p_values(kernel: Kernel, matrix: Matrix, found: Exact, level: int) -> list[float]:
    """One step of many chains from some worlds against the rows of the matrix, by chi-square."""
    rng = Generator().manual_seed(7)
    found_values = []
    likely = found.worlds[torch.randperm(len(found.worlds), generator=rng)[:3]]
    for world in likely:
        state = kernel.init(found.potential, world.expand(2, 20_000, -1))
        state, _ = kernel.step(found.potential, state, rng)
        counts = torch.bincount(found.rules.index(state.values[level]), minlength=len(matrix))
        expected = 20_000 * matrix[found.rules.index(world)]
        if counts[expected < 1e-9].any():
            found_values.append(0.0)
            continue
        common = expected >= 5
        observed = torch.cat([counts[common].double(), counts[~common].sum()[None] + 1e-9])
        wanted = torch.cat([expected[common], expected[~common].sum()[None] + 1e-9])
        if len(observed) > 2:
            wanted = wanted * (observed.sum() / wanted.sum())
            found_values.append(float(chisquare(observed, wanted).pvalue))
        again = found.potential.score(state.values)
        assert torch.equal(state.scores, again), "a stale score"
    return found_values


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", list(CASES)[:4])
@MOVED
def test_a_step_follows_the_rows_of_the_matrix(move: type[Rewiring], case: str) -> None:
    found = exact(case)
    kernel = move(found.space, found.evidence)
    assert min([1.0, *p_values(kernel, matrix_of(kernel, found, 1), found, 1)]) > 1e-4


@pytest.mark.usefixtures("unchecked")
def test_a_step_of_a_mixture_follows_the_rows_of_its_levels() -> None:
    found = exact("evidence on some groups, and on some categories")
    kernel = mixed(found)
    matrices = [mixed_matrix(kernel, found, level) for level in (0, 1)]
    for level in (0, 1):
        values = p_values(kernel, matrices[level], found, level)
        assert len(values) == 3, "every start has ties"
        assert min(values) > 1e-4
        assert max(p_values(kernel, matrices[1 - level], found, level)) < 1e-4


@pytest.mark.usefixtures("unchecked")
def test_the_step_of_a_broken_twin_does_not_follow_the_rows() -> None:
    found = exact("four constants")
    matrix = matrix_of(LocalSlide(found.space), found)
    assert min(p_values(Unfactored(found.space), matrix, found, 0)) < 1e-4


@MOVED
def test_ties_keep_their_categories_and_their_number(move: type[Rewiring]) -> None:
    space = Space(Language(LABELS, bonds("single", "double")), {"node": 7})
    values = torch.randint(0, 2, (2, 400, space.groups), generator=Generator().manual_seed(3))
    values = values.to(space.dtype)
    proposal = move(space).propose(values, Generator().manual_seed(4))
    possible = proposal.factor > float("-inf")
    assert possible.double().mean() > 0.2 or move is Regraft
    assert torch.equal((proposal.values != values).any(-1), possible)
    block = space.block("bond").groups
    assert torch.equal(proposal.values[..., :7], values[..., :7])
    assert torch.equal(
        proposal.values[..., block].sort(-1).values, values[..., block].sort(-1).values
    )


@pytest.mark.parametrize("constants", [5, 12, 30, 80])
def test_bridges_and_their_sides_are_those_of_the_graph(constants: int) -> None:
    space = Space(FIVE.language, {"node": constants})
    (graph,) = graphs(space, None)
    rng = Generator().manual_seed(5)
    share = torch.tensor([0.0, 1.0, 1.5, 2.5, 5.0])[:, None] / constants
    worlds = (torch.rand(5, space.groups, generator=rng) < share).to(space.dtype)
    path = graph.pair[torch.arange(constants - 1), torch.arange(1, constants)]
    worlds[0, path] = 1  # the longest
    worlds[1, path] = 1
    ring = torch.cat([worlds[:1], worlds[:1]])
    ring[0, graph.pair[0, constants - 1]] = 1  # the weakest tie that is no bridge
    ring[1, graph.pair[0, constants - 2]] = 1  # the same, with a bridge beside it
    kernel, worlds = Regraft(space), torch.cat([worlds, ring])
    view = kernel.view(graph, worlds)
    found = kernel.first(graph, worlds, view)
    assert found.any(1).tolist()[-2:] == [False, True]
    for row, world in enumerate(worlds):
        bridges = set()
        for pair in torch.nonzero(world).flatten().tolist():
            cut = world.clone()
            cut[pair] = 0
            label = components(cut, constants, graph.ends)
            one, other = graph.ends[pair].tolist()
            if label[one] == label[other]:
                continue
            bridges.add(pair)
            tie = torch.tensor([pair])
            options = kernel.second(graph, world[None], view[row : row + 1], tie)[0]
            assert options[:constants].tolist() == [
                label[node] == label[other] and node != other for node in range(constants)
            ]
            assert options[constants:].tolist() == [
                label[node] == label[one] and node != one for node in range(constants)
            ]
        assert set(torch.nonzero(found[row]).flatten().tolist()) == bridges


def components(world: Tensor, constants: int, ends: Tensor) -> list[int]:
    """The component of every constant."""
    tied = ends[world > 0].numpy()
    matrix = coo_matrix((np.ones(len(tied)), tied.T), shape=(constants, constants))
    return connected_components(matrix, directed=False)[1].tolist()


@MOVED
def test_chains_without_a_tie_stay_and_report_an_acceptance(move: type[Rewiring]) -> None:
    found = exact("four constants")
    values = torch.zeros(2, 5, found.space.groups, dtype=found.space.dtype)
    kernel = move(found.space)
    state, info = kernel.step(
        found.potential, kernel.init(found.potential, values), Generator().manual_seed(0)
    )
    assert torch.equal(state.values, values)
    assert info.acceptance.tolist() == info.moved.tolist() == [0.0, 0.0]


def test_the_acceptance_of_a_mixture_is_given_for_each_kernel_that_had_a_turn() -> None:
    found = exact("four constants")
    kernel = Lazy(mixed(found))
    values = found.worlds[None, :300].expand(2, -1, -1)
    state = kernel.init(found.potential, values)
    _, info = kernel.step(found.potential, state, Generator().manual_seed(0))
    assert [type(one).__name__ for one in simple_kernels(kernel)] == [
        "BalancedMetropolis", "LocalSlide", "Switch", "Regraft"
    ]  # fmt: skip
    assert info.by_kernel.shape == (4, 2)
    assert info.by_kernel[:, 0].isnan().tolist() == [False, False, True, True]
    assert info.by_kernel[:, 1].isfinite().all()


def test_rows_of_weights_count_from_the_target() -> None:
    found = exact("four constants")
    kernels = (BalancedMetropolis(found.space), LocalSlide(found.space))
    mixture = ByLevel(kernels, ((1.0, 0.0), (3.0, 1.0), (1.0, 1.0)))
    assert mixture.shares(5)[:, 1].tolist() == [0.0, 0.0, 0.0, 0.25, 0.5]
    assert mixture.shares(2)[:, 1].tolist() == [0.25, 0.5]
    for wrong in ((), ((1.0,),), ((0.0, 0.0),), ((1.0, -1.0),)):
        with pytest.raises(InputError, match="every level needs a weight"):
            ByLevel(kernels, wrong)


def test_the_registered_kernel_has_structural_moves_near_the_target_where_ties_are_free() -> None:
    found = exact("four constants")
    kernel = kernel_named("structural", found.space)
    assert isinstance(kernel, Lazy)
    assert isinstance(kernel.kernel, ByLevel)
    assert (kernel.kernel.shares(4)[:, 0] == 1).tolist() == [True, True, False, False]
    world = FOUR_LABELLED.enumerate(limit=20_000)[-1]
    one_left = range(FOUR_LABELLED.groups - 1)
    fixed = Evidence.observe(FOUR_LABELLED, world, one_left)
    (alone,) = simple_kernels(kernel_named("structural", FOUR_LABELLED, fixed))
    assert isinstance(alone, BalancedMetropolis)
    with pytest.raises(InputError, match="symmetric binary predicate"):
        kernel_named("structural", Space(Language(LABELS), {"node": 3}))


def test_languages_without_a_symmetric_attribute_with_a_null_value_are_refused() -> None:
    directed = Space(Language(predicate("r", "node", "node"), LABELS), {"node": 3})
    with pytest.raises(InputError, match="symmetric binary predicate") as error:
        LocalSlide(directed).propose(torch.zeros(1, 1, 12, dtype=directed.dtype), Generator())
    assert error.value.kind == "unsupported"
    always = Attribute("bond", ("node", "node"), ("a", "b"), symmetric=True)  # without a null value
    with pytest.raises(InputError, match="symmetric binary predicate"):
        graphs(Space(Language(always), {"node": 3}), None)
