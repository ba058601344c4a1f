"""Readers of generated molecules of any origin: one attempt or one counted molecule per line.

| file | a line |
| --- | --- |
| `.smi`, `.txt` | a SMILES, optionally with a name after white space |
| `.csv` | a row with a SMILES column; an empty cell is an attempt without a molecule |
| `.csv` with a column `count` | a SMILES and how often it was generated |
| `.csv` with columns `level` and `status` | an attempt of `nmln sample`, at one of its levels |

Lines and tables are read by `smiles_files`. Files are streamed: the memory grows with the number of
different molecules only.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from nmln import checkpoint
from nmln.errors import InputError
from nmln.evaluation import Counts, SampleCounter
from nmln.molecules.chemistry import STATUSES, Molecule, Refusal, parse_all
from nmln.molecules.datasets import Dropped, is_source, load
from nmln.molecules.smiles_files import is_header, stream_lines, stream_smiles, stream_table

LINES, TABLES = (".smi", ".smiles", ".txt"), (".csv",)
FOLDER = ("samples.csv.gz", "samples.csv", "counts.csv", "samples.smi")
"""The file names of samples in a folder; the first that exists is read."""

MOST = 10**12
"""The most attempts that are evaluated; floats are not exact for many more."""

_PARCEL = 65_536  # lines that are read before their molecules are parsed
_REMEMBERED = 500_000  # texts whose molecule is kept; beyond that they are parsed again
_CHECKED = 1_000  # names in a file of nmln that must be canonical before the others are trusted
_CURE = "Rename the one with the molecules to smiles, or name it with --column."
_SHOWN = 40  # letters of a cell in a message
_ATOM = re.compile(r"\[(?!\d*H[+\d\]])[^]]*\]|Br|Cl|[BCNOPSFIbcnops]")
_EMPTY = "the file is empty, or has nothing below its header."


@dataclass(frozen=True)
class Samples:
    """The samples of one level of one file, and the reasons why the others are not valid."""

    source: str
    level: int | None
    counts: Counts
    refused: tuple[Dropped, ...]
    attempts_by_size: Mapping[int, int] = field(default_factory=dict)  # empty if not known


@dataclass(frozen=True)
class Reference:
    """A set of different molecules to compare with, their numbers of heavy atoms, the dropped lines."""

    source: str
    smiles: frozenset[str]
    sizes: frozenset[int]
    dropped: tuple[Dropped, ...] = ()


class _Row(NamedTuple):
    line: int
    text: str
    times: int = 1
    level: int | None = None
    status: str | None = None  # as written by `nmln sample`


def read_samples(
    path: Path,
    column: str | None = None,
    size: int | Collection[int] | None = None,
    processes: int = 1,
) -> list[Samples]:
    """The samples of a file, one entry per level, the target last; `column` names that of the SMILES.

    A sample is valid if it is one molecule, with exactly `size` heavy atoms, or one of several numbers,
    if that is given. Names in files of `nmln sample` are trusted to be canonical if the first thousand
    are, by the installed RDKit.
    """
    names = _Names(size, processes)
    levels: dict[int | None, _Collected] = {}
    rows, counted = _rows(path, column)
    while parcel := list(islice(rows, _PARCEL)):
        names.learn(parcel)
        for row in parcel:
            levels.setdefault(row.level, _Collected()).add(row, names)
    if not levels:
        raise InputError(f"there are no samples: {_EMPTY}", str(path), kind="empty")
    attempts = _told_attempts(path) if counted and len(levels) == 1 else None
    found = []
    for level, collected in sorted(levels.items(), key=lambda item: item[0] or 0):
        if collected.tally.attempts > MOST:
            raise InputError(
                f"the counts add up to {collected.tally.attempts:,}, but at most {MOST:,} attempts can "
                "be evaluated. Look for a wrong count.",
                str(path),
                kind="size",
            )
        if attempts is not None and attempts < collected.tally.attempts:
            raise InputError(
                f"attempts must be at least the {collected.tally.attempts:,} that {path.name} counts, "
                f"got {attempts:,}. Remove the older of the two files.",
                str(path.with_name("sampling.json")),
                token="attempts",
                kind="conflict",
            )
        # Files of `nmln sample` are ordered by process: the first k samples come from few chains.
        counts = collected.tally.close(attempts, ordered=not counted and level is None)
        found.append(Samples(str(path), level, counts, collected.refused(), _told_sizes(path)))
    return found


def read_reference(
    source: str, column: str | None = None, size: int | None = None, processes: int = 1
) -> Reference:
    """The different molecules of a file or of a set such as `pubchem-10`; those of `size`, if given."""
    if not Path(source).exists() and is_source(source) and not _ending(Path(source)):
        molecules = load(source, size)
        sizes = frozenset([len(molecules.space.domain["node"])])
        return Reference(source, frozenset(molecules.smiles), sizes, molecules.dropped)
    names, collected = _Names(size, processes), _Collected()
    table = _is_table(Path(source))
    if table and column is not None and not _has_column(source, column):
        column = None  # it names the column of the samples; sets may have another
    lines = stream_smiles(source, table, column=column, cure=_CURE)
    rows = (_Row(number, text) for number, text in lines)
    while parcel := list(islice(rows, _PARCEL)):
        names.learn(parcel)
        for row in parcel:
            collected.add(row, names)
    if not collected.tally.attempts:
        raise InputError(f"there are no molecules: {_EMPTY}", source, kind="empty")
    if not collected.tally.counts:
        reasons = "; ".join(map(str, collected.refused()))
        raise InputError(
            f"no line is a molecule that can be used. Dropped: {reasons}.", source, kind="empty"
        )
    smiles = frozenset(collected.tally.counts)
    return Reference(source, smiles, frozenset(names.sizes), collected.refused())


def locate(path: Path) -> Path:
    """The file of samples at a path: the file itself, or the one in a folder or its `samples`."""
    if not path.is_dir():
        return path
    for folder in (path, path / "samples"):
        for name in FOLDER:
            if (folder / name).is_file():
                return folder / name
    raise InputError(
        f"this folder has no samples: none of {', '.join(FOLDER)}. Make some (nmln sample), or name "
        "a file.",
        str(path),
        kind="missing",
    )


# From texts to canonical names.


class _Names:
    """The canonical names of texts; remembers many, and forgets all of them when there are too many."""

    def __init__(self, size: int | Collection[int] | None, processes: int) -> None:
        given = (size,) if size is None or isinstance(size, int) else tuple(sorted(size))
        self.wanted: tuple[int | None, ...] = given
        self.processes = processes
        self.sizes: set[int] = set()
        self._known: dict[str, str | Refusal] = {}
        self._believed: bool | None = None

    def learn(self, rows: Iterable[_Row]) -> None:
        """Parse the texts of rows that are not known yet."""
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        ours: dict[str, None] = {}
        others: dict[str, None] = {}
        for row in rows:
            if row.text and row.text not in self._known:
                (others if row.status is None else ours)[row.text] = None
        if ours and self._believed is None:
            first = list(islice(ours, _CHECKED))
            self._parse(first)
            self._believed = all(self._known[text] == text for text in first)
        if not self._believed:
            others |= {text: None for text in ours if text not in self._known}
        self._parse(list(others))

    def of(self, row: _Row) -> str | Refusal:
        """The canonical name of a row's molecule, or the reason why it has none."""
        if not row.text:
            return Refusal("nothing", "the place of the SMILES is empty.")
        if row.status is not None and self._believed and row.text not in self._known:
            return judge_size(row.text, heavy_atoms(row.text), *self.wanted)
        return self._known[row.text]

    def _parse(self, texts: list[str]) -> None:
        for text, found in zip(texts, parse_all(texts, self.processes), strict=True):
            self._known[text] = judged = judge(found, *self.wanted)
            if isinstance(found, Molecule) and isinstance(judged, str):
                self.sizes.add(len(found.atoms))


def judge(found: Molecule | Refusal, *sizes: int | None) -> str | Refusal:
    """The canonical name of a generated molecule if it is valid, or the reason why it is not.

    It is valid if a world can hold it, with one of the `sizes` as its number of heavy atoms; None stands
    for any size.
    """
    if isinstance(found, Refusal):
        return found
    return judge_size(found.smiles, len(found.atoms), *sizes)


def judge_size(smiles: str, atoms: int, *sizes: int | None) -> str | Refusal:
    """The name of a molecule if its number of heavy atoms is one of the `sizes`; None is any."""
    if None not in sizes and atoms not in sizes:
        wanted = " or ".join(map(str, sizes))
        detail = f"{smiles} has {atoms} heavy atoms, but {wanted} are wanted."
        return Refusal("another size", detail)
    return smiles


@lru_cache(_REMEMBERED)
def heavy_atoms(smiles: str) -> int:
    """The number of heavy atoms of a canonical SMILES, read off its text."""
    return len(_ATOM.findall(smiles))


class _Collected:
    """The counts of one level and its refusals by reason, each with the first line."""

    def __init__(self) -> None:
        self.tally = SampleCounter()
        self._refused: dict[str, tuple[int, int, str]] = {}

    def add(self, row: _Row, names: _Names) -> None:
        if row.status not in (None, "valid"):
            found = Refusal(str(row.status), "as the file says.")
        else:
            found = names.of(row)
        if isinstance(found, str):
            self.tally.add(found, row.times)
            return
        self.tally.add(None, row.times)
        count, line, detail = self._refused.get(found.reason, (0, row.line, found.detail))
        self._refused[found.reason] = (count + row.times, line, detail)

    def refused(self) -> tuple[Dropped, ...]:
        """The reasons with their counts, the most frequent first."""
        found = [Dropped(reason, *shown) for reason, shown in self._refused.items()]
        return tuple(sorted(found, key=lambda drop: (-drop.count, drop.reason)))


# From files to rows.


def _rows(path: Path, column: str | None) -> tuple[Iterator[_Row], bool]:
    """The rows of a file, and whether each is a count instead of an attempt."""
    return _table_rows(path, column) if _is_table(path) else (_line_rows(path), False)


def _has_column(source: str, column: str) -> bool:
    try:
        stream_table(source, column)
    except InputError:
        return False
    return True


def _is_table(path: Path) -> bool:
    """Whether a file is a table, by its suffix; unknown suffixes are refused."""
    if ending := _ending(path):
        return ending in TABLES
    raise InputError(
        f"molecules must be in a file that ends in {', '.join((*LINES, *TABLES))}, or in these with "
        ".gz, or a set such as pubchem-10. Rename the file, or name a set.",
        str(path),
        kind="unsupported",
    )


def _ending(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return last if last in (*LINES, *TABLES) else ""


def _line_rows(path: Path) -> Iterator[_Row]:
    """Comments and a header are allowed above the first molecule only: later, `#C` is an attempt."""
    begun = False
    for number, line in enumerate(stream_lines(path), 1):
        words = line.split(maxsplit=1)
        if not words or (not begun and (words[0][0] == "#" or is_header(words[0]))):
            continue
        begun = True
        yield _Row(number, words[0])


def _table_rows(path: Path, column: str | None) -> tuple[Iterator[_Row], bool]:
    table = stream_table(path, column, cure=_CURE)
    smiles, header = table.column, table.header
    ours = "level" in header and "status" in header
    level, status = (header.index("level"), header.index("status")) if ours else (0, 0)
    count = next((header.index(name) for name in ("count", "counts") if name in header), None)
    last = max(smiles, level, status, count or 0)

    def rows() -> Iterator[_Row]:
        for line, row in table.rows:
            if len(row) <= last:
                raise InputError(
                    f"a row must have as many cells as the first one, {len(header)}, got {len(row)}. "
                    "Repair or remove it.",
                    str(path), line, kind="syntax",
                )  # fmt: skip
            text = row[smiles].strip()
            if ours:
                found = _status(row[status], path, line)
                yield _Row(line, text, 1, _number(row[level], "level", path, line), found)
            elif count is None:
                yield _Row(line, text)
            elif times := _number(row[count], "count", path, line):
                yield _Row(line, text, times)

    return rows(), count is not None


def _number(text: str, what: str, path: Path, line: int) -> int:
    digits = text.strip()
    if not digits.isdecimal():
        raise InputError(
            f"a {what} must be a whole number, got {text[:_SHOWN]!r}.", str(path), line, token=text
        )
    number = int(digits) if len(digits) < 20 else MOST + 1  # int refuses very many digits
    if number > MOST:
        raise InputError(
            f"a {what} must be at most {MOST:,}, got one of {len(digits):,} digits. Correct it.",
            str(path), line, token=text,
        )  # fmt: skip
    return number


def _status(text: str, path: Path, line: int) -> str:
    if text not in STATUSES:
        known = ", ".join(STATUSES)
        raise InputError(
            f"a status must be one of {known}, got {text[:_SHOWN]!r}.",
            str(path), line, token=text, kind="unknown",
        )  # fmt: skip
    return text


def _told_sizes(path: Path) -> dict[int, int]:
    """The number of attempts of every size, if `sampling.json` beside the samples records them."""
    beside = path.with_name("sampling.json")
    if not re.match(r"(samples|counts(-\d+)?)\.csv", path.name) or not beside.is_file():
        return {}
    sizes = checkpoint.read_json(beside).get("sizes")
    found: dict[int, int] = {}
    for one in sizes if isinstance(sizes, list) else ():
        size, attempts = (one.get("size"), one.get("attempts")) if isinstance(one, dict) else (0, 0)
        if isinstance(size, str) and re.fullmatch(r"\d{1,9}", size) and isinstance(attempts, int):
            found[int(size)] = attempts
    return found


def _told_attempts(path: Path) -> int | None:
    """The number of attempts behind a file of counts, if `sampling.json` beside it records them."""
    beside = path.with_name("sampling.json")
    if not re.match(r"counts(-\d+)?\.csv", path.name) or not beside.is_file():
        return None
    shown = checkpoint.read_json(beside).get("attempts")
    if isinstance(shown, int) and shown > MOST:
        raise InputError(
            f"attempts must be at most {MOST:,}, got more. Remove the file, or correct it.",
            str(beside), token="attempts", kind="size",
        )  # fmt: skip
    return shown if isinstance(shown, int) else None
