"""Stand-ins: tables that score a cheap part of a potential exactly, whatever is built around it."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from nmln.language import Attribute, Language, predicate
from nmln.partition.annealing import AnnealingPath
from nmln.potentials.base import BasePotential
from nmln.potentials.bounded import BoundedPotential
from nmln.potentials.counted import Counted
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.scaled import ScaledPotential
from nmln.potentials.stand_in import StandIn
from nmln.potentials.tempered import TemperedPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from tests.strategies import random_worlds

LEVELS = 3
LANGUAGE = Language(
    Attribute("type", ("node",), tuple("CNO"), value_sort="kind"),
    predicate("marked", "node"),
    Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False),
    predicate("near", "node", "node", symmetric=True),
    predicate("before", "node", "node"),
)
SPACE, LARGER = (Space(LANGUAGE, {"node": nodes}) for nodes in (4, 6))


def independent(space: Space = SPACE, levels: int = LEVELS) -> IndependentPotential:
    values = random_worlds(space, 40 * levels, 1).view(levels, 40, -1)
    return IndependentPotential.fit(space, values)


def local(space: Space = SPACE, levels: int = LEVELS) -> LocalPotential:
    rng, found = Generator().manual_seed(2), LocalPotential(space, levels)
    with torch.no_grad():
        for weights in found.parameters():
            weights.copy_(torch.randn(weights.shape, generator=rng))
        for part in found.each:
            part.tie_start.copy_(torch.randn(part.tie_start.shape, generator=rng))
    return found


def total(levels: int = LEVELS) -> TotalPotential:
    """Cheap parts with factors of their own, one of them at some levels only."""
    found = TotalPotential([local(levels=levels), independent(levels=levels)])
    if levels > 1:
        found = found.add(local(levels=2), levels=[0, levels - 1], beta=0.3)
    with torch.no_grad():
        for number, beta in enumerate(found.betas):
            beta.add_(torch.linspace(-0.4, 0.9 + number, len(beta)))
    return found


CHEAP: dict[str, Callable[[], BasePotential]] = {
    "independent": independent,
    "local": local,
    "total": total,
    "scaled": lambda: ScaledPotential(total(), (0.2, 1.0, 3.0)),
    "tempered": lambda: TemperedPotential(total(1), (5.0, 2.0, 1.0)),
    "annealed": lambda: AnnealingPath(total(), independent()).at(0.3),
    "some levels": lambda: total().at_levels([0, 2]),
    "one level": lambda: total().at_levels([1]),
    "another domain": lambda: total().on(LARGER),
    "some levels of another domain": lambda: total().on(LARGER).at_levels([1, 2]),
    "a total of totals": lambda: TotalPotential([total(), ScaledPotential(total(), (1, 2, 3))]),
    "double": lambda: total().double(),
}


def worlds(potential: BasePotential, seed: int = 3) -> Tensor:
    space, levels = potential.space, potential.levels
    return random_worlds(space, levels * 30, seed).view(levels, 30, -1)


def known(found: StandIn | None) -> StandIn:
    assert found is not None
    return found


@pytest.mark.parametrize("name", CHEAP)
def test_the_stand_in_of_cheap_parts_alone_is_the_score(name: str) -> None:
    potential = CHEAP[name]()
    stand_in, values = known(potential.stand_in()), worlds(potential)
    assert stand_in.space == potential.space
    assert stand_in.levels == potential.levels
    assert stand_in.sound
    scores = potential.score(values).detach()
    assert scores.var() > 0.1
    assert torch.allclose(stand_in.score(values), scores.double(), rtol=1e-5, atol=1e-4)
    counted = known(Counted(potential).stand_in())
    assert torch.equal(counted.score(values), stand_in.score(values))


@pytest.mark.parametrize("name", CHEAP)
def test_the_check_rejects_the_stand_in_of_other_worlds(name: str) -> None:
    potential = CHEAP[name]()
    found = known(potential.stand_in()).score(worlds(potential, seed=4))
    assert not torch.allclose(found, potential.score(worlds(potential)).double(), atol=0.1)


def test_a_network_has_none_and_adds_nothing_to_that_of_a_total() -> None:
    network = FragmentPotential(SPACE, LEVELS, 2, (8,))
    for potential in (network, BoundedPotential(network, 5.0), TotalPotential([network])):
        assert potential.stand_in() is None
        assert ScaledPotential(potential, (1.0, 2.0, 3.0)).stand_in() is None
    assert TemperedPotential(network.at_levels([0]), (2.0, 1.0)).stand_in() is None
    assert Counted(network).stand_in() is None
    both = TotalPotential([network]).add(total())
    values = worlds(both)
    expected = known(total().stand_in()).score(values)
    assert torch.equal(known(both.stand_in()).score(values), expected)
    annealed = AnnealingPath(network, independent()).at(0.25)
    alone = 0.75 * known(independent().stand_in()).score(values)
    assert torch.allclose(known(annealed.stand_in()).score(values), alone)


def test_a_part_that_acts_at_some_levels_is_zero_at_the_others() -> None:
    network = FragmentPotential(SPACE, LEVELS, 2, (8,))
    some = TotalPotential([network]).add(local(levels=2), levels=[2, 0])
    values = worlds(some)
    found, own = known(some.stand_in()).score(values), local(levels=2).stand_in()
    assert torch.equal(found[1], torch.zeros_like(found[1]))
    assert torch.equal(found[[2, 0]], own.score(values[[2, 0]]))


def test_it_follows_the_weights_and_keeps_no_graph() -> None:
    potential = total()
    values, before = worlds(potential), known(potential.stand_in())
    with torch.no_grad():
        for weights in potential.parameters():
            weights.mul_(2)
    after = known(potential.stand_in())
    assert not after.score(values).requires_grad
    assert not torch.allclose(before.score(values), after.score(values))
    scores = potential.score(values).detach().double()
    assert torch.allclose(after.score(values), scores, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0])
def test_minus_infinity_stays_so_whatever_the_factor(factor: float) -> None:
    table = torch.zeros(1, SPACE.entries)
    table[0, 1] = float("-inf")
    found = IndependentPotential(SPACE, table).stand_in().times(torch.tensor([factor]))
    assert found.sound
    assert found.entries[0, 1] == float("-inf")
    assert found.entries[0, 2:].eq(0).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_other_numbers_that_are_not_finite_are_noticed(wrong: float) -> None:
    table = torch.zeros(1, SPACE.entries)
    table[0, 1] = wrong
    assert not IndependentPotential(SPACE, table).stand_in().sound
    for name in ("node_weight", "tie_weight"):
        potential = local()
        with torch.no_grad():
            getattr(potential.each[1], name)[1, 2] = wrong
        assert not potential.stand_in().sound


# What a local potential has computed before does not stick to its copies.


def test_some_levels_of_a_local_potential_that_was_scored_have_their_own_numbers() -> None:
    potential = local()
    values = worlds(potential)
    scores = potential.score(values)
    for level in range(LEVELS):
        assert torch.equal(potential.at_levels([level]).score(values[[level]])[0], scores[level])


def test_a_local_potential_that_was_scored_can_be_put_on_another_domain() -> None:
    used, new = local(), local()
    used.score(worlds(used))
    values = random_worlds(LARGER, LEVELS * 30, 5).view(LEVELS, 30, -1)
    for potential in (used, used.on(LARGER).on(LARGER)):
        assert torch.equal(potential.on(LARGER).score(values), new.on(LARGER).score(values))
    built = LocalPotential(LARGER, LEVELS)
    built.load_state_dict(used.state_dict())
    assert torch.equal(built.score(values), used.on(LARGER).score(values))
