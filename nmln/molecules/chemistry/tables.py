"""RDKit's types of bonds and its elements, as tables that are made on first use."""

from functools import cache
from typing import TYPE_CHECKING

from nmln.extras import later

if TYPE_CHECKING:
    from rdkit import Chem
else:
    Chem = later("rdkit.Chem")


@cache
def bond_types() -> "tuple[Chem.BondType, ...]":
    """RDKit's types of single, double and triple bonds, in the order of a world's categories."""
    return Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE


@cache
def bond_categories() -> "dict[Chem.BondType, int]":
    """The category, counted from 1, of each of RDKit's types of bonds that a world can have."""
    return {kind: category for category, kind in enumerate(bond_types(), 1)}


@cache
def atomic_numbers() -> dict[str, int]:
    """The atomic numbers of all elements but hydrogen, which is implicit."""
    table = Chem.GetPeriodicTable()
    return {table.GetElementSymbol(number): number for number in range(2, 119)}
