from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import Program, parse_mln, read_mln, write_mln
from nmln.inference import Conditional
from nmln.language import Attribute, predicate
from nmln.logic import Literal
from nmln.space import Space
from tests.strategies import spaces, weighted_formulas

TEXT = """
// people and what they do
person = {Anna, Bob}
kind = {C, N}   /* over
two lines */
smokes(person)
friends(person, person) symmetric irreflexive
type(node, kind!)
likes(person, kind?)
rain
digit = {1, ..., 4}
odd(digit)

1.5 smokes(x) => friends(x, y) v // no comment here
-2 (smokes(x) ^
    rain)
!friends(x, x).
type(n, +k)
smokes(Anna)
"""


@given(st.data())
def test_a_program_reads_back_from_its_text(data: st.DataObject) -> None:
    space = data.draw(spaces())
    formulas = tuple(data.draw(st.lists(weighted_formulas(space), max_size=3)))
    domain = {s: c for s, c in space.domain.items() if s not in space.language.value_sorts}
    program = Program(space.language, domain, formulas)
    assert parse_mln(str(program)) == program


def test_a_program_reads_back_from_its_file(tmp_path: Path) -> None:
    program = parse_mln(TEXT.replace(" v //", " //"))
    write_mln(tmp_path / "p.mln", program)
    assert read_mln(tmp_path / "p.mln") == program


def test_the_header_declares_sorts_and_predicates() -> None:
    program = parse_mln(TEXT.replace(" v //", " //"))
    assert program.domain == {"person": ("Anna", "Bob"), "digit": ("1", "2", "3", "4")}
    assert list(program.language) == [
        predicate("smokes", "person"),
        predicate("friends", "person", "person", symmetric=True, reflexive=False),
        Attribute("type", ("node",), ("C", "N"), value_sort="kind"),
        Attribute("likes", ("person",), ("C", "N"), optional=True, value_sort="kind"),
        predicate("rain"),
        predicate("odd", "digit"),
    ]
    assert [str(formula) for formula in program.formulas] == [
        "1.5 smokes(x) => friends(x, y)",
        "-2.0 smokes(x) ^ rain()",
        "!friends(x, x).",
        "(type(n, +k))",
        "(smokes(Anna))",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT, r"p\.mln:14:33: the line ends here; expected one of '!'"),
        ("p(s)\np(s)", r"p\.mln:2: p is declared twice"),
        ("s = {A}\n\ns = {B}", r"p\.mln:3: the sort s is declared twice"),
        ("s = {}", r"p\.mln:1: the domain of sort s is empty"),
        ("s = {A, A}", r"p\.mln:1: A is listed twice"),
        ("s = {A, ..., B}", r"p\.mln:1: '\.\.\.' stands between two numbers"),
        ("s = {A", r"p\.mln:1:7: the line ends here; expected ',' or '}'"),
        ("p(s, k!)", r"p\.mln:1: the values of p are not known.*k = {A, B, C}"),
        ("k = {A}\np(k!, s)", r"p\.mln:2: only the last argument .* Declare it as p\(s, k!\)"),
        ("p(s) symetric", r"p\.mln:1:6: 'symetric' is not understood here; expected 'symmetric'"),
        ("p(s, t) symmetric", r"p\.mln:1: only a binary predicate over one sort can be symmetric"),
        ("p(s)\n1.5 q(x)", r"p\.mln:2:5: unknown predicate q"),
        ("p(s)\n1.5 p(x, y)", r"p\.mln:2:5: p\(x, y\) has 2 arguments"),
        ("p(s)\n1.5 p(x) ^", r"p\.mln:2:11: the line ends here"),
        ("p(s)\n1.5 p(x) # p(y)", r"p\.mln:2:10: '# p\(y\)' is not understood here"),
        ("p(s)\n1.5 (p(x)\n  ^ ^ p(y))", r"p\.mln:3:5: '\^ p\(y\)\)' is not understood here"),
        ("s = {A}\np(s)\n1 p(B)", r"p\.mln:3:5: undeclared constant B in p\(B\)"),
        ("p(s)\n1 p(x) => p(y) => p(z)", r"p\.mln:2:16: .*bracket one of them"),
        ("p(s)\n1 p(x) & p(y)", r"p\.mln:2:8: .*Write '\^' for and"),
        ("p(s)\n1 p(x) vp(y)", r"p\.mln:2:8: 'vp\(y\)' is not understood"),
        ("p(s)\n1e999 p(x)", r"p\.mln:2: a weight must be finite"),
        ("p(s)\n" + "!" * 3000 + "p(x)", r"p\.mln:2: this statement is nested too deeply"),
        ("s = {A}\nt = {B}\np(s)\nq(t)\n1 p(B)", r"p\.mln:5:5: B in p\(B\) is of sort t"),
        ("s = {\u00b2, ..., 3}", r"p\.mln:1: '\.\.\.' stands between two numbers"),
        ("p(s)\n/* so", r"p\.mln:2: a comment is opened here"),
        ('p(s)\n1 p("a\\q")', r"p\.mln:2: .* is not a well-formed quoted name"),
    ],
)
def test_a_bad_program_is_refused_with_file_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_mln(text, "p.mln")


@pytest.mark.parametrize(
    "text",
    [
        'k = {sp2, sp-3}\nlives(p, k!)\n1.0 lives(x, "sp-3")',
        'p("a(b)")',
        'k = {"Oh!, no", B}\nlives(p, k!)\n(lives(x, "Oh!, no"))',
        'a = {A, "..."}\np(a)',
        "p(node)\n(p(node))",
        'a = {\u00b2, \u00fc}\np(a)\n1.0 p("\u00b2") v p("\u00fc")',
        "p(a)\n1.0 p(x) ^ (EXIST y (p(y))) ^ (FORALL z (p(z)))",
    ],
)
def test_awkward_programs_print_as_they_were_read(text: str) -> None:
    assert str(parse_mln(text)) == text
    assert parse_mln(str(parse_mln(text))) == parse_mln(text)


def test_a_declared_constant_needs_no_quotes_and_quantifiers_reach_far() -> None:
    head = "k = {sp2, sp-3}\nlives(p, k!)\nr(p)\n"
    assert parse_mln(head + "1 lives(x, sp-3)") == parse_mln(head + '1 lives(x, "sp-3")')
    far = parse_mln(head + "1 r(x) ^ exist y r(y) v r(x)")
    assert far == parse_mln(head + "1 r(x) ^ (EXIST y (r(y) v r(x)))")


def test_what_was_read_knows_its_lines() -> None:
    program = parse_mln(TEXT.replace(" v //", " //"))
    assert program.lines == (14, 15, 17, 18, 19)
    assert program.declared == {
        "smokes": 6, "friends": 7, "type": 8, "likes": 9, "rain": 10, "odd": 12
    }  # fmt: skip


SMOKERS = parse_mln(
    "person = {Anna, Bob}\nsmokes(person)\ncancer(person)\n1.5 smokes(x) => cancer(x)"
)


def test_a_program_given_evidence_is_a_distribution_to_be_asked() -> None:
    space = Space(SMOKERS.language, SMOKERS.domain)
    evidence = Evidence.of(space, [Literal("smokes", ("Anna",))])
    own = SMOKERS.given(evidence).marginals("cancer(Anna)")
    other = Conditional.of_formulas(space, SMOKERS.formulas, evidence).marginals("cancer(Anna)")
    assert [one.value for one in own] == [one.value for one in other]
    assert SMOKERS.given().space == space


def test_the_domain_may_come_from_the_evidence() -> None:
    open_ = parse_mln("smokes(person)\ncancer(person)\n1.5 smokes(x) => cancer(x)")
    space = Space(open_.language, {"person": ("Anna", "Bob", "Carl")})
    assert open_.given(Evidence.none(space)).space == space
    larger = Space(SMOKERS.language, {"person": ("Anna", "Bob", "Carl")})
    assert SMOKERS.given(Evidence.none(larger)).space == larger


def test_evidence_of_another_program_is_refused() -> None:
    smaller = Space(SMOKERS.language, {"person": ("Anna",)})
    with pytest.raises(InputError, match="constants") as caught:
        SMOKERS.given(Evidence.none(smaller))
    assert caught.value.token == "Bob"
    other = parse_mln("person = {Anna, Bob}\nsmokes(person)")
    with pytest.raises(InputError, match="language"):
        SMOKERS.given(Evidence.none(Space(other.language, other.domain)))
