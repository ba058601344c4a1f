import pytest

from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate


def test_an_attribute_knows_its_categories_and_which_of_them_says_nothing() -> None:
    friends = predicate("friends", "person", "person")
    kind = Attribute("kind", ("node",), ("C", "N"))
    bond = Attribute("bond", ("node", "node"), ("single", "none"))
    lives = Attribute("lives", ("person",), ("Rome", "Oslo"), optional=True)
    assert friends.categories == ("false", "true")
    assert lives.categories == ("none", "Rome", "Oslo")
    assert [a.null for a in (friends, kind, bond, lives)] == [0, None, 1, 0]
    assert [a.silent for a in (friends, kind, bond, lives)] == [0, None, None, 0]


def test_a_language_prints_the_header_that_declares_it() -> None:
    language = Language(
        predicate("friends", "person", "person", symmetric=True, reflexive=False),
        Attribute("type", ("node",), ("C", "N+"), value_sort="kind"),
        Attribute("lives", ("person",), ("Rome",), optional=True, value_sort="city"),
        predicate("rain"),
    )
    assert language.header({"person": ("Anna", "Bob C.")}).split("\n") == [
        'person = {Anna, "Bob C."}',
        "kind = {C, N+}",
        "city = {Rome}",
        "friends(person, person) symmetric irreflexive",
        "type(node, kind!)",
        "lives(person, city?)",
        "rain()",
    ]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Attribute("", ("a",)), "needs a name"),
        (lambda: Attribute("p", ("a",), ()), "needs at least one value"),
        (lambda: Attribute("p", ("a",), ("x", "x")), "lists the value x twice"),
        (lambda: Attribute("p", ("a",), ("none", "x"), optional=True), "adds the category none"),
        (lambda: predicate("p", "a", "b", symmetric=True), "only a binary predicate over one sort"),
        (lambda: Language(predicate("p"), predicate("p", "a")), "p is declared twice"),
        (
            lambda: Language(
                Attribute("p", ("a",), ("x",), value_sort="s"),
                Attribute("q", ("a",), ("y",), value_sort="s"),
            ),
            "p and q share the value sort s",
        ),
        (
            lambda: Language(predicate("p"))["q"],
            "unknown predicate q. Declare it, or take one of: p",
        ),
    ],
)
def test_declarations_that_make_no_sense_are_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
