"""Rows of samples in a growing gzip file that can be cut back to the last checkpoint."""

import gzip
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import TracebackType

from nmln.errors import InputError
from nmln.files import open_regular, write_atomically, write_lines
from nmln.molecules.chemistry import STATUSES

if sys.platform != "win32":
    import fcntl

HEADER = "sample,level,status,smiles"
_MEMBER = 2**18  # bytes of text in a gzip member
_PARCEL = 10_000  # rows that are written together


class SampleFile:
    """Appends lines or other bytes to a file of gzip members, each of which can be read separately.

    A member ends only when its text is long enough: bytes that are not yet in a member are `pending` and
    are saved in checkpoints, together with the `offset` of the end of the last member. So the bytes of
    the file do not depend on when a run was saved, stopped or resumed.
    """

    def __init__(self, path: Path, offset: int = 0, pending: bytes = b"") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.offset, self.pending = path, offset, bytearray(pending)
        self._file = open_regular(path, "ab")
        try:
            self._lock()
            if os.fstat(self._file.fileno()).st_size < offset:
                raise unlike(path, f"it is shorter than the {offset} bytes of its checkpoint")
            self._file.truncate(offset)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "SampleFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, lines: Iterable[str]) -> None:
        self.append("".join(f"{line}\n" for line in lines).encode())

    def append(self, content: bytes) -> None:
        self.pending += content
        if len(self.pending) >= _MEMBER:
            self.end_member()

    def end_member(self) -> None:
        """Write the pending bytes; called when they are long enough and before the last checkpoint."""
        if self.pending:
            self.offset += self._file.write(gzip.compress(bytes(self.pending), 6, mtime=0))
            self.pending.clear()

    def synchronise(self) -> None:
        """Flush everything up to `offset` to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        """Lock the file; the operating system releases the lock when the process ends."""
        if sys.platform == "win32":  # has no such lock: the user must start only one writer
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another process is sampling into this folder. Wait for it, or choose another folder "
                "(--output).",
                str(self.path.parent.parent.parent),
                kind="busy",
            ) from None


Row = tuple[int, int, str, str]
"""The number of a sample, its level, status and SMILES."""


class RowCounter:
    """Counts of rows: attempts by level and status, valid molecules by level and SMILES."""

    def __init__(self, levels: Iterable[int]) -> None:
        self.statuses: dict[int, Counter[str]] = {level: Counter() for level in levels}
        self.molecules: dict[int, Counter[str]] = {level: Counter() for level in self.statuses}

    def add(self, path: Path) -> None:
        """Count the rows of a file; memory grows only with the number of different molecules."""
        self.count(read_rows(path))

    def count(self, rows: Iterable[Row]) -> None:
        """Count rows."""
        for _, level, status, smiles in rows:
            self.statuses[level][status] += 1
            if smiles:
                self.molecules[level][smiles] += 1

    def merge(self, other: "RowCounter") -> None:
        """Add the counts of another one."""
        for level, counts in other.statuses.items():
            self.statuses[level] += counts
            self.molecules[level] += other.molecules[level]

    def most_frequent(self, level: int) -> list[tuple[str, int]]:
        """The valid molecules of a level, the most frequent first, then in order of their text."""
        return sorted(self.molecules[level].items(), key=lambda pair: (-pair[1], pair[0]))


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, with or without the header."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("sample,"):
                continue
            sample, level, status, smiles = line.rstrip("\n").split(",")
            yield int(sample), int(level), status, smiles


@contextmanager
def reading(path: Path, size: int) -> Iterator[gzip.GzipFile]:
    """The unpacked file of a block; refuses a file of another size, or a damaged one."""
    try:
        with open_regular(path) as file:
            if (found := os.fstat(file.fileno()).st_size) != size:
                raise unlike(path, f"it has {found} bytes instead of {size}")
            with gzip.open(file) as unpacked:
                yield unpacked
    except FileNotFoundError:
        raise unlike(path, "it is missing") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise unlike(path, str(error)) from None


def checked_rows(
    path: Path, size: int, expected: Iterable[tuple[int, int]], *, whole: bool = True
) -> Iterator[Row]:
    """The rows of a block; refuses rows of other samples or levels than expected.

    Rows beyond the expected ones are refused too, unless the block need not be `whole`.
    """
    with reading(path, size) as file:
        for number, wanted in enumerate(expected, 1):
            cells = file.readline().rstrip(b"\n").split(b",")
            if cells[:2] != [b"%d" % one for one in wanted] or len(cells) != 4:
                raise unlike(path, f"row {number} is not that of sample {wanted[0]}")
            status, smiles = (
                cells[2].decode("ascii", "replace"),
                cells[3].decode("ascii", "replace"),
            )
            if status not in STATUSES or (status == "valid") != bool(smiles):
                raise unlike(path, f"row {number} has no known status")
            yield *wanted, status, smiles
        if whole and file.read(1):
            raise unlike(path, "it has more rows than were asked for")


def unlike(path: Path, what: str) -> InputError:
    return InputError(
        f"this file has changed since sampling wrote it: {what}. Restart with --overwrite.",
        str(path),
        kind="damaged",
    )


def join_rows(path: Path, parts: Sequence[Path]) -> None:
    """Write one gzip file with the header and all parts, which are copied unchanged."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as target:
            target.write(gzip.compress(f"{HEADER}\n".encode(), 6, mtime=0))
            for part in parts:
                with open_regular(part) as source:
                    while block := source.read(2**20):
                        target.write(block)

    write_atomically(path, write)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as one gzip file with the header."""

    def write(temporary: Path) -> None:
        lines = chain([HEADER], (",".join(map(str, row)) for row in rows))
        with open(temporary, "wb") as target:
            while parcel := list(islice(lines, _PARCEL)):
                text = "".join(f"{line}\n" for line in parcel)
                target.write(gzip.compress(text.encode(), 6, mtime=0))

    write_atomically(path, write)


def write_counts(path: Path, counts: Iterable[tuple[str, int]]) -> None:
    write_lines(path, ["smiles,count", *(f"{smiles},{count}" for smiles, count in counts)])
