"""Markov logic programs: sorts, predicates and weighted formulas in `.mln` text.

    person = {Anna, Bob}                  // a sort and its constants; may be left to the .db file
    smokes(person)                        // a predicate
    bond(node, node, kind!) symmetric irreflexive   // exactly one kind per pair; `?`: at most one
    1.5 smokes(x) => cancer(x)            // a weighted formula
    !friends(x, x).                       // a hard one
    type(x, +k)                           // one formula for every k, its weight to be learned

`!` binds tightest, then `^`, `v`, `=>`, `<=>`; EXIST x and FORALL x bind all that follows within their
brackets. A statement ends with its line unless brackets are open. `//` and `/* */` are comments.
"""

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nmln.errors import InputError
from nmln.evidence import Evidence, VirtualEvidence
from nmln.files import read_lines, write_lines
from nmln.formats.grammar import parse
from nmln.language import NAME_PATTERN, STRING_PATTERN, Attribute, Language, unquote
from nmln.logic import WeightedFormula, free_variables, resolve
from nmln.memory import CONSTANT, refuse_size
from nmln.space import Space

if TYPE_CHECKING:
    from nmln.inference import Conditional

_STRING = re.compile(STRING_PATTERN)
_COMMENTS = re.compile(rf"{STRING_PATTERN}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_SORT = re.compile(rf"\s*(?:{STRING_PATTERN}|{NAME_PATTERN})\s*=\s*\{{")

Head = tuple[str, list[tuple[str, str]], set[str]]  # name, arguments with their marks, flags


@dataclass(frozen=True)
class Program:
    """A language, the constants declared for it, and weighted formulas.

    Read from text, it has the `lines` where its formulas start, and where predicates are `declared`.
    """

    language: Language
    domain: dict[str, tuple[str, ...]] = field(default_factory=dict)
    formulas: tuple[WeightedFormula, ...] = ()
    lines: tuple[int, ...] = field(default=(), compare=False)
    declared: dict[str, int] = field(default_factory=dict, compare=False)

    def given(
        self, evidence: Evidence | None = None, virtual: VirtualEvidence | None = None
    ) -> "Conditional":
        """The distribution of the program's formulas given evidence, ready for queries.

        Its worlds are over the program's domain, or over that of the evidence, which may have further
        constants. Every sort needs constants in one of them.
        """
        from nmln.inference import Conditional  # upward: listed in pyproject.toml

        known = virtual if evidence is None else evidence
        space = Space(self.language, self.domain) if known is None else known.space
        if space.language != self.language:
            raise InputError(
                "the evidence must be about the predicates of the program, but its language is another. "
                "Build its space with Space(program.language, domain).",
                kind="conflict",
            )
        for sort, names in self.domain.items():
            missing = [name for name in names if name not in space.domain.get(sort, ())]
            if missing:
                raise InputError(
                    "the domain of the evidence must have all constants of the program, but "
                    f"{missing[0]} of sort {sort} is missing. Add it.",
                    token=missing[0],
                    kind="missing",
                )
        return Conditional.of_formulas(space, self.formulas, evidence, virtual)

    def __str__(self) -> str:
        return "\n".join([self.language.header(self.domain), *map(str, self.formulas)])


def read_mln(path: str | Path) -> Program:
    """Read a `.mln` file."""
    return parse_mln("\n".join(line for _, line in read_lines(path)), str(path))


def write_mln(path: str | Path, program: Program) -> None:
    """Write a program so that `read_mln` gives it back."""
    write_lines(path, [str(program)])


def parse_mln(text: str, source: str = "text") -> Program:
    """Read a program from text; errors call it `source`."""
    sorts: dict[str, tuple[str, ...]] = {}
    attributes: dict[str, Attribute] = {}
    declared: dict[str, int] = {}
    used: set[str] = set()  # names of sorts
    formulas: list[tuple[int, str]] = []
    constants = 0
    for line, statement in _statements(text, source):
        if _SORT.match(statement):
            name, names = parse(statement, "sort", source, line)
            _check_sort(name, names, sorts, source, line)
            sorts[name] = names
            constants += len(names)
            try:
                what = f"a domain of {constants:,} constants"
                refuse_size(CONSTANT * constants, what, "Take fewer constants.")
            except InputError as error:
                raise error.at(source, line) from None
            used.add(name)
        elif head := _declaration(statement, attributes, used, source, line):
            try:
                attribute = _attribute(*head, sorts)
                if attribute.name in attributes:
                    raise InputError(
                        f"{attribute.name} is declared twice. Remove one of them.",
                        token=attribute.name,
                        kind="twice",
                    )
            except InputError as error:
                raise error.at(source, line) from None
            attributes[attribute.name], declared[attribute.name] = attribute, line
            used.update(attribute.sorts)
        else:
            formulas.append((line, statement))
    language = Language(*attributes.values())
    domain = {s: names for s, names in sorts.items() if s not in language.value_sorts}
    read = tuple(_formula(written, language, domain, source, line) for line, written in formulas)
    return Program(language, domain, read, tuple(line for line, _ in formulas), declared)


def parse_formula(
    text: str, language: Language, domain: dict[str, tuple[str, ...]] | None = None
) -> WeightedFormula:
    """Read one formula, with or without a weight, over a language: `1.5 smokes(x) => cancer(x)`."""
    return _formula(text, language, domain or {}, "formula", None)


def _formula(
    text: str,
    language: Language,
    domain: dict[str, tuple[str, ...]],
    source: str,
    line: int | None,
) -> WeightedFormula:
    read: WeightedFormula = parse(text, "weighted", source, line)
    try:
        formula = resolve(read.formula, language, domain)
        free = {variable.name for variable in free_variables(formula)}
        for name in read.templates:
            if name not in free:
                raise InputError(
                    f"+{name} marks a quantified variable or a constant, but only a free variable "
                    "can be a template. Remove the '+' or the quantifier.",
                    kind="conflict",
                )
    except InputError as error:
        raise error.at(source, line, text) from None
    return WeightedFormula(formula, read.weight, read.hard, read.templates)


def _statements(text: str, source: str) -> Iterator[tuple[int, str]]:
    """Logical lines, numbered, without comments: a statement continues while its brackets are open."""
    statement: list[str] = []
    depth = number = 0
    for number, line in enumerate(_blank_comments(text, source).split("\n"), 1):
        bare = _STRING.sub("", line)
        depth += len(re.findall("[({]", bare)) - len(re.findall("[)}]", bare))
        statement.append(line)
        if depth <= 0:
            if any(map(str.strip, statement)):
                yield number - len(statement) + 1, "\n".join(statement)
            statement, depth = [], 0
    if statement:
        yield number - len(statement) + 1, "\n".join(statement).rstrip()


def _blank_comments(text: str, source: str) -> str:
    """Replace comments by blanks, so that lines and columns stay the same."""

    def blank(match: re.Match[str]) -> str:
        if match[0].startswith('"'):
            return match[0]
        if match[0].startswith("/*") and not match[0].endswith("*/"):
            line = text.count("\n", 0, match.start()) + 1
            raise InputError(
                "a comment is opened here with '/*' but never closed. Close it with '*/'.",
                source,
                line,
                kind="syntax",
            )
        return re.sub(r"[^\n]", " ", match[0])

    return _COMMENTS.sub(blank, text)


def _declaration(
    text: str, declared: Container[str], sorts: set[str], source: str, line: int
) -> Head | None:
    """The declaration of a predicate, or None if the statement is a formula.

    A statement is a declaration if it marks an argument or has a flag, if it is the first to name its
    predicate, or if its arguments are all sorts.
    """
    try:
        name, places, flags = parse(text, "declaration", source, line)
    except InputError as error:
        start = re.match(rf"\s*({STRING_PATTERN}|{NAME_PATTERN})\s*\([^()]*\)\s+\w+\s*$", text)
        if start and unquote(start[1]) not in declared:
            raise error from None  # a misspelt flag
        return None
    marked = any(mark for _, mark in places)
    if marked or flags or name not in declared:
        return name, places, flags
    return (name, places, flags) if places and all(sort in sorts for sort, _ in places) else None


def _check_sort(
    name: str,
    names: tuple[str, ...],
    sorts: dict[str, tuple[str, ...]],
    source: str,
    line: int,
) -> None:
    if name in sorts:
        raise InputError(
            f"the sort {name} is declared twice. Merge the two.",
            source,
            line,
            token=name,
            kind="twice",
        )
    if not names:
        raise InputError(
            f"the domain of sort {name} is empty. List its constants, as in {name} = {{A, B}}.",
            source,
            line,
            token=name,
            kind="empty",
        )
    if len(set(names)) < len(names):
        twice = next(constant for constant in names if names.count(constant) > 1)
        raise InputError(
            f"{twice} is listed twice in the sort {name}. Remove one.",
            source,
            line,
            token=twice,
            kind="twice",
        )


def _attribute(
    name: str,
    places: list[tuple[str, str]],
    flags: set[str],
    sorts: dict[str, tuple[str, ...]],
) -> Attribute:
    symmetric, reflexive = "symmetric" in flags, "irreflexive" not in flags
    marked = [i for i, (_, mark) in enumerate(places) if mark]
    if not marked:
        return Attribute(
            name, tuple(s for s, _ in places), symmetric=symmetric, reflexive=reflexive
        )
    if marked != [len(places) - 1]:
        order = [s for s, mark in places if not mark] + [s + mark for s, mark in places if mark]
        raise InputError(
            f"only the last argument of a predicate can be marked '!' or '?'. "
            f"Declare it as {name}({', '.join(order)}).",
            token=name,
            kind="syntax",
        )
    value_sort, mark = places[-1]
    if value_sort not in sorts:
        raise InputError(
            f"the values of {name} are not known: declare them before, as in "
            f"{value_sort} = {{A, B, C}}.",
            token=value_sort,
            kind="missing",
        )
    return Attribute(
        name,
        tuple(sort for sort, _ in places[:-1]),
        sorts[value_sort],
        symmetric,
        reflexive,
        optional=mark == "?",
        value_sort=value_sort,
    )
