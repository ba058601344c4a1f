"""Conditional losses against formulas; blocked Gibbs updates and likelihood against enumeration."""

from itertools import combinations
from math import inf

import pytest
import torch
from torch import Generator, Tensor

from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.objectives import (
    ConditionalObjective,
    LikelihoodObjective,
    Queries,
    blank_loss,
    conditional_loss,
    likelihood_loss,
    rounds,
    sampled_loss,
    sweep,
)
from nmln.knowledge.potential import KnowledgePotential, Shape
from tests.exact import distribution
from tests.knowledge.families import family
from tests.knowledge.test_potential import SHAPES, brute_force, potential_of, triples_space
from tests.strategies import random_worlds

SMALL = Shape(hidden=24, embedding=4, rank=4)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    return family(tmp_path_factory.mktemp("kb"))


# Conditionals.


def test_the_conditional_loss_is_that_of_its_formula() -> None:
    odds = torch.tensor([[0.3, -0.7, 1.1, 0.2]], dtype=torch.float64)
    true = torch.tensor([[True, False, True, False]])
    p = odds.sigmoid()[0]
    alone = -(p[0].log() + p[2].log() + (1 - p[1]).log() + (1 - p[3]).log())
    e = odds.exp()[0]
    wrong = e[1] + e[3]
    one_of = -((e[0] / (e[0] + wrong)).log() + (e[2] / (e[2] + wrong)).log())
    for calibration in (0.0, 0.5):
        expected = (one_of + calibration * alone) / 2
        assert torch.allclose(conditional_loss(odds, true, calibration), expected)


def test_losses_stay_finite_where_everything_or_nothing_is_true() -> None:
    odds = torch.tensor([[0.5, -inf, 2.0], [0.5, 1.0, 2.0]], requires_grad=True)
    true = torch.tensor([[True, False, False], [True, True, True]])
    loss = conditional_loss(odds, true, 1.0)
    (slopes,) = torch.autograd.grad(loss, odds)
    assert bool(loss.isfinite())
    assert bool(slopes.isfinite().all())


def test_the_pair_conditional_among_candidates_is_exact() -> None:
    """Given that exactly one of some atoms of different pairs is true, which one? By enumeration."""
    space = triples_space(4, 2)
    potential = potential_of(SHAPES["pairs"], space)
    world = random_worlds(space, 1, seed=2)[0]
    groups = [int(space.block("r0").first_group + space.table("r0")[0, b]) for b in (1, 2, 3)]
    worlds = world.repeat(3, 1)
    worlds[:, groups] = torch.eye(3, dtype=world.dtype)
    with torch.no_grad():
        expected = potential.score(worlds[None])[0].softmax(0)
        prepared = potential.prepare(potential.bits(world))
        odds = prepared.of_tails(torch.tensor([0]), torch.tensor([0]))[0, 1:]
    assert torch.allclose(odds.softmax(0), expected)


@pytest.mark.parametrize("tails", [True, False])
def test_drawing_all_wrong_answers_is_the_whole_loss(base: KnowledgeBase, tails: bool) -> None:
    potential = KnowledgePotential(base.space, SMALL, rng=Generator().manual_seed(0)).double()
    bits = potential.bits(base.world(base.train))
    queries = Queries.of(bits, tails)
    with torch.no_grad():
        world = potential.prepare(bits)
        for asks_loops in (True, False):
            loops = torch.full(queries.given.shape, asks_loops)
            whole = conditional_loss(queries.log_odds(world, loops), queries.true, 0.3)
            single = queries.one_by_one()
            loops = torch.full(single.given.shape, asks_loops)
            drawn = sampled_loss(world, single, loops, 12, 0.3, Generator().manual_seed(0))
            assert torch.allclose(whole, drawn)


@pytest.mark.parametrize("tails", [True, False])
def test_questions_without_an_answer_count_by_all_their_atoms(
    base: KnowledgeBase, tails: bool
) -> None:
    potential = KnowledgePotential(base.space, SMALL, rng=Generator().manual_seed(0))
    facts = base.train[base.train[:, 0] % 3 > 0]
    facts = facts[facts[:, 2] % 3 > 0]  # some constants have no fact at all
    bits = potential.bits(base.world(facts))
    blank = Queries.of(bits, tails, answered=False)
    assert len(blank.given) + len(Queries.of(bits, tails).given) == 12 * 4
    assert not bool(blank.true.any())
    with torch.no_grad():
        world = potential.prepare(bits)
        odds = blank.log_odds(world, torch.zeros(len(blank.given), dtype=torch.bool))
        every = torch.nn.functional.softplus(odds).sum()  # loops are minus infinity here
        drawn = blank_loss(world, blank, 20_000, Generator().manual_seed(0))
    assert float(drawn / every) == pytest.approx(1, abs=0.02)


def test_an_epoch_asks_every_question_once(base: KnowledgeBase) -> None:
    potential = KnowledgePotential(base.space, SMALL)
    bits = potential.bits(base.world(base.train))
    sides = [Queries.of(bits, tails) for tails in (True, False)]
    for side in sides:
        heads, relations, tails = side.atoms()
        found = torch.stack([heads, relations, tails], 1).unique(dim=0)
        assert torch.equal(found, base.train.unique(dim=0))
    questions = ConditionalObjective(potential, bits, Generator().manual_seed(0), batch=16)
    assert questions.steps == sum(-(-len(side.given) // 16) for side in sides)
    for epoch in range(2):
        asked: list[tuple[bool, int, int]] = []
        before = questions.order
        for step in range(questions.steps):
            assert bool(questions.loss(step).isfinite())
            side, _, rows = questions.asked(int(questions.order[step]))
            some = side.some(rows)
            pairs = zip(some.given.tolist(), some.relations.tolist(), strict=True)
            asked += [(side.tails, given, relation) for given, relation in pairs]
        assert len(set(asked)) == len(asked) == sum(len(side.given) for side in sides)
        assert not torch.equal(before, questions.order), f"epoch {epoch} has the order before it"


# Blocked Gibbs updates and the likelihood.


@pytest.mark.parametrize("constants", [2, 3, 6, 7])
@pytest.mark.parametrize("together", [True, False])
def test_every_pair_comes_once(constants: int, together: bool) -> None:
    found = rounds(constants, together)
    pairs = [tuple(pair) for turn in found for pair in turn.tolist()]
    assert sorted(pairs) == list(combinations(range(constants), 2))
    if not together:
        for turn in found:
            assert len(turn.unique()) == turn.numel()


@pytest.mark.parametrize("name", SHAPES)
def test_pairs_of_a_round_are_independent(name: str) -> None:
    """Setting all other pairs of the round anew leaves the log-odds of a pair as they were."""
    space = triples_space(5, 2)
    potential = potential_of(SHAPES[name], space)
    one, other = random_worlds(space, 2, seed=1)
    for turn in rounds(5, potential.pairwise):
        for head, tail in turn.tolist():
            mixed = one.clone().reshape(2, 5, 5)
            for a, b in turn.tolist():
                if (a, b) != (head, tail):
                    mixed[:, a, b] = other.reshape(2, 5, 5)[:, a, b]
                    mixed[:, b, a] = other.reshape(2, 5, 5)[:, b, a]
            before, after = brute_force(potential, one), brute_force(potential, mixed.flatten())
            for ends in ((head, tail), (tail, head)):
                assert torch.allclose(before[ends], after[ends], atol=1e-9, rtol=0)


def test_pairs_that_share_a_constant_are_not_independent_in_triples() -> None:
    space = triples_space(4, 1)
    potential = potential_of(SHAPES["triples"], space)
    world = random_worlds(space, 1)[0]
    changed = world.clone()
    changed[space.table("r0")[0, 2]] ^= 1
    assert brute_force(potential, world)[0, 1] != brute_force(potential, changed)[0, 1]


@pytest.mark.parametrize("name", ["factors", "pairs", "triples", "no embedding"])
def test_a_followed_change_is_as_good_as_starting_again(name: str) -> None:
    space = triples_space(4, 2)
    potential = potential_of(SHAPES[name], space)
    world = random_worlds(space, 1, seed=5)[0]
    bits = potential.bits(world)
    with torch.no_grad():
        prepared = potential.prepare(bits)
        atoms = torch.tensor([[0, 1, 1], [2, 0, 2], [3, 1, 0]])  # head, relation, tail
        heads, relations, tails = atoms.T
        change = 1 - 2 * bits[heads, tails, relations]
        prepared.change(heads, relations, tails, change)
        after = bits.clone()
        after[heads, tails, relations] += change
        anew = potential.prepare(after)
        every = torch.cartesian_prod(torch.arange(4), torch.arange(2), torch.arange(4)).T
        assert torch.allclose(prepared.log_odds(*every), anew.log_odds(*every), atol=1e-10)


@pytest.mark.parametrize("name", ["pairs", pytest.param("all", marks=pytest.mark.slow)])
def test_sweeps_give_the_exact_marginals(name: str) -> None:
    space = triples_space(3, 1)
    potential = potential_of(SHAPES[name], space, seed=1)
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.mul_(0.5)  # chains that mix
    exact = distribution(potential) @ space.enumerate().double()
    rng = Generator().manual_seed(0)
    bits = potential.bits(random_worlds(space, 1)[0])
    seen = []
    for _ in range(300):
        bits = sweep(potential, bits, rng)
        seen.append(bits.permute(2, 0, 1).flatten())
    draws = torch.stack(seen)
    batches = draws.reshape(20, 15, -1).mean(1)
    error = batches.std(0) / 20**0.5
    assert bool(((draws.mean(0) - exact).abs() < 5 * error + 1e-3).all())
    twisted = distribution(potential).flip(0) @ space.enumerate().double()
    assert not bool(((draws.mean(0) - twisted).abs() < 5 * error + 1e-3).all())


def gradient(potential: KnowledgePotential) -> Tensor:
    return torch.cat([p.grad.flatten() for p in potential.parameters() if p.grad is not None])


def test_the_likelihood_gradient_is_that_of_enumeration() -> None:
    """With the model's own worlds in their exact proportions the gradient is exact."""
    space = triples_space(2, 2)
    potential = potential_of(SHAPES["pairs"], space)
    data = random_worlds(space, 1, seed=9)[0]
    worlds = space.enumerate()
    log_z = potential.score(worlds[None])[0].logsumexp(0)
    (log_z - potential.score(data[None, None])[0, 0]).backward()
    expected = gradient(potential)

    potential.zero_grad()
    exact = distribution(potential)
    bits = torch.stack([potential.bits(world) for world in worlds])
    loss = (exact * potential.total(bits)).sum() - potential.total(potential.bits(data)[None])[0]
    loss.backward()
    assert torch.allclose(gradient(potential), expected, atol=1e-10)


def test_the_likelihood_gradient_by_chains_points_the_same_way() -> None:
    space = triples_space(2, 2)
    potential = potential_of(SHAPES["pairs"], space)
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.mul_(0.5)
    data = random_worlds(space, 1, seed=9)[0]
    bits = potential.bits(data)
    worlds = space.enumerate()
    log_z = potential.score(worlds[None])[0].logsumexp(0)
    (log_z - potential.score(data[None, None])[0, 0]).backward()
    expected = gradient(potential)

    chains = LikelihoodObjective(potential, bits, Generator().manual_seed(0), chains=4)
    total = torch.zeros_like(expected)
    for step in range(45):
        chains.loss(step)
        if step >= 5:
            potential.zero_grad()
            likelihood_loss(potential, bits, chains.worlds).backward()
            total += gradient(potential)
    assert float(torch.cosine_similarity(total, expected, 0)) > 0.98
    assert float(total.norm() / 40 / expected.norm()) == pytest.approx(1, abs=0.1)
