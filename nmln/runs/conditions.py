"""Conditions on samples: sizes, evidence, a scaffold, formulas."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from nmln.buckets import name_of, names_of, size_of
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.files import read_lines
from nmln.formats.db import read_evidence
from nmln.formats.mln import parse_formula, parse_mln
from nmln.inference.answers import lost_digits
from nmln.logic import (
    Atom,
    Constant,
    Equal,
    Formula,
    Variable,
    WeightedFormula,
    free_variables,
    parts,
    substitute,
)
from nmln.model import Model
from nmln.model.domains import Domain, among
from nmln.molecules.chemistry import NODE
from nmln.molecules.chemistry.scaffold import parse_scaffold
from nmln.molecules.scaffolds import scaffold_evidence
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import constraint
from nmln.space import Space


@dataclass(frozen=True)
class Conditions:
    """Evidence that samples must agree with, and formulas that make some samples more probable.

    `named` holds the scaffold and the file of the evidence as the user gave them, for the summary.
    `domains` are those to draw from, each with its evidence; if empty, that of the model.
    """

    evidence: Evidence | None = None
    formulas: tuple[WeightedFormula, ...] = ()
    named: Mapping[str, str | None] = field(default_factory=dict, compare=False)
    domains: tuple[tuple[Domain, Evidence | None], ...] = ()

    def added(self, model: Model) -> BasePotential | None:
        """The formulas as a potential for every level that the model's chains run at."""
        if not self.formulas:
            return None
        made = constraint(model.space, self.formulas, model.method.chain_levels)
        reach = zip(made.soft, made.most, strict=True)
        largest = max((abs(one.weight or 0.0) * count for one, count in reach), default=0.0)
        for warning in lost_digits(largest, made.dtype):
            warnings.warn(warning, stacklevel=2)
        return made


def read_conditions(
    space: Space | Sequence[Domain],
    *,
    evidence: Path | None = None,
    scaffold: str | None = None,
    formulas: Sequence[str] = (),
    formula_files: Sequence[Path] = (),
) -> Conditions:
    """All conditions that a user gives, combined.

    Args:
        space: the language and the domain of the model, or several domains to draw from.
        evidence: a `.db` file with literals that hold in every sample.
        scaffold: SMILES of a substructure of every molecule.
        formulas: weighted or hard formulas.
        formula_files: `.mln` files with more of them.
    """
    named = {"scaffold": scaffold, "evidence": None if evidence is None else str(evidence)}
    if isinstance(space, Space):
        known = _evidence(space, evidence, scaffold)
        return Conditions(known, _formulas(space, formulas, formula_files), named)
    chosen = [one for one in space if scaffold is None or _holds(one.space, scaffold)]
    if not chosen:
        largest = max((one.space for one in space), key=size_of)
        scaffold_evidence(largest, scaffold or "")  # says that it is too large
    if len(chosen) < len(space):
        smaller = names_of([one.space for one in space if one not in chosen])
        warnings.warn(
            f"the scaffold does not fit into molecules of size {smaller}, which are left out.",
            stacklevel=2,
        )
    found, given = [], ()
    for one in among(chosen):
        with _of_size(one.space, len(space) > 1):
            found.append((one, _evidence(one.space, evidence, scaffold)))
            given = _formulas(one.space, formulas, formula_files)
    return Conditions(None, given, named, tuple(found))


def _evidence(space: Space, evidence: Path | None, scaffold: str | None) -> Evidence | None:
    known = None if evidence is None else read_evidence(evidence, space)
    if scaffold is None:
        return known
    given = scaffold_evidence(space, scaffold)
    return given if known is None else known & given


def _formulas(
    space: Space, texts: Sequence[str], paths: Sequence[Path]
) -> tuple[WeightedFormula, ...]:
    found = [read_formula(space, text) for text in texts]
    for path in paths:
        found += read_formulas(space, path)
    return tuple(found)


def _holds(space: Space, scaffold: str) -> bool:
    """Whether molecules of this size are larger than a scaffold."""
    return len(parse_scaffold(scaffold).atoms) < len(space.domain[NODE])


@contextmanager
def _of_size(space: Space, several: bool) -> Iterator[None]:
    """Say which of several sizes a condition does not fit."""
    try:
        yield
    except InputError as error:
        if not several:
            raise
        raise InputError(
            f"{error.message} This is so for size {name_of(space)}: conditions must fit every size that "
            "is drawn. Choose sizes that they fit (--sizes).",
            *error.place,
            token=error.token,
            kind=error.kind,
        ) from None


def read_formula(space: Space, text: str) -> WeightedFormula:
    """One formula over the language of a space; errors carry the column."""
    source = f"formula {text!r}"
    try:
        return _checked(parse_formula(text, space.language, _domain(space)), space)
    except InputError as error:
        column = error.column or error.at(source, text=text).column
        raise InputError(
            _hinted(error, space), source, column=column, token=error.token, kind=error.kind
        ) from None


def read_formulas(space: Space, path: Path) -> list[WeightedFormula]:
    """The formulas of a `.mln` file over the language of a space, which it need not declare."""
    header = space.language.header(_domain(space)) + "\n"
    above = header.count("\n")
    text = header + "\n".join(line for _, line in read_lines(path))
    try:
        program = parse_mln(text, str(path))
        if program.language != space.language:
            (new, *_) = [a for a in program.language if a not in space.language.attributes]
            raise InputError(
                f"{new.name} is declared here, but is not a predicate of the model. Write formulas, "
                "with a weight before or a full stop after each, over "
                f"{', '.join(a.name for a in space.language)}.",
                str(path),
                program.declared[new.name],
            )
        for line, one in zip(program.lines, program.formulas, strict=True):
            try:
                _checked(one, space)
            except InputError as error:
                below = "\n".join(text.split("\n")[line - 1 :])
                raise error.at(str(path), line, below) from None
    except InputError as error:
        line = None if error.line is None else error.line - above
        message = _hinted(error, space)
        if error.kind == "twice":
            message += " Sorts and predicates come from the model: leave declarations out."
        raise InputError(
            message, str(path), line, error.column, token=error.token, kind=error.kind
        ) from None
    if not program.formulas:
        raise InputError("there is no formula in this file.", str(path), kind="missing")
    return list(program.formulas)


def _domain(space: Space) -> dict[str, tuple[str, ...]]:
    return {sort: tuple(names) for sort, names in space.domain.items()}


def _checked(formula: WeightedFormula, space: Space) -> WeightedFormula:
    """Refuse formulas that parse but are probably mistakes."""
    if formula.weight is None and not formula.hard:
        raise InputError(
            f"{formula} must have a weight or be hard, otherwise it has no effect. Start it with a "
            "weight, as in '1.5 …', or end it with a full stop.",
            kind="syntax",
        )
    values = space.language.value_sorts
    for variable in free_variables(formula.formula):
        near = _nearest(variable.name, values.get(variable.sort, ()))
        if near is None or variable.name in formula.templates:
            continue
        advice = f"Did you mean {near}?"
        if near.lower() == variable.name.lower():
            where = substitute(_place(formula.formula, variable), {variable.name: Constant(near)})
            advice = f"Write {where}: names must be spelled as in the data."
        raise InputError(
            f"{variable.name} is not a category and would be read as a variable. {advice} If a variable "
            "is meant, rename it.",
            token=variable.name,
        )
    return formula


def _place(formula: Formula, variable: Variable) -> Formula:
    """The first atom or equality that contains a free variable."""
    while not isinstance(formula, Atom | Equal):
        formula = next(part for part in parts(formula) if variable in free_variables(part))
    return formula


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name with the most similar spelling, ignoring case, if there is one."""
    spelt = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), spelt, 1, 0.7)
    return spelt[near[0]] if near else None


def _hinted(error: InputError, space: Space) -> str:
    """The message, with a suggestion if an unknown name resembles a known one."""
    if error.kind != "unknown" or error.token is None:
        return error.message
    values = [value for values in space.language.value_sorts.values() for value in values]
    near = _nearest(error.token, [*(a.name for a in space.language), *values])
    return error.message + (f" Did you mean {near}?" if near else "")
