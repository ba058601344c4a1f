"""Groups redrawn in classes: what is independent, and that the whole step is exact."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.formats.mln import parse_mln
from nmln.kernels.coloured import Classes, ColouredGibbs, independent_classes
from nmln.logic import Literal
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space

pytestmark = pytest.mark.usefixtures("unchecked")

PROGRAM = parse_mln("""
kind = {C, N, O}
type(node, kind!)
marked(node)
bond(node, node) symmetric irreflexive
1.2 type(x, C) => marked(x)
-0.8 bond(x, y) ^ type(x, O)
0.7 bond(x, y) => (marked(x) <=> marked(y))
0.4 EXIST y bond(x, y)
!(type(x, N) ^ marked(x)).
""")
SPACE = Space(PROGRAM.language, {"node": 3})
EVIDENCE = Evidence.of(
    SPACE,
    [Literal("type", ("0", "C")), Literal("type", ("1", "O"), False), Literal("marked", ("1",))],
)
CASES = [None, EVIDENCE]


def potential() -> BasePotential:
    return FormulaPotential(SPACE, PROGRAM.formulas, dtype=torch.float64)


def possible(evidence: Evidence | None) -> tuple[Tensor, Tensor]:
    """The worlds that neither evidence nor a hard formula forbids, and their probabilities."""
    worlds = (evidence or Evidence.none(SPACE)).enumerate()
    scores = potential().score(worlds[None])[0].detach()
    kept = scores > float("-inf")
    return worlds[kept], scores[kept].softmax(0)


def matrix(evidence: Evidence | None, classes: Classes) -> Tensor:
    """The whole step, from the conditional probabilities that it draws from."""
    kernel = ColouredGibbs(SPACE, evidence, classes)
    worlds, _ = possible(evidence)
    place = {tuple(world): index for index, world in enumerate(worlds.tolist())}
    whole = torch.eye(len(worlds), dtype=torch.float64)
    for groups in classes:
        log_p = kernel.conditionals(potential(), worlds[None], groups)[0]
        step = torch.zeros_like(whole)
        for row, world in enumerate(worlds):
            for choice in torch.cartesian_prod(*[torch.arange(3)] * len(groups)).view(
                -1, len(groups)
            ):
                probability = log_p[row, torch.arange(len(groups)), choice].sum().exp()
                if probability > 0:
                    moved = world.clone()
                    moved[groups] = choice.to(moved.dtype)
                    step[row, place[tuple(moved.tolist())]] += probability
        whole = whole @ step
    return whole


@pytest.mark.parametrize("evidence", CASES, ids=["free", "evidence"])
def test_no_two_groups_of_a_class_are_tied_and_each_free_group_is_in_one(
    evidence: Evidence | None,
) -> None:
    classes = independent_classes(potential(), evidence)
    free = (evidence or Evidence.none(SPACE)).free
    together = torch.cat(classes)
    assert torch.equal(together.sort().values, torch.nonzero(free).flatten())
    assert max(map(len, classes)) > 1, "nothing would be gained"
    ties = potential().ties(free)
    assert ties is not None
    for groups in classes:
        inside = torch.isin(ties, groups).all(0)
        assert not inside.any()


def test_a_group_depends_only_on_groups_that_it_is_tied_to() -> None:
    ties = potential().ties(torch.ones(SPACE.groups, dtype=torch.bool))
    assert ties is not None
    tied = torch.eye(SPACE.groups, dtype=torch.bool)
    tied[ties[0], ties[1]] = tied[ties[1], ties[0]] = True
    worlds, _ = possible(None)
    every = torch.arange(SPACE.groups)
    now = potential().score_changes(worlds[None], every)[0]
    wrong = 0
    for group in range(SPACE.groups):
        changed = worlds.clone()
        changed[:, group] = (changed[:, group] + 1) % SPACE.sizes[group]
        kept = potential().score(changed[None])[0] > float("-inf")
        then = potential().score_changes(changed[kept][None], every)[0]
        same = torch.isclose(now[kept].nan_to_num(neginf=-9), then.nan_to_num(neginf=-9)).all(-1)
        for other in torch.nonzero(~tied[group]).flatten().tolist():
            assert same[:, other].all()
        wrong += int((~same[:, tied[group]]).sum())
    assert wrong > 0, "ties that tie nothing"


@pytest.mark.parametrize("evidence", CASES, ids=["free", "evidence"])
def test_the_matrix_keeps_the_exact_distribution(evidence: Evidence | None) -> None:
    classes = independent_classes(potential(), evidence)
    step = matrix(evidence, classes)
    _, pi = possible(evidence)
    assert torch.allclose(step.sum(1), torch.ones(len(pi), dtype=torch.float64))
    assert (pi @ step - pi).abs().max() < 1e-12


def test_the_check_rejects_classes_of_tied_groups() -> None:
    bonds = SPACE.block("bond")
    marked = SPACE.block("marked")
    first, second = bonds.first_group, marked.first_group
    classes = (torch.tensor([first, second]),)
    _, pi = possible(None)
    assert (pi @ matrix(None, classes) - pi).abs().max() > 1e-4


@pytest.mark.parametrize("evidence", CASES, ids=["free", "evidence"])
def test_a_step_follows_the_rows_of_the_matrix(evidence: Evidence | None) -> None:
    kernel = ColouredGibbs.of(potential(), evidence)
    exact = matrix(evidence, kernel.classes)
    worlds, _ = possible(evidence)
    rng = Generator().manual_seed(3)
    for start in (0, len(worlds) // 2):
        chains = worlds[start].expand(1, 20_000, -1)
        state, _ = kernel.step(potential(), kernel.init(potential(), chains), rng)
        same = (state.values[0][:, None] == worlds[None]).all(-1)
        counts = same.sum(0).double()
        assert counts.sum() == 20_000
        common = 20_000 * exact[start] >= 5
        observed = torch.cat([counts[common], counts[~common].sum()[None] + 1e-9])
        wanted = torch.cat([exact[start][common], exact[start][~common].sum()[None] + 1e-12])
        wanted = wanted / wanted.sum() * observed.sum()
        assert float(chisquare(observed, wanted).pvalue) > 1e-4
        assert torch.allclose(state.scores, potential().score(state.values))


def test_what_a_step_expects_is_what_it_draws_on_average() -> None:
    kernel = ColouredGibbs.of(potential(), EVIDENCE, expects=True)
    worlds, pi = possible(EVIDENCE)
    rng = Generator().manual_seed(4)
    start = worlds[torch.multinomial(pi, 40_000, replacement=True, generator=rng)][None]
    _, info = kernel.step(potential(), kernel.init(potential(), start), rng)
    assert info.expected is not None
    exact = pi @ SPACE.one_hot(worlds, torch.float64)
    found = info.expected[0].mean(0)
    assert (found - exact).abs().max() < 0.01
    observed = exact.eq(0) | exact.eq(1)
    assert torch.equal(found[observed], exact[observed])
    plain = SPACE.one_hot(start[0], torch.float64)
    assert info.expected[0].var(0).sum() < 0.8 * plain.var(0).sum(), "nothing is gained"


def test_groups_that_nothing_is_known_of_go_one_by_one() -> None:
    network = FragmentPotential(SPACE, 1, 2, (8,)).double()
    mixed = TotalPotential([network]).add(potential())
    for one in (network, mixed, TemperedPotential(mixed, (2.0, 1.0))):
        assert [len(groups) for groups in independent_classes(one)] == [1] * SPACE.groups
