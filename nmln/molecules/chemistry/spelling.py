"""The many SMILES of one molecule."""

from typing import TYPE_CHECKING

from nmln.errors import InputError
from nmln.extras import later

if TYPE_CHECKING:
    from rdkit import Chem, rdBase
else:
    Chem = later("rdkit.Chem")
    rdBase = later("rdkit.rdBase")

_SEEDS = 2**31 - 2  # RDKit takes seeds from 1 on as they are


def random_spellings(smiles: str, count: int, seed: int) -> list[str]:
    """SMILES of a molecule that start at random atoms and take random turns; some may be equal.

    The same seed gives the same spellings. A spelling is not a uniform draw from all that there are.
    """
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise InputError(f"{smiles!r} cannot be read as SMILES.", token=smiles, kind="syntax")
    return list(Chem.MolToRandomSmilesVect(molecule, count, randomSeed=1 + seed % _SEEDS))
