"""Ground literals in text: `.db` (one per line, `!` for false) and `.nl` (`r(a, b).`).

`//` starts a comment, and in `.db` a line `---` starts the next independent world. Names with other
characters than letters, digits, `_`, `+` and `-` are written in double quotes.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Integer
from torch import Tensor

from nmln.config import DataConfig
from nmln.errors import InputError, placed
from nmln.evidence import Evidence, VirtualEvidence
from nmln.files import read_lines, write_lines
from nmln.formats.grammar import parse
from nmln.formats.mln import read_mln
from nmln.formats.registry import Format, Parsed, register
from nmln.language import STRING_PATTERN, Domain, Language, predicate
from nmln.logic import Literal
from nmln.space import Space
from nmln.worlds import Spaces, from_atoms, paired, to_text, true_atoms

_SEPARATOR = re.compile(r"\s*-{3,}\s*")
_COMMENT = re.compile(rf"^((?:[^\"/]|{STRING_PATTERN}|/(?!/))*)//.*$")
# Most literals of a large file, read without the parser. The grammar reads or refuses every other line.
_PLAIN_LITERAL = re.compile(
    r"\s*(?:(!)\s*)?([^\W\d][\w+\-]*)\(([\w+\-]+(?:\s*,\s*[\w+\-]+)*)\)\s*(\.?)\s*"
)


@dataclass
class Facts:
    """The literals of one world as they were written, with their lines for error messages."""

    source: str
    literals: list[Literal] = field(default_factory=list)
    lines: array = field(default_factory=lambda: array("I"))
    first_line: int | None = None  # known only for worlds after a separator

    def place(self, error: InputError) -> InputError:
        """The error, placed at the file and line of its literal, or of the whole world."""
        if error.index is None:
            return error.at(self.source, self.first_line)
        line = self.lines[error.index]
        return error.at(self.source, line, str(self._text(line)))

    def _text(self, line: int) -> str:
        """The text of a line of the file, to find columns; it is read again, as errors are rare."""
        if not Path(self.source).is_file():
            return ""
        return next((text for number, text in read_lines(self.source) if number == line), "")


def _style(path: str | Path) -> str:
    return "nl" if Path(path).suffix.lower() == ".nl" else "db"


def read_facts(path: str | Path) -> list[Facts]:
    """The literals of each world in a `.db` or `.nl` file, unchecked against any language."""
    return parse_facts(read_lines(path), str(path), style=_style(path))


def parse_facts(lines: Iterable[tuple[int, str]], source: str, style: str = "db") -> list[Facts]:
    """The literals of each world in numbered lines; `style` is db or nl.

    Linear in the length of the text; names are shared, so a literal takes about 150 bytes.
    """
    ends = "." if style == "nl" else ""
    worlds = [Facts(source)]
    shared: dict[str, str] = {}
    for number, line in lines:
        if "//" in line:
            line = _COMMENT.sub(r"\1", line)
        match = _PLAIN_LITERAL.fullmatch(line)
        if match and match[4] == ends:
            sign, name, inside, _ = match.groups()
            names = [shared.setdefault(part, part) for part in map(str.strip, inside.split(","))]
            literal = Literal(shared.setdefault(name, name), tuple(names), not sign)
        else:
            if not line.strip():
                continue
            if not ends and _SEPARATOR.fullmatch(line):
                worlds.append(Facts(source, first_line=number + 1))
                continue
            literal = parse(line, "fact" if ends else "literal", source, number)
        worlds[-1].literals.append(literal)
        worlds[-1].lines.append(number)
    return worlds


def infer_language(worlds: Sequence[Facts], sort: str = "constant") -> Language:
    """A Boolean predicate over one sort for every name that occurs: for files without a header."""
    arities: dict[str, int] = {}
    for facts in worlds:
        for row, literal in enumerate(facts.literals):
            arity = arities.setdefault(literal.predicate, len(literal.arguments))
            if arity != len(literal.arguments):
                raise InputError(
                    f"{literal} has {len(literal.arguments)} arguments, but {literal.predicate} had "
                    f"{arity} before. Correct one, or declare the language in a .mln file.",
                    facts.source,
                    facts.lines[row],
                    token=literal.predicate,
                    kind="conflict",
                )
    with placed(worlds[0].source if worlds else None):
        return Language(*(predicate(name, *[sort] * arity) for name, arity in arities.items()))


def infer_domain(
    worlds: Sequence[Facts], language: Language, domain: Domain | None = None
) -> dict[str, tuple[str, ...]]:
    """The given sorts as they are; of every other sort, the constants that occur, in order."""
    given = {**language.value_sorts, **(domain or {})}
    found: dict[str, dict[str, None]] = {s: {} for s in language.sorts if s not in given}
    for facts in worlds:
        for row, literal in enumerate(facts.literals):
            try:
                attribute = language[literal.predicate]
            except InputError as error:
                error.index = row
                raise facts.place(error) from None
            for sort, name in zip(attribute.sorts, literal.arguments, strict=False):
                if sort in found:
                    found[sort][name] = None
    constants = {sort: tuple(names) for sort, names in found.items()}
    return {sort: tuple(given.get(sort, constants.get(sort, ()))) for sort in language.sorts}


def differing_constants(
    worlds: Sequence[Facts], language: Language, domain: Domain | None = None
) -> str | None:
    """A note about worlds that share their constants but name different ones; None if all name the same.

    Constants of the sorts in `domain` are declared and do not differ.
    """
    return _note([infer_domain([facts], language, domain) for facts in worlds])


def _note(named: Sequence[dict[str, tuple[str, ...]]]) -> str | None:
    every: dict[str, set[str]] = {}
    common: dict[str, set[str]] = {}
    for constants in named:
        for sort, names in constants.items():
            every.setdefault(sort, set()).update(names)
            common.setdefault(sort, set(names)).intersection_update(names)
    differing = [sort for sort in every if common[sort] != every[sort]]
    if not differing:
        return None
    counts = [
        f"{len(common[sort])} of {len(every[sort])}" + (f" {sort}" if len(every) > 1 else "")
        for sort in differing
    ]
    return (
        f"the worlds name different constants: {' and '.join(counts)} are common to all. Every world "
        "has all of them; --domains each takes those of each world."
    )


def read_db(
    path: str | Path, language: Language | None = None, domain: Domain | None = None
) -> tuple[Space, Integer[Tensor, "worlds groups"]]:
    """The worlds of a `.db` or `.nl` file, closed: atoms that are not listed are false (or none).

    Without a language, every name becomes a Boolean predicate over one sort. Sorts that `domain`
    leaves out hold the constants that occur in the file, in all of its worlds together.
    """
    worlds = read_facts(path)
    language = language or infer_language(worlds)
    domain = infer_domain(worlds, language, domain)
    try:
        space = Space(language, domain)
    except InputError as error:
        raise error.at(str(path)) from None
    return space, encode_facts(space, worlds)


def read_closed_worlds(
    paths: Sequence[Path], language: str | Path | None = None, place: str | Path | None = None
) -> Parsed:
    """The closed worlds of several `.db` and `.nl` files over one space.

    A `.mln` file may declare the `language`, with formulas. An error that concerns the whole space
    names the file `place`, or the first one.
    """
    program = None if language is None else read_mln(language)
    worlds = [world for path in paths for world in read_facts(path)]
    known = program.language if program else infer_language(worlds)
    with placed(place or language or paths[0]):
        space = Space(known, infer_domain(worlds, known, program.domain if program else None))
    named = [infer_domain([one], known, program.domain if program else None) for one in worlds]
    note = _note(named)
    found = Parsed.of(
        space,
        encode_facts(space, worlds),
        program.formulas if program else (),
        notes=() if note is None else (note,),
    )
    counts = tuple(tuple(len(names) for names in one.values()) for one in named)
    return replace(found, named=counts)


def from_text(space: Space, text: str) -> Integer[Tensor, "worlds groups"]:
    """The worlds of `.db` text, closed: the inverse of `to_text`."""
    return encode_facts(space, parse_facts(enumerate(text.split("\n"), 1), "text"))


def encode_facts(space: Space, worlds: Sequence[Facts]) -> Integer[Tensor, "worlds groups"]:
    """Closed worlds over a given space."""
    values = torch.empty(len(worlds), space.groups, dtype=space.dtype)
    for row, facts in enumerate(worlds):
        try:
            values[row] = from_atoms(space, facts.literals)
        except InputError as error:
            raise facts.place(error) from None
    return values


def read_evidence(path: str | Path, space: Space, closed: Sequence[str] = ()) -> Evidence:
    """The evidence in a `.db` or `.nl` file, in an open world: atoms that are not listed are unknown.

    Atoms of predicates named in `closed` that are not listed are observed to be false.
    """
    facts = _only_world(read_facts(path))
    try:
        return Evidence.of(space, facts.literals, closed)
    except InputError as error:
        raise facts.place(error) from None


_REPORT = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s+(?=\S)(.*)")


@dataclass
class Known:
    """The content of a file of evidence: certain literals, and reports with a probability.

    `0.8 smokes(Anna)` is a report.
    """

    facts: Facts
    reports: Facts
    probabilities: list[float]

    def evidence(self, space: Space, closed: Sequence[str] = ()) -> Evidence:
        """The certain literals; atoms of predicates in `closed` that are not listed are false."""
        try:
            return Evidence.of(space, self.facts.literals, closed)
        except InputError as error:
            raise self.facts.place(error) from None

    def virtual(self, space: Space, evidence: Evidence) -> VirtualEvidence:
        """The reports."""
        reports = zip(self.reports.literals, self.probabilities, strict=True)
        try:
            return VirtualEvidence.of(space, reports, evidence)
        except InputError as error:
            raise self.reports.place(error) from None


def read_known(path: str | Path) -> Known:
    """Literals and reports of a `.db` or `.nl` file about one world."""
    certain: list[tuple[int, str]] = []
    reported: list[tuple[int, str]] = []
    probabilities: list[float] = []
    for number, line in read_lines(path):
        if match := _REPORT.fullmatch(line):
            reported.append((number, match[2]))
            probabilities.append(float(match[1]))
        else:
            certain.append((number, line))
    style = _style(path)
    facts = _only_world(parse_facts(certain, str(path), style))
    return Known(facts, _only_world(parse_facts(reported, str(path), style)), probabilities)


def _only_world(worlds: list[Facts]) -> Facts:
    if len(worlds) != 1:
        raise InputError(
            f"evidence is about one world, but {len(worlds)} are separated by '---'. Split the file.",
            worlds[0].source,
            kind="conflict",
        )
    return worlds[0]


def write_db(path: str | Path, space: Spaces, worlds: Iterable[Integer[Tensor, " groups"]]) -> None:
    """Write worlds as `.db` text, or as `.nl` if the file name ends so; `read_db` reads them back.

    Only true atoms are written, without those named none, which a closed world assumes. The worlds are
    a tensor with one row per world, or come one after the other; a `.db` file is written as they come.
    """
    write_lines(path, format_worlds(space, worlds, _style(path)))


def format_worlds(
    space: Spaces, worlds: Iterable[Integer[Tensor, " groups"]], style: str = "db"
) -> Iterator[str]:
    """The lines of a `.db` or `.nl` file."""
    pairs = paired(space, worlds)
    if style == "nl":
        given = list(pairs)
        if len(given) != 1:
            raise InputError(
                f"a .nl file holds one world, not {len(given)}. Write a .db file.",
                kind="unsupported",
            )
        yield from (f"{atom}." for atom in true_atoms(*given[0], skip_null=True))
        return
    empty = True
    for own, world in pairs:
        if not empty:
            yield "---"
        empty = False
        if text := to_text(own, world):
            yield text
    if empty:
        raise InputError("there is no world to write. Give at least one.", kind="empty")


def _read(config: DataConfig) -> Parsed:
    paths = list(_files(config))
    if config.domains == "common":
        return read_closed_worlds(paths, config.language)
    from nmln.formats.each import encode_each, encode_for

    worlds = [world for path in paths for world in read_facts(path)]
    with placed(config.language or paths[0]):
        if config.language is None:
            return encode_each(infer_language(worlds), worlds)
        return encode_for(read_mln(config.language), config.language, worlds)


def _files(config: DataConfig) -> Iterator[Path]:
    path = Path(config.source)
    yield from sorted(path.glob("*.db")) if path.is_dir() else [path]


def _recognise(path: Path) -> bool:
    """Whether a path is a `.db` file, or a folder with at least one and no graphs."""
    if path.is_dir():
        return any(path.glob("*.db")) and not any(path.glob("*.graphml"))
    return path.suffix.lower() == ".db"


def _format(name: str, standard: bool) -> Format:
    return Format(
        name, "db", (f".{name}",), _read, write_db, gather=read_closed_worlds, declarable=True,
        standard=standard, files=_files, recognise=_recognise if name == "db" else None,
    )  # fmt: skip


register(_format("db", standard=True))
register(_format("nl", standard=False))
