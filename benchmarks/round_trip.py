"""Every molecule of every set in a directory, to a world and back; counts those that cannot be encoded.

    NMLN_DATA=/where/they/are python -m benchmarks.round_trip --processes 2

A molecule comes back if its world decodes to the SMILES that RDKit alone gives it without its
stereochemistry. Writes benchmarks/results/round-trip.json, with the reasons of the refusals.
"""

import argparse
import json
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch
from rdkit import Chem, rdBase

from nmln.files import write_lines
from nmln.molecules.chemistry import Molecule, encode_all, order_atoms, parse_all, space_for
from nmln.molecules.datasets import DIRECTORY
from nmln.molecules.decoding import Decoder
from nmln.molecules.smiles_files import stream_smiles

RESULTS = Path(__file__).parent / "results" / "round-trip.json"
_PARCEL = 4096


@dataclass(frozen=True)
class RoundTrip:
    """Of the lines of a file, those whose molecule came back, came back as another, or has no world."""

    name: str
    lines: int
    back: int
    changed: tuple[str, ...]
    refused: dict[str, int]


def sets(folder: Path) -> dict[str, Path]:
    """The sets in a directory, by their names."""
    files = sorted(folder.rglob("*_*.smi.gz"))
    return {str(file.relative_to(folder)).removesuffix(".smi.gz"): file for file in files}


def round_trip(name: str, file: Path, every: int = 1) -> RoundTrip:
    """Encode and decode every `every`-th line of a file."""
    size = int(file.name.removesuffix(".smi.gz").split("_")[1])
    texts = (text for _, text in islice(stream_smiles(file), 0, None, every))
    lines, back, changed, refused = 0, 0, [], Counter[str]()
    while part := list(islice(texts, _PARCEL)):
        lines += len(part)
        parsed = parse_all(part)
        refused.update(one.reason for one in parsed if not isinstance(one, Molecule))
        kept = [
            (text, one) for text, one in zip(part, parsed, strict=True) if isinstance(one, Molecule)
        ]
        space = space_for(order_atoms(name for _, one in kept for name in one.atoms), size)
        encoded = encode_all(space, [one for _, one in kept])
        refused.update(why.reason for _, why in encoded.refused)
        decoded = Decoder(space).decode(encoded.worlds)
        for position, found in zip(encoded.positions, decoded, strict=True):
            same = found.smiles == canonical_by_rdkit_alone(kept[position][0])
            back += same
            changed += [] if same else [kept[position][0]]
    return RoundTrip(name, lines, back, tuple(changed), dict(refused))


def canonical_by_rdkit_alone(text: str) -> str:
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(text)
        Chem.RemoveStereochemistry(molecule)
        return Chem.MolToSmiles(molecule)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if not (folder := os.environ.get(DIRECTORY)):
        raise SystemExit(f"error: set {DIRECTORY} to a directory with files such as qm9_9.smi.gz.")
    found = []
    with ProcessPoolExecutor(
        given.processes, get_context("spawn"), torch.set_num_threads, (1,)
    ) as workers:
        for one in workers.map(round_trip, *zip(*sets(Path(folder)).items(), strict=True)):
            print(
                f"{one.name}: {one.back:,} of {one.lines:,} came back; {one.refused or 'none'} refused"
            )
            found.append(asdict(one))
    content = {
        "command": "python -m benchmarks.round_trip",
        "rdkit": rdBase.rdkitVersion,
        "sets": found,
    }
    write_lines(given.output, [json.dumps(content, indent=1)])


if __name__ == "__main__":
    main()
