"""The local part: its start in closed form, against enumeration, and what it shares between domains."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise, permutations, product

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.potentials import local
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.inheritance import inherit, labels_of
from nmln.potentials.local import LocalPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from nmln.worlds import from_atoms, true_atoms
from tests.strategies import random_worlds

BONDS = Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False)
LANGUAGE = Language(Attribute("atom", ("node",), tuple("CNO")), BONDS)
PAIR = Space(LANGUAGE, {"node": 2})


def space_of(nodes: int) -> Space:
    return Space(LANGUAGE, {"node": nodes})


def copies_of(space: Space, counts: Tensor) -> Tensor:
    """Every world as often as its count says, at one level."""
    return space.enumerate().repeat_interleave(counts, dim=0)[None]


def fitted(space: Space, values: Tensor, prior: float = 1.0) -> TotalPotential:
    """The base term and the local part of worlds of one domain, in double precision."""
    base = IndependentPotential.fit(space, values, prior=prior)
    part = LocalPotential(space, len(values)).double()
    part.fit([(space, values)], base.double(), [1.0], prior=prior)
    return TotalPotential([base, part]).double()


def law_of(potential: TotalPotential) -> Tensor:
    worlds = potential.space.enumerate()
    with torch.no_grad():
        return potential.score(worlds.expand(potential.levels, -1, -1)).softmax(1)


def start_of(potential: TotalPotential) -> LocalPotential:
    found = potential.parts[1]
    assert isinstance(found, LocalPotential)
    return found


def joint(untied: Tensor, tied: Tensor) -> Tensor:
    """Counts of the worlds of a pair, the same for both orders of its nodes."""
    counts = torch.zeros(PAIR.number_of_worlds, dtype=torch.int64)
    for row, world in enumerate(PAIR.enumerate()):
        one, other, bond = world.tolist()
        low, high = min(one, other), max(one, other)
        counts[row] = untied[low] * untied[high] if bond == 0 else tied[bond - 1, low, high]
    return counts


CORRELATED = joint(
    torch.tensor([4, 2, 1]),
    torch.tensor([[[9, 1, 6], [0, 2, 3], [0, 0, 5]], [[1, 8, 2], [0, 7, 1], [0, 0, 4]]]),
)


@pytest.mark.parametrize("prior", [1e-9, 1.0])
def test_the_start_is_exact_for_pairs_whose_kinds_are_independent_without_a_tie(
    prior: float,
) -> None:
    values = copies_of(PAIR, CORRELATED * (1 if prior < 1 else 2000))
    wanted = CORRELATED / CORRELATED.sum()
    found = law_of(fitted(PAIR, values, prior))
    assert torch.allclose(found[0], wanted.double(), atol=1e-6 if prior < 1 else 1e-4)


def test_the_start_is_exact_beside_any_base_term() -> None:
    """A base of other frequencies, such as smoothed ones, does not make ties rarer or more frequent."""
    values = copies_of(PAIR, CORRELATED)
    base = IndependentPotential.fit(PAIR, values, prior=0.0, smoothing=0.3).double()
    part = LocalPotential(PAIR, 1).double()
    part.fit([(PAIR, values)], base, [1.0], prior=1e-9)
    found = law_of(TotalPotential([base, part]).double())
    assert torch.allclose(found[0], CORRELATED / CORRELATED.sum().double(), atol=1e-6)


def test_the_check_rejects_the_base_term_alone_and_the_nodes_alone() -> None:
    values = copies_of(PAIR, CORRELATED)
    wanted, whole = CORRELATED / CORRELATED.sum(), fitted(PAIR, values, 1e-9)
    for name in ("tie_start", "node_start"):
        broken = deepcopy(whole)
        getattr(start_of(broken).each[0], name).zero_()
        assert float((law_of(broken)[0] - wanted).abs().sum()) > 0.1


def test_independent_groups_leave_nothing_to_correct() -> None:
    space = space_of(3)
    weights = (torch.tensor([3, 2, 1]), torch.tensor([2, 1, 1]))
    counts = torch.ones(space.number_of_worlds, dtype=torch.int64)
    for block, own in zip(space.blocks, weights, strict=True):
        counts *= own[space.enumerate()[:, block.groups].long()].prod(1)
    start = start_of(fitted(space, copies_of(space, counts), 1e-9)).each[0]
    for kind, one, two in product(range(3), repeat=3):
        place = kind * start.around + one * (start.cap + 1) + two
        if one + two <= 2:  # there are only two neighbours
            assert float(start.node_start[0, place]) == pytest.approx(0, abs=1e-6)
    assert torch.allclose(start.tie_start, torch.zeros_like(start.tie_start), atol=1e-6)


def test_the_frequencies_of_neighbourhoods_are_kept_where_rings_are_rare() -> None:
    """Paths of carbon that end in oxygen, and nothing else, corrupted a little: far from independent."""
    space = space_of(4)
    table, worlds = space.table("bond"), []
    for order in permutations(range(4)):
        world = torch.zeros(space.groups, dtype=space.dtype)
        world[order[3]] = 2
        for one, other in pairwise(order):
            world[space.block("bond").first_group + table[one, other]] = 1
        worlds.append(world)
    rng = Generator().manual_seed(0)
    values = torch.stack(worlds).repeat(200, 1)
    noise = random_worlds(space, len(values), 1)
    chosen = torch.rand(values.shape, generator=rng) < 0.15
    values = torch.where(chosen, noise, values)[None]

    def away(potential: TotalPotential) -> float:
        """The total variation of the neighbourhoods of a node from those of the data."""
        law, everything = law_of(potential)[0], space.enumerate()
        part = start_of(whole).each[0]
        wanted, _ = part.frequencies(values, 0)
        found, places = torch.zeros_like(wanted), part.places(everything[None])[0][0]
        for node in range(4):
            found.index_add_(0, places[:, node], law)
        return float((found - wanted).abs().sum()) / 8

    whole = fitted(space, values)
    alone = deepcopy(whole)
    start_of(alone).forget()
    assert away(whole) < 0.12
    assert away(alone) > 2 * away(whole)


def test_neighbourhoods_that_no_datum_has_are_unlikely_but_possible() -> None:
    values = random_worlds(PAIR, 50, 0)[None]
    start = start_of(fitted(PAIR, values)).each[0].node_start
    assert bool(start.isfinite().all())
    unseen = torch.log(torch.tensor(1 / 51, dtype=torch.float64))
    assert float(start.min()) == pytest.approx(
        float(unseen), abs=1e-6
    )  # also those without room here


def test_several_domains_give_one_start_by_their_shares() -> None:
    spaces = [space_of(size) for size in (2, 3, 5, 5)]
    spaces[3] = Space(LANGUAGE, {"node": tuple("abcde")})
    values = [random_worlds(space, 60, number)[None] for number, space in enumerate(spaces)]
    shares = [0.4, 0.3, 0.2, 0.1]
    base = IndependentPotential.fit_all(spaces, values, shares=shares).double()
    part = LocalPotential(spaces[0], 1).double()
    part.score(values[0])
    part.fit(list(zip(spaces, values, strict=True)), base, shares)
    places = torch.zeros(part.each[0].node_start.shape[1], dtype=torch.float64)
    wanted = torch.zeros_like(places)
    for space, some, share in zip(spaces, values, shares, strict=True):
        alone = LocalPotential(space, 1).double().each[0]
        places += share * alone.frequencies(some, 0)[0]
        there = base.on(space)
        assert isinstance(there, IndependentPotential)
        wanted += share * alone.expected(space, there.table[0])
    mixed = (240 * places + wanted) / 241
    seen = wanted > 1e-9
    found = part.each[0].node_start[0]
    assert torch.allclose(found[seen], (mixed / wanted).log()[seen], atol=1e-6)
    others = [part.on(space) for space in spaces[1:]]
    for other, space in zip(others, spaces[1:], strict=True):
        assert isinstance(other, LocalPotential)
        assert other.each[0].nodes == len(space.domain["node"])
        assert other.each[0].node_start is part.each[0].node_start
        assert other.each[0].node_weight is part.each[0].node_weight


def test_expected_neighbourhoods_are_those_of_independent_groups() -> None:
    space = space_of(3)
    base = IndependentPotential.fit(space, random_worlds(space, 40, 2)[None]).double()
    part = LocalPotential(space, 1).double().each[0]
    law = base.score(space.enumerate()[None])[0].softmax(0)
    places, found = (
        part.places(space.enumerate()[None])[0][0],
        torch.zeros(part.node_start.shape[1]),
    )
    found = found.double()
    for node in range(3):
        found.index_add_(0, places[:, node], law)
    assert torch.allclose(part.expected(space, base.table[0]), found, atol=1e-12)
    ties = torch.zeros(3, dtype=torch.float64)
    for group in range(3, 6):
        ties.index_add_(0, space.enumerate()[:, group].long(), law)
    assert torch.allclose(part.expected_ties(space, base.table[0]), ties, atol=1e-12)


def test_neighbours_above_the_cap_count_as_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_MOST_COUNT", 2)
    space = space_of(6)
    part = LocalPotential(space, 1)
    world = torch.zeros(space.groups, dtype=space.dtype)
    scores = []
    with torch.no_grad():
        part.each[0].node_weight[0] = torch.arange(part.each[0].node_weight.shape[1]).float()
        for other in range(1, 6):
            world[space.block("bond").first_group + space.table("bond")[0, other]] = 1
            scores.append(part.each[0].places(world[None, None])[0][0, 0, 0].item())
    assert len(set(scores)) == 2
    base = IndependentPotential.fit(space, random_worlds(space, 30, 0)[None]).double()
    assert float(part.each[0].expected(space, base.table[0]).sum()) == pytest.approx(6)


@pytest.mark.parametrize("table", [0, 2**22])
@pytest.mark.parametrize("together", [1, 2**22])
def test_large_domains_and_many_worlds_are_counted_in_parts(
    table: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, values = space_of(5), random_worlds(space_of(5), 30, 0)[None]
    whole = LocalPotential(space, 1).each[0]
    wanted = whole.places(values), whole.frequencies(values, 0)
    monkeypatch.setattr(local, "_TABLE", table)
    monkeypatch.setattr(local, "_TOGETHER", together)
    found = LocalPotential(space, 1).each[0]
    for one, other in zip(
        (found.places(values), found.frequencies(values, 0)), wanted, strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_copies_slices_and_saved_potentials_keep_the_start() -> None:
    space = space_of(3)
    values = random_worlds(space, 120, 0).view(2, 60, -1)
    base = IndependentPotential.fit(space, values)
    part = LocalPotential(space, 2)
    part.fit([(space, values)], base, [1.0])
    scores = part.score(values)
    assert scores.any()
    for level in range(2):
        assert torch.equal(part.at_levels([level]).score(values[[level]]), scores[[level]])
    copied = deepcopy(part)
    part.forget()
    assert torch.equal(copied.score(values), scores)
    assert not part.score(values).any()
    part.load_state_dict(copied.state_dict())
    assert torch.equal(part.score(values), scores)
    names = {name.split(".")[-1] for name in part.state_dict()}
    assert names == {"node_start", "tie_start", "node_weight", "tie_weight"}
    assert {name.split(".")[-1] for name, _ in part.named_parameters()} == {
        "node_weight", "tie_weight",
    }  # fmt: skip


def test_the_label_of_a_tie_has_no_order() -> None:
    turned = Language(Attribute("atom", ("node",), tuple("ONC")), BONDS)
    own, other = (
        labels_of(LocalPotential(Space(language, {"node": 2}), 1))["parts.0.tie_weight"][1]
        for language in (LANGUAGE, turned)
    )
    used = {
        label
        for place, label in enumerate(own)
        if place // 3 % 3 <= place % 3
    }  # fmt: skip
    assert len(used) == 18
    assert used == {label for place, label in enumerate(other) if place // 3 % 3 <= place % 3}
    assert len(set(own)) == len(own)


def test_labels_do_not_depend_on_the_order_of_declarations() -> None:
    """Weights go to the same places in a language that lists attributes and values otherwise."""
    smokes, cancer = predicate("smokes", "node"), predicate("cancer", "node")
    other = predicate("near", "node", "node", symmetric=True)
    values = BONDS.values
    turned = replace(BONDS, values=(values[0], *reversed(values[1:])))
    spaces = [
        Space(Language(*declared), {"node": 3})
        for declared in ((smokes, cancer, BONDS, other), (other, turned, cancer, smokes))
    ]
    own, new = (LocalPotential(space, 1) for space in spaces)
    rng = Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    inherit(new, own, [0])
    worlds = random_worlds(spaces[0], 40, 2)
    there = torch.stack([from_atoms(spaces[1], true_atoms(spaces[0], world)) for world in worlds])
    assert torch.allclose(own.score(worlds[None]), new.score(there[None]), atol=1e-5)


def test_a_loop_and_a_lonely_node_are_no_neighbours() -> None:
    language = Language(predicate("likes", "node", "node", symmetric=True), predicate("p", "node"))
    alone = Space(language, {"node": 1})
    part = LocalPotential(alone, 1)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=Generator().manual_seed(0)))
    scores = part.score(alone.enumerate()[None])[0]
    loops = alone.enumerate()[:, alone.block("likes").first_group] == 1
    assert torch.equal(scores[loops], scores[~loops])
    assert not torch.equal(scores[:1], scores[-1:])
    values = alone.enumerate()[None]
    part.fit([(alone, values)], IndependentPotential.fit(alone, values), [1.0])
    assert bool(part.score(values).isfinite().all())


def test_many_kinds_are_not_told_apart() -> None:
    several = [Attribute(name, ("node",), tuple("abcde")) for name in ("x", "y", "z")]
    space = Space(Language(*several, BONDS), {"node": 3})
    part = LocalPotential(space, 1)
    assert part.each[0].kinds == 1
    assert "parts.0.tie_weight" in part.labels()
    values = random_worlds(space, 5, 0)[None]
    assert part.score_and_slopes(values)[1].shape == (1, 5, space.entries)


def test_a_language_without_ties_is_refused_and_one_with_too_many_values_has_no_part() -> None:
    many = Attribute("many", ("node", "node"), ("none", *"abcdefghij"), True, False)
    for language in (
        Language(predicate("p", "a")),
        Language(predicate("r", "a", "a")),
        Language(Attribute("t", ("a", "a"), ("u", "w"), True)),
        Language(many),
    ):
        sort = "node" if "node" in language.sorts else "a"
        with pytest.raises(InputError, match=r"set model\.local=false") as error:
            LocalPotential(Space(language, {sort: 3}), 1)
        assert (error.value.token, error.value.kind) == ("model.local", "unsupported")
    both = LocalPotential(Space(Language(many, BONDS), {"node": 3}), 1)
    assert [part.block.attribute.name for part in both.each] == ["bond"]
