"""Files of SMILES: a stream of lines from text files of many forms, and the molecules in it.

A file may be packed with gzip regardless of its name, start with a byte order mark, be UTF-16 as
spreadsheets write it, and have the line ends of any system. Errors name the line that cannot be read.
Samples are read by the same functions (`sample_files`), so that a file means the same everywhere.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from nmln.errors import InputError
from nmln.files import LONGEST, check_readable, endless
from nmln.molecules.chemistry import PARCEL, Molecule, Refusal, parse_all, start_workers

SUFFIXES = (".smi", ".smi.gz", ".csv", ".csv.gz")

# Called with the number of bytes done and the total, if that is known.
Watch = Callable[[int, int | None], None]

_Item = TypeVar("_Item")
_DELIMITERS = (",", "\t", ";")
_STRAY = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as `surrogateescape` marks them
_CONTROL = re.compile("[\0-\x08\x0e-\x1f]")
_CURE = "Rename the one with the molecules to smiles."
_SHOWN, _LONGEST = 20, 40  # columns in a message, and letters of each
_PARCELS = 16  # on their way to the workers at a time, which bounds the memory
_LARGE, _RATIO = (
    10**9,
    500,
)  # characters that a file may unpack to: so many, or so many times its size
_WORTH = 16  # parcels per worker; with fewer, starting the worker takes longer than it saves


def read_smiles(path: str | Path) -> list[tuple[int, str]]:
    """The numbered SMILES of a `.smi` or `.csv` file, plain or with `.gz`, not yet parsed."""
    return list(stream_smiles(path))


def stream_smiles(
    path: str | Path,
    table: bool | None = None,
    watch: Watch | None = None,
    column: str | None = None,
    cure: str = _CURE,
    most: int | None = None,
) -> Iterator[tuple[int, str]]:
    """The numbered SMILES of a file, one at a time; `most` bounds the file as in `stream_lines`.

    A `.smi` line may have a name after white space; lines that start with `#` are skipped. A `.csv`
    file is a `table`, see `stream_table`. Blank lines are skipped.
    """
    name = str(path).lower()
    if table is None:
        if not name.endswith(SUFFIXES):
            raise InputError(
                f"molecules must be in a file that ends in {', '.join(SUFFIXES)}, or a set such as "
                "pubchem-9. Rename the file, or name a set.",
                str(path),
                kind="unsupported",
            )
        table = ".csv" in name[-7:]
    if table:
        return _cells(path, watch, column, cure, most)
    return _first_words(stream_lines(path, watch, most))


class Table(NamedTuple):
    """A table as a stream of rows, each with its first line number; `column` has the SMILES.

    `header` names the columns, in lower case; it is empty if the first row is a molecule.
    """

    header: tuple[str, ...]
    column: int
    rows: Iterator[tuple[int, list[str]]]


def stream_table(
    path: str | Path,
    column: str | None = None,
    watch: Watch | None = None,
    cure: str = _CURE,
    most: int | None = None,
) -> Table:
    """A file of cells that are separated by commas, tabs or semicolons.

    The SMILES are in the named column, or in the one whose header is or contains `smiles`, in any case;
    without a header they are in the first. Blank lines and lines that start with `#` above the header
    are skipped. The error for a missing column ends with `cure`.
    """
    lines, source = stream_lines(path, watch, most), str(path)
    wanted = None if column is None else column.strip().lower()
    for number, line in enumerate(lines, 1):
        if line.strip() and not _is_comment(line, wanted):
            layout = _layout(line, wanted, source, number, cure)
            rows = _rows(chain([line], lines), layout, source, number)
            return Table(layout.header, layout.column, rows)
    return Table((), 0, iter(()))


def parse_stream(
    lines: Iterable[tuple[int, str]], processes: int = 1
) -> Iterator[tuple[int, Molecule | Refusal]]:
    """Each line with its molecule, in order; only a few parcels are in memory at a time.

    With several `processes`, workers are started if there are enough lines.
    """
    parcels = _batches(lines, PARCEL)
    if processes > 1:
        first = list(islice(parcels, _WORTH * processes))
        if len(first) == _WORTH * processes:
            with start_workers(processes) as workers:
                for some in _batches(chain(first, parcels), _PARCELS):
                    texts = [[text for _, text in parcel] for parcel in some]
                    for parcel, parsed in zip(some, workers.map(parse_all, texts), strict=True):
                        yield from _numbered(parcel, parsed)
            return
        parcels = iter(first)
    for parcel in parcels:
        yield from _numbered(parcel, parse_all([text for _, text in parcel]))


def _batches(items: Iterable[_Item], most: int) -> Iterator[list[_Item]]:
    rest = iter(items)
    while batch := list(islice(rest, most)):
        yield batch


def _numbered(
    lines: Iterable[tuple[int, str]], parsed: Iterable[Molecule | Refusal]
) -> Iterator[tuple[int, Molecule | Refusal]]:
    return ((number, one) for (number, _), one in zip(lines, parsed, strict=True))


# Lines of text.


def stream_lines(
    path: str | Path, watch: Watch | None = None, most: int | None = None
) -> Iterator[str]:
    """The lines of a text file, each with its line end converted to that of Unix.

    A file that unpacks to more than `most` characters is refused; by default, one that unpacks to more
    than 1 GB and more than 500 times its size.
    """
    number, read, path = 0, 0, Path(path)
    check_readable(path)
    try:
        with open(path, "rb") as raw, _unpacked(raw, path) as stream:
            total = path.stat().st_size
            head = stream.peek(2)[:2]
            encoding = "utf-16" if head in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            errors = "strict" if encoding == "utf-16" else "surrogateescape"
            text = io.TextIOWrapper(stream, encoding, errors)  # type: ignore[arg-type]
            most = most or max(_LARGE, _RATIO * total)
            for number, line in enumerate(iter(lambda: text.readline(LONGEST + 1), ""), 1):
                read += len(line)
                if len(line) > LONGEST:
                    raise endless(path, number)
                if read > most:
                    raise InputError(
                        f"this unpacks to more than {most:,} characters out of {total:,} bytes, which "
                        "is too much for a list of molecules. Fetch or pack it again.",
                        str(path),
                        kind="size",
                    )
                if watch is not None and number % PARCEL == 0:
                    watch(raw.tell(), total)
                if "\0" in line or not line.isascii():
                    _check_text(line, path, number)
                yield line
            if watch is not None:
                watch(total, total)
    except FileNotFoundError:
        raise InputError(
            "there is no such file. Check the path.", str(path), kind="missing"
        ) from None
    except IsADirectoryError:
        raise InputError("this is a directory. Name a file in it.", str(path)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        after = f", after line {number:,}" if number else ""
        raise InputError(
            f"this is not a whole gzip file: {str(error).rstrip('.')}{after}. Fetch or pack it again.",
            str(path),
            kind="gzip",
        ) from None
    except UnicodeError:
        raise InputError(
            "this starts with a UTF-16 mark but is not valid UTF-16. Save it as UTF-8.",
            str(path),
            kind="encoding",
        ) from None


def _unpacked(raw: io.BufferedReader, path: Path) -> io.BufferedReader | gzip.GzipFile:
    """The bytes of a file, unpacked if they start like gzip, regardless of the name."""
    magic = raw.peek(2)[:2]
    if magic == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=raw)
    if magic and path.name.lower().endswith(".gz"):
        raise InputError(
            "this is not a whole gzip file, though its name ends in .gz. Remove .gz from its name if "
            "it is plain text.",
            str(path),
            kind="gzip",
        )
    return raw


def _check_text(line: str, path: Path, number: int) -> None:
    if "\0" in line:
        raise InputError(
            "a zero byte: this is a binary file, or UTF-16 without a mark. Save it as UTF-8 text.",
            str(path), number, line.index("\0") + 1, kind="binary",
        )  # fmt: skip
    if stray := _STRAY.search(line):
        raise InputError(
            f"byte 0x{ord(stray[0]) - 0xDC00:02x} is not UTF-8 text. Save the file as UTF-8.",
            str(path), number, stray.start() + 1, kind="encoding",
        )  # fmt: skip


# Lines of molecules.


def _first_words(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    first = True
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        word = line.split()[0]
        if not (first and is_header(word)):
            yield number, word
        first = False


def is_header(word: str) -> bool:
    """Whether this names a column of SMILES: it ends in `smiles`, in any case."""
    return word.strip().lower().endswith("smiles")


# Rows of tables.


class _Layout(NamedTuple):
    delimiter: str
    column: int
    header: tuple[str, ...]


def _cells(
    path: str | Path, watch: Watch | None, column: str | None, cure: str, most: int | None
) -> Iterator[tuple[int, str]]:
    """The cells with the SMILES of all rows that have anything in them."""
    table = stream_table(path, column, watch, cure, most)
    for number, row in table.rows:
        if any(row):
            yield number, row[table.column].strip() if table.column < len(row) else ""


def _rows(
    lines: Iterable[str], layout: _Layout, source: str, start: int
) -> Iterator[tuple[int, list[str]]]:
    """The rows below the header; the first of the `lines` is number `start`."""
    column = layout.column
    reader = csv.reader(lines, delimiter=layout.delimiter, strict=True)
    end = 0  # a quoted cell may span several lines: a row starts where the last one ended
    try:
        for row in reader:
            before, end = end, reader.line_num
            if not row or (not before and layout.header):
                continue
            if end > before + 1 and column < len(row) and "\n" in row[column].strip():
                raise InputError(
                    "the cell with the SMILES runs over several lines. Look for a quotation mark "
                    "too many.",
                    source, start + before, kind="syntax",
                )  # fmt: skip
            yield start + before, row
    except csv.Error as error:
        raise _no_table(error, source, start + end) from None


def _layout(line: str, wanted: str | None, source: str, number: int, cure: str) -> _Layout:
    """How a table is laid out, by its first line."""
    split: list[tuple[str, list[str]]] = []
    for mark in _DELIMITERS:
        try:
            split.append((mark, next(csv.reader([line], delimiter=mark))))
        except csv.Error as error:  # too long a cell, which another delimiter may divide
            if mark == _DELIMITERS[-1] and not split:
                raise _no_table(error, source, number) from None
    split.sort(key=lambda one: -len(one[1]))  # the delimiter is the one that gives most cells
    named = [(mark, _names(cells)) for mark, cells in split]
    known = ("smiles".__eq__, "canonical_smiles".__eq__, is_header, _names_smiles)
    for fits in known if wanted is None else (wanted.__eq__,):
        for mark, names in named:
            for column, name in enumerate(names):
                if fits(name):
                    return _Layout(mark, column, names)
    for mark, cells in split if wanted is None else ():
        if isinstance(parse_all(cells[:1])[0], Molecule):
            return _Layout(mark, 0, ())
    if control := _CONTROL.search(line):
        raise InputError(
            f"byte 0x{ord(control[0]):02x} has no place in a header: this is a binary file, not text. "
            "Save it as UTF-8 text.",
            source, number, control.start() + 1, kind="binary",
        )  # fmt: skip
    missing = f"called {wanted}" if wanted else "named smiles, and the first is not one of SMILES"
    raise InputError(
        f"no column is {missing}. The columns are: {_show(split[0][1])}. {cure}",
        source,
        number,
        kind="columns",
    )


def _is_comment(line: str, wanted: str | None) -> bool:
    """Whether a line is a comment: it starts with #, and is not a header such as `#smiles,count`."""
    if not line.startswith("#"):
        return False
    fits = is_header if wanted is None else wanted.__eq__
    for mark in _DELIMITERS:
        first, *others = _names(line.split(mark))
        if others and (first in ("smiles", wanted) or (not first and any(map(fits, others)))):
            return False
    return True


def _names(cells: list[str]) -> tuple[str, ...]:
    """The cells of a header in lower case, without a leading #."""
    first, *others = (cell.strip().lower() for cell in cells)
    return (first.lstrip("#").strip(), *others)


def _names_smiles(name: str) -> bool:
    return "smiles" in name or name == "smi"


def _show(cells: list[str]) -> str:
    """The names of columns, cut short where they are many or long."""
    names = []
    for cell in cells[:_SHOWN]:
        name = "".join(letter if letter.isprintable() else "?" for letter in cell.strip())
        names.append(f"{name[:_LONGEST]}..." if len(name) > _LONGEST else name or "(no name)")
    others = len(cells) - len(names)
    return ", ".join(names) + (f" and {others:,} others" if others else "")


def _no_table(error: csv.Error, source: str, line: int) -> InputError:
    return InputError(
        f"this is not comma-separated text: {error}. Look for a quotation mark too many or too few.",
        source, line, kind="syntax",
    )  # fmt: skip
