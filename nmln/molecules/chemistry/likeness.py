"""Similarity of molecules by their Morgan fingerprints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmln.errors import InputError
from nmln.extras import later

if TYPE_CHECKING:
    from rdkit import Chem, DataStructs, rdBase
    from rdkit.Chem import rdFingerprintGenerator
else:
    Chem = later("rdkit.Chem")
    DataStructs = later("rdkit.DataStructs")
    rdBase = later("rdkit.rdBase")
    rdFingerprintGenerator = later("rdkit.Chem.rdFingerprintGenerator")

RADIUS, BITS = 2, 2048


def mean_distance(smiles: Sequence[str]) -> float:
    """The mean of 1 - Tanimoto over all pairs of places in the list, by Morgan fingerprints.

    Quadratic in the number of molecules: 2,000 take about half a second.
    """
    if len(smiles) < 2:
        raise InputError(
            f"a mean distance needs at least two molecules, got {len(smiles)}.", kind="empty"
        )
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    prints = []
    with rdBase.BlockLogs():
        for text in smiles:
            molecule = Chem.MolFromSmiles(text)
            if molecule is None:
                raise InputError(f"{text!r} cannot be read as SMILES.", token=text, kind="syntax")
            prints.append(generator.GetFingerprint(molecule))
    alike = sum(
        sum(DataStructs.BulkTanimotoSimilarity(one, prints[:place]))
        for place, one in enumerate(prints)
        if place
    )
    return 1 - alike / (len(prints) * (len(prints) - 1) / 2)
