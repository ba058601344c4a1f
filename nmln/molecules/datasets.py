"""Sets of small molecules: built in, from a directory, from a download, or from a file.

| source | what it is |
| --- | --- |
| `pubchem-9`, `pubchem-10` | built in: neutral molecules of 9 and 10 heavy atoms known to PubChem |
| `chembl-10`, `qm9-9`, … | `chembl_10.smi.gz`, `qm9_9.smi.gz`, … in the directory that NMLN_DATA names |
| `unfiltered/chembl-10`, … | the same in its folder `unfiltered` |
| `qm9-9`, `moses-20`, … | without such a file: selected from what `nmln data fetch` has downloaded |
| a path | `.smi` or `.csv`, or either with `.gz` |

The molecules of every source are canonicalised by the installed RDKit and kept once, in the order of
the file; dropped lines are counted by reason.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from nmln.dropped import DropCounter, Dropped
from nmln.errors import InputError
from nmln.files import write_lines
from nmln.molecules.chemistry import (
    Molecule,
    Refusal,
    encode_all,
    order_atoms,
    space_for,
)
from nmln.molecules.decoding import Decoder
from nmln.molecules.downloads import SOURCES, cache_folder, select
from nmln.molecules.smiles_files import (
    SUFFIXES,
    Watch,
    parse_stream,
    read_smiles,
    stream_smiles,
)
from nmln.space import Space
from nmln.worlds import Spaces, paired

__all__ = [
    "BUILT_IN", "DIRECTORY", "SUFFIXES", "AvailableSet", "Description", "Dropped", "Molecules",
    "describe", "is_source", "known", "load", "read_smiles", "split",
]  # fmt: skip

BUILT_IN = ("pubchem-9", "pubchem-10")
DIRECTORY = "NMLN_DATA"

_NAME = re.compile(r"(unfiltered/)?([A-Za-z][A-Za-z0-9]*)-(\d{1,9})")
_SHOWN = 20  # sizes in a message


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

    @classmethod
    def read(
        cls,
        source: str | Path,
        size: int | None = None,
        atoms: Sequence[str] | None = None,
        processes: int = 1,
    ) -> "Molecules":
        """The molecules of a file or a set, read by `load`; `size` is the number of heavy atoms."""
        return load(source, size, atoms, processes)

    def split(self, seed: int = 0, share: float = 0.8) -> tuple["Molecules", "Molecules"]:
        """The training set and the test set, by the same seeded split as in a run."""
        train, test = split(len(self), seed, share)
        return self._at(train), self._at(test)

    def decode(self, worlds: Integer[Tensor, "... groups"]) -> list[str | None]:
        """The canonical SMILES of worlds over the same space; None if one is not a valid molecule."""
        return [one.smiles for one in Decoder(self.space).decode(worlds)]

    def _at(self, places: Int64[Tensor, " places"]) -> "Molecules":
        smiles = tuple(self.smiles[place] for place in places.tolist())
        return replace(self, worlds=self.worlds[places], smiles=smiles)


@dataclass(frozen=True)
class Description:
    """The contents of a file: different molecules by size and by atom, and the dropped lines.

    `atoms` is the number of molecules in which each kind of atom occurs.
    """

    name: str
    lines: int
    sizes: dict[int, int]
    atoms: dict[str, int]
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True)
class AvailableSet:
    """The name of a set of molecules that can be read or fetched, and where it is."""

    name: str
    place: str
    note: str = ""


def load(
    source: str | Path,
    nodes: int | None = None,
    atoms: Sequence[str] | None = None,
    processes: int = 1,
) -> Molecules:
    """The molecules of a source with exactly `nodes` heavy atoms, as worlds.

    `nodes` may be left out if all have one size. The language has the kinds of atoms that occur, or
    those in `atoms`: then molecules with others are dropped. One process reads 1,000 to 3,000 lines per
    second (measured); more `processes` help with large files where cores are idle.
    """
    source = of_size(source, nodes)
    tally, sizes = DropCounter(), Counter[int]()
    molecules: list[tuple[int, Molecule]] = []
    for number, molecule in distinct(source, processes, tally):
        size = len(molecule.atoms)
        sizes[size] += 1
        if nodes in (None, size):
            molecules.append((number, molecule))
        else:
            tally.add(number, "another size", f"{molecule.smiles} has {size} heavy atoms.")
    if nodes is None:
        if len(sizes) > 1:
            (common, _), *_ = sizes.most_common(1)
            raise InputError(
                "molecules of one size are read here, got several sizes (heavy atoms: "
                f"molecules): {sizes_in_words(sizes)}. Choose one: --nodes {common} on the command "
                f"line, size={common} in Python.",
                str(source),
            )
        (nodes,) = sizes
    if nodes not in sizes:
        raise InputError(
            f"no molecule has {nodes} heavy atoms. Available sizes (heavy atoms: molecules): "
            f"{sizes_in_words(sizes)}.",
            str(source),
            kind="empty",
        )
    occurring = {name for _, molecule in molecules for name in molecule.atoms}
    space = space_for(order_atoms(occurring) if atoms is None else atoms, nodes)
    encoded = encode_all(space, (molecule for _, molecule in molecules))
    for position, refusal in encoded.refused:
        tally.add(molecules[position][0], refusal.reason, refusal.detail)
    if not encoded.smiles:
        raise InputError(
            f"no molecule fits the atoms {', '.join(atoms or ())}. {tally}",
            str(source),
            kind="empty",
        )
    return Molecules(str(source), space, encoded.worlds, encoded.smiles, tally.dropped())


def write_smiles(path: Path, space: Spaces, worlds: Iterable[Integer[Tensor, " groups"]]) -> None:
    """Write worlds as canonical SMILES, one per line; in a `.csv` file below the header `smiles`.

    A world that is not a valid molecule is refused, and so is a file that would have to be packed.
    """
    if str(path).lower().endswith(".gz"):
        raise InputError(
            "packed files are not written. Name a file that ends in .smi or .csv.",
            str(path),
            kind="unsupported",
        )

    def lines() -> Iterator[str]:
        if str(path).lower().endswith(".csv"):
            yield "smiles"
        decoders: dict[Space, Decoder] = {}
        for number, (own, world) in enumerate(paired(space, worlds)):
            decoder = decoders.setdefault(own, Decoder(own, most=0))
            (found,) = decoder.decode(world[None])
            if found.smiles is None:
                raise InputError(
                    f"every world must be a valid molecule, but world {number} is {found.status}. "
                    "Leave it out, or write a .db file.",
                    str(path),
                    kind="unsupported",
                )
            yield found.smiles

    write_lines(path, lines())


def describe(source: str | Path, processes: int = 1, watch: Watch | None = None) -> Description:
    """The contents of a source, with all sizes; read like `load` does, but not kept in memory."""
    tally, sizes, atoms = DropCounter(), Counter[int](), Counter[str]()
    for _, molecule in distinct(source, processes, tally, watch):
        sizes[len(molecule.atoms)] += 1
        atoms.update(set(molecule.atoms))
    dropped = tally.dropped()
    lines = sum(sizes.values()) + sum(drop.count for drop in dropped)
    ordered = {name: atoms[name] for name in order_atoms(atoms)}
    return Description(str(source), lines, dict(sorted(sizes.items())), ordered, dropped)


def split(
    count: int, seed: int, share: float = 0.8
) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
    """Positions for training and for testing: every position once, in random order.

    The first `round(share * count)` of `torch.randperm(count)` from a CPU generator seeded with `seed`
    are for training, so the same arguments always give the same split. With few molecules or a large
    share the test set may be empty.
    """
    train = round(share * count)
    if not 0 < train <= count:
        raise InputError(
            f"the training set must have between 1 and {count} molecules, but a share of {share} of "
            f"{count} is {train}. Use a share between 0 and 1, or more molecules."
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:train], order[train:]


def is_source(name: str | Path) -> bool:
    """Whether a name has the form of a source of molecules, whether or not the source exists."""
    text = str(name).lower()
    return text.endswith(SUFFIXES) or text in SOURCES or _NAME.fullmatch(text) is not None


def known() -> list[AvailableSet]:
    """The names that can be read now, each with the first source that has it, and those to fetch."""
    found = [
        AvailableSet(name, "built in", "small molecules known to PubChem") for name in BUILT_IN
    ]
    if directory := os.environ.get(DIRECTORY):
        for prefix in ("", "unfiltered/"):
            found += (
                AvailableSet(prefix + name, DIRECTORY) for name in _held(Path(directory) / prefix)
            )
    names = {one.name for one in found}
    found += (
        AvailableSet(name, "cache") for name in _held(cache_folder(), SOURCES) if name not in names
    )
    for source in SOURCES.values():
        fetched = (cache_folder() / source.file).exists()
        note = f"{source.title}, {source.megabytes} MB; {source.licence}"
        place = "cache" if fetched else f"nmln data fetch {source.name}"
        found.append(AvailableSet(f"{source.name}-SIZE", place, note))
    return found


def _held(folder: Path, families: Collection[str] | None = None) -> list[str]:
    """The names of the sets in a folder, by family and size."""
    pairs = (file.name.removesuffix(".smi.gz").split("_") for file in folder.glob("*_*.smi.gz"))
    named = [
        (family, int(size))
        for family, size in (pair for pair in pairs if len(pair) == 2)
        if size.isdecimal() and (families is None or family in families)
    ]
    return [f"{family}-{size}" for family, size in sorted(named)]


def of_size(source: str | Path, nodes: int | None) -> str | Path:
    """The source itself; of a whole download with a number of heavy atoms, the set of that size."""
    return f"{source}-{nodes}" if str(source).lower() in SOURCES and nodes is not None else source


@contextmanager
def located(source: str | Path, processes: int) -> Iterator[tuple[Path, bool | None]]:
    """The file of a name or a path; True with it if it is a table, regardless of its file name."""
    text = str(source)
    named = None if text.lower().endswith(SUFFIXES) else _NAME.fullmatch(text)
    if text in BUILT_IN:
        with as_file(files("nmln") / "data" / f"{text}.smi") as path:
            yield path, None
    elif text.lower() in SOURCES:
        path = cache_folder() / SOURCES[text.lower()].file
        if not path.exists():
            raise InputError(
                f"{text} is not downloaded yet. Fetch it: nmln data fetch {text.lower()}",
                token=text,
                kind="missing",
            )
        yield path, True
    else:
        path = Path(source) if named is None else _named(text, named, processes)
        yield path, None


def _named(text: str, parts: re.Match[str], processes: int) -> Path:
    """The file of a set: in the directory, or selected from a download."""
    prefix, family, size = parts.groups()
    directory = os.environ.get(DIRECTORY)
    file = f"{prefix or ''}{family}_{size}.smi.gz"
    if directory and (path := Path(directory) / file).is_file():
        return path
    source = None if prefix else SOURCES.get(family.lower())
    if source is not None and (selected := select(source, int(size), processes)):
        return selected.path
    fetch = f"Fetch it: nmln data fetch {source.name} --size {size}. Or set" if source else "Set"
    looked = ""
    if directory:
        held = ", ".join(_held(Path(directory) / (prefix or ""))) or "none"
        looked = f", and {file} is not in {directory}, which {DIRECTORY} names (sets there: {held})"
    raise InputError(
        f"{text} is not built in (built in: {', '.join(BUILT_IN)}){looked}. {fetch} the environment "
        f"variable {DIRECTORY} to a directory that contains {file}, or give the path of a file.",
        token=text,
        kind="missing" if source else "unknown",
    )


def distinct(
    source: str | Path, processes: int, tally: DropCounter, watch: Watch | None = None
) -> Iterator[tuple[int, Molecule]]:
    """The different molecules of a source with their lines; dropped lines are counted."""
    first: dict[str, int] = {}
    empty = True
    with located(source, processes) as (path, table):
        for number, found in parse_stream(stream_smiles(path, table, watch), processes):
            empty = False
            if isinstance(found, Refusal):
                tally.add(number, found.reason, found.detail)
            elif found.smiles in first:
                example = f"{found.smiles} is already in line {first[found.smiles]}."
                tally.add(number, "duplicate", example)
            else:
                first[found.smiles] = number
                yield number, found
    if empty:
        raise InputError(
            "there are no molecules: the file is empty, or has nothing below its header.",
            str(source),
            kind="empty",
        )
    if not first:
        raise InputError(
            f"no line is a molecule that can be used. {tally}", str(source), kind="empty"
        )


def sizes_in_words(sizes: Counter[int]) -> str:
    """The sizes in order; only the most common ones if there are very many."""
    shown = ", ".join(f"{size}: {count:,}" for size, count in sorted(sizes.most_common(_SHOWN)))
    others = len(sizes) - _SHOWN
    return f"{shown}, and {others} others" if others > 0 else shown
