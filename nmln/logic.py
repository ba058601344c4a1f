"""Ground literals and the syntax tree of first-order formulas.

Formulas are immutable and compare by structure. `str(formula)` is `.mln` text that reads back as
the same tree. A variable starts with a lower-case letter or an underscore; a constant that starts
with neither a capital nor a digit is printed in quotes, so that it is not read as a variable.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite, prod
from typing import NamedTuple

from nmln.errors import InputError
from nmln.language import Domain, Language, misplaced, quote, quote_constant
from nmln.memory import in_digits, refuse_size


class GroundAtom(NamedTuple):
    """A predicate applied to constants; for an exclusive attribute the value comes last."""

    predicate: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{quote(self.predicate)}({', '.join(map(quote_constant, self.arguments))})"


class Literal(NamedTuple):
    """A ground atom, stated to be true or false."""

    predicate: str
    arguments: tuple[str, ...]
    positive: bool = True

    def __str__(self) -> str:
        return ("" if self.positive else "!") + str(GroundAtom(self.predicate, self.arguments))


def is_variable(name: str) -> bool:
    """Whether a name can be a variable: it starts with a lower-case letter or an underscore."""
    return bool(re.fullmatch(r"[^\W\d]\w*", name)) and not name[0].isupper()


@dataclass(frozen=True)
class Variable:
    """A variable over the constants of its sort; `resolve` fills in the sort."""

    name: str
    sort: str = ""

    def __post_init__(self) -> None:
        if not is_variable(self.name):
            raise InputError(
                f"{self.name!r} cannot be a variable: variables start with a lower-case letter and have "
                "only letters, digits and underscores. Rename it.",
                kind="syntax",
            )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Constant:
    """A name of the domain, or a value of an exclusive attribute."""

    name: str
    sort: str = ""

    def __str__(self) -> str:
        bare = self.name[:1].isupper() or self.name[:1].isdecimal()
        text = quote_constant(self.name)
        return text if bare or text.startswith('"') else f'"{text}"'


class _Marked(Variable):
    """A template variable, for printing."""

    def __str__(self) -> str:
        return f"+{self.name}"


Term = Variable | Constant
_COPY = 1000  # bytes that a formula takes at least
DEEPEST = 100  # nested connectives that every reader and grounder can process


@dataclass(frozen=True)
class Atom:
    predicate: str
    arguments: tuple[Term, ...]

    def __str__(self) -> str:
        return f"{quote(self.predicate)}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Equal:
    left: Term
    right: Term

    def __str__(self) -> str:
        left, right = str(self.left), str(self.right)
        return f'"{left}" = {right}' if left[0].isdecimal() else f"{left} = {right}"


@dataclass(frozen=True)
class Not:
    body: "Formula"

    def __str__(self) -> str:
        return f"!{_within(self.body, 4)}"


@dataclass(frozen=True)
class And:
    parts: tuple["Formula", ...]

    def __str__(self) -> str:
        return " ^ ".join(_within(part, 4) for part in self.parts)


@dataclass(frozen=True)
class Or:
    parts: tuple["Formula", ...]

    def __str__(self) -> str:
        return " v ".join(_within(part, 3) for part in self.parts)


@dataclass(frozen=True)
class Implies:
    left: "Formula"
    right: "Formula"

    def __str__(self) -> str:
        return f"{_within(self.left, 2)} => {_within(self.right, 2)}"


@dataclass(frozen=True)
class Iff:
    left: "Formula"
    right: "Formula"

    def __str__(self) -> str:
        return f"{_within(self.left, 0)} <=> {_within(self.right, 1)}"


@dataclass(frozen=True)
class Exists:
    variables: tuple[Variable, ...]
    body: "Formula"

    def __str__(self) -> str:
        return f"EXIST {','.join(map(str, self.variables))} ({self.body})"


@dataclass(frozen=True)
class ForAll:
    variables: tuple[Variable, ...]
    body: "Formula"

    def __str__(self) -> str:
        return f"FORALL {','.join(map(str, self.variables))} ({self.body})"


Formula = Atom | Equal | Not | And | Or | Implies | Iff | Exists | ForAll

# How tightly each connective binds; `!(x = y)` has brackets, because `!x = y` reads badly.
_STRENGTH = {Exists: -1, ForAll: -1, Iff: 0, Implies: 1, Or: 2, And: 3, Equal: 3.5}


def _within(formula: Formula, strength: float) -> str:
    """The text of a part, in brackets if its connective binds less tightly than `strength`."""
    loose = _STRENGTH.get(type(formula), 5) < strength
    return f"({formula})" if loose else str(formula)


@dataclass(frozen=True)
class WeightedFormula:
    """A formula with its weight; None if it is hard, or if the weight is still to be learned.

    `templates` are the variables marked `+`: the formula stands for one copy, with a weight of its
    own, for every combination of their constants.
    """

    formula: Formula
    weight: float | None = None
    hard: bool = False
    templates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if nesting(self.formula) > DEEPEST:
            raise InputError(
                f"a formula may be nested up to {DEEPEST} connectives deep, but this one is deeper. "
                "Split it, or name parts of it by predicates of their own.",
                kind="size",
            )
        if self.weight is not None and not isinstance(self.weight, int | float):
            raise InputError(f"a weight must be a real number, got {self.weight!r}.")
        if self.hard and self.weight is not None:
            raise InputError(
                "a hard formula (one that ends in '.') has no weight. Remove the weight or the '.'.",
                kind="conflict",
            )
        if self.weight is not None and not isfinite(self.weight):
            raise InputError(
                f"a weight must be finite, got {self.weight}. For a hard formula, end it with '.'."
            )

    def __str__(self) -> str:
        text = str(substitute(self.formula, {name: _Marked(name) for name in self.templates}))
        if isinstance(self.formula, Atom) and self.weight is None and not self.hard:
            text = f"({text})"  # without brackets it would read as a declaration
        return (f"{self.weight!r} " if self.weight is not None else "") + text + "." * self.hard


def parts(formula: Formula) -> tuple[Formula, ...]:
    """The formulas directly inside a formula."""
    match formula:
        case Not(body) | Exists(_, body) | ForAll(_, body):
            return (body,)
        case And(inside) | Or(inside):
            return inside
        case Implies(left, right) | Iff(left, right):
            return (left, right)
        case _:
            return ()


def nesting(formula: Formula) -> int:
    """The depth of nested connectives and quantifiers; found without recursion."""
    deepest, waiting = 0, [(formula, 0)]
    while waiting:
        one, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(part, depth + 1) for part in parts(one)]
    return deepest


def _rebuild(formula: Formula, inside: tuple[Formula, ...]) -> Formula:
    match formula:
        case Not() | Exists() | ForAll():
            return replace(formula, body=inside[0])
        case And() | Or():
            return replace(formula, parts=inside)
        case Implies() | Iff():
            return replace(formula, left=inside[0], right=inside[1])
        case _:
            return formula


def free_variables(formula: Formula) -> tuple[Variable, ...]:
    """The variables that no quantifier binds, in order of appearance."""
    match formula:
        case Atom(_, arguments):
            found = [term for term in arguments if isinstance(term, Variable)]
        case Equal(left, right):
            found = [term for term in (left, right) if isinstance(term, Variable)]
        case _:
            found = [variable for part in parts(formula) for variable in free_variables(part)]
    if isinstance(formula, Exists | ForAll):
        bound = {variable.name for variable in formula.variables}
        found = [variable for variable in found if variable.name not in bound]
    return tuple(dict.fromkeys(found))


def substitute(formula: Formula, terms: Mapping[str, Term]) -> Formula:
    """Replace free variables by terms."""

    def put(term: Term) -> Term:
        return terms.get(term.name, term) if isinstance(term, Variable) else term

    match formula:
        case Atom(predicate, arguments):
            return Atom(predicate, tuple(map(put, arguments)))
        case Equal(left, right):
            return Equal(put(left), put(right))
        case Exists(variables, _) | ForAll(variables, _):
            bound = {variable.name for variable in variables}
            terms = {name: term for name, term in terms.items() if name not in bound}
    return _rebuild(formula, tuple(substitute(part, terms) for part in parts(formula)))


def resolve(formula: Formula, language: Language, domain: Domain | None = None) -> Formula:
    """Check a formula against a language and fill in the sort of every term.

    A free name that is a known constant of the sort of its place is read as that constant, whatever
    its first letter. Refuses unknown predicates, wrong numbers of arguments, undeclared constants,
    and variables of two sorts or of none.
    """
    resolver = _Resolver(language, {**(domain or {}), **language.value_sorts})
    build = resolver.visit(formula, {})
    resolver.settle_equalities()
    return build()


@dataclass
class _Slot:
    """The sort found so far for one variable, or for one constant in an equality."""

    term: Term
    bound: bool
    sort: str = ""


class _Resolver:
    """Reads a formula once and notes sorts; `visit` returns a function that builds the sorted tree."""

    def __init__(self, language: Language, known: Domain) -> None:
        self.language, self.known = language, known
        self.free: dict[str, _Slot] = {}
        self.equalities: list[tuple[Equal, _Slot, _Slot]] = []

    def visit(self, part: Formula, scope: Mapping[str, _Slot]) -> Callable[[], Formula]:
        match part:
            case Atom(predicate, arguments):
                expected = self.language.argument_sorts(predicate)
                if len(arguments) != len(expected):
                    raise InputError(
                        f"{part} has {len(arguments)} arguments, but {predicate} takes "
                        f"{len(expected)}: ({', '.join(expected)}).",
                        token=predicate,
                        kind="conflict",
                    )
                slots = [
                    self.note(self.slot(term, scope, sort), sort, part)
                    for term, sort in zip(arguments, expected, strict=True)
                ]
                return lambda: Atom(predicate, tuple(map(self.term, slots)))
            case Equal(left, right):
                pair = self.slot(left, scope), self.slot(right, scope)
                self.equalities.append((part, *pair))
                return lambda: Equal(*map(self.term, pair))
            case Exists(variables, body) | ForAll(variables, body):
                inner = {v.name: _Slot(v, bound=True, sort=v.sort) for v in variables}
                build = self.visit(body, {**scope, **inner})

                def quantified() -> Formula:
                    for slot in inner.values():
                        if not slot.sort:
                            raise InputError(
                                f"the variable {slot.term.name} occurs in no predicate inside {part}, "
                                "so its sort is unknown. Remove it from the quantifier.",
                                kind="unknown",
                            )
                    typed = tuple(Variable(name, slot.sort) for name, slot in inner.items())
                    return replace(part, variables=typed, body=build())

                return quantified
            case _:
                inside = [self.visit(inner, scope) for inner in parts(part)]
                return lambda: _rebuild(part, tuple(build() for build in inside))

    def slot(self, term: Term, scope: Mapping[str, _Slot], sort: str = "") -> _Slot:
        known = term.name in self.known.get(sort, ()) and term.name not in scope
        if known or isinstance(term, Constant):
            return _Slot(Constant(term.name), bound=False)
        new = _Slot(term, bound=False, sort=term.sort)
        return scope.get(term.name) or self.free.setdefault(term.name, new)

    def note(self, slot: _Slot, sort: str, where: Formula) -> _Slot:
        slot.sort = slot.sort or sort
        if slot.sort != sort:
            raise InputError(
                f"the variable {slot.term.name} is of sort {slot.sort} in one place and of sort "
                f"{sort} in {where}. Use two variables.",
                token=slot.term.name,
                kind="conflict",
            )
        names = self.known.get(sort)
        if isinstance(slot.term, Constant) and names is not None and slot.term.name not in names:
            homes = [other for other, known in self.known.items() if slot.term.name in known]
            raise InputError(
                misplaced(slot.term.name, where, sort, names, homes),
                token=slot.term.name,
                kind="conflict" if homes else "unknown",
            )
        return slot

    def settle_equalities(self) -> None:
        """Give both sides of an equality the same sort; repeated, because equalities may form chains."""
        for _ in self.equalities:
            for equality, left, right in self.equalities:
                if sort := left.sort or right.sort:
                    self.note(left, sort, equality)
                    self.note(right, sort, equality)
        for equality, left, _ in self.equalities:
            if not left.sort:
                raise InputError(
                    f"neither side of {equality} occurs in a predicate, so their sort is unknown. "
                    "Use one of them in a predicate.",
                    kind="unknown",
                )

    def term(self, slot: _Slot) -> Term:
        name, sort = slot.term.name, slot.sort
        constant = isinstance(slot.term, Constant) or (
            not slot.bound and name in self.known.get(sort, ())
        )
        return Constant(name, sort) if constant else Variable(name, sort)


def expand_templates(
    weighted: WeightedFormula, language: Language, domain: Domain
) -> list[WeightedFormula]:
    """One formula for every combination of constants of the variables marked `+`."""
    constants = {**domain, **language.value_sorts}
    sorts = {v.name: v.sort for v in free_variables(weighted.formula)}
    for variable in weighted.templates:
        if sorts[variable] not in constants:
            raise InputError(
                f"+{variable} in {weighted} stands for every {sorts[variable]}, but the constants of "
                "that sort are not known. Give them in the domain.",
                token=sorts[variable],
                kind="missing",
            )
    choices = [
        [Constant(name, sorts[variable]) for name in constants[sorts[variable]]]
        for variable in weighted.templates
    ]
    copies = prod(map(len, choices))
    refuse_size(
        _COPY * copies,
        f"{str(weighted)[:200]}, which stands for {in_digits(copies)} formulas,",
        "Mark fewer variables with '+'.",
    )
    return [
        replace(
            weighted,
            formula=substitute(
                weighted.formula, dict(zip(weighted.templates, chosen, strict=True))
            ),
            templates=(),
        )
        for chosen in product(*choices)
    ]
