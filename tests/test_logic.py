import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.language import Attribute, Language, predicate
from nmln.logic import (
    And,
    Atom,
    Constant,
    Equal,
    Exists,
    Implies,
    Not,
    Or,
    Variable,
    expand_templates,
    free_variables,
    resolve,
    substitute,
)
from tests.strategies import formulas, spaces, weighted_formulas

LANGUAGE = Language(
    predicate("smokes", "person"),
    predicate("friends", "person", "person"),
    predicate("near", "city", "city"),
    Attribute("lives", ("person",), ("Rome", "oslo"), value_sort="town"),
    predicate("rain"),
)
X, Y = Variable("x", "person"), Variable("y", "person")


@given(st.data())
def test_a_formula_reads_back_from_its_text(data: st.DataObject) -> None:
    space = data.draw(spaces())
    weighted = data.draw(weighted_formulas(space))
    assert parse_formula(str(weighted), space.language, space.domain) == weighted


@given(st.data())
def test_resolving_twice_changes_nothing(data: st.DataObject) -> None:
    space = data.draw(spaces())
    formula = data.draw(formulas(space))
    assert resolve(formula, space.language, space.domain) == formula


def test_connectives_bind_as_the_manual_says() -> None:
    read = parse_formula("!smokes(x) ^ smokes(y) v rain => EXIST z smokes(z) ^ x = y", LANGUAGE)
    z = Variable("z", "person")
    assert read.formula == Implies(
        Or((And((Not(Atom("smokes", (X,))), Atom("smokes", (Y,)))), Atom("rain", ()))),
        Exists((z,), And((Atom("smokes", (z,)), Equal(X, Y)))),
    )


def test_a_name_is_a_constant_if_it_is_a_capital_or_a_number_or_quoted_or_declared() -> None:
    read = parse_formula('lives(x, oslo) v smokes(Anna) v smokes(7) v smokes("bob")', LANGUAGE)
    assert isinstance(read.formula, Or)
    arguments = [part.arguments[-1] for part in read.formula.parts if isinstance(part, Atom)]
    assert arguments == [
        Constant("oslo", "town"),
        Constant("Anna", "person"),
        Constant("7", "person"),
        Constant("bob", "person"),
    ]


def test_a_bound_variable_hides_a_constant_of_its_name() -> None:
    read = parse_formula("EXIST oslo lives(x, oslo)", LANGUAGE)
    oslo = Variable("oslo", "town")
    assert read.formula == Exists((oslo,), Atom("lives", (X, oslo)))


def test_free_variables_and_substitution_stop_at_quantifiers() -> None:
    formula = parse_formula("smokes(x) ^ EXIST x friends(x, y)", LANGUAGE).formula
    assert free_variables(formula) == (X, Y)
    anna = Constant("Anna", "person")
    assert str(substitute(formula, {"x": anna})) == "smokes(Anna) ^ (EXIST x (friends(x, y)))"


def test_a_template_becomes_one_formula_for_every_constant() -> None:
    weighted = parse_formula("0.5 lives(+x, +t) => rain", LANGUAGE)
    expanded = expand_templates(weighted, LANGUAGE, {"person": ("A", "B")})
    assert [str(one) for one in expanded] == [
        "0.5 lives(A, Rome) => rain()",
        '0.5 lives(A, "oslo") => rain()',
        "0.5 lives(B, Rome) => rain()",
        '0.5 lives(B, "oslo") => rain()',
    ]


def test_equalities_pass_their_sorts_along_a_chain() -> None:
    formula = parse_formula("x = y ^ y = z ^ smokes(z)", LANGUAGE).formula
    assert {v.name: v.sort for v in free_variables(formula)} == dict.fromkeys("xyz", "person")


def test_a_sort_that_a_term_brings_along_is_believed() -> None:
    formula = Exists((X,), Equal(X, Y))
    assert resolve(formula, LANGUAGE) == formula
    with pytest.raises(
        InputError, match="variable x is of sort person in one place and of sort city"
    ):
        resolve(And((Equal(X, Y), Atom("near", (X, X)))), LANGUAGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drinks(x)", "formula:1: unknown predicate drinks"),
        ("smokes(x, y)", r"smokes\(x, y\) has 2 arguments, but smokes takes 1: \(person\)"),
        ("smokes(x) ^ near(x, y)", "variable x is of sort person in one place and of sort city"),
        ("lives(x, Paris)", "undeclared constant Paris"),
        ("x = y", "sort is unknown"),
        ("EXIST x rain", "variable x occurs in no predicate"),
        ("EXIST x smokes(+x)", r"\+x marks a quantified variable"),
        ("EXIST X smokes(X)", "cannot be a variable"),
        ("1.5 smokes(x).", "a hard formula"),
        ("smokes(x) => => rain", r"formula:14: '=> rain' is not understood here; expected one of"),
        ("smokes(x", r"formula:9: the line ends here; expected '\)' or ','"),
    ],
)
def test_a_bad_formula_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_formula(text, LANGUAGE)
