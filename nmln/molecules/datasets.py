"""Sets of small molecules: built in, from the directory that NMLN_DATA names, or from a file.

| source | what it is |
| --- | --- |
| `pubchem-9`, `pubchem-10` | built in: neutral molecules of 9 and 10 heavy atoms known to PubChem |
| `chembl-10`, `qm9-9`, … | the files `chembl_10.smi.gz`, `qm9_9.smi.gz`, … in that directory |
| a path | `.smi` or `.csv`, or either with `.gz` |

Whatever the source, molecules are canonicalised by the RDKit at hand and kept once, in the order of
the file; what is not kept is counted by reason.
"""

import csv
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from nmln.files import InputError, read_lines
from nmln.molecules.chemistry import (
    Molecule,
    Refusal,
    encode_all,
    order_atoms,
    parse_all,
    space_for,
)
from nmln.space import Space

BUILT_IN = ("pubchem-9", "pubchem-10")
DIRECTORY = "NMLN_DATA"
SUFFIXES = (".smi", ".smi.gz", ".csv", ".csv.gz")

_NAME = re.compile(r"([A-Za-z][A-Za-z0-9]*)-(\d+)")


@dataclass(frozen=True)
class Dropped:
    """How many lines were left out for one reason, with the first of them."""

    reason: str
    count: int
    line: int
    example: str

    def __str__(self) -> str:
        return f"{self.count:,} x {self.reason} (first in line {self.line}: {self.example})"


@dataclass(frozen=True)
class Molecules:
    """Molecules of one size as worlds: row i of `worlds` is `smiles[i]`, canonical and unique."""

    name: str
    space: Space
    worlds: Integer[Tensor, "worlds groups"]
    smiles: tuple[str, ...]
    dropped: tuple[Dropped, ...]

    def __len__(self) -> int:
        return len(self.smiles)


@dataclass(frozen=True)
class Description:
    """What a file of molecules holds: different molecules by size and by atom, and what is dropped.

    `atoms` counts the molecules in which a kind of atom occurs.
    """

    name: str
    lines: int
    sizes: dict[int, int]
    atoms: dict[str, int]
    dropped: tuple[Dropped, ...]


def load(
    source: str | Path,
    nodes: int | None = None,
    atoms: Sequence[str] | None = None,
    processes: int = 1,
) -> Molecules:
    """The molecules of a source with exactly `nodes` heavy atoms, as worlds.

    `nodes` may be left out if all have one size. The language has the kinds of atoms that occur, or
    those in `atoms`: then molecules with others are dropped. One process was measured to read 1,000 to
    3,000 lines a second; more `processes` help with large files where cores are idle.
    """
    lines, molecules, tally = _read(source, processes)
    sizes = _sizes(molecules)
    if not sizes:
        raise InputError(f"no molecules among {lines:,} lines. {tally}", str(source))
    if nodes is None:
        if len(sizes) > 1:
            common = max(sizes, key=sizes.__getitem__)
            raise InputError(
                "one model is over one domain, but these molecules have several sizes (heavy atoms: "
                f"molecules): {_show(sizes)}. Choose one, such as nodes={common}.",
                str(source),
            )
        (nodes,) = sizes
    if nodes not in sizes:
        raise InputError(
            f"no molecule has {nodes} heavy atoms. Sizes here (heavy atoms: molecules): "
            f"{_show(sizes)}.",
            str(source),
        )
    occurring = {name for _, one in molecules if len(one.atoms) == nodes for name in one.atoms}
    space = space_for(order_atoms(occurring) if atoms is None else atoms, nodes)
    encoded = encode_all(space, (molecule for _, molecule in molecules))
    for position, refusal in encoded.refused:
        tally.add(molecules[position][0], refusal.reason, refusal.detail)
    if not encoded.smiles:
        raise InputError(
            f"no molecule fits the atoms {', '.join(atoms or ())}. {tally}", str(source)
        )
    return Molecules(str(source), space, encoded.worlds, encoded.smiles, tally.dropped())


def describe(source: str | Path, processes: int = 1) -> Description:
    """What a source holds, whatever the sizes; reads it like `load`."""
    lines, molecules, tally = _read(source, processes)
    counts = Counter(name for _, molecule in molecules for name in set(molecule.atoms))
    atoms = {name: counts[name] for name in order_atoms(counts)}
    return Description(str(source), lines, _sizes(molecules), atoms, tally.dropped())


def split(
    count: int, seed: int, share: float = 0.8
) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
    """Positions to train on and to test on: every position once, in random order.

    The first `round(share * count)` of `torch.randperm(count)` from a CPU generator seeded with `seed`
    are for training, so the same arguments always give the same split. Few molecules or a large share
    may leave none to test on.
    """
    train = round(share * count)
    if not 0 < train <= count:
        raise InputError(
            f"a split must leave something to train on and no more than there is, but a share of "
            f"{share} of {count} is {train}. Take a share between 0 and 1, or more molecules."
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:train], order[train:]


def is_source(name: str | Path) -> bool:
    """Whether this is named like a source of molecules, present or not."""
    text = str(name)
    return text.lower().endswith(SUFFIXES) or (_NAME.fullmatch(text) is not None)


def read_smiles(path: str | Path) -> list[tuple[int, str]]:
    """The numbered SMILES of a `.smi` or `.csv` file, plain or with `.gz`, not yet looked at.

    A `.smi` line may have a name after white space. A `.csv` column is found by its header, `smiles`
    in any case (or something that ends so); without a header it is the first. Blank lines and those
    that begin with `#` are skipped.
    """
    name = str(path).lower()
    if not name.endswith(SUFFIXES):
        raise InputError(
            f"molecules come in files that end in {', '.join(SUFFIXES)}, or in sets with names such "
            f"as {BUILT_IN[0]}. Rename it, or give such a name.",
            str(path),
        )
    numbered = _unzip(Path(path)) if name.endswith(".gz") else read_lines(path)
    wanted = ((n, line) for n, line in numbered if line.strip() and not line.startswith("#"))
    try:
        return list(_columns(wanted) if ".csv" in name[-7:] else _first_words(wanted))
    except csv.Error as error:
        raise InputError(f"this is not comma-separated text: {error}.", str(path)) from None


def _first_words(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for position, (number, line) in enumerate(lines):
        word = line.split()[0]
        if position or not _is_header(word):
            yield number, word


def _columns(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    numbers: list[int] = []

    def text() -> Iterator[str]:
        for number, line in lines:
            numbers.append(number)
            yield line + "\n"

    column, start = (
        0,
        0,
    )  # a quoted cell may run over several lines: a row begins where the last ended
    for position, row in enumerate(csv.reader(text())):
        number, start = numbers[start], len(numbers)
        if position == 0:
            exact = [i for i, cell in enumerate(row) if cell.strip().lower() == "smiles"]
            found = exact or [i for i, cell in enumerate(row) if _is_header(cell)]
            column = found[0] if found else 0
            if found:
                continue
        yield number, row[column].strip() if column < len(row) else ""


def _is_header(word: str) -> bool:
    return word.strip().lower().endswith("smiles")


def _unzip(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise InputError("there is no such file. Check the path.", str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a directory. Name a file in it.", str(path)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"this is no whole gzip file: {error}. Fetch it again.", str(path)
        ) from None
    except UnicodeDecodeError:
        raise InputError("what is packed here is not UTF-8 text.", str(path)) from None


@contextmanager
def _located(source: str | Path) -> Iterator[Path]:
    """The file behind the name of a set, or behind a path."""
    text = str(source)
    if text in BUILT_IN:
        with as_file(files("nmln") / "data" / f"{text}.smi") as path:
            yield path
        return
    named = None if text.lower().endswith(SUFFIXES) else _NAME.fullmatch(text)
    yield Path(source) if named is None else _in_directory(text, f"{named[1]}_{named[2]}.smi.gz")


def _in_directory(name: str, file: str) -> Path:
    directory = os.environ.get(DIRECTORY)
    if not directory:
        raise InputError(
            f"{name} is not built in (built in: {', '.join(BUILT_IN)}). Set the environment variable "
            f"{DIRECTORY} to a directory that holds {file}, or give the path of a file."
        )
    path = Path(directory) / file
    if not path.is_file():
        held = sorted(each.name.removesuffix(".smi.gz") for each in path.parent.glob("*_*.smi.gz"))
        raise InputError(
            f"{name} would be the file {file} in the directory that {DIRECTORY} names, {directory}, "
            f"but it is not there. Sets there: {', '.join(held).replace('_', '-') or 'none'}."
        )
    return path


class _Tally:
    """Counts what is dropped, by reason, and remembers the first line of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, tuple[int, str]] = {}

    def add(self, line: int, reason: str, example: str) -> None:
        self._counts[reason] += 1
        if reason not in self._first or line < self._first[reason][0]:
            self._first[reason] = (line, example)

    def dropped(self) -> tuple[Dropped, ...]:
        """The most frequent reason first."""
        return tuple(Dropped(r, n, *self._first[r]) for r, n in self._counts.most_common())

    def __str__(self) -> str:
        return "Dropped: " + ("; ".join(map(str, self.dropped())) or "nothing") + "."


def _read(source: str | Path, processes: int) -> tuple[int, list[tuple[int, Molecule]], _Tally]:
    """How many lines a source has, its different molecules with their lines, and what is dropped."""
    with _located(source) as path:
        lines = read_smiles(path)
    tally = _Tally()
    first: dict[str, int] = {}
    molecules: list[tuple[int, Molecule]] = []
    parsed = parse_all([text for _, text in lines], processes)
    for (number, _), found in zip(lines, parsed, strict=True):
        if isinstance(found, Refusal):
            tally.add(number, found.reason, found.detail)
        elif found.smiles in first:
            example = f"{found.smiles} stands in line {first[found.smiles]} already."
            tally.add(number, "duplicate", example)
        else:
            first[found.smiles] = number
            molecules.append((number, found))
    return len(lines), molecules, tally


def _sizes(molecules: list[tuple[int, Molecule]]) -> dict[int, int]:
    return dict(sorted(Counter(len(molecule.atoms) for _, molecule in molecules).items()))


def _show(sizes: dict[int, int]) -> str:
    return ", ".join(f"{size}: {count:,}" for size, count in sizes.items())
