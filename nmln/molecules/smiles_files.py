"""Files of SMILES: lines found in whatever people save them as, then parsed as they stream by.

A file may be packed with gzip whatever its name says, begin with a byte order mark, be UTF-16 as
spreadsheets write it, and have the line ends of any system. What cannot be read is named by line.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from nmln.files import InputError
from nmln.molecules.chemistry import PARCEL, Molecule, Refusal, parse_all, start_workers

SUFFIXES = (".smi", ".smi.gz", ".csv", ".csv.gz")

# Told how much of a known or unknown whole is done, in bytes.
Watch = Callable[[int, int | None], None]

_Item = TypeVar("_Item")
_DELIMITERS = (",", "\t", ";")
_PARCELS = 16  # on their way to the workers at a time, which bounds the memory
_WORTH = 16  # parcels a worker below which it takes longer to start than to do without


def read_smiles(path: str | Path) -> list[tuple[int, str]]:
    """The numbered SMILES of a `.smi` or `.csv` file, plain or with `.gz`, not yet looked at."""
    return list(stream_smiles(path))


def stream_smiles(
    path: str | Path, table: bool | None = None, watch: Watch | None = None
) -> Iterator[tuple[int, str]]:
    """The numbered SMILES of a file, one at a time.

    A `.smi` line may have a name after white space; lines that begin with `#` are skipped. A `.csv`
    file is a `table`: its cells are parted by commas, tabs or semicolons, and the column is found by
    its header, `smiles` in any case (or something that has it in it); without a header it is the
    first. Blank lines are skipped.
    """
    name = str(path).lower()
    if table is None:
        if not name.endswith(SUFFIXES):
            raise InputError(
                f"molecules come in files that end in {', '.join(SUFFIXES)}, or in sets with names "
                "such as pubchem-9. Rename it, or give such a name.",
                str(path),
            )
        table = ".csv" in name[-7:]
    lines = _lines(Path(path), watch)
    return _rows(lines, str(path)) if table else _first_words(lines)


def parse_stream(
    lines: Iterable[tuple[int, str]], processes: int = 1
) -> Iterator[tuple[int, Molecule | Refusal]]:
    """Each line with its molecule, in order; a few parcels at a time are kept in memory.

    With several `processes`, workers are started once there is enough to be worth it.
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


def _lines(path: Path, watch: Watch | None) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file, each with its line end."""
    try:
        with open(path, "rb") as raw, _unpacked(raw, path) as stream:
            total = path.stat().st_size
            head = stream.peek(2)[:2]
            encoding = "utf-16" if head in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            errors = "strict" if encoding == "utf-16" else "surrogateescape"
            text = io.TextIOWrapper(stream, encoding, errors)  # type: ignore[arg-type]
            for number, line in enumerate(text, 1):
                if watch is not None and number % PARCEL == 0:
                    watch(raw.tell(), total)
                _check_text(line, path, number)
                yield number, line
            if watch is not None:
                watch(total, total)
    except FileNotFoundError:
        raise InputError("there is no such file. Check the path.", str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a directory. Name a file in it.", str(path)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"this is no whole gzip file: {str(error).rstrip('.')}. Fetch or pack it again.",
            str(path),
        ) from None
    except UnicodeError:
        raise InputError(
            "this begins like UTF-16 text but does not go on so. Save it as UTF-8.", str(path)
        ) from None


def _unpacked(raw: io.BufferedReader, path: Path) -> io.BufferedReader | gzip.GzipFile:
    """The bytes of a file, unpacked if they begin as gzip does, whatever the name says."""
    magic = raw.peek(2)[:2]
    if magic == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=raw)
    if magic and path.name.lower().endswith(".gz"):
        raise InputError(
            "this is no whole gzip file, though its name ends in .gz. Take .gz off its name if it "
            "is plain text.",
            str(path),
        )
    return raw


def _check_text(line: str, path: Path, number: int) -> None:
    if "\0" in line:
        raise InputError(
            "a zero byte: this is a binary file, or UTF-16 without a mark. Save it as UTF-8 text.",
            str(path), number, line.index("\0") + 1,
        )  # fmt: skip
    if not line.isascii():
        for column, letter in enumerate(line, 1):
            if (
                "\udc80" <= letter <= "\udcff"
            ):  # a byte that is no UTF-8, as `surrogateescape` marks it
                raise InputError(
                    f"byte 0x{ord(letter) - 0xDC00:02x} is not UTF-8 text. Save the file as UTF-8.",
                    str(path), number, column,
                )  # fmt: skip


# Lines of molecules.


def _first_words(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    first = True
    for number, line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        word = line.split()[0]
        if not (first and _is_header(word)):
            yield number, word
        first = False


def _rows(lines: Iterator[tuple[int, str]], source: str) -> Iterator[tuple[int, str]]:
    ahead = (one for one in lines if one[1].strip() and not one[1].startswith("#"))
    start, line = next(ahead, (0, ""))
    if not start:
        return
    delimiter, column, header = _layout(line, source, start)
    text = chain([line], (line for _, line in lines))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    before = 0  # a quoted cell may run over several lines: a row begins where the last one ended
    try:
        for row in reader:
            number, before = start + before, reader.line_num
            if not any(row) or (header and number == start):
                continue
            cell = row[column].strip() if column < len(row) else ""
            if "\n" in cell:
                raise InputError(
                    "the cell with the SMILES runs over several lines. Look for a quotation mark "
                    "too many.",
                    source, number,
                )  # fmt: skip
            yield number, cell
    except csv.Error as error:
        raise InputError(
            f"this is not comma-separated text: {error}. Look for a quotation mark too many or too "
            "few.",
            source, start + before,
        ) from None  # fmt: skip


def _layout(line: str, source: str, number: int) -> tuple[str, int, bool]:
    """The delimiter of a table, the column of its SMILES, and whether it has a header."""
    split = [(mark, next(csv.reader([line], delimiter=mark))) for mark in _DELIMITERS]
    split.sort(key=lambda one: -len(one[1]))  # the delimiter is what parts most cells
    for mark, cells in split:
        names = [cell.strip().lower() for cell in cells]
        for fits in ("smiles".__eq__, _is_header, _names_smiles):
            for column, name in enumerate(names):
                if fits(name):
                    return mark, column, True
    for mark, cells in split:
        if isinstance(parse_all(cells[:1])[0], Molecule):
            return mark, 0, False
    raise InputError(
        "no column is named smiles, and the first is not one of SMILES. The columns are: "
        f"{', '.join(cell.strip() for cell in split[0][1])}. Name the one with the molecules smiles.",
        source, number,
    )  # fmt: skip


def _names_smiles(name: str) -> bool:
    return "smiles" in name or name == "smi"


def _is_header(word: str) -> bool:
    return word.strip().lower().endswith("smiles")
