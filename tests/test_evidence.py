import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.space import Space
from tests.strategies import random_worlds, spaces_with_worlds

SPACE = Space(
    Language(
        Attribute("type", ("node",), tuple("CNO"), value_sort="kind"),
        predicate("bond", "node", "node", symmetric=True, reflexive=False),
        Attribute("label", ("node",), tuple("xy"), optional=True),
    ),
    {"node": "AB"},
)


def test_a_positive_literal_observes_and_a_negative_one_removes_a_category() -> None:
    evidence = Evidence.of(
        SPACE,
        [
            Literal("type", ("A", "N")),
            Literal("type", ("B", "C"), False),
            Literal("bond", ("B", "A"), False),
            Literal("label", ("A", "x"), False),
        ],
    )
    assert evidence.counts.tolist() == [1, 2, 1, 2, 3]
    assert evidence.free.tolist() == [False, True, False, True, True]
    groups = torch.arange(5)
    assert evidence.choices(groups, torch.tensor([0, 1, 0, 1, 2])).tolist() == [1, 2, 0, 2, 2]
    assert evidence.narrowed.tolist() == [0, 1, 2, 3]
    assert evidence.number_of_worlds == 12


def test_removing_all_but_one_category_is_observing_the_last() -> None:
    denied = [Literal("type", ("A", kind), False) for kind in "CO"]
    said = [Literal("type", ("A", "N"))]
    assert torch.equal(Evidence.of(SPACE, denied).allowed, Evidence.of(SPACE, said).allowed)


def test_closing_a_predicate_observes_that_the_unsaid_is_false() -> None:
    evidence = Evidence.of(SPACE, [Literal("label", ("A", "y"))], closed=["bond", "label"])
    assert evidence.counts.tolist() == [3, 3, 1, 1, 1]
    assert evidence.choices(torch.arange(2, 5), torch.zeros(3, dtype=torch.int64)).tolist() == [
        0,
        2,
        0,
    ]


def test_observing_no_group_leaves_everything_free() -> None:
    evidence = Evidence.observe(SPACE, random_worlds(SPACE, 1)[0], [])
    assert evidence.number_of_worlds == SPACE.number_of_worlds


def test_the_two_parts_of_evidence_join() -> None:
    one, other = (Evidence.of(SPACE, [Literal("type", (node, "O"))]) for node in "AB")
    assert (one & other).counts.tolist() == [1, 1, 2, 3, 3]


@given(st.data())
def test_enumeration_under_evidence_is_the_worlds_that_it_allows(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32))
    allowed = torch.rand(SPACE.entries, generator=torch.Generator().manual_seed(seed)) < 0.6
    allowed |= SPACE.one_hot(random_worlds(SPACE, 1, seed)[0]) > 0
    evidence = Evidence(SPACE, allowed)
    everything = SPACE.enumerate()
    listed = evidence.enumerate()
    assert torch.equal(listed, everything[evidence.allows(everything)])
    assert torch.equal(evidence.index(listed), torch.arange(evidence.number_of_worlds))


@given(spaces_with_worlds(count=4), st.integers(0, 2**32))
def test_clamping_gives_worlds_that_agree_and_leaves_those_that_do(drawn, seed: int) -> None:
    space, worlds = drawn
    some = torch.rand(space.groups, generator=torch.Generator().manual_seed(seed)) < 0.5
    evidence = Evidence.observe(space, worlds[0], torch.nonzero(some).flatten())
    clamped = evidence.clamp(worlds)
    assert evidence.allows(clamped).all()
    assert torch.equal(clamped[:, some], worlds[:1, some].expand(4, -1))
    assert torch.equal(clamped[:, ~some], worlds[:, ~some])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Evidence.of(SPACE, [Literal("type", ("A", kind), False) for kind in "CNO"]),
            r"contradicts itself: it leaves no category for type\(A\)",
        ),
        (
            lambda: (
                Evidence.of(SPACE, [Literal("type", ("A", "C"))])
                & Evidence.of(SPACE, [Literal("type", ("A", "N"))])
            ),
            r"leaves no category for type\(A\)",
        ),
        (
            lambda: Evidence.none(SPACE) & Evidence.none(Space(SPACE.language, {"node": "ABC"})),
            "about different spaces",
        ),
        (lambda: Evidence.of(SPACE, [], closed=["type"]), "type cannot be closed"),
        (lambda: Evidence.of(SPACE, [], closed=["nope"]), "unknown predicate nope"),
        (lambda: Evidence(SPACE, torch.ones(3, dtype=torch.bool)), r"has the shape \(3,\)"),
    ],
)
def test_evidence_that_cannot_be_is_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
