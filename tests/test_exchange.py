"""The paper's propositions about swaps, by enumeration."""

from itertools import product

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.exchange import (
    exchange,
    log_swap_ratio,
    pairs_of,
    partners,
    start_walkers,
)
from nmln.kernels.moves import conditionals, free_groups, set_groups
from nmln.language import Attribute, Language
from nmln.logic import Literal
from nmln.noise import acceptance_bound, noised
from nmln.potentials.base import BasePotential
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.function import ValuesPotential
from nmln.space import Space
from nmln.types import State

SPACE = Space(Language(Attribute("k", ("a",), tuple("xyz"))), {"a": 2})  # nine worlds
LEVELS = 3
WORLDS = SPACE.enumerate()
TABLE = 2 * torch.randn(
    LEVELS, len(WORLDS), generator=Generator().manual_seed(0), dtype=torch.float64
)


def tabled(table: Tensor) -> BasePotential:
    """A potential that looks every world up, level by level."""

    def look_up(values: Tensor) -> Tensor:
        levels = torch.arange(len(values))[:, None]
        return table[levels, SPACE.index(values)]

    return ValuesPotential(SPACE, look_up, levels=len(table))


def state_of(potential: BasePotential, values: Tensor) -> State:
    return State(values, potential.score(values))


def joint_matrix(table: Tensor, parity: int) -> Tensor:
    """The transition matrix of one phase on all triples of worlds, from `log_swap_ratio`."""
    potential = tabled(table)
    triples = torch.tensor(list(product(range(len(WORLDS)), repeat=LEVELS))).T
    values = WORLDS[triples]
    pairs, order = pairs_of(LEVELS, parity), partners(LEVELS, parity)
    scores, cross = potential.score(values), potential.score(values[order])
    chance = log_swap_ratio(scores, cross, pairs).clamp(max=0).exp()
    place = torch.tensor([len(WORLDS) ** 2, len(WORLDS), 1])
    matrix = torch.zeros(len(triples.T), len(triples.T), dtype=torch.float64)
    here = torch.arange(len(matrix))
    matrix[here, here] += 1 - chance[0]
    matrix[here, (triples[order].T * place).sum(1)] += chance[0]
    return matrix


@pytest.mark.parametrize("parity", [0, 1])
def test_swaps_keep_the_product_of_all_levels(parity: int) -> None:
    pi = TABLE.softmax(1)
    joint = torch.einsum("a,b,c->abc", *pi).flatten()
    matrix = joint_matrix(TABLE, parity)
    assert torch.allclose(matrix.sum(1), torch.ones(len(joint), dtype=torch.float64))
    assert (joint @ matrix - joint).abs().max() < 1e-12
    wrong = joint_matrix(TABLE.flip(0), parity)
    assert (joint @ wrong - joint).abs().max() > 1e-4, "the check rejects swaps for other levels"


def test_both_phases_after_an_exploration_keep_it_too() -> None:
    joint = torch.einsum("a,b,c->abc", *TABLE.softmax(1)).flatten()
    explore = torch.eye(1, dtype=torch.float64)
    for level in TABLE.softmax(1):
        explore = torch.kron(
            explore, 0.3 * torch.eye(9, dtype=torch.float64) + 0.7 * level.expand(9, -1)
        )
    sweep = explore @ joint_matrix(TABLE, 0) @ joint_matrix(TABLE, 1)
    assert (joint @ sweep - joint).abs().max() < 1e-12


def gibbs_matrix(potential: BasePotential, level: int, evidence: Evidence | None) -> Tensor:
    """One random-scan Gibbs move at a level, from the function that `step` calls."""
    rules = evidence or Evidence.none(SPACE)
    worlds = rules.enumerate()
    values = worlds.expand(potential.levels, -1, -1)
    free = free_groups(SPACE, evidence)
    matrix = torch.zeros(len(worlds), len(worlds), dtype=torch.float64)
    here = torch.arange(len(worlds))
    for group in free:
        groups = group.expand(values.shape[:2])
        _, log_p = conditionals(potential, SPACE, evidence, values, groups)
        for category in range(log_p.shape[-1]):
            chance = log_p[level, :, category].exp() / len(free)
            real = chance > 0
            moved = set_groups(values, groups, torch.full_like(groups, category))[level]
            matrix.index_put_((here[real], rules.index(moved[real])), chance[real], accumulate=True)
    return matrix


@pytest.mark.parametrize(
    "literals", [[], [Literal("k", ("0", "x"), False)]], ids=["free", "evidence"]
)
def test_a_whole_sweep_of_moves_and_swaps_keeps_it_with_and_without_evidence(
    literals: list,
) -> None:
    evidence = Evidence.of(SPACE, literals) if literals else None
    worlds = (evidence or Evidence.none(SPACE)).enumerate()
    potential, count = tabled(TABLE[:2]), len(worlds)
    explore = torch.kron(*(gibbs_matrix(potential, level, evidence) for level in (0, 1)))
    pairs = torch.tensor(list(product(range(count), repeat=2))).T
    values = worlds[pairs]
    scores, cross = potential.score(values), potential.score(values.flip(0))
    chance = log_swap_ratio(scores, cross, (0,)).clamp(max=0).exp()[0]
    swap = torch.diag(1 - chance)
    swap[torch.arange(count**2), pairs[1] * count + pairs[0]] += chance
    pi = potential.score(worlds.expand(2, -1, -1)).softmax(1)
    joint = torch.outer(*pi).flatten()
    sweep = explore @ swap
    assert (joint @ sweep - joint).abs().max() < 1e-12
    assert (joint @ (explore @ swap.T) - joint).abs().max() > 1e-4, "a broken swap is rejected"


def test_the_mean_swap_probability_is_the_overlap() -> None:
    one, other = TABLE[:2].softmax(1)
    ratio = TABLE[0][None, :] - TABLE[0][:, None] + TABLE[1][:, None] - TABLE[1][None, :]
    expected = (torch.outer(one, other) * ratio.clamp(max=0).exp()).sum()
    overlap = torch.minimum(torch.outer(one, other), torch.outer(other, one)).sum()
    assert torch.isclose(expected, overlap)
    assert torch.isclose(
        expected, 1 - (torch.outer(one, other) - torch.outer(other, one)).abs().sum() / 2
    )
    assert expected >= 1 - (one - other).abs().sum()  # 1 - 2 TV

    potential = tabled(TABLE[:2])
    rng = Generator().manual_seed(1)
    drawn = torch.stack([torch.multinomial(p, 200_000, True, generator=rng) for p in (one, other)])
    found = exchange(potential, state_of(potential, WORLDS[drawn]), drawn, 0, rng)
    assert abs(found.info.probabilities.mean() - expected) < 0.005
    assert abs(found.info.swapped.double().mean() - expected) < 0.005


@pytest.mark.parametrize(("rate", "below"), [(0.05, 0.04), (0.02, 0.0), (0.3, 0.1)])
def test_noised_levels_swap_at_least_as_often_as_the_bound_says(rate: float, below: float) -> None:
    start = TABLE[0].softmax(0)
    one, other = noised(SPACE, start, rate), noised(SPACE, start, below)
    overlap = torch.minimum(torch.outer(one, other), torch.outer(other, one)).sum()
    assert overlap >= acceptance_bound(SPACE.groups, rate, below) - 1e-12


def test_constants_added_to_a_level_change_nothing() -> None:
    shifted = TABLE + torch.tensor([[5.0], [-300.0], [1e4]], dtype=torch.float64)
    for parity in (0, 1):
        assert torch.allclose(joint_matrix(TABLE, parity), joint_matrix(shifted, parity), atol=1e-9)


@pytest.mark.parametrize("levels", [2, 3, 5, 6])
def test_with_equal_potentials_every_walker_goes_up_and_down_once_in_2n_phases(levels: int) -> None:
    potential = tabled(TABLE[:1].repeat(levels, 1))
    rng = Generator().manual_seed(2)
    values = WORLDS[torch.randint(len(WORLDS), (levels, 4), generator=rng)]
    state, walkers = state_of(potential, values), start_walkers(values)
    visits = torch.zeros(levels, levels, dtype=torch.int64)  # walker by level
    for phase in range(2 * levels):
        state, walkers, info = exchange(potential, state, walkers, phase % 2, rng)
        assert info.swapped.all()
        for level in range(levels):
            visits[walkers[level, 0], level] += 1
    assert (visits == 2).all()
    assert torch.equal(walkers, start_walkers(values)), "each walker is back where it began"
    assert torch.equal(state.values, values)


def test_no_score_or_slope_is_stale_after_a_swap() -> None:
    potential = FragmentPotential(SPACE, 4, 2, (8,)).double()
    values = WORLDS[torch.randint(len(WORLDS), (4, 50), generator=Generator().manual_seed(3))]
    state, walkers = State(values, *potential.score_and_slopes(values)), start_walkers(values)
    rng = Generator().manual_seed(4)
    for phase in range(6):
        before = state.values
        state, walkers, _ = exchange(potential, state, walkers, phase % 2, rng)
        scores, slopes = potential.score_and_slopes(state.values)
        assert torch.allclose(state.scores, scores)
        assert state.slopes is not None
        assert torch.allclose(state.slopes, slopes)
        for chain in range(50):  # worlds only change places within a replica
            assert sorted(map(tuple, before[:, chain].tolist())) == sorted(
                map(tuple, state.values[:, chain].tolist())
            )


def test_a_forbidden_world_is_never_taken_over() -> None:
    table = TABLE.clone()
    table[1, :5] = float("-inf")
    potential = tabled(table)
    values = torch.stack([WORLDS[:5], WORLDS[[5, 6, 7, 8, 8]], WORLDS[:5]])
    found = exchange(potential, state_of(potential, values), start_walkers(values), 0, Generator())
    assert not found.info.swapped.any()
    assert found.info.probabilities.eq(0).all()


def test_one_level_has_no_neighbour_to_swap_with() -> None:
    potential = tabled(TABLE[:1])
    values = WORLDS[None]
    found = exchange(potential, state_of(potential, values), start_walkers(values), 0, Generator())
    assert torch.equal(found.state.values, values)
    assert found.info.pairs == ()
    with pytest.raises(InputError, match="even \\(0\\) or odd \\(1\\), got 2"):
        pairs_of(3, 2)
