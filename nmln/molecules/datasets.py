"""Sets of small molecules: built in, from a directory, from a download, or from a file.

| source | what it is |
| --- | --- |
| `pubchem-9`, `pubchem-10` | built in: neutral molecules of 9 and 10 heavy atoms known to PubChem |
| `chembl-10`, `qm9-9`, … | `chembl_10.smi.gz`, `qm9_9.smi.gz`, … in the directory that NMLN_DATA names |
| `unfiltered/chembl-10`, … | the same in its folder `unfiltered` |
| `qm9-9`, `moses-20`, … | where the directory has no such file: out of what `nmln data fetch` brought |
| a path | `.smi` or `.csv`, or either with `.gz` |

Whatever the source, molecules are canonicalised by the RDKit at hand and kept once, in the order of
the file; what is not kept is counted by reason.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from nmln.dropped import DropCounter, Dropped
from nmln.errors import InputError
from nmln.molecules.chemistry import Molecule, Refusal, encode_all, order_atoms, space_for
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

__all__ = [
    "BUILT_IN", "DIRECTORY", "SUFFIXES", "Description", "Dropped", "Known", "Molecules", "describe",
    "is_source", "known", "load", "read_smiles", "split",
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
        """The molecules of a file or a set, as `load` reads them; `size` counts heavy atoms."""
        return load(source, size, atoms, processes)

    def split(self, seed: int = 0, share: float = 0.8) -> tuple["Molecules", "Molecules"]:
        """Those to train on and those to test on, by the seeded split that a run makes."""
        train, test = split(len(self), seed, share)
        return self._at(train), self._at(test)

    def decode(self, worlds: Integer[Tensor, "... groups"]) -> list[str | None]:
        """The canonical SMILES of worlds over the same space; None for what is no valid molecule."""
        return [one.smiles for one in Decoder(self.space).decode(worlds)]

    def _at(self, places: Int64[Tensor, " places"]) -> "Molecules":
        smiles = tuple(self.smiles[place] for place in places.tolist())
        return replace(self, worlds=self.worlds[places], smiles=smiles)


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


@dataclass(frozen=True)
class Known:
    """The name of a set and where it comes from."""

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
    those in `atoms`: then molecules with others are dropped. One process was measured to read 1,000 to
    3,000 lines a second; more `processes` help with large files where cores are idle.
    """
    if str(source).lower() in SOURCES and nodes is not None:
        source = f"{source}-{nodes}"
    tally, sizes = DropCounter(), Counter[int]()
    molecules: list[tuple[int, Molecule]] = []
    for number, molecule in _distinct(source, processes, tally):
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
                "one model is over one domain, but these molecules have several sizes (heavy atoms: "
                f"molecules): {_show(sizes)}. Choose one: --nodes {common} on the command line, "
                f"size={common} in Python.",
                str(source),
            )
        (nodes,) = sizes
    if nodes not in sizes:
        raise InputError(
            f"no molecule has {nodes} heavy atoms. Sizes here (heavy atoms: molecules): "
            f"{_show(sizes)}.",
            str(source),
        )
    occurring = {name for _, molecule in molecules for name in molecule.atoms}
    space = space_for(order_atoms(occurring) if atoms is None else atoms, nodes)
    encoded = encode_all(space, (molecule for _, molecule in molecules))
    for position, refusal in encoded.refused:
        tally.add(molecules[position][0], refusal.reason, refusal.detail)
    if not encoded.smiles:
        raise InputError(
            f"no molecule fits the atoms {', '.join(atoms or ())}. {tally}", str(source)
        )
    return Molecules(str(source), space, encoded.worlds, encoded.smiles, tally.dropped())


def describe(source: str | Path, processes: int = 1, watch: Watch | None = None) -> Description:
    """What a source holds, whatever the sizes; reads it like `load`, without keeping it in memory."""
    tally, sizes, atoms = DropCounter(), Counter[int](), Counter[str]()
    for _, molecule in _distinct(source, processes, tally, watch):
        sizes[len(molecule.atoms)] += 1
        atoms.update(set(molecule.atoms))
    dropped = tally.dropped()
    lines = sum(sizes.values()) + sum(drop.count for drop in dropped)
    ordered = {name: atoms[name] for name in order_atoms(atoms)}
    return Description(str(source), lines, dict(sorted(sizes.items())), ordered, dropped)


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
    text = str(name).lower()
    return text.endswith(SUFFIXES) or text in SOURCES or _NAME.fullmatch(text) is not None


def known() -> list[Known]:
    """The names that can be read now, each where it is looked for first, and those to fetch."""
    found = [Known(name, "built in", "small molecules known to PubChem") for name in BUILT_IN]
    if directory := os.environ.get(DIRECTORY):
        for prefix in ("", "unfiltered/"):
            found += (Known(prefix + name, DIRECTORY) for name in _held(Path(directory) / prefix))
    names = {one.name for one in found}
    found += (Known(name, "cache") for name in _held(cache_folder(), SOURCES) if name not in names)
    for source in SOURCES.values():
        fetched = (cache_folder() / source.file).exists()
        note = f"{source.title}, {source.megabytes} MB; {source.licence}"
        place = "cache" if fetched else f"nmln data fetch {source.name}"
        found.append(Known(f"{source.name}-SIZE", place, note))
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


@contextmanager
def _located(source: str | Path, processes: int) -> Iterator[tuple[Path, bool | None]]:
    """The file behind a name or a path; True with it if it is a table whatever it is called."""
    text = str(source)
    named = None if text.lower().endswith(SUFFIXES) else _NAME.fullmatch(text)
    if text in BUILT_IN:
        with as_file(files("nmln") / "data" / f"{text}.smi") as path:
            yield path, None
    elif text.lower() in SOURCES:
        path = cache_folder() / SOURCES[text.lower()].file
        if not path.exists():
            raise InputError(f"{text} is not here yet. Fetch it: nmln data fetch {text.lower()}")
        yield path, True
    else:
        path = Path(source) if named is None else _named(text, named, processes)
        yield path, None


def _named(text: str, parts: re.Match[str], processes: int) -> Path:
    """The file of a set: in the directory, or out of a download."""
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
        f"variable {DIRECTORY} to a directory that holds {file}, or give the path of a file."
    )


def _distinct(
    source: str | Path, processes: int, tally: DropCounter, watch: Watch | None = None
) -> Iterator[tuple[int, Molecule]]:
    """The different molecules of a source with their lines; what is dropped is tallied."""
    first: dict[str, int] = {}
    empty = True
    with _located(source, processes) as (path, table):
        for number, found in parse_stream(stream_smiles(path, table, watch), processes):
            empty = False
            if isinstance(found, Refusal):
                tally.add(number, found.reason, found.detail)
            elif found.smiles in first:
                example = f"{found.smiles} stands in line {first[found.smiles]} already."
                tally.add(number, "duplicate", example)
            else:
                first[found.smiles] = number
                yield number, found
    if empty:
        raise InputError(
            "there are no molecules: the file is empty, or has nothing below its header.",
            str(source),
        )
    if not first:
        raise InputError(f"no line is a molecule that can be used. {tally}", str(source))


def _show(sizes: Counter[int]) -> str:
    """The sizes in order; of very many the most common ones."""
    shown = ", ".join(f"{size}: {count:,}" for size, count in sorted(sizes.most_common(_SHOWN)))
    others = len(sizes) - _SHOWN
    return f"{shown}, and {others} others" if others > 0 else shown
