"""Queries: ground atoms, and formulas whose truth has a probability."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.language import NAME_PATTERN, STRING_PATTERN, unquote
from nmln.logic import (
    Atom,
    Constant,
    Formula,
    GroundAtom,
    Term,
    free_variables,
    substitute,
)
from nmln.memory import in_digits
from nmln.potentials.grounding import Grounding
from nmln.space import Space
from nmln.worlds import ground_atoms, locate

_PREDICATE = re.compile(rf"\s*({STRING_PATTERN}|{NAME_PATTERN})\s*(?:/\s*(\d+))?\s*")
_MOST = 1_000_000  # queries that one text may stand for


@dataclass(frozen=True)
class Query:
    """A statement about a world: one ground atom (`entry`), or a closed formula."""

    text: str
    entry: int | None = None
    formula: Formula | None = None


class Questions:
    """Queries over a space, ready to be looked up in worlds."""

    def __init__(self, space: Space, queries: Sequence[Query]) -> None:
        self.space, self.queries = space, tuple(queries)
        atoms = [(i, query.entry) for i, query in enumerate(queries) if query.entry is not None]
        self.places = torch.tensor([place for place, _ in atoms], dtype=torch.int64)
        self.entries = torch.tensor([entry for _, entry in atoms], dtype=torch.int64)
        self._groundings = [
            (place, Grounding(query.formula, space))
            for place, query in enumerate(queries)
            if query.formula is not None
        ]

    def __len__(self) -> int:
        return len(self.queries)

    def truths(self, worlds: Integer[Tensor, "worlds groups"]) -> Bool[Tensor, "worlds queries"]:
        """Whether each query holds in each world."""
        held = torch.zeros(len(worlds), len(self), dtype=torch.bool, device=worlds.device)
        groups = self.space.group_of_entry[self.entries]
        wanted = (self.entries - self.space.offsets[groups]).to(worlds.device)
        found = worlds[:, groups.to(worlds.device)].long() == wanted
        held[:, self.places.to(worlds.device)] = found
        for place, grounding in self._groundings:
            held[:, place] = grounding.counts(worlds) > 0
        return held


def read_queries(text: str, space: Space) -> list[Query]:
    """The queries in a list separated by commas, each once.

    `Cancer` or `Cancer/1` asks for all atoms of a predicate, `Friends(Anna, x)` for all that fit, and a
    formula such as `Smokes(Anna) ^ Cancer(Bob)` for the probability that it holds.
    """
    parts = [part for part in _split(text) if part.strip()]
    if not parts:
        raise InputError(
            "the query is empty. Name predicates, atoms or formulas, as in "
            "'Cancer, Friends(Anna, x), Smokes(Anna) ^ Smokes(Bob)'.",
            kind="empty",
        )
    found: dict[str, Query] = {}
    for part in parts:
        for query in _read(part, space):
            found.setdefault(query.text, query)
            if len(found) > _MOST:
                raise _too_many(f"more than {_MOST:,}")
    return list(found.values())


def _too_many(count: str) -> InputError:
    return InputError(
        f"the query stands for {count} atoms or formulas. Ask for at most {_MOST:,} at a time.",
        kind="size",
    )


def _split(text: str) -> list[str]:
    """The parts between commas that are neither in brackets nor in quotes."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"{STRING_PATTERN}|[(),]", text):
        if match[0] == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
        depth += {"(": 1, ")": -1}.get(match[0], 0)
    return [*parts, text[start:]]


def _read(text: str, space: Space) -> Iterator[Query]:
    if match := _PREDICATE.fullmatch(text):
        name, arity = unquote(match[1]), match[2]
        sorts = space.language.argument_sorts(name)
        if arity is not None and (len(arity) > 9 or int(arity) != len(sorts)):
            raise InputError(
                f"the query {text.strip()[:60]} asks for {arity[:20]} arguments, but {name} takes "
                f"{len(sorts)}: {name}({', '.join(sorts)}).",
                token=name,
            )
        yield from (Query(str(atom), entry) for entry, atom in ground_atoms(space, name))
        return
    try:
        weighted = parse_formula(text, space.language, space.domain)
    except InputError as error:
        raise InputError(
            error.message,
            f"query {text.strip()!r}",
            column=error.column,
            token=error.token,
            kind=error.kind,
        ) from None
    if weighted.weight is not None or weighted.hard or weighted.templates:
        raise InputError(
            f"the query {text.strip()} has a weight, a full stop or a '+'. Ask for the bare formula.",
            kind="unsupported",
        )
    constants = {**space.domain, **space.language.value_sorts}
    variables = free_variables(weighted.formula)
    count = prod(len(constants[variable.sort]) for variable in variables)
    if count > _MOST:  # refused before they are listed
        raise _too_many(in_digits(count))
    for chosen in product(*(constants[variable.sort] for variable in variables)):
        terms: dict[str, Term] = {
            variable.name: Constant(name, variable.sort)
            for variable, name in zip(variables, chosen, strict=True)
        }
        yield from _closed(substitute(weighted.formula, terms), space, text, bool(variables))


def _closed(formula: Formula, space: Space, written: str, one_of_many: bool) -> Iterator[Query]:
    if not isinstance(formula, Atom):
        yield Query(str(formula) if one_of_many else " ".join(written.split()), formula=formula)
        return
    atom = GroundAtom(formula.predicate, tuple(term.name for term in formula.arguments))
    try:
        entries, _ = locate(space, [atom])
    except InputError:
        if one_of_many:  # a repeated constant of an irreflexive predicate
            return
        raise
    yield Query(str(atom), int(entries[0]))
