"""Log-odds of single atoms are held against scores of whole worlds."""

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.kernels.coloured import ColouredGibbs
from nmln.kernels.gibbs import SystematicGibbs
from nmln.knowledge.parts import Dropout
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.language import Attribute, Language, predicate
from nmln.potentials.base import NeuralPotential
from nmln.space import Space
from tests.exact import distribution
from tests.strategies import random_worlds

SHAPES = {
    "factors": Shape(hidden=0, rank=3),
    "pairs": Shape(hidden=5, embedding=2, rank=0),
    "triples": Shape(width=3, hidden=5, embedding=2, rank=0),
    "paths": Shape(hidden=0, rank=0, paths=4),
    "all": Shape(width=3, hidden=4, embedding=2, rank=2, paths=3),
    "no embedding": Shape(hidden=4, embedding=0, rank=0),
}


def triples_space(constants: int = 5, relations: int = 3) -> Space:
    names = [f"r{i}" for i in range(relations)]
    return Space(Language(*(predicate(name, "e", "e") for name in names)), {"e": constants})


def potential_of(shape: Shape, space: Space, seed: int = 0) -> KnowledgePotential:
    """With parameters that are all random: nothing may be right because it is zero."""
    rng = Generator().manual_seed(seed)
    potential = KnowledgePotential(space, shape, rng=rng).double()
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return potential


def brute_force(potential: KnowledgePotential, world: Tensor) -> Tensor:
    """The log-odds of every atom by head, tail and relation: two whole worlds scored for each."""
    groups = potential.space.groups
    sides = []
    for value in (1, 0):
        worlds = world.repeat(groups, 1)
        worlds[range(groups), range(groups)] = value
        sides.append(potential.score(worlds[None])[0])
    n = potential.constants
    return (sides[0] - sides[1]).reshape(-1, n, n).permute(1, 2, 0)


@pytest.mark.parametrize("name", SHAPES)
def test_local_log_odds_are_differences_of_whole_scores(name: str) -> None:
    space = triples_space()
    potential = potential_of(SHAPES[name], space)
    world = random_worlds(space, 1, seed=3)[0]
    expected = brute_force(potential, world)
    prepared = potential.prepare(potential.bits(world))
    n, relations = potential.constants, potential.relations

    heads, tails, kinds = (index.flatten() for index in torch.meshgrid(
        torch.arange(n), torch.arange(n), torch.arange(relations), indexing="ij"))  # fmt: skip
    flat = prepared.log_odds(heads, kinds, tails).reshape(n, n, relations)
    assert torch.allclose(flat, expected, atol=1e-10, rtol=0)
    few = prepared.log_odds(heads[:7], kinds[:7], tails[:7])  # too few for tables of all fragments
    assert torch.allclose(few, expected.flatten()[:7], atol=1e-10, rtol=0)

    given, kinds = (index.flatten() for index in torch.meshgrid(
        torch.arange(n), torch.arange(relations), indexing="ij"))  # fmt: skip
    apart = ~torch.eye(n).bool()[given]
    of_tails = prepared.of_tails(given, kinds)
    of_heads = prepared.of_heads(kinds, given)
    right_tails = expected[given, :, kinds]
    right_heads = expected[:, given, kinds].T
    assert torch.allclose(of_tails[apart], right_tails[apart], atol=1e-10, rtol=0)
    assert torch.allclose(of_heads[apart], right_heads[apart], atol=1e-10, rtol=0)
    assert torch.allclose(prepared.loops(given, kinds), right_tails[~apart], atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", SHAPES)
def test_slopes_are_those_of_finite_differences(name: str) -> None:
    space = triples_space(4, 2)
    potential = potential_of(SHAPES[name], space)
    world = random_worlds(space, 1, seed=1)
    _, slopes = potential.score_and_slopes(world[None])
    onehot = space.one_hot(world[None], torch.float64)
    step = 1e-6
    for entry in range(space.entries):
        moved = onehot.clone()
        moved[0, 0, entry] += step
        with torch.no_grad():
            change = (potential(moved) - potential(onehot))[0, 0] / step
        assert abs(float(change - slopes[0, 0, entry])) < 1e-3


@pytest.mark.parametrize("name", SHAPES)
def test_changes_are_those_of_whole_worlds(name: str) -> None:
    space = triples_space(4, 2)
    potential = potential_of(SHAPES[name], space)
    worlds = random_worlds(space, 3, seed=4)[None]
    groups = torch.tensor([0, 3, 17, 5, 31])
    with torch.no_grad():
        expected = NeuralPotential.evaluate_changes(potential, worlds, groups)
    assert torch.allclose(potential.score_changes(worlds, groups), expected, atol=1e-10)


@pytest.mark.parametrize("name", SHAPES)
def test_atoms_without_a_tie_are_independent(name: str) -> None:
    """One of them changed leaves the log-odds of the other as they were; with a tie hardly ever."""
    space = triples_space(4, 2)
    potential = potential_of(SHAPES[name], space)
    free = torch.ones(space.groups, dtype=torch.bool)
    free[[1, 8, 20]] = False
    found = potential.ties(free)
    assert found is not None
    tied = {tuple(sorted(pair)) for pair in found.T.tolist()}
    assert all(bool(free[list(pair)].all()) for pair in tied)
    world = random_worlds(space, 1, seed=6)[0]
    odds = brute_force(potential, world).permute(2, 0, 1).flatten()
    moved = set()
    for one in free.nonzero()[:, 0].tolist():
        changed = world.clone()
        changed[one] ^= 1
        after = brute_force(potential, changed).permute(2, 0, 1).flatten()
        differs = (after - odds).abs() > 1e-9
        moved |= {tuple(sorted((one, other))) for other in differs.nonzero()[:, 0].tolist()}
    moved = {pair for pair in moved if bool(free[list(pair)].all())}
    assert moved <= tied
    if name != "paths":  # which know nothing of loops
        assert len(moved) >= 0.5 * len(tied)


def test_coloured_sweeps_draw_from_it() -> None:
    space = triples_space(3, 1)
    potential = potential_of(SHAPES["pairs"], space)
    kernel = ColouredGibbs.of(potential)
    assert len(kernel.classes) < space.groups
    exact = distribution(potential)
    rng = Generator().manual_seed(0)
    worlds = space.enumerate()[torch.multinomial(exact, 100, True, generator=rng)]
    state, _ = kernel.step(potential, kernel.init(potential, worlds[None]), rng)
    before = exact @ space.enumerate().double()
    after = state.values[0].double().mean(0)
    assert bool(((after - before).abs() < 5 * (before * (1 - before) / 100).sqrt() + 1e-3).all())


def test_too_many_free_atoms_have_unknown_ties() -> None:
    space = triples_space(50, 2)
    potential = KnowledgePotential(space, Shape(hidden=2, rank=0))
    assert potential.ties(torch.ones(space.groups, dtype=torch.bool)) is None


@pytest.mark.parametrize("name", ["pairs", "all"])
def test_the_sampler_draws_from_it(name: str) -> None:
    """A sweep of a general kernel keeps the exact distribution of a small space."""
    space = triples_space(3 if name == "all" else 2, 1)
    potential = potential_of(SHAPES[name], space)
    exact = distribution(potential)
    rng = Generator().manual_seed(0)
    worlds = space.enumerate()[torch.multinomial(exact, 5_000, True, generator=rng)]
    kernel = SystematicGibbs(space)
    with torch.no_grad():
        state, _ = kernel.step(potential, kernel.init(potential, worlds[None]), rng)
    counts = torch.bincount(space.index(state.values[0]), minlength=len(exact))
    expected = exact * 5_000
    often = expected > 5
    squares = ((counts - expected).square() / expected)[often].sum()
    freedom = int(often.sum())
    assert float(squares) < freedom + 5 * (2 * freedom) ** 0.5


def test_dropout_leaves_the_mean_and_a_share() -> None:
    dropout = Dropout(0.25, Generator().manual_seed(0))
    dropped = dropout(torch.ones(10_000))
    assert dropped.unique().tolist() == [0, pytest.approx(4 / 3)]
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)
    assert Dropout(0.0, Generator())(dropped) is dropped


def test_renaming_the_constants_with_their_vectors_changes_nothing() -> None:
    """The order of a pair or triple does not matter, only who is in it."""
    space = triples_space(4, 2)
    potential = potential_of(SHAPES["all"], space)
    world = random_worlds(space, 1)
    order = [2, 0, 3, 1]
    moved = space.relabel(world, {"e": order})
    before = potential.score(world[None])
    with torch.no_grad():
        for name, parameter in potential.named_parameters():
            if name.endswith("embeddings"):
                parameter[order] = parameter.clone()
            if name.endswith(".constants"):
                parameter[:, order] = parameter.clone()
    assert torch.allclose(potential.score(moved[None]), before)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (predicate("r", "e", "e", symmetric=True), "plain Boolean relation"),
        (predicate("r", "e", "e", reflexive=False), "plain Boolean relation"),
        (predicate("r", "e"), "plain Boolean relation"),
        (Attribute("r", ("e", "e"), ("x", "y", "z")), "plain Boolean relation"),
        (predicate("r", "e", "f"), "constants of one sort"),
    ],
)
def test_other_languages_are_refused(attribute: Attribute, message: str) -> None:
    space = Space(Language(attribute), {"e": 3, "f": 3})
    with pytest.raises(InputError, match=message):
        KnowledgePotential(space)


def test_shapes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"width .* got 4"):
        Shape(width=4)
    with pytest.raises(InputError, match="at least one part"):
        Shape(hidden=0, rank=0, paths=0)
    with pytest.raises(InputError, match="0 or more"):
        Shape(hidden=-1)
    with pytest.raises(InputError, match=r"at least 3 constants, got 2"):
        KnowledgePotential(triples_space(2, 1), Shape(width=3))
