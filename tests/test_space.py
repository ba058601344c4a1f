from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.space import Space, measure
from nmln.worlds import from_atoms, ground_atoms, to_text, true_atoms
from tests.strategies import random_worlds, spaces, spaces_with_worlds

MOLECULES = Language(
    Attribute("atom", ("node",), tuple("CNOFPSIBHZ")),
    Attribute("bond", ("node", "node"), ("none", "single", "double", "triple"), True, False),
)


@given(spaces_with_worlds(count=3))
def test_values_one_hot_and_packed_bytes_agree(drawn) -> None:
    space, worlds = drawn
    onehot = space.one_hot(worlds)
    assert onehot.sum() == worlds.numel()
    assert torch.equal(space.categories(onehot), worlds)
    assert torch.equal(space.unpack(space.pack(worlds)), worlds)
    levels = worlds[None].repeat(2, 1, 1)
    assert torch.equal(space.one_hot(levels)[1], onehot)


@given(spaces_with_worlds())
def test_one_hot_entries_and_true_atoms_agree(drawn) -> None:
    space, worlds = drawn
    onehot = space.one_hot(worlds[0])
    named = [atom for entry, atom in ground_atoms(space) if onehot[entry] == 1]
    assert named == true_atoms(space, worlds[0])
    assert torch.equal(from_atoms(space, named), worlds[0])


@given(spaces_with_worlds())
def test_text_is_the_true_atoms_but_those_named_none(drawn) -> None:
    space, worlds = drawn
    nulls = {a.name: a.categories[a.null] for a in space.language if a.null is not None}
    shown = [
        str(atom)
        for atom in true_atoms(space, worlds[0])
        if space.language[atom.predicate].boolean or atom.arguments[-1] != nulls.get(atom.predicate)
    ]
    assert to_text(space, worlds[0]) == "\n".join(shown)


@given(spaces())
def test_the_size_is_known_before_the_space_is_built(space: Space) -> None:
    told = measure(space.language, space.domain)
    assert told.groups == len(space.sizes)
    assert told.entries == int(space.sizes.sum())
    assert told.atoms == len(list(ground_atoms(space)))
    assert told.bytes_per_world == random_worlds(space, 1).nbytes


def test_groups_and_offsets_follow_the_declared_order() -> None:
    space = Space(MOLECULES, {"node": 4})
    assert space.sizes.tolist() == [10] * 4 + [4] * 6
    assert space.offsets.tolist() == [0, 10, 20, 30, 40, 44, 48, 52, 56, 60]
    assert [space.group_name(g) for g in (0, 3, 4, 9)] == [
        "atom(0)",
        "atom(3)",
        "bond(0, 1)",
        "bond(2, 3)",
    ]


def test_a_world_takes_one_byte_a_group() -> None:
    space = Space(MOLECULES, {"node": 20})
    assert (space.groups, space.entries) == (210, 960)
    assert random_worlds(space, 5).nbytes == 5 * 210
    assert space.pack(random_worlds(space, 5)).nbytes == 5 * 105


def test_more_than_256_categories_take_two_bytes() -> None:
    space = Space(Language(Attribute("p", ("a",), tuple(map(str, range(300))))), {"a": 3})
    worlds = torch.tensor([[0, 255, 299]], dtype=space.dtype)
    assert space.dtype == torch.int16
    assert torch.equal(space.categories(space.one_hot(worlds)), worlds)
    assert torch.equal(space.unpack(space.pack(worlds)), worlds)


def test_relations_are_mirrored_and_empty_where_there_is_no_pair() -> None:
    space = Space(MOLECULES, {"node": 3})
    world = torch.tensor([0, 1, 2, 3, 0, 2], dtype=torch.uint8)
    bonds = space.pairwise(space.one_hot(world))["bond"]
    assert bonds.argmax(-1).tolist() == [[0, 3, 0], [3, 0, 2], [0, 2, 0]]
    assert bonds.diagonal().sum() == 0
    assert space.unary(space.one_hot(world))["atom"].argmax(-1).tolist() == [0, 1, 2]


@given(spaces_with_worlds(count=2))
def test_relations_say_what_the_atoms_say(drawn) -> None:
    space, worlds = drawn
    onehot = space.one_hot(worlds)
    for name, relation in space.pairwise(onehot).items():
        attribute = space.language[name]
        said = {a.arguments for a in true_atoms(space, worlds[1]) if a.predicate == name}
        ends = [space.domain[sort] for sort in attribute.sorts]
        for i, one in enumerate(ends[0]):
            for j, other in enumerate(ends[1]):
                for c, category in enumerate(attribute.categories):
                    value = () if attribute.boolean else (category,)
                    true = (one, other, *value) in said
                    true |= attribute.symmetric and (other, one, *value) in said
                    if c != attribute.silent:
                        assert relation[1, i, j, c] == true


def test_views_copy_nothing_where_every_pair_has_a_group() -> None:
    language = Language(predicate("p", "a"), predicate("r", "a", "b"))
    space = Space(language, {"a": 3, "b": 2})
    onehot = space.one_hot(random_worlds(space, 4))
    for view in (space.unary(onehot)["p"], space.pairwise(onehot)["r"]):
        assert view.untyped_storage().data_ptr() == onehot.untyped_storage().data_ptr()
    assert space.pairwise(onehot)["r"].shape == (4, 3, 2, 2)


@given(st.data())
def test_relabelling_and_then_back_gives_the_same_world(data: st.DataObject) -> None:
    space, worlds = data.draw(spaces_with_worlds(count=2))
    orders = {s: data.draw(st.permutations(range(len(c)))) for s, c in space.domain.items()}
    inverse = {sort: [order.index(i) for i in range(len(order))] for sort, order in orders.items()}
    moved = space.relabel(worlds, orders)
    assert torch.equal(space.relabel(moved, inverse), worlds)


def test_relabelling_renames_the_constants_in_every_atom() -> None:
    language = Language(
        predicate("p", "a"), predicate("r", "a", "a", reflexive=False), MOLECULES["bond"]
    )
    space = Space(language, {"a": "XYZ", "node": "ABC"})
    for order in permutations(range(3)):
        world = random_worlds(space, 1, seed=sum(order[:2]))[0]
        moved = space.relabel(world, {"a": order, "node": order})
        names = dict(
            zip("XYZABC", ["XYZ"[i] for i in order] + ["ABC"[i] for i in order], strict=True)
        )
        renamed = [
            atom._replace(arguments=tuple(names.get(name, name) for name in atom.arguments))
            for atom in true_atoms(space, world)
        ]
        assert torch.equal(from_atoms(space, renamed), moved)


def test_enumeration_lists_every_world_once_in_the_order_of_the_index() -> None:
    language = Language(
        Attribute("c", ("a",), tuple("xyz")), predicate("r", "a", "a", symmetric=True)
    )
    space = Space(language, {"a": 2})
    worlds = space.enumerate()
    assert len(worlds) == space.number_of_worlds == 3**2 * 2**3
    assert len(worlds.unique(dim=0)) == len(worlds)
    assert torch.equal(space.index(worlds), torch.arange(len(worlds)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Space(MOLECULES, {}), "domain of sort node is empty"),
        (lambda: Space(MOLECULES, {"node": []}), "domain of sort node is empty"),
        (lambda: Space(MOLECULES, {"node": ["A", "A"]}), "constant A is listed twice in sort node"),
        (
            lambda: Space(MOLECULES, {"node": 3_000_000}),
            r"too large: 4,500,001,500,000 groups, 18,000,024,000,000 ground atoms, "
            r"4,500,001,500,000 bytes per world",
        ),
        (lambda: Space(Language(), {}), "there is only one world here"),
        (lambda: Space(MOLECULES, {"node": 20}, memory=1000), "but 1,000 may be used"),
        (lambda: Space(MOLECULES, {"node": 20}).enumerate(), "too many to enumerate"),
        (
            lambda: Space(MOLECULES, {"node": 3}).relabel(
                torch.zeros(6, dtype=torch.uint8), {"node": [0, 0, 1]}
            ),
            "does not permute the 3 constants of sort node",
        ),
        (
            lambda: Space(MOLECULES, {"node": 1}).relabel(
                torch.zeros(1, dtype=torch.uint8), {"x": [0]}
            ),
            "there is no sort x here, only node",
        ),
        (
            lambda: Space(MOLECULES, {"node": 20}).index(torch.zeros(210, dtype=torch.uint8)),
            "too many for an index",
        ),
    ],
)
def test_spaces_that_cannot_be_are_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_a_sort_of_values_can_also_be_a_sort_of_constants() -> None:
    language = Language(
        Attribute("type", ("node",), ("C", "N"), value_sort="kind"), predicate("heavy", "kind")
    )
    space = Space(language, {"node": "AB"})
    assert space.domain == {"node": ("A", "B"), "kind": ("C", "N")}
    with pytest.raises(InputError, match="the sort kind holds the values"):
        Space(language, {"node": "AB", "kind": ["X"]})
