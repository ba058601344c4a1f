"""Inference with files: reads models, evidence and queries, writes probabilities and worlds."""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nmln.buckets import name_of
from nmln.counting import worlds_text
from nmln.devices import device_of
from nmln.errors import InputError, placed
from nmln.evidence import Evidence, VirtualEvidence
from nmln.files import write_json, write_lines
from nmln.formats.db import Facts, Known, encode_facts, infer_domain, read_facts, read_known
from nmln.formats.mln import Program, read_mln
from nmln.inference import Answers, Best, Conditional, LogProbabilities
from nmln.inference.conditional import HOTTEST, LEVELS
from nmln.inference.queries import read_queries
from nmln.logic import Atom, Formula, WeightedFormula, parts
from nmln.model import Model, load
from nmln.model.domains import holding, of_size
from nmln.potentials.formula import FormulaPotential
from nmln.runs.conditions import read_formula, read_formulas
from nmln.space import Space
from nmln.types import Worlds
from nmln.worlds import true_atoms

ALL = "*"
_GROUNDING = 200  # bytes per ground formula, with its truth tables


@dataclass(frozen=True)
class Posed:
    """A model given evidence, with the closed predicates and the number of groundings."""

    conditional: Conditional
    closed: tuple[str, ...]  # predicates whose unlisted atoms are false
    groundings: int  # of all formulas
    new: bool = False  # whether the constants are those of the evidence, unknown to a trained model

    @property
    def space(self) -> Space:
        return self.conditional.space

    def memory(self, chains: int) -> int:
        """The approximate memory of chains and tables in bytes, without that inside networks."""
        worlds = chains * self.conditional.potential.levels
        each = 4 * self.space.measure.bytes_one_hot + self.space.measure.bytes_per_world
        return worlds * each + self.space.measure.bytes_tables + _GROUNDING * self.groundings

    def __str__(self) -> str:
        evidence = self.conditional.evidence
        free = int(evidence.free.sum())
        closed = f" Closed: {', '.join(self.closed)}." if self.closed else ""
        grounded = f", {self.groundings:,} groundings of formulas" if self.groundings else ""
        many = worlds_text(evidence.counts)
        found = f"{self.space.measure}{grounded}; {free:,} groups are free, {many} worlds.{closed}"
        if self.new:
            found += f" The model is put on the constants of the evidence: {name_of(self.space)}."
        return found


def pose(
    inputs: Sequence[Path],
    evidence: Path | None = None,
    query: str = "",
    *,
    closed: Sequence[str] = (),
    opened: Sequence[str] = (),
    formulas: Sequence[str] = (),
    levels: int = LEVELS,
    hottest: float = HOTTEST,
    size: int | None = None,
    device: str = "auto",
) -> Posed:
    """A model from `.mln` files, the folder of a trained model, or both, given the evidence in a file.

    A trained model is put on the domain of the evidence, or on one of `size` constants. Formulas of
    several inputs are added. `closed` names predicates whose unlisted atoms are false; `*` stands for
    all that `query` does not ask for and `opened` does not name.
    """
    known = None if evidence is None else read_known(evidence)
    programs, folder = _sorted_out(inputs)
    settings = _Settings(query, closed, opened, formulas, levels, hottest, device)
    if folder is None:
        program = read_mln(programs[0])
        with placed(programs[0]):
            space = _space(program, known, size)
        added = [*program.formulas, *settings.formulas_on(space, programs[1:])]
        if not added:
            raise InputError("there is no formula in this file.", str(programs[0]), kind="missing")
        return settings.pose(None, space, added, known)
    model = _load(folder)
    with placed(evidence or folder):
        space, new = _domain(model, _facts(known), size)
        model = model.on(space, warn=size is None)
    return settings.pose(model, space, settings.formulas_on(space, programs), known, new)


class Scored(NamedTuple):
    """Worlds of one domain whose likelihood is asked for, and their numbers in the file."""

    posed: Posed
    worlds: Worlds
    places: list[int]


def pose_worlds(
    inputs: Sequence[Path],
    path: Path,
    evidence: Path | None = None,
    *,
    closed: Sequence[str] = (),
    opened: Sequence[str] = (),
    formulas: Sequence[str] = (),
    levels: int = LEVELS,
    hottest: float = HOTTEST,
    size: int | None = None,
    device: str = "auto",
) -> list[Scored]:
    """The worlds of a `.db` file by the domain that their likelihood is about, and the model on each.

    A trained model without evidence is put on the domain of every world: the one of the model that has
    its constants, or else these constants. Otherwise all worlds are of the domain that `pose` gives.
    """
    programs, folder = _sorted_out(inputs)
    if folder is None or evidence is not None or size is not None:
        posed = pose(
            inputs, evidence, closed=closed, opened=opened, formulas=formulas, levels=levels,
            hottest=hottest, size=size, device=device,
        )  # fmt: skip
        facts = read_facts(path)
        with _one_domain(folder):
            worlds = encode_facts(posed.space, facts)
        return [Scored(posed, worlds, list(range(len(facts))))]
    settings = _Settings("", closed, opened, formulas, levels, hottest, device)
    model, given = _load(folder), read_facts(path)
    found: dict[tuple[Space, bool], list[int]] = {}
    for place, facts in enumerate(given):
        try:
            found.setdefault(_domain(model, [facts], None), []).append(place)
        except InputError as error:
            raise error if error.source else facts.place(error) from None
    scored = []
    for (space, new), places in found.items():
        with placed(path):
            own = model.on(space)
        posed = settings.pose(own, space, settings.formulas_on(space, programs), None, new)
        worlds = encode_facts(space, [given[place] for place in places])
        scored.append(Scored(posed, worlds, places))
    return scored


@contextmanager
def _one_domain(folder: Path | None) -> Iterator[None]:
    """Say that the worlds of a trained model are of one domain where a constant is not in it."""
    try:
        yield
    except InputError as error:
        if folder is None or error.kind != "unknown":
            raise
        raise InputError(
            f"{error.message} One domain is scored at a time with --size and --evidence; without them "
            "every world is scored on its own constants.",
            *error.place,
            token=error.token,
            kind=error.kind,
        ) from None


@dataclass(frozen=True)
class _Settings:
    """How a model is asked, whatever its domain."""

    query: str
    closed: Sequence[str]
    opened: Sequence[str]
    formulas: Sequence[str]
    levels: int
    hottest: float
    device: str

    def formulas_on(self, space: Space, files: Sequence[Path]) -> list[WeightedFormula]:
        """The formulas that are added to a model: those of files, and those given as text."""
        found = [one for path in files for one in read_formulas(space, path)]
        return found + [read_formula(space, text) for text in self.formulas]

    def pose(
        self,
        model: Model | None,
        space: Space,
        formulas: Sequence[WeightedFormula],
        known: Known | None,
        new: bool = False,
    ) -> Posed:
        names = _closed(space, self.query, self.closed, self.opened)
        certain = Evidence.none(space) if known is None else known.evidence(space, names)
        if known is None and names:
            certain = Evidence.of(space, [], names)
        virtual = None if known is None else known.virtual(space, certain)
        conditional = _conditional(
            model, space, formulas, certain, virtual, self.levels, self.hottest
        )
        there = conditional.to(device_of(self.device))
        return Posed(there, tuple(names), _groundings(there), new)


def _sorted_out(inputs: Sequence[Path]) -> tuple[list[Path], Path | None]:
    """The `.mln` files among the inputs, and the folder of a trained model if there is one."""
    if not inputs:
        raise InputError(
            "no model is given. Name a .mln file or the folder of a trained model: -i FILE.",
            kind="missing",
        )
    programs = [path for path in inputs if path.suffix.lower() == ".mln"]
    folders = [path for path in inputs if path.suffix.lower() != ".mln"]
    if len(folders) > 1:
        raise InputError(
            f"at most one trained model can be given, got {folders[0]} and {folders[1]}. Leave one out."
        )
    return programs, folders[0] if folders else None


def _load(folder: Path) -> Model:
    if not folder.is_dir():
        raise InputError(
            "a model must be a .mln file or the folder of a trained model, but this is neither.",
            str(folder),
            kind="unsupported",
        )
    return load(folder)


def _space(program: Program, known: Known | None, size: int | None) -> Space:
    """The space of a program over its own constants and those of the evidence."""
    if size is not None:
        raise InputError(
            "--size chooses a domain of a trained model, but this is a .mln file. Declare constants in "
            "it instead.",
            token="--size",
            kind="unsupported",
        )
    return Space(program.language, infer_domain(_facts(known), program.language, program.domain))


def _domain(model: Model, given: Sequence[Facts], size: int | None) -> tuple[Space, bool]:
    """The space of a trained model for the constants of some facts, and whether they are new.

    Errors name the line of the constant that they are about.
    """
    if size is not None:
        return of_size(model.domains, model.space, size), False
    named = infer_domain(given, model.space.language)
    try:
        return holding(model.domains, model.space, named)
    except InputError as error:
        for facts in given:
            for row, literal in enumerate(facts.literals):
                if error.token in literal.arguments:
                    error.index = row
                    raise facts.place(error) from None
        raise


def _facts(known: Known | None) -> list[Facts]:
    return [] if known is None else [known.facts, known.reports]


def _conditional(
    model: Model | None,
    space: Space,
    formulas: Sequence[WeightedFormula],
    evidence: Evidence,
    virtual: VirtualEvidence | None,
    levels: int,
    hottest: float,
) -> Conditional:
    if model is not None:
        return model.given(evidence, virtual, formulas)
    return Conditional.of_formulas(
        space, formulas, evidence, virtual, levels=levels, hottest=hottest
    )


def _closed(space: Space, query: str, closed: Sequence[str], opened: Sequence[str]) -> list[str]:
    """The names of the closed predicates, checked, in the order of the language."""
    for name in [*closed, *opened]:
        if name != ALL:
            space.language[name]  # refuses what does not exist
    if both := set(closed) & set(opened):
        raise InputError(f"{min(both)} cannot be both closed and open. Name it once.")
    asked = _predicates(space, query) if ALL in closed and query.strip() else set()
    names = []
    for block in space.blocks:
        attribute = block.attribute
        named = attribute.name in closed
        by_all = ALL in closed and attribute.name not in asked and attribute.null is not None
        if named or (by_all and attribute.name not in opened):
            names.append(attribute.name)
    return names


def _predicates(space: Space, query: str) -> set[str]:
    """The predicates in a query, including those inside formulas."""

    def inside(formula: Formula) -> Iterator[str]:
        if isinstance(formula, Atom):
            yield formula.predicate
        for part in parts(formula):
            yield from inside(part)

    found: set[str] = set()
    for one in read_queries(query, space):
        if one.formula is not None:
            found.update(inside(one.formula))
        else:
            group = int(space.group_of_entry[one.entry])
            block = next(b for b in space.blocks if group < b.first_group + b.count)
            found.add(block.attribute.name)
    return found


def _groundings(conditional: Conditional) -> int:
    return sum(
        part.groundings
        for part in conditional.target.modules()
        if isinstance(part, FormulaPotential)
    )


# The files.


def write_answers(path: Path, answers: Answers, command: str) -> None:
    """Write probabilities as `.db`, `.csv` or `.json`, by the ending of the name."""
    match path.suffix.lower():
        case ".csv":
            write_lines(path, _csv(answers))
        case ".json":
            content = {
                "command": command,
                "method": answers.method,
                "warnings": list(answers.warnings),
                "answers": [vars(answer) for answer in answers],
            }
            write_json(path, content, indent=1)
        case ".db":
            write_lines(path, _db(answers, command))
        case other:
            raise InputError(
                f"the output must end with .db, .csv or .json, got {path.name}.",
                token=other,
            )


def _csv(answers: Answers) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["query", "probability", "standard_error", "ess", "rhat", "exact"])
    for one in answers:
        sampled = (
            ["", "", ""] if one.exact else [f"{one.error:.6g}", f"{one.ess:.1f}", f"{one.rhat:.4f}"]
        )
        writer.writerow([one.text, f"{one.value:.8g}", *sampled, str(one.exact).lower()])
    yield from text.getvalue().removesuffix("\n").split("\n")


def _db(answers: Answers, command: str) -> Iterator[str]:
    """One line per query, the probability first: `0.63 cancer(Anna)`."""
    yield f"// {command}"
    yield f"// {answers.method}"
    yield from (f"// warning: {warning}" for warning in answers.warnings)
    for one in answers:
        note = (
            "" if one.exact else f"  // +- {one.error:.4f}, ESS {one.ess:.0f}, R-hat {one.rhat:.3f}"
        )
        yield f"{one.value:.6f} {one.text}{note}"


def write_world(path: Path, posed: Posed, best: Best, command: str) -> None:
    """Write the true atoms of the most probable world, in a form that `read_db` reads."""
    atoms = true_atoms(posed.space, best.world, skip_null=True)
    head = [f"// {command}", f"// {best.method} Its score is {best.score:.6f}."]
    write_lines(path, [*head, *map(str, atoms)])


class WorldLikelihood(NamedTuple):
    """log P of one world given its domain, in nats, with the ends of its interval."""

    world: int
    value: float
    least: float
    most: float
    exact: bool
    domain: str  # in words


def in_order(scored: Sequence[Scored], found: Sequence[LogProbabilities]) -> list[WorldLikelihood]:
    """The likelihoods of the worlds of a file, in their order there."""
    rows = []
    for some, logs in zip(scored, found, strict=True):
        domain = name_of(some.posed.space)
        numbers = zip(
            some.places, logs.values.tolist(), logs.least.tolist(), logs.most.tolist(), strict=True
        )
        rows += [WorldLikelihood(*one, logs.exact, domain) for one in numbers]
    return sorted(rows)


def write_likelihoods(path: Path, found: Sequence[WorldLikelihood]) -> None:
    """Write log P of every world with its interval, as CSV."""
    lines = [f"{one.world},{one.value:.6f},{one.least:.6f},{one.most:.6f}" for one in found]
    write_lines(path, ["world,log_probability,least,most", *lines])
