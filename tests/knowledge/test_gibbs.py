"""Blocked updates: what they take for granted, and that they keep the model's distribution."""

from itertools import combinations

import pytest
import torch
from torch import Generator, Tensor

from nmln.knowledge.gibbs import rounds, sweep
from nmln.knowledge.objectives import Chains, likelihood_loss
from nmln.knowledge.potential import KnowledgePotential
from tests.exact import distribution
from tests.knowledge.test_potential import SHAPES, brute_force, potential_of, triples_space
from tests.strategies import random_worlds


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
def test_a_followed_change_is_as_good_as_starting_anew(name: str) -> None:
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

    chains = Chains(potential, bits, Generator().manual_seed(0), chains=4)
    total = torch.zeros_like(expected)
    for step in range(45):
        chains.loss(step)
        if step >= 5:
            potential.zero_grad()
            likelihood_loss(potential, bits, chains.worlds).backward()
            total += gradient(potential)
    assert float(torch.cosine_similarity(total, expected, 0)) > 0.98
    assert float(total.norm() / 40 / expected.norm()) == pytest.approx(1, abs=0.1)
