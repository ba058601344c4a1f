"""Facts about kinds of atoms: weights and usual valences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmln.extras import later
from nmln.molecules.chemistry.tables import atomic_numbers
from nmln.molecules.chemistry.worlds import _element

if TYPE_CHECKING:
    from rdkit import Chem
else:
    Chem = later("rdkit.Chem")


def atom_weights(atoms: Sequence[str]) -> tuple[float, ...]:
    """The atomic weights of atoms named by element and charge, without hydrogens."""
    table = Chem.GetPeriodicTable()
    return tuple(table.GetAtomicWeight(_element(name)[0]) for name in atoms)


def usual_valences(atoms: Sequence[str]) -> tuple[int, ...]:
    """The number of bonds that atoms named by element and charge usually have.

    A charged atom has that of the neutral element with as many electrons: N+ has four as C, O- one as
    F. It is zero where RDKit knows none, as for metals.
    """
    table = Chem.GetPeriodicTable()
    found = []
    for name in atoms:
        symbol, charge = _element(name)
        electrons = min(max(atomic_numbers()[symbol] - charge, 1), 118)
        found.append(max(0, table.GetDefaultValence(electrons)))
    return tuple(found)
