"""Make nmln/data/pubchem-9.smi and pubchem-10.smi from the PyPI package `chemicals`.

    pip install chemicals==1.5.2
    python scripts/make_pubchem.py

Keeps a molecule of its PubChem table if it is one fragment without charged atoms, isotopes or
radicals, with exactly 9 or 10 heavy atoms, all within C N O F P S Cl Br I. Stereochemistry is removed;
canonical SMILES are sorted and unique. Running it again with the same versions changes nothing.
"""

import sys
from importlib.metadata import version
from importlib.resources import as_file, files
from pathlib import Path

from nmln.files import read_lines, write_lines
from nmln.molecules.chemistry import Molecule, parse_all

TABLE = "chemical identifiers pubchem large.tsv"
SMILES_COLUMN = 4
ELEMENTS = frozenset(
    ("C", "N", "O", "F", "P", "S", "Cl", "Br", "I")
)  # neutral: no charge in the name
SIZES = (9, 10)
TARGET = Path(__file__).parent.parent / "nmln" / "data"


def main() -> None:
    """Read the table, keep the molecules that fit, and write one file per size."""
    with as_file(files("chemicals") / "Identifiers" / TABLE) as path:
        texts = [line.split("\t")[SMILES_COLUMN] for _, line in read_lines(path)]
    kept: dict[int, set[str]] = {size: set() for size in SIZES}
    for molecule in parse_all(texts):
        if (
            isinstance(molecule, Molecule)
            and len(molecule.atoms) in kept
            and ELEMENTS.issuperset(molecule.atoms)
        ):
            kept[len(molecule.atoms)].add(molecule.smiles)
    for size, smiles in kept.items():
        head = (
            f"# {len(smiles)} neutral molecules of {size} heavy atoms known to PubChem, from chemicals "
            f"{version('chemicals')} (MIT), written by RDKit {version('rdkit')}. See PROVENANCE.md."
        )
        write_lines(TARGET / f"pubchem-{size}.smi", [head, *sorted(smiles)])
        sys.stdout.write(f"pubchem-{size}.smi: {len(smiles)} molecules\n")


if __name__ == "__main__":
    main()
