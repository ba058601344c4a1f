"""Scaffolds: a part of a molecule that is given, with the places where the rest may be attached."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nmln.errors import InputError
from nmln.extras import later
from nmln.molecules.chemistry.tables import bond_categories
from nmln.molecules.chemistry.worlds import _atom_name, kekulised, refuse_text

if TYPE_CHECKING:
    from rdkit import Chem, rdBase
else:
    Chem = later("rdkit.Chem")
    rdBase = later("rdkit.rdBase")


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Atoms by name, bonds as (atom, atom, category), and the atoms that others may be bonded to.

    Of the Kekulé forms of an aromatic scaffold it holds one.
    """

    smiles: str
    atoms: tuple[str, ...]
    bonds: tuple[tuple[int, int, int], ...]
    open: tuple[int, ...]


def parse_scaffold(smiles: str) -> Scaffold:
    """Read a scaffold: SMILES in which `*` marks an atom that the rest may be bonded to.

    A `*` is not an atom. It opens its neighbour for bonds of any order and number; without any `*` all
    atoms are open. Hydrogens and stereochemistry are not kept, because worlds have neither.
    """
    text = smiles.strip()
    with rdBase.BlockLogs():
        molecule = None if refuse_text(text) else Chem.MolFromSmiles(text)
        if molecule is None or not kekulised(molecule):
            raise InputError(
                f"the scaffold {smiles[:80]!a} cannot be read as SMILES. Write it like c1ccccc1*, in "
                "quotes.",
                token=smiles,
                kind="syntax",
            )
    open_atoms = _attachments(molecule, text)
    kept = [atom.GetIdx() for atom in molecule.GetAtoms() if atom.GetAtomicNum()]
    if not kept:
        raise InputError(
            f"the scaffold {smiles!r} has no atom other than '*'. Add at least one.",
            token=smiles,
            kind="empty",
        )
    place = {index: position for position, index in enumerate(kept)}
    names = []
    for index in kept:
        atom = molecule.GetAtomWithIdx(index)
        if atom.GetAtomicNum() == 1 or atom.GetIsotope():
            raise InputError(
                f"the scaffold {text} has a hydrogen that cannot be left implicit, or an isotope. "
                "Worlds have neither: leave them out.",
                kind="unsupported",
            )
        names.append(_atom_name(atom.GetSymbol(), atom.GetFormalCharge()))
    bonds, categories = [], bond_categories()
    for bond in molecule.GetBonds():
        ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if not all(end in place for end in ends):
            continue
        if bond.GetBondType() not in categories:
            kind = bond.GetBondType().name
            raise InputError(
                f"the scaffold {text} has a bond of the kind {kind}. Use single, double or triple ones.",
                token=kind,
                kind="unsupported",
            )
        bonds.append((place[ends[0]], place[ends[1]], categories[bond.GetBondType()]))
    chosen = sorted(place[index] for index in open_atoms) if open_atoms else range(len(kept))
    _refuse_closed_fragments(molecule, open_atoms, text)
    return Scaffold(text, tuple(names), tuple(bonds), tuple(chosen))


def _attachments(molecule: "Chem.Mol", text: str) -> set[int]:
    """The atoms that carry a `*`."""
    found = set()
    for atom in molecule.GetAtoms():
        if atom.GetAtomicNum():
            continue
        bonds = atom.GetBonds()
        if len(bonds) != 1 or bonds[0].GetBondType() != Chem.BondType.SINGLE:
            raise InputError(
                f"in the scaffold {text} a '*' is alone, in a chain, in a ring or behind a double "
                "bond, but it only marks the one atom before it. Write it like CC(*)O; the bond that "
                "takes its place can be of any order.",
                token="*",
                kind="syntax",
            )
        neighbour = bonds[0].GetOtherAtom(atom)
        if not neighbour.GetAtomicNum():
            raise InputError(
                f"in the scaffold {text} a '*' marks another '*'. Leave one out.",
                token="*",
                kind="syntax",
            )
        found.add(neighbour.GetIdx())
    return found


def _refuse_closed_fragments(molecule: "Chem.Mol", open_atoms: set[int], text: str) -> None:
    """Refuse fragments without an open atom, because the rest of the molecule could not join them."""
    fragments = Chem.GetMolFrags(molecule)
    if not open_atoms:
        return
    for number, fragment in enumerate(fragments, 1):
        if not open_atoms & set(fragment):
            raise InputError(
                f"fragment {number} of the scaffold {text} has no '*', so that nothing could be joined "
                "to it. Mark an atom of every fragment, or none at all.",
                token="*",
                kind="missing",
            )
