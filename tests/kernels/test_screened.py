"""Screened moves: exact matrices on small spaces, steps against their rows, and broken twins.

The compiled walk is held against the plain one, move by move, in tests/kernels/test_walk.py.
"""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from jaxtyping import Float64
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.adaptation import start_tuning, tune, with_sizes
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.kernels import screened, walk
from nmln.kernels.registry import kernel_named
from nmln.kernels.screened import Screened
from nmln.kernels.walk import Walk
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.potentials import compiled
from nmln.potentials.base import BasePotential, ScoreError
from nmln.potentials.counted import Counted
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.function import TablePotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.total import TotalPotential
from nmln.sampler import sample
from nmln.space import Space
from nmln.types import Info, State

Matrix = Float64[Tensor, "worlds worlds"]
LEVELS = 2
TYPES = Attribute("type", ("node",), tuple("CNO"), value_sort="kind")


def bonds(*values: str) -> Attribute:
    return Attribute(
        "bond", ("node", "node"), values, symmetric=True, reflexive=False, optional=True
    )


MOLECULES = Space(Language(TYPES, bonds("single", "double")), {"node": 3})
BARE = Space(Language(bonds("single", "double")), {"node": 4})
MIXED = Space(
    Language(
        predicate("likes", "node", "node", symmetric=True),
        TYPES,
        predicate("knows", "node", "node", reflexive=False),
        bonds("single", "double"),
    ),
    {"node": 2},
)
BOOLEAN = Space(
    Language(predicate("p", "a"), predicate("r", "a", "a", symmetric=True, reflexive=False)),
    {"a": 3},
)

SINGLE = Space(Language(predicate("p", "a")), {"a": 1})


def said(space: Space, *literals: tuple[str, tuple[str, ...], bool]) -> Evidence:
    return Evidence.of(space, [Literal(*literal) for literal in literals])


CASES: dict[str, tuple[Space, Evidence | None]] = {
    "molecules": (MOLECULES, None),
    "evidence on groups and on categories": (
        MOLECULES,
        said(
            MOLECULES,
            ("type", ("0", "N"), True),
            ("type", ("1", "C"), False),
            ("bond", ("0", "1", "single"), False),
            ("bond", ("1", "2", "double"), True),
        ),
    ),
    "no unary attribute": (BARE, None),
    "several attributes, one reflexive, one asymmetric": (MIXED, None),
    "an attribute without free groups": (
        MIXED,
        said(
            MIXED,
            ("type", ("0", "C"), True),
            ("type", ("1", "O"), True),
            ("bond", ("0", "1", "double"), False),
        ),
    ),
}
NAMED = pytest.mark.parametrize("case", CASES)


@pytest.fixture(params=["compiled", "plain"])
def _either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setenv("NMLN_COMPILED", "0")
    elif compiled.library() is None:
        pytest.skip(compiled.state())


@dataclass(frozen=True)
class Exact:
    """A peaked target with a stand-in at every level, and all the worlds that agree with evidence."""

    space: Space
    evidence: Evidence | None
    potential: BasePotential
    worlds: Tensor

    @property
    def rules(self) -> Evidence:
        return self.evidence or Evidence.none(self.space)

    @property
    def scores(self) -> Tensor:
        with torch.no_grad():
            return self.potential.score(self.worlds.expand(LEVELS, -1, -1))

    @property
    def stand_in(self) -> Tensor:
        """The scores of all worlds by the stand-in."""
        found = self.potential.stand_in()
        assert found is not None
        return found.score(self.worlds.expand(LEVELS, -1, -1))


def cheap(space: Space, seed: int = 0, scale: float = 1.0) -> BasePotential:
    """A sum of cheap parts with random numbers for every neighbourhood and every entry."""
    rng = Generator().manual_seed(seed)
    local = LocalPotential(space, LEVELS).double()
    with torch.no_grad():
        for weights in local.parameters():
            weights.copy_(scale * torch.randn(weights.shape, generator=rng))
    table = scale * torch.randn(LEVELS, space.entries, generator=rng, dtype=torch.float64)
    total = TotalPotential([local, IndependentPotential(space, table)])
    with torch.no_grad():
        total.betas[0].copy_(torch.tensor([0.6, 1.2]))
        total.betas[1].copy_(torch.tensor([-0.4, 0.7]))
    return total


@cache
def exact(case: str) -> Exact:
    """Every world has a score of its own beside the stand-in, so that no symmetry hides a mistake."""
    space, evidence = CASES[case]
    rng = Generator().manual_seed(1)
    table = torch.randn(LEVELS, space.number_of_worlds, generator=rng, dtype=torch.float64)
    worlds = (evidence or Evidence.none(space)).enumerate()
    assert len(worlds) <= 1000
    total = TotalPotential([TablePotential(space, table)]).add(cheap(space, scale=1.5))
    return Exact(space, evidence, total, worlds)


def one_move(found: Exact, level: int) -> Matrix:
    """The matrix of one move of a walk: sums over all attributes, categories, groups and shifts.

    How probable each choice is gets counted here; `propose` says where it leads, for uniform numbers
    that make this choice.
    """
    worlds, rules = found.worlds, found.rules
    own, scores = Walk(found.space, found.evidence), found.stand_in[level]
    blocks = [
        torch.nonzero(rules.free[block.groups]).flatten() + block.first_group
        for block in found.space.blocks
    ]
    blocks = [groups for groups in blocks if len(groups)]
    matrix = torch.zeros(len(worlds), len(worlds), dtype=torch.float64)
    for row, world in enumerate(worlds):
        choices, chances = [], []
        for place, groups in enumerate(blocks):
            categories = world[groups].unique()
            for rank, category in enumerate(categories):
                having = groups[world[groups] == category]
                for turn, group in enumerate(having):
                    others = int(rules.counts[group]) - 1
                    for shift in range(others):
                        counts = (len(blocks), len(categories), len(having), others)
                        picked = (place, rank, turn, shift)
                        choices.append([(i + 0.5) / n for i, n in zip(picked, counts, strict=True)])
                        chances.append(1.0 / torch.tensor(counts).double().prod())
        numbers = torch.tensor(choices, dtype=torch.float64)[None]
        moved, factor = own.propose(world.expand(1, len(choices), -1), numbers)
        assert ((moved != world).sum(-1) == 1).all()
        to = rules.index(moved[0])
        taken = walk.chance((scores[to] - scores[row])[None], factor)[0]
        matrix[row].index_add_(0, to, torch.stack(chances) * taken)
    return fill(matrix)


def fill(matrix: Matrix) -> Matrix:
    """What is not moved stays."""
    return matrix + torch.diag(1 - matrix.sum(1))


@cache
def moves(case: str, level: int) -> Matrix:
    return one_move(exact(case), level)


def matrix_of(case: str, level: int, length: int) -> Matrix:
    """The matrix of a step: a walk, and the acceptance of where it leads."""
    found = exact(case)
    walked = torch.linalg.matrix_power(moves(case, level), length)
    scores, cheap = found.scores[level], found.stand_in[level]
    every = scores.expand(len(scores), -1)
    ratio = screened.log_ratio(every.T, every, cheap - cheap[:, None])
    matrix = walked * ratio.clamp(max=0).exp()
    return fill(matrix.fill_diagonal_(0))


def error(matrix: Matrix, pi: Tensor) -> float:
    return float((pi @ matrix - pi).abs().max())


@NAMED
@pytest.mark.parametrize("level", range(LEVELS))
def test_a_move_of_a_walk_is_reversible_under_the_stand_in(case: str, level: int) -> None:
    matrix, pi = moves(case, level), exact(case).stand_in[level].softmax(0)
    flow = pi[:, None] * matrix
    assert pi.max() > 5 / len(pi), "the stand-in must be peaked for this to mean anything"
    assert (matrix >= -1e-15).all()
    assert (flow - flow.T).abs().max() < 1e-12


@NAMED
@pytest.mark.parametrize("level", range(LEVELS))
@pytest.mark.parametrize("length", [1, 2, 3, 10])
def test_the_matrix_keeps_the_exact_distribution(case: str, level: int, length: int) -> None:
    matrix, pi = matrix_of(case, level, length), exact(case).scores[level].softmax(0)
    assert pi.max() > 5 / len(pi), "the target must be peaked for this to mean anything"
    assert (matrix >= -1e-15).all()
    assert torch.allclose(matrix.sum(1), torch.ones(len(pi), dtype=torch.float64))
    assert error(matrix, pi) < 1e-12


def test_the_check_rejects_a_walk_that_is_not_corrected_and_moves_without_their_factor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = "molecules"
    found = exact(case)
    pi = found.scores[1].softmax(0)
    walked = torch.linalg.matrix_power(moves(case, 1), 3)
    assert error(walked, pi) > 1e-4
    assert error(matrix_of(case, 1, 3), found.stand_in[1].softmax(0)) > 1e-4
    honest = walk.chance
    monkeypatch.setattr(walk, "chance", lambda gained, factor: honest(gained, 0 * factor))
    assert error(one_move(found, 1), found.stand_in[1].softmax(0)) > 1e-4


def p_value(matrix: Matrix, start: int, ends: Tensor) -> float:
    """How well the ends of many steps from one world agree with a row of the matrix."""
    counts = torch.bincount(ends, minlength=len(matrix)).double()
    expected = len(ends) * matrix[start]
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None] + 1e-9])
    wanted = torch.cat([expected[common], expected[~common].sum()[None] + 1e-9])
    return float(chisquare(observed, wanted * (observed.sum() / wanted.sum())).pvalue)


@pytest.mark.usefixtures("_either", "unchecked")
@NAMED
def test_a_step_follows_the_rows_of_the_matrix(case: str) -> None:
    """Lengths by level; the rows of another length, and those of another level, are rejected."""
    found, lengths, wrong = exact(case), (4, 2), []
    kernel, rng = Screened(found.space, found.evidence, lengths), Generator().manual_seed(7)
    for start in (0, len(found.worlds) // 2, len(found.worlds) - 1):
        chains = found.worlds[start].expand(LEVELS, 20_000, -1)
        state, info = kernel.step(found.potential, kernel.init(found.potential, chains), rng)
        fresh = found.potential.score(state.values).detach()
        assert torch.allclose(state.scores, fresh), "a stale score"
        assert info.acceptance.shape == info.moved.shape == (LEVELS,)
        for level, length in enumerate(lengths):
            ends = found.rules.index(state.values[level])
            row = matrix_of(case, level, length)
            assert torch.bincount(ends, minlength=len(row))[row[start] < 1e-12].sum() == 0
            assert p_value(row, start, ends) > 1e-4
            wrong.append(p_value(matrix_of(case, level, length + 1), start, ends))
            wrong.append(p_value(matrix_of(case, 1 - level, length), start, ends))
    assert sorted(wrong)[len(wrong) // 2] < 1e-4, "the check rejects the twins"


@pytest.mark.usefixtures("_either", "unchecked")
@NAMED
def test_one_step_from_exact_draws_keeps_the_exact_distribution(case: str) -> None:
    found, rng = exact(case), Generator().manual_seed(3)
    pi = found.scores.softmax(1)
    draws = torch.multinomial(pi, 50_000, replacement=True, generator=rng)
    kernel = Screened(found.space, found.evidence)
    state, _ = kernel.step(found.potential, kernel.init(found.potential, found.worlds[draws]), rng)
    walked = kernel._walk.run(
        found.potential.stand_in(),  # type: ignore[arg-type]
        found.worlds[draws],
        [10, 10],
        rng,
    )
    for level in range(LEVELS):
        rows = pi[level].expand(len(pi[level]), -1)
        assert p_value(rows, 0, found.rules.index(state.values[level])) > 1e-4
        assert p_value(rows, 0, found.rules.index(walked.values[level])) < 1e-4, "the twin"


# Which worlds are reached.


def flat(space: Space) -> Exact:
    """All numbers are zero."""
    table = torch.zeros(LEVELS, space.entries, dtype=torch.float64)
    return Exact(space, None, IndependentPotential(space, table), space.enumerate())


@pytest.mark.parametrize("length", [1, 2, 5, 10])
@pytest.mark.parametrize("space", [BOOLEAN, SINGLE], ids=["graphs", "one group"])
def test_some_power_of_each_length_is_positive_everywhere_at_a_flat_target(
    space: Space, length: int
) -> None:
    walked = torch.linalg.matrix_power(one_move(flat(space), 0), length)
    step = (walked > 1e-15).double()
    assert (torch.linalg.matrix_power(step, 8) > 0).all()


def test_without_rests_the_parity_of_the_number_of_moves_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk, "REST", 0.0)
    alternating = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert torch.equal(one_move(flat(SINGLE), 0), alternating)


@pytest.mark.usefixtures("_either")
def test_a_walk_reaches_every_world_that_a_hard_formula_allows_and_no_other() -> None:
    hard = parse_formula("type(x, O) => !bond(x, y, single).", MOLECULES.language)
    potential = TotalPotential([cheap(MOLECULES, scale=0.3)]).add(
        FormulaPotential(MOLECULES, [hard], LEVELS).double()
    )
    worlds = MOLECULES.enumerate()
    allowed = (potential.score(worlds.expand(LEVELS, -1, -1))[0] > float("-inf")).sum()
    assert 10 < allowed < len(worlds)
    kernel, rng = Screened(MOLECULES), Generator().manual_seed(8)
    values = torch.zeros(LEVELS, 500, MOLECULES.groups, dtype=MOLECULES.dtype)
    state, seen = kernel.init(potential, values), set()
    for _ in range(60):
        state, info = kernel.step(potential, state, rng)
        assert (state.scores > float("-inf")).all()
        assert info.acceptance.isfinite().all()
        seen |= set(MOLECULES.index(state.values).flatten().tolist())
    assert len(seen) == allowed


@pytest.mark.usefixtures("_either")
def test_a_category_of_score_minus_infinity_is_never_entered() -> None:
    """Also where beta is zero: what is forbidden stays so."""
    table = torch.zeros(LEVELS, MOLECULES.entries, dtype=torch.float64)
    forbidden = int(MOLECULES.offsets[0]) + 2
    table[:, forbidden] = float("-inf")
    potential = TotalPotential([IndependentPotential(MOLECULES, table)])
    with torch.no_grad():
        potential.betas[0].copy_(torch.tensor([0.0, -1.0]))
    kernel, rng = Screened(MOLECULES), Generator().manual_seed(9)
    values = torch.zeros(LEVELS, 300, MOLECULES.groups, dtype=MOLECULES.dtype)
    state = kernel.init(potential, values)
    for _ in range(10):
        state, info = kernel.step(potential, state, rng)
        assert info.acceptance.isfinite().all()
    assert state.values[..., 0].unique().tolist() == [0, 1]
    assert state.values[..., 1].unique().tolist() == [0, 1, 2]


def test_numbers_that_are_not_finite_end_a_run_with_their_world() -> None:
    local = LocalPotential(MOLECULES, 1).double()
    with torch.no_grad():
        local.each[0].node_weight[0, 1] = float("nan")  # C with one single bond
    values = torch.zeros(1, 50, MOLECULES.groups, dtype=MOLECULES.dtype)
    with pytest.raises(ScoreError, match="node_weight is not finite") as caught:
        list(sample(local, Screened(MOLECULES), values, 50, Generator().manual_seed(0)))
    assert bool(caught.value.world.any())


# What it does with other potentials.


def test_without_a_stand_in_a_step_is_a_single_balanced_move() -> None:
    table = torch.randn(1, MOLECULES.number_of_worlds, dtype=torch.float64)
    potential = TablePotential(MOLECULES, table)
    values = torch.zeros(1, 40, MOLECULES.groups, dtype=MOLECULES.dtype)

    def stepped(name: str) -> tuple[State, Info]:
        kernel = kernel_named(name, MOLECULES)
        return kernel.step(potential, kernel.init(potential, values), Generator().manual_seed(1))

    one, other = stepped("screened"), stepped("balanced")
    assert torch.equal(one[0].values, other[0].values)
    assert torch.equal(one[1].acceptance, other[1].acceptance)


def test_a_step_scores_each_chain_once_and_the_seed_repeats_it() -> None:
    potential = Counted(exact("molecules").potential)
    kernel = Screened(MOLECULES)
    values = torch.zeros(LEVELS, 7, MOLECULES.groups, dtype=MOLECULES.dtype)
    state = kernel.init(potential, values)
    ends = [kernel.step(potential, state, Generator().manual_seed(2))[0] for _ in range(2)]
    assert potential.evaluations.scores == 3 * LEVELS * 7
    assert torch.equal(ends[0].values, ends[1].values)
    assert not bool(values.any()), "the worlds before a step are left as they are"
    assert not torch.equal(ends[0].values, values)


def test_a_potential_of_cheap_parts_alone_accepts_every_walk() -> None:
    potential = cheap(MOLECULES)
    kernel = Screened(MOLECULES, length=50)
    values = torch.zeros(LEVELS, 30, MOLECULES.groups, dtype=MOLECULES.dtype)
    _, info = kernel.step(potential, kernel.init(potential, values), Generator().manual_seed(3))
    assert torch.allclose(info.acceptance, torch.ones(LEVELS, dtype=torch.float64))
    assert (info.moved > 0.5).all()


# Lengths.


@pytest.mark.parametrize(
    "length", [0, -1, 101, 1.5, float("nan"), float("inf"), (), (3, 0), (3, 2.5)], ids=str
)
def test_lengths_that_are_none_are_refused(length: object) -> None:
    with pytest.raises(InputError, match="whole number of moves from 1 to 100") as caught:
        Screened(MOLECULES, length=length)  # type: ignore[arg-type]
    assert caught.value.token == "length"


def test_lengths_for_other_levels_are_refused() -> None:
    potential = exact("molecules").potential
    kernel = Screened(MOLECULES, length=(1, 2, 3))
    values = torch.zeros(LEVELS, 7, MOLECULES.groups, dtype=MOLECULES.dtype)
    with pytest.raises(InputError, match="3 lengths for 2 levels"):
        kernel.step(potential, kernel.init(potential, values), Generator().manual_seed(2))
    with pytest.raises(InputError, match="3 step sizes for 2 levels"):
        list(sample(potential, kernel, values, 1, Generator().manual_seed(2)))


def test_lengths_follow_the_acceptance_of_every_level_within_their_range() -> None:
    kernel = Screened(MOLECULES)
    assert kernel.with_step_sizes((0.2, 7.4, 1e9)).step_sizes == (1, 7, 100)
    tuning = start_tuning(kernel, LEVELS)
    moved = torch.ones(LEVELS)
    for _ in range(30):
        tuning = tune(kernel, tuning, Info(torch.tensor([0.0, 1.0]), moved))
    found = with_sizes(kernel, tuning)
    assert isinstance(found, Screened)
    assert found.step_sizes == (1, 100)
