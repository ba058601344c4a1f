"""The grammar of `.db`, `.nl` and `.mln` statements, and errors that name what was expected."""

import re
from functools import cache
from typing import Any

from lark import Lark, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from nmln.errors import InputError
from nmln.language import NAME_PATTERN, NUMERAL_PATTERN, STRING_PATTERN, unquote
from nmln.logic import (
    And,
    Atom,
    Constant,
    Equal,
    Exists,
    ForAll,
    Formula,
    Iff,
    Implies,
    Literal,
    Not,
    Or,
    Term,
    Variable,
    WeightedFormula,
    is_variable,
)
from nmln.memory import CONSTANT, in_digits, refuse_size

# A statement is one logical line. `v` is a connective only where a connective may stand, so it can
# also name a variable; names that the grammar would misread are written in double quotes. The body of
# a quantifier extends as far as possible: where there is a choice, the parser continues the body.
GRAMMAR = rf"""
literal: NEGATION? name ["(" [constant ("," constant)*] ")"]
fact: literal "."

sort: name "=" "{{" [constant ("," (constant | ELLIPSIS))*] "}}"

declaration: name ["(" [place ("," place)*] ")"] FLAG*
place: name MARK?

weighted: WEIGHT? _formula STOP?
_formula: iff
?iff: implies | iff _IFF implies
?implies: disjunction | disjunction _IMPLIES disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: unary ("^" unary)*
?unary: NEGATION unary -> negation
      | _EXIST variables iff -> exists
      | _FORALL variables iff -> for_all
      | "(" iff ")"
      | name ["(" [term ("," term)*] ")"] -> atom
      | side "=" term -> equal
      | side _UNEQUAL term -> unequal
variables: NAME ("," NAME)*
?side: NAME -> symbol | STRING -> quoted | "+" NAME -> template
?term: NAME -> symbol | STRING -> quoted | NUMERAL -> quoted | "+" NAME -> template

name: NAME | STRING
constant: NAME | STRING | NUMERAL

NAME: /{NAME_PATTERN}/
NUMERAL: /{NUMERAL_PATTERN}/
STRING: /{STRING_PATTERN}/
WEIGHT: /[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?=[\s(!"])/
_EXIST.2: /exists?(?=\s)/i
_FORALL.2: /forall(?=\s)/i
_OR: /v(?!\w)/
_IFF: "<=>"
_IMPLIES: "=>"
_UNEQUAL: "!="
NEGATION: "!"
MARK: "!" | "?"
FLAG: "symmetric" | "irreflexive"
ELLIPSIS: "..."
STOP: "."
%ignore /[ \t\r\n]+/
"""

_READABLE = {
    "LPAR": "'('", "RPAR": "')'", "LBRACE": "'{'", "RBRACE": "'}'", "COMMA": "','", "EQUAL": "'='",
    "NAME": "a name", "NUMERAL": "a number", "STRING": "a quoted name", "WEIGHT": "a weight",
    "NEGATION": "'!'", "MARK": "'!' or '?'", "FLAG": "'symmetric' or 'irreflexive'", "STOP": "'.'",
    "DOT": "'.'", "ELLIPSIS": "'...'", "CIRCUMFLEX": "'^'", "_OR": "'v'", "_IFF": "'<=>'",
    "_IMPLIES": "'=>'", "_UNEQUAL": "'!='", "_EXIST": "EXIST",
    "_FORALL": "FORALL", "PLUS": "'+'", "$END": "the end of the line",
}  # fmt: skip


@cache
def _parser() -> Lark:
    starts = ["literal", "fact", "sort", "declaration", "weighted"]
    return Lark(GRAMMAR, parser="lalr", start=starts, maybe_placeholders=False)


def parse(text: str, start: str, source: str | None = None, line: int | None = None) -> Any:
    """Read one statement; errors name the file, the line, the column and what was expected.

    `start` is one of literal, fact, sort, declaration, weighted. The statement may run over several
    lines, of which `line` is the first.
    """
    try:
        return _Builder().transform(_parser().parse(text, start=start))
    except UnexpectedInput as error:
        raise _unexpected(error, text, source, line) from None
    except VisitError as error:
        if isinstance(error.orig_exc, InputError):
            raise error.orig_exc.at(source or "text", line, text) from None
        raise
    except RecursionError:
        raise InputError(
            "this statement is nested too deeply to read. Split it.",
            source or "text",
            line,
            kind="size",
        ) from None


def _unexpected(
    error: UnexpectedInput, text: str, source: str | None, line: int | None
) -> InputError:
    expected: set[str] = set()
    if isinstance(error, UnexpectedToken):
        expected = error.accepts or error.expected
    elif isinstance(error, UnexpectedCharacters):
        expected = error.allowed or set()
    ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    lines = text.split("\n")
    row = len(lines) if ended else error.line
    column = len(lines[-1].rstrip()) + 1 if ended else error.column
    found = "the line ends" if ended else f"{lines[row - 1][column - 1 :][:20]!r} is not understood"
    wanted = sorted({_READABLE.get(name, name) for name in expected})
    wanted = wanted or ["the end of the line"]
    choice = " or ".join(wanted) if len(wanted) < 3 else f"one of {', '.join(wanted)}"
    place = None if line is None else line + row - 1
    cure = _cure(lines[row - 1][column - 1 :], ended, choice)
    message = f"{found} here; expected {choice}.{cure}"
    return InputError(message, source or "text", place, column, kind="syntax")


def _cure(found: str, ended: bool, choice: str) -> str:
    """A hint for habits of other notations."""
    if ended and "EXIST" in choice:
        return " A formula continues on the next line only while a bracket is open."
    if found.startswith("=>"):
        return " Chained '=>' is read in different ways: bracket one of them."
    if re.match(r"&|\||->|and\b|or\b|~", found):
        return " Write '^' for and, 'v' for or, '=>' for implies, '!' for not."
    if found.startswith(".") and "end of the line" in choice:
        return " A line of a .db file has no full stop; facts with one belong into a .nl file."
    return ""


def _numbers(first: str, last: str, sort: str) -> range:
    """The numbers from `first` to `last`; their count is checked before they are written out."""
    if max(len(first), len(last)) > 18:
        raise InputError(
            f"the numbers of the sort {sort} must have at most 18 digits. Take smaller ones.",
            kind="size",
        )
    numbers = range(int(first), int(last) + 1)
    refuse_size(
        CONSTANT * max(0, int(last) - int(first) + 1),
        f"the sort {sort} of {in_digits(len(numbers))} constants",
        "Take fewer constants.",
    )
    return numbers


@v_args(inline=True)
class _Builder(Transformer):
    """Turns parse trees into literals, declarations and formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.templates: list[str] = []

    def name(self, token: str) -> str:
        return unquote(str(token))

    constant = name

    def literal(self, *parts: str) -> Literal:
        negated = parts[0] == "!" and getattr(parts[0], "type", "") == "NEGATION"
        predicate, *arguments = parts[1:] if negated else parts
        return Literal(predicate, tuple(arguments), not negated)

    def fact(self, literal: Literal) -> Literal:
        return literal

    def sort(self, name: str, *names: str) -> tuple[str, tuple[str, ...]]:
        if not any(getattr(part, "type", "") == "ELLIPSIS" for part in names):
            return name, names
        first, last = names[0], names[-1]
        if len(names) != 3 or not (first.isdecimal() and last.isdecimal()):
            raise InputError(
                f"'...' stands between two numbers, as in {name} = {{1, ..., 9}}. Write the names out.",
                kind="syntax",
            )
        return name, tuple(map(str, _numbers(first, last, name)))

    def place(self, name: str, mark: str = "") -> tuple[str, str]:
        return name, str(mark)

    def declaration(self, name: str, *parts: Any) -> tuple[str, list[tuple[str, str]], set[str]]:
        places = [part for part in parts if isinstance(part, tuple)]
        flags = {str(part) for part in parts if not isinstance(part, tuple)}
        return name, places, flags

    def weighted(self, *parts: Any) -> WeightedFormula:
        weight = next((float(p) for p in parts if getattr(p, "type", "") == "WEIGHT"), None)
        hard = any(getattr(p, "type", "") == "STOP" for p in parts)
        formula = next(part for part in parts if not hasattr(part, "type"))
        return WeightedFormula(formula, weight, hard, tuple(self.templates))

    def iff(self, left: Formula, right: Formula) -> Formula:
        return Iff(left, right)

    def implies(self, left: Formula, right: Formula) -> Formula:
        return Implies(left, right)

    def disjunction(self, *inside: Formula) -> Formula:
        return Or(inside)

    def conjunction(self, *inside: Formula) -> Formula:
        return And(inside)

    def negation(self, _: str, body: Formula) -> Formula:
        return Not(body)

    def exists(self, variables: tuple[Variable, ...], body: Formula) -> Formula:
        return Exists(variables, body)

    def for_all(self, variables: tuple[Variable, ...], body: Formula) -> Formula:
        return ForAll(variables, body)

    def variables(self, *names: str) -> tuple[Variable, ...]:
        return tuple(Variable(str(name)) for name in names)

    def atom(self, name: str, *terms: Term) -> Formula:
        return Atom(name, terms)

    def equal(self, left: Term, right: Term) -> Formula:
        return Equal(left, right)

    def unequal(self, left: Term, right: Term) -> Formula:
        return Not(Equal(left, right))

    def symbol(self, token: str) -> Term:
        return Variable(str(token)) if is_variable(str(token)) else Constant(str(token))

    def quoted(self, token: str) -> Term:
        return Constant(unquote(str(token)))

    def template(self, token: str) -> Term:
        if str(token) not in self.templates:
            self.templates.append(str(token))
        return Variable(str(token))
