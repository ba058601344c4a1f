"""Random languages, spaces, worlds and formulas for property tests."""

from string import ascii_lowercase, ascii_uppercase

import torch
from hypothesis import assume
from hypothesis import strategies as st
from jaxtyping import Integer
from torch import Tensor

from nmln.language import NONE, Attribute, Language
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
    Not,
    Or,
    Term,
    Variable,
    WeightedFormula,
    free_variables,
    parts,
)
from nmln.space import Space, measure

AWKWARD = (
    "v",
    "EXIST",
    "FORALL",
    "a b",
    'say "hi"',
    "back\\slash",
    "Ünï",
    "7up",
    "N+",
    "x,y",
    "//",
)
SORTS = ("node", "city")

plain_names = st.text(ascii_lowercase + ascii_uppercase + "_", min_size=1, max_size=5)
names = plain_names | st.sampled_from(AWKWARD)


@st.composite
def attributes(draw: st.DrawFn, name: str, index: int, most_arity: int = 3) -> Attribute:
    sorts = tuple(draw(st.lists(st.sampled_from(SORTS), max_size=most_arity)))
    symmetric = len(sorts) == 2 and sorts[0] == sorts[1] and draw(st.booleans())
    reflexive = draw(st.booleans())
    if draw(st.booleans()):
        return Attribute(name, sorts, symmetric=symmetric, reflexive=reflexive)
    values = draw(st.lists(names.filter(lambda n: n != NONE), min_size=1, max_size=4, unique=True))
    optional = draw(st.booleans())
    if not optional and draw(st.booleans()):
        values.insert(draw(st.integers(0, len(values))), NONE)
    sort = f"values{index}"
    return Attribute(name, sorts, tuple(values), symmetric, reflexive, optional, sort)


@st.composite
def languages(draw: st.DrawFn, most_arity: int = 3) -> Language:
    taken = draw(
        st.lists(names.filter(lambda n: n not in SORTS), min_size=1, max_size=4, unique=True)
    )
    return Language(*(draw(attributes(name, i, most_arity)) for i, name in enumerate(taken)))


@st.composite
def spaces(draw: st.DrawFn, most_arity: int = 3) -> Space:
    constants = st.lists(names, min_size=1, max_size=3, unique=True)
    domain = {sort: tuple(draw(constants)) for sort in SORTS}
    language = draw(languages(most_arity))
    assume(measure(language, domain).groups > 0)
    return Space(language, domain)


@st.composite
def spaces_with_worlds(
    draw: st.DrawFn, count: int = 1, most_arity: int = 3
) -> tuple[Space, Integer[Tensor, "count groups"]]:
    space = draw(spaces(most_arity))
    return space, random_worlds(space, count, draw(st.integers(0, 2**32)))


def random_worlds(space: Space, count: int, seed: int = 0) -> Integer[Tensor, "count groups"]:
    """Worlds with every group uniform."""
    rng = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, space.groups, generator=rng, dtype=torch.float64)
    return (uniform * space.sizes).to(space.dtype)


@st.composite
def formulas(draw: st.DrawFn, space: Space, depth: int = 3) -> Formula:
    """A formula whose terms all have their sorts, as `resolve` leaves them."""
    return draw(_formula(space, depth, {}))


@st.composite
def _formula(draw: st.DrawFn, space: Space, depth: int, scope: dict[str, str]) -> Formula:
    kinds = ["atom", "not", "and", "or", "=>", "<=>", "E", "A"] if depth else ["atom", "equal"]
    if not space.domain:
        kinds = [kind for kind in kinds if kind not in ("E", "A", "equal")]
    kind = draw(st.sampled_from(kinds))
    inner = _formula(space, depth - 1, scope)
    match kind:
        case "atom":
            return draw(_atom(space, scope))
        case "equal":
            sort = draw(st.sampled_from(sorted(space.domain)))
            left = draw(_term(space, sort, scope))
            right = draw(_term(space, sort, scope))
            # A sort is known only where a predicate or a quantifier's body says so.
            if not (isinstance(left, Variable) and left.name in scope):
                return draw(_atom(space, scope))
            return Equal(left, right)
        case "not":
            return Not(draw(inner))
        case "and" | "or":
            several = tuple(draw(st.lists(inner, min_size=2, max_size=3)))
            return And(several) if kind == "and" else Or(several)
        case "=>":
            return Implies(draw(inner), draw(inner))
        case "<=>":
            return Iff(draw(inner), draw(inner))
        case _:
            sort = draw(st.sampled_from(sorted(space.domain)))
            name = draw(st.sampled_from([f"{sort}_{i}" for i in "pqv"]))
            body = draw(_formula(space, depth - 1, {**scope, name: sort}))
            if Variable(name, sort) not in _sorted_by_atoms(body):
                return draw(_atom(space, scope))
            variables = (Variable(name, sort),)
            return Exists(variables, body) if kind == "E" else ForAll(variables, body)


@st.composite
def _atom(draw: st.DrawFn, space: Space, scope: dict[str, str]) -> Atom:
    name = draw(st.sampled_from(space.language.attributes)).name
    sorts = space.language.argument_sorts(name)
    return Atom(name, tuple(draw(_term(space, sort, scope)) for sort in sorts))


def _sorted_by_atoms(formula: Formula) -> set[Term]:
    """The free variables whose sort a predicate tells."""
    if isinstance(formula, Atom):
        return set(formula.arguments)
    found = {term for part in parts(formula) for term in _sorted_by_atoms(part)}
    return found - set(formula.variables) if isinstance(formula, Exists | ForAll) else found


@st.composite
def _term(draw: st.DrawFn, space: Space, sort: str, scope: dict[str, str]) -> Term:
    bound = [name for name, of in scope.items() if of == sort]
    if bound and draw(st.booleans()):
        return Variable(draw(st.sampled_from(bound)), sort)
    constants = {**space.domain, **space.language.value_sorts}[sort]
    if draw(st.booleans()):
        return Constant(draw(st.sampled_from(constants)), sort)
    return Variable(f"free_{sort}", sort)


@st.composite
def weighted_formulas(draw: st.DrawFn, space: Space) -> WeightedFormula:
    formula = draw(formulas(space))
    free = [variable.name for variable in free_variables(formula)]
    templates = tuple(name for name in free if draw(st.booleans()))
    hard = draw(st.booleans())
    weight = None if hard else draw(st.none() | st.floats(-1e6, 1e6))
    return WeightedFormula(formula, weight, hard, templates)
