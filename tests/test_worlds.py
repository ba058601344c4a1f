import pytest
import torch

from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.logic import GroundAtom, Literal
from nmln.space import Space
from nmln.worlds import from_atoms, true_atoms

LANGUAGE = Language(
    predicate("smokes", "person"),
    predicate("friends", "person", "person", symmetric=True, reflexive=False),
    Attribute("lives", ("person",), ("Rome", "Oslo"), value_sort="town"),
    Attribute("owns", ("person",), ("Cat", "Dog"), optional=True, value_sort="pet"),
    predicate("near", "person", "place"),
    predicate("rain"),
)
SPACE = Space(LANGUAGE, {"person": ("Anna", "Bob"), "place": ("Park",)})
HOMES = [Literal("lives", ("Anna", "Rome")), Literal("lives", ("Bob", "Oslo"))]


def test_a_closed_world_takes_the_unsaid_for_false() -> None:
    world = from_atoms(SPACE, [*HOMES, Literal("friends", ("Bob", "Anna")), Literal("rain", ())])
    assert [str(atom) for atom in true_atoms(SPACE, world)] == [
        "friends(Anna, Bob)",
        "lives(Anna, Rome)",
        "lives(Bob, Oslo)",
        "rain()",
    ]


def test_saying_a_thing_twice_or_denying_what_is_not_so_changes_nothing() -> None:
    more = [
        *HOMES,
        *HOMES,
        Literal("smokes", ("Bob",), False),
        Literal("lives", ("Bob", "Rome"), False),
        Literal("owns", ("Bob", "Cat"), False),
    ]
    assert torch.equal(from_atoms(SPACE, more), from_atoms(SPACE, HOMES))


@pytest.mark.parametrize(
    ("literal", "message"),
    [
        (
            Literal("drinks", ("Anna",)),
            "unknown predicate drinks. Declare it, or take one of: friends, lives",
        ),
        (
            Literal("smokes", ("Anna", "Bob")),
            r"has 2 arguments, but smokes takes 1: smokes\(person",
        ),
        (
            Literal("smokes", ("Park",)),
            "Park in smokes.* is of sort place, but must be of sort person",
        ),
        (
            Literal("smokes", ("Eve",)),
            "undeclared constant Eve in .*: the sort person has Anna, Bob",
        ),
        (
            Literal("lives", ("Anna", "Bonn")),
            "undeclared constant Bonn .* the sort town has Rome, Oslo",
        ),
        (Literal("friends", ("Anna", "Anna")), "repeats a constant, but friends is irreflexive"),
        (
            Literal("lives", ("Anna", "Oslo")),
            r"lives\(Anna, Rome\) and lives\(Anna, Oslo\) cannot both",
        ),
        (Literal("lives", ("Anna", "Rome"), False), r"!lives\(Anna, Rome\) contradicts a literal"),
    ],
)
def test_an_impossible_literal_is_refused_and_pointed_at(literal: Literal, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        from_atoms(SPACE, [*HOMES, literal])
    assert caught.value.index == 2


def test_an_exclusive_attribute_without_none_must_be_declared() -> None:
    with pytest.raises(InputError, match=r"no value is given for lives\(Bob\).*Rome, Oslo"):
        from_atoms(SPACE, HOMES[:1])


def test_a_symmetric_pair_contradicts_its_mirror_image() -> None:
    pair = [Literal("friends", ("Anna", "Bob")), Literal("friends", ("Bob", "Anna"), False)]
    with pytest.raises(InputError, match=r"!friends\(Bob, Anna\) contradicts"):
        from_atoms(SPACE, [*HOMES, *pair])


def test_denying_the_default_of_a_closed_world_is_a_contradiction() -> None:
    language = Language(Attribute("bond", ("a",), ("none", "single")))
    space = Space(language, {"a": ("X", "Y")})
    with pytest.raises(InputError, match=r"!bond\(Y, none\) denies .* closed world") as caught:
        from_atoms(space, [Literal("bond", ("X", "single")), Literal("bond", ("Y", "none"), False)])
    assert caught.value.index == 1
    told = [Literal("bond", ("X", "single")), Literal("bond", ("X", "none"), False)]
    assert from_atoms(space, told).tolist() == [1, 0]


def test_ground_atoms_without_a_sign_are_true() -> None:
    atoms = [GroundAtom("lives", ("Anna", "Rome")), GroundAtom("lives", ("Bob", "Oslo"))]
    assert torch.equal(from_atoms(SPACE, atoms), from_atoms(SPACE, HOMES))
