"""Enumeration and brute force: what exactness is held against."""

from collections.abc import Mapping
from itertools import product

import torch
from jaxtyping import Float64
from torch import Tensor

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
    free_variables,
)
from nmln.potentials.base import BasePotential
from nmln.space import Space
from nmln.worlds import true_atoms


def distribution(potential: BasePotential, level: int = 0) -> Float64[Tensor, " worlds"]:
    """The exact probabilities of all worlds at one level."""
    worlds = potential.space.enumerate().expand(potential.levels, -1, -1)
    with torch.no_grad():
        return potential.score(worlds)[level].double().softmax(0)


def count_true(formula: Formula, space: Space, world: Tensor) -> int:
    """The number of true groundings, by substituting every combination of constants."""
    facts = set()
    for atom in true_atoms(space, world):
        facts.add((atom.predicate, atom.arguments))
        if space.language[atom.predicate].symmetric:
            one, other, *rest = atom.arguments
            facts.add((atom.predicate, (other, one, *rest)))
    constants = {**space.domain, **space.language.value_sorts}
    variables = free_variables(formula)
    return sum(
        _true(
            formula, facts, constants, {v.name: c for v, c in zip(variables, chosen, strict=True)}
        )
        for chosen in product(*(constants[variable.sort] for variable in variables))
    )


def _true(
    formula: Formula, facts: set, constants: Mapping[str, tuple[str, ...]], given: dict[str, str]
) -> bool:
    def name(term: Term) -> str:
        return term.name if isinstance(term, Constant) else given[term.name]

    def inside(part: Formula) -> bool:
        return _true(part, facts, constants, given)

    match formula:
        case Atom(predicate, arguments):
            return (predicate, tuple(map(name, arguments))) in facts
        case Equal(left, right):
            return name(left) == name(right)
        case Not(body):
            return not inside(body)
        case And(parts):
            return all(map(inside, parts))
        case Or(parts):
            return any(map(inside, parts))
        case Implies(left, right):
            return not inside(left) or inside(right)
        case Iff(left, right):
            return inside(left) == inside(right)
        case Exists(variables, body) | ForAll(variables, body):
            choices = product(*(constants[variable.sort] for variable in variables))
            results = [
                _true(
                    body,
                    facts,
                    constants,
                    {**given, **dict(zip((v.name for v in variables), c, strict=True))},
                )
                for c in choices
            ]
            return any(results) if isinstance(formula, Exists) else all(results)
