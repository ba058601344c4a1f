"""Exact transition matrices, built from the functions that `step` itself calls."""

from collections.abc import Callable
from itertools import combinations, permutations, product

import pytest
import torch
from jaxtyping import Float64
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.kernels import balanced, gradient, metropolis, metropolised
from nmln.kernels.balanced import BalancedMetropolis
from nmln.kernels.combined import Composition, Mixture
from nmln.kernels.gibbs import BlockedGibbs, Gibbs, SystematicGibbs
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.metropolised import MetropolisedGibbs
from nmln.kernels.moves import Attributes, conditionals, free_groups, log_ratio, set_groups
from nmln.kernels.path import PathAuxiliary, reverse
from nmln.kernels.screened import Screened
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.fragment import DeepSetPotential, FragmentPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from nmln.types import Kernel

Matrix = Float64[Tensor, "worlds worlds"]
SPACE = Space(
    Language(
        Attribute("type", ("node",), tuple("CNO"), value_sort="kind"),
        predicate("bond", "node", "node", symmetric=True, reflexive=False),
    ),
    {"node": 3},
)
EVIDENCE = Evidence.of(
    SPACE,
    [
        Literal("type", ("0", "N")),
        Literal("type", ("1", "C"), False),
        Literal("bond", ("0", "1"), True),
    ],
)
CASES = [None, EVIDENCE]


def peaked(sharpness: float = 3.0, kind: str = "fragment") -> BasePotential:
    rng = Generator().manual_seed(1)
    if kind == "deepset":
        potential = DeepSetPotential(SPACE, 1, 2, 8, (16,), rng=rng).double()
        last, scale = potential.top.layers[-1], sharpness * 8
    else:
        potential = FragmentPotential(SPACE, 1, 2, (16,), rng=rng).double()
        last, scale = potential.networks[0].layers[-1], sharpness * 4  # pyright: ignore
    with torch.no_grad():
        last.weight.mul_(scale)  # pyright: ignore
    return potential


def worlds_of(evidence: Evidence | None) -> Tensor:
    return (evidence or Evidence.none(SPACE)).enumerate()[None]


def target(potential: BasePotential, evidence: Evidence | None) -> Tensor:
    with torch.no_grad():
        return potential.score(worlds_of(evidence))[0].softmax(0)


def empty(evidence: Evidence | None) -> Matrix:
    count = worlds_of(evidence).shape[1]
    return torch.zeros(count, count, dtype=torch.float64)


def gibbs_matrices(potential: BasePotential, evidence: Evidence | None) -> list[Matrix]:
    """One matrix for each free group."""
    values, rules = worlds_of(evidence), evidence or Evidence.none(SPACE)
    matrices = []
    with torch.no_grad():
        for group in free_groups(SPACE, evidence):
            groups = group.expand(values.shape[:2])
            _, log_p = conditionals(potential, SPACE, evidence, values, groups)
            matrix = empty(evidence)
            for category in range(log_p.shape[-1]):
                probability = log_p[0, :, category].exp()
                real = probability > 0
                moved = set_groups(values, groups, torch.full_like(groups, category))
                to = rules.index(moved[0, real])
                matrix[torch.nonzero(real).flatten(), to] += probability[real]
            matrices.append(matrix)
    return matrices


def random_gibbs(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    return torch.stack(gibbs_matrices(potential, evidence)).mean(0)


def systematic(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    matrices = gibbs_matrices(potential, evidence)
    result = torch.eye(len(matrices[0]), dtype=torch.float64)
    for matrix in matrices:
        result = result @ matrix
    return result


def blocked(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    kernel, values = BlockedGibbs(SPACE, evidence), worlds_of(evidence)
    rules = evidence or Evidence.none(SPACE)
    choices = list(combinations(free_groups(SPACE, evidence).tolist(), 2))
    matrix = empty(evidence)
    with torch.no_grad():
        for chosen in choices:
            groups = torch.tensor(chosen).expand(*values.shape[:2], 2)
            scores, worlds = kernel.joint(potential, values, groups)
            probability = scores.softmax(-1)[0] / len(choices)
            for combination in range(probability.shape[1]):
                to = rules.index(worlds[0, :, combination])
                here = torch.arange(len(matrix))
                matrix.index_put_((here, to), probability[:, combination], accumulate=True)
    return matrix


def local_metropolis(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    kernel, values = Metropolis(SPACE, evidence), worlds_of(evidence)
    rules, free = evidence or Evidence.none(SPACE), free_groups(SPACE, evidence)
    matrix = empty(evidence)
    here = torch.arange(len(matrix))
    with torch.no_grad():
        scores = potential.score(values)
        for group in free:
            groups = group.expand(values.shape[:2])
            others = int(kernel.others(groups)[0, 0])
            for shift in range(1, others + 1):
                moved = kernel.change(values, groups, torch.full_like(groups, shift))
                rate = metropolis.log_ratio(scores, potential.score(moved)).clamp(max=0).exp()
                matrix[here, rules.index(moved[0])] += rate[0] / (len(free) * others)
    return fill(matrix)


def balanced_metropolis(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    kernel, values = BalancedMetropolis(SPACE, evidence), worlds_of(evidence)
    changes, rules = Metropolis(SPACE, evidence), evidence or Evidence.none(SPACE)
    matrix = empty(evidence)
    here = torch.arange(len(matrix))
    choice = kernel.choice(values)
    chosen = choice.softmax(-1)
    with torch.no_grad():
        scores = potential.score(values)
    for place, group in enumerate(free_groups(SPACE, evidence)):
        groups = group.expand(values.shape[:2])
        others = int(changes.others(groups)[0, 0])
        for shift in range(1, others + 1):
            moved = changes.change(values, groups, torch.full_like(groups, shift))
            to = rules.index(moved[0])
            places = torch.full_like(groups, place)
            factor = balanced.log_factor(choice, choice[:, to], places)
            ratio = log_ratio(scores, scores[:, to], factor)
            matrix[here, to] += chosen[0, :, place] / others * ratio[0].clamp(max=0).exp()
    return fill(matrix)


def metropolised_gibbs(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    values, rules = worlds_of(evidence), evidence or Evidence.none(SPACE)
    free = free_groups(SPACE, evidence)
    matrix = empty(evidence)
    with torch.no_grad():
        for group in free:
            groups = group.expand(values.shape[:2])
            _, log_p = conditionals(potential, SPACE, evidence, values, groups)
            proposed = metropolised.proposal(log_p, values, groups).exp()
            for category in range(log_p.shape[-1]):
                chosen = torch.full_like(groups, category)
                rate = metropolised.log_ratio(log_p, values, groups, chosen).clamp(max=0).exp()
                weight = (proposed[..., category] * rate)[0] / len(free)
                real = proposed[0, :, category] > 0
                to = rules.index(set_groups(values, groups, chosen)[0, real])
                matrix[torch.nonzero(real).flatten(), to] += weight[real]
    return fill(matrix)


def with_gradients(
    potential: BasePotential, evidence: Evidence | None, attributes: Attributes = None
) -> Matrix:
    kernel = GibbsWithGradients(SPACE, evidence, attributes)
    values, rules = worlds_of(evidence), evidence or Evidence.none(SPACE)
    scores, slopes = potential.score_and_slopes(values)
    forward = kernel.proposal(values, slopes)
    matrix = empty(evidence)
    for entry in range(SPACE.entries):
        entries = torch.full(values.shape[:2], entry)
        moved, back = kernel.change(values, entries)
        real = forward[0, :, entry] > float("-inf")
        to = rules.index(moved[0, real])
        ratio = gradient.log_ratio(
            scores[:, real],
            scores[:, to],
            forward[:, real],
            forward[:, to],
            entries[:, real],
            back[:, real],
        )
        weight = forward[0, real, entry].exp() * ratio[0].clamp(max=0).exp()
        matrix[torch.nonzero(real).flatten(), to] += weight
    return fill(matrix)


def langevin(
    potential: BasePotential, evidence: Evidence | None, attributes: Attributes = None
) -> Matrix:
    kernel = DiscreteLangevin(SPACE, evidence, 0.9, attributes)
    values = worlds_of(evidence)
    scores, slopes = potential.score_and_slopes(values)
    log_q = kernel.proposal(values, slopes)
    count = values.shape[1]
    there = torch.stack(
        [kernel.chosen(log_q[:, i : i + 1].expand(-1, count, -1), values)[0] for i in range(count)]
    )
    apart = there == float("-inf")  # they differ in what is not moved
    ratio = scores - scores.T + there.T - there.masked_fill(apart, 0.0)
    matrix = there.exp() * ratio.clamp(max=0).exp()
    return fill(matrix.fill_diagonal_(0))


def paths(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    """Sums over all lengths, all orders of groups and all categories they may end in."""
    kernel = PathAuxiliary(SPACE, evidence)
    values, rules = worlds_of(evidence), evidence or Evidence.none(SPACE)
    scores, slopes = potential.score_and_slopes(values)
    weights, choices = kernel.proposal(values, slopes)
    free = free_groups(SPACE, evidence).tolist()
    matrix = empty(evidence)
    shape = values.shape[:2]
    for steps in range(1, kernel.longest + 1):
        length = torch.full(shape, steps)
        for chosen in permutations(free, steps):
            rest = [group for group in free if group not in chosen]
            order = torch.tensor([*chosen, *rest])[: kernel.longest].expand(*shape, -1)
            for ends in product(*(range(int(SPACE.sizes[group])) for group in chosen)):
                picked = torch.zeros_like(order)
                picked[..., :steps] = torch.tensor(ends)
                moved = kernel.change(values, order, picked, length)
                there = kernel.path_probability(weights, choices, order, moved, length)
                real = there[0] > float("-inf")
                to = rules.index(moved[0, real])
                back = kernel.path_probability(
                    weights[:, to],
                    choices[:, to],
                    reverse(order, length)[:, real],
                    values[:, real],
                    length[:, real],
                )
                ratio = scores[:, to] - scores[:, real] + back - there[:, real]
                weight = there[0, real].exp() * ratio[0].clamp(max=0).exp() / kernel.longest
                matrix.index_put_((torch.nonzero(real).flatten(), to), weight, accumulate=True)
    return fill(matrix)


def screened_by_nothing(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    """Single balanced moves and rests; potentials with a stand-in are in test_screened.py."""
    assert potential.stand_in() is None
    matrix = balanced_metropolis(potential, evidence)
    return 0.95 * matrix + 0.05 * torch.eye(len(matrix), dtype=torch.float64)


def mixture(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    return 0.25 * with_gradients(potential, evidence) + 0.75 * random_gibbs(potential, evidence)


def composition(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    return random_gibbs(potential, evidence) @ with_gradients(potential, evidence)


def by_attribute(potential: BasePotential, evidence: Evidence | None) -> Matrix:
    types = langevin(potential, evidence, ("type",))
    return types @ with_gradients(potential, evidence, ("bond",))


def fill(matrix: Matrix) -> Matrix:
    """What is not moved stays."""
    return matrix + torch.diag(1 - matrix.sum(1))


KERNELS: dict[str, tuple[Callable[[Evidence | None], Kernel], Callable]] = {
    "gibbs": (lambda e: Gibbs(SPACE, e), random_gibbs),
    "systematic gibbs": (lambda e: SystematicGibbs(SPACE, e), systematic),
    "blocked gibbs": (lambda e: BlockedGibbs(SPACE, e), blocked),
    "metropolis": (lambda e: Metropolis(SPACE, e), local_metropolis),
    "balanced metropolis": (lambda e: BalancedMetropolis(SPACE, e), balanced_metropolis),
    "metropolised gibbs": (lambda e: MetropolisedGibbs(SPACE, e), metropolised_gibbs),
    "gibbs with gradients": (lambda e: GibbsWithGradients(SPACE, e), with_gradients),
    "discrete langevin": (lambda e: DiscreteLangevin(SPACE, e, alpha=0.9), langevin),
    "path auxiliary": (lambda e: PathAuxiliary(SPACE, e), paths),
    "screened": (lambda e: Screened(SPACE, e), screened_by_nothing),
    "mixture": (
        lambda e: Mixture((GibbsWithGradients(SPACE, e), Gibbs(SPACE, e)), (1, 3)),
        mixture,
    ),
    "composition": (
        lambda e: Composition((Gibbs(SPACE, e), GibbsWithGradients(SPACE, e))),
        composition,
    ),
    "attribute by attribute": (
        lambda e: Composition(
            (
                DiscreteLangevin(SPACE, e, 0.9, ("type",)),
                GibbsWithGradients(SPACE, e, ("bond",)),
            )
        ),
        by_attribute,
    ),
}


KINDS = [
    *(("fragment", name) for name in KERNELS),
    *(("deepset", name) for name in KERNELS if name != "path auxiliary"),
    pytest.param("deepset", "path auxiliary", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("evidence", CASES, ids=["free", "evidence"])
@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_the_matrix_keeps_the_exact_distribution(
    kind: str, name: str, evidence: Evidence | None
) -> None:
    potential = peaked(kind=kind)
    matrix = KERNELS[name][1](potential, evidence)
    pi = target(potential, evidence)
    assert pi.max() > 5 / len(pi), "the target must be peaked for this to mean anything"
    assert (matrix >= -1e-15).all()
    assert torch.allclose(matrix.sum(1), torch.ones(len(pi), dtype=torch.float64))
    assert (pi @ matrix - pi).abs().max() < 1e-12


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_the_check_rejects_a_kernel_on_the_wrong_target(kind: str, name: str) -> None:
    matrix = KERNELS[name][1](peaked(2.0, kind), None)
    pi = target(peaked(kind=kind), None)
    assert (pi @ matrix - pi).abs().max() > 1e-4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("evidence", CASES, ids=["free", "evidence"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_step_follows_the_rows_of_the_matrix(name: str, evidence: Evidence | None) -> None:
    potential = peaked()
    build, matrix_of = KERNELS[name]
    kernel, rules = build(evidence), evidence or Evidence.none(SPACE)
    exact = matrix_of(potential, evidence)
    rng = Generator().manual_seed(7)
    for start in (0, len(exact) // 2, len(exact) - 1):
        chains = rules.enumerate()[start].expand(1, 20_000, -1)
        state = kernel.init(potential, chains)
        if name == "mixture":  # one draw of the kernel serves all chains of a step
            singles = [
                kernel.step(potential, kernel.init(potential, chains[:, :1]), rng)
                for _ in range(600)
            ]
            values = torch.cat([single[0].values for single in singles], dim=1)
            state = kernel.init(potential, values)
        else:
            state, _ = kernel.step(potential, state, rng)
        counts = torch.bincount(rules.index(state.values[0]), minlength=len(exact)).double()
        expected = state.values.shape[1] * exact[start]
        common = expected >= 5
        assert counts[expected < 1e-9].sum() == 0
        observed = torch.cat([counts[common], counts[~common].sum()[None] + 1e-9])
        wanted = torch.cat([expected[common], expected[~common].sum()[None] + 1e-9])
        wanted = wanted * (observed.sum() / wanted.sum())
        assert float(chisquare(observed, wanted).pvalue) > 1e-4
        fresh = potential.score_and_slopes(state.values)
        assert torch.allclose(state.scores, fresh[0]), "a stale score"
        if state.slopes is not None:
            assert torch.allclose(state.slopes, fresh[1]), "stale slopes"


@pytest.mark.parametrize("name", KERNELS)
def test_a_world_that_a_hard_formula_forbids_is_never_entered(name: str) -> None:
    hard = parse_formula("type(x, O) => !bond(x, y).", SPACE.language)
    potential = TotalPotential([peaked()]).add(FormulaPotential(SPACE, [hard]).double())
    kernel = KERNELS[name][0](None)
    rng = Generator().manual_seed(8)
    state = kernel.init(potential, torch.zeros(1, 500, SPACE.groups, dtype=SPACE.dtype))
    for _ in range(30):
        state, _ = kernel.step(potential, state, rng)
        assert (state.scores > float("-inf")).all()
    assert len(state.values[0].unique(dim=0)) > 10


@pytest.mark.parametrize("name", KERNELS)
def test_chains_that_hard_formulas_leave_no_way_stay_and_say_so_in_numbers(name: str) -> None:
    only = parse_formula("type(x, C) ^ (bond(x, y) <=> !(x = y)).", SPACE.language)
    potential = FormulaPotential(SPACE, [only]).double()
    values = torch.tensor([0, 0, 0, 1, 1, 1], dtype=SPACE.dtype).expand(1, 20, -1)
    kernel = KERNELS[name][0](None)
    state = kernel.init(potential, values)
    for _ in range(5):
        state, info = kernel.step(potential, state, Generator().manual_seed(10))
        assert info.acceptance.isfinite().all()
        assert info.moved.eq(0).all()
    assert torch.equal(state.values, values)


@pytest.mark.parametrize("name", KERNELS)
def test_levels_move_by_their_own_potential_and_the_seed_repeats_them(name: str) -> None:
    potential = FragmentPotential(SPACE, 3, 2, (8,)).double()
    kernel = KERNELS[name][0](None)
    values = torch.zeros(3, 7, SPACE.groups, dtype=SPACE.dtype)
    one, two = (
        kernel.step(potential, kernel.init(potential, values), Generator().manual_seed(9))
        for _ in range(2)
    )
    assert torch.equal(one[0].values, two[0].values)
    assert one[1].acceptance.shape == one[1].moved.shape == (3,)
    assert isinstance(kernel, Kernel)


def test_step_sizes_and_evidence_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="step sizes must be positive"):
        DiscreteLangevin(SPACE, alpha=0.0)
    everything = Evidence.observe(SPACE, SPACE.enumerate()[0], range(SPACE.groups))
    with pytest.raises(InputError, match="every group is observed"):
        free_groups(SPACE, everything)
    with pytest.raises(InputError, match=r"up to 2m - 1 of the 6 free groups.*from 1 to 3"):
        PathAuxiliary(SPACE, mean_length=4)
    with pytest.raises(InputError, match="from 1 to 6"):
        BlockedGibbs(SPACE, size=7)
    with pytest.raises(InputError, match="a positive weight for every kernel"):
        Mixture((Gibbs(SPACE),), (0.0,))
    with pytest.raises(InputError, match="at least one kernel"):
        Composition(())
