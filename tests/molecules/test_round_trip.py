"""Every molecule of every set in the directory that NMLN_DATA names, to a world and back."""

import logging
import os
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from rdkit import Chem, rdBase

from nmln.molecules.chemistry import Molecule, encode_all, order_atoms, parse_all, space_for
from nmln.molecules.datasets import DIRECTORY
from nmln.molecules.decoding import Decoder
from nmln.molecules.smiles_files import stream_smiles

FOLDER = os.environ.get(DIRECTORY, "")
FILES = sorted(Path(FOLDER).rglob("*_*.smi.gz")) if FOLDER else []
NAMES = [str(file.relative_to(FOLDER)).removesuffix(".smi.gz") for file in FILES]

# What a world of atoms and bonds has no words for. Sets of neutral molecules have none of it.
KNOWN_REASONS = {"bond of another kind"}

pytestmark = pytest.mark.skipif(
    not FILES, reason=f"{DIRECTORY} does not name a directory of molecules"
)


def canonical_by_rdkit_alone(text: str) -> str:
    molecule = Chem.MolFromSmiles(text)
    Chem.RemoveStereochemistry(molecule)
    return Chem.MolToSmiles(molecule)


def refused_after_round_trips(file: Path, most: int | None) -> Counter[str]:
    """Why the first `most` lines of a file cannot be encoded; all others must come back."""
    size = int(file.name.removesuffix(".smi.gz").split("_")[1])
    texts = [text for _, text in islice(stream_smiles(file), most)]
    assert texts
    refused: Counter[str] = Counter()
    for start in range(0, len(texts), 4096):
        part = texts[start : start + 4096]
        parsed = parse_all(part)
        kept = [one for one in parsed if isinstance(one, Molecule)]
        refused.update(one.reason for one in parsed if not isinstance(one, Molecule))
        space = space_for(order_atoms(name for one in kept for name in one.atoms), size)
        encoded = encode_all(space, kept)
        assert encoded.refused == ()
        decoded = Decoder(space).decode(encoded.worlds)
        with rdBase.BlockLogs():
            expected = [
                canonical_by_rdkit_alone(text)
                for text, one in zip(part, parsed, strict=True)
                if isinstance(one, Molecule)
            ]
        assert [one.smiles for one in decoded] == expected
    logging.getLogger(__name__).info("%s: %d lines, not encoded: %s", file, len(texts), refused)
    return refused


def check(file: Path, most: int | None) -> None:
    refused = refused_after_round_trips(file, most)
    allowed = KNOWN_REASONS if file.parent.name == "unfiltered" else set()
    assert set(refused) <= allowed


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_the_first_molecules_of_every_set_come_back(file: Path) -> None:
    check(file, most=200)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_molecule_of_every_set_comes_back_or_is_counted(file: Path) -> None:
    check(file, most=None)
