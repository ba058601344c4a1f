"""Molecules of one or several sizes as the data of a run: which sizes are taken, and their buckets.

A model learns the molecules of one size if one is named, and otherwise of all sizes that are named or
common enough. All sizes have one language, with every kind of atom that occurs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmln.buckets import Bucket
from nmln.config import DataConfig
from nmln.dropped import DropCounter
from nmln.errors import InputError
from nmln.formats.registry import Format, Parsed, register
from nmln.memory import refuse_size
from nmln.molecules.chemistry import (
    Molecule,
    atoms_of,
    encode_all,
    order_atoms,
    rdkit_version,
    space_for,
)
from nmln.molecules.datasets import distinct, load, located, of_size, sizes_in_words, write_smiles
from nmln.space import Space

LEAST = 2
"""Molecules of a size, of several: one to learn from and one to test."""


@dataclass(frozen=True)
class SizeChoice:
    """Which sizes are taken: those that are named, or those up to the largest that are common.

    Args:
        sizes: the numbers of heavy atoms, all of which must occur.
        largest: the largest number of heavy atoms, if sizes are not named.
        least_share: the share of the molecules up to the largest that a size must hold.
    """

    sizes: tuple[int, ...] | None = None
    largest: int | None = None
    least_share: float = 0.01

    def among(self, found: Counter[int], source: str) -> tuple[int, ...]:
        """The sizes to take of those that occur, in rising order."""
        if self.sizes is not None:
            return self._named(found, source)
        near = {size: n for size, n in found.items() if size <= (self.largest or size)}
        if not near:
            raise InputError(
                f"no molecule has at most {self.largest} heavy atoms. Available sizes (heavy atoms: "
                f"molecules): {sizes_in_words(found)}.",
                source,
                token=str(self.largest),
                kind="empty",
            )
        if len(near) == 1:
            return tuple(near)
        total = sum(near.values())
        common = [size for size, n in near.items() if n >= self.least_share * total]
        taken = sorted(size for size in common if near[size] >= LEAST)
        if not taken:
            why = (
                f"has at least {LEAST} molecules, one to learn from and one to test"
                if common
                else f"holds a share of {self.least_share:g} of the molecules (data.least_share)"
            )
            raise InputError(
                f"no size {why}. Available sizes (heavy atoms: molecules): {sizes_in_words(found)}. "
                "Give more molecules, or name a size with --nodes.",
                source,
                kind="empty",
            )
        return tuple(taken)

    def left_out(self, found: Counter[int], taken: Sequence[int]) -> tuple[str, ...]:
        """A note with the sizes that are not common enough and their numbers of molecules."""
        if self.sizes is not None:
            return ()
        near = {size: n for size, n in found.items() if size <= (self.largest or size)}
        rest = {size: n for size, n in near.items() if size not in taken}
        few = Counter({size: n for size, n in rest.items() if n < LEAST})
        rare = Counter({size: n for size, n in rest.items() if n >= LEAST})
        parts = []
        if rare:
            parts.append(
                f"{sizes_in_words(rare)} (less than {100 * self.least_share:g} % of the molecules each, "
                "data.least_share; --sizes takes them)"
            )
        if few:
            parts.append(f"{sizes_in_words(few)} (fewer than {LEAST} molecules each)")
        if not parts:
            return ()
        return (f"sizes left out (heavy atoms: molecules): {'; '.join(parts)}.",)

    def _named(self, found: Counter[int], source: str) -> tuple[int, ...]:
        assert self.sizes is not None
        for size in sorted(self.sizes):
            if size not in found:
                raise InputError(
                    f"no molecule has {size} heavy atoms. Available sizes (heavy atoms: molecules): "
                    f"{sizes_in_words(found)}.",
                    source,
                    token=str(size),
                    kind="empty",
                )
            if found[size] < LEAST and len(self.sizes) > 1:
                raise InputError(
                    f"only one molecule has {size} heavy atoms, but each of several sizes needs at "
                    f"least {LEAST}: one to learn from and one to test. Leave the size out, or give "
                    "more molecules.",
                    source,
                    token=str(size),
                    kind="empty",
                )
        return tuple(sorted(self.sizes))


def load_sizes(source: str | Path, choice: SizeChoice, processes: int = 1) -> Parsed:
    """The molecules of the chosen sizes, each size in a bucket; the others are counted as dropped."""
    tally, sizes = DropCounter(), Counter[int]()
    molecules: list[tuple[int, Molecule]] = []
    for number, molecule in distinct(source, processes, tally):
        sizes[len(molecule.atoms)] += 1
        molecules.append((number, molecule))
    taken = choice.among(sizes, str(source))
    for number, molecule in molecules:
        if (size := len(molecule.atoms)) not in taken:
            tally.add(number, "another size", f"{molecule.smiles} has {size} heavy atoms.")
    kept = [molecule for _, molecule in molecules if len(molecule.atoms) in taken]
    _refuse_memory(sizes, taken, str(source))
    atoms = order_atoms({name for molecule in kept for name in molecule.atoms})
    buckets = [_bucket(space_for(atoms, size), kept) for size in taken]
    places = {size: number for number, size in enumerate(taken)}
    homes = torch.tensor([places[len(one.atoms)] for one in kept], dtype=torch.int64)
    names = tuple(molecule.smiles for molecule in kept)
    return Parsed(
        tuple(buckets), homes, names=names, dropped=tally.dropped(),
        notes=choice.left_out(sizes, taken),
    )  # fmt: skip


def _bucket(space: Space, molecules: Sequence[Molecule]) -> Bucket:
    _, nodes = atoms_of(space)
    mine = (molecule for molecule in molecules if len(molecule.atoms) == nodes)
    return Bucket(space, encode_all(space, mine).worlds)


def _refuse_memory(sizes: Counter[int], taken: Sequence[int], source: str) -> None:
    """Refuse molecules whose worlds do not fit: one byte per atom and per pair of atoms."""
    needed = {size: sizes[size] * (size + size * (size - 1) // 2) for size in taken}
    largest = max(needed, key=needed.__getitem__)
    try:
        refuse_size(
            sum(needed.values()),
            f"{sum(sizes[size] for size in taken):,} molecules of up to {taken[-1]} heavy atoms",
            f"Most of it is for those of {largest}. Take smaller ones with --max-size.",
        )
    except InputError as error:
        raise error.at(source) from None


# The formats. Names of sets are read as `.smi` files.


def _read(config: DataConfig) -> Parsed:
    if config.nodes is None:
        choice = SizeChoice(config.sizes, config.max_size, config.least_share)
        return load_sizes(config.source, choice)
    found = load(config.source, config.nodes)
    return Parsed.of(found.space, found.worlds, names=found.smiles, dropped=found.dropped)


def _files(config: DataConfig) -> Iterator[Path]:
    with located(of_size(config.source, config.nodes), 1) as (path, _):
        yield path


def _format(name: str, standard: bool) -> Format:
    endings = (f".{name}", f".{name}.gz")
    return Format(
        name, "molecules", endings, _read, write_smiles, check=atoms_of, files=_files,
        recognise=lambda path: path.name.lower().endswith(endings) and not path.is_dir(),
        versions=lambda: {"rdkit": rdkit_version()}, standard=standard,
    )  # fmt: skip


register(_format("smi", standard=True))
register(_format("csv", standard=False))
