"""Rows of samples in a gzip file that grows, and that can be cut back to where a run was kept."""

import gzip
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from nmln.files import InputError, write_atomically, write_lines

if sys.platform != "win32":
    import fcntl

HEADER = "sample,level,status,smiles"
_MEMBER = 2**18  # bytes of text in a gzip member


class Rows:
    """Appends lines to a file of gzip members, each of which can be read by itself.

    A member ends where the text has grown long enough, and nowhere else: what is not yet a member is
    `pending` and belongs into a checkpoint beside the `offset` of the last one. So the bytes of the file
    do not depend on when a run was kept, stopped or resumed.
    """

    def __init__(self, path: Path, offset: int = 0, pending: bytes = b"") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.offset, self.pending = path, offset, bytearray(pending)
        self._file = open(path, "ab")  # noqa: SIM115  closed by __exit__
        try:
            self._lock()
            if os.fstat(self._file.fileno()).st_size < offset:
                raise InputError(
                    f"this file is shorter than the {offset} bytes that its checkpoint knows of. Begin "
                    "anew with --overwrite.",
                    str(path),
                )
            self._file.truncate(offset)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Rows":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, lines: Iterable[str]) -> None:
        self.pending += "".join(f"{line}\n" for line in lines).encode()
        if len(self.pending) >= _MEMBER:
            self.end_member()

    def end_member(self) -> None:
        """Write what is pending; before the last checkpoint, or when it has grown long enough."""
        if self.pending:
            self.offset += self._file.write(gzip.compress(bytes(self.pending), 6, mtime=0))
            self.pending.clear()

    def synchronise(self) -> None:
        """See to it that everything up to `offset` is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        """The system lifts the lock when its holder dies."""
        if sys.platform == "win32":  # has no such lock: one writer is up to the user
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another process is sampling into this folder. Wait for it, or choose another folder "
                "(--output).",
                str(self.path.parent.parent.parent),
            ) from None


class Tally:
    """What rows hold: attempts by level and status, valid molecules by level and name."""

    def __init__(self, levels: Iterable[int]) -> None:
        self.statuses: dict[int, Counter[str]] = {level: Counter() for level in levels}
        self.molecules: dict[int, Counter[str]] = {level: Counter() for level in self.statuses}

    def add(self, path: Path) -> None:
        """Count the rows of a file; memory grows only with the number of different molecules."""
        for _, level, status, smiles in read_rows(path):
            self.statuses[level][status] += 1
            if smiles:
                self.molecules[level][smiles] += 1

    def most_frequent(self, level: int) -> list[tuple[str, int]]:
        """The valid molecules of a level, the most frequent first, then in order of their text."""
        return sorted(self.molecules[level].items(), key=lambda pair: (-pair[1], pair[0]))


def read_rows(path: Path) -> Iterator[tuple[int, int, str, str]]:
    """The rows of a file, with or without the header."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("sample,"):
                continue
            sample, level, status, smiles = line.rstrip("\n").split(",")
            yield int(sample), int(level), status, smiles


def join_rows(path: Path, parts: Sequence[Path]) -> None:
    """One gzip file of the header and all parts, which are copied as they are."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as target:
            target.write(gzip.compress(f"{HEADER}\n".encode(), 6, mtime=0))
            for part in parts:
                with open(part, "rb") as source:
                    while block := source.read(2**20):
                        target.write(block)

    write_atomically(path, write)


def write_counts(path: Path, counts: Iterable[tuple[str, int]]) -> None:
    write_lines(path, ["smiles,count", *(f"{smiles},{count}" for smiles, count in counts)])
