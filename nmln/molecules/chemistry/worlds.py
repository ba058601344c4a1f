"""SMILES to worlds and back.

A molecule of n heavy atoms is a world over n nodes: `atom` says element and charge of a node, `bond`
whether a pair has a single, double or triple bond or none. Molecules are kekulised, hydrogens are
implicit, stereochemistry is removed.

A world is *valid* if it is connected and RDKit sanitises it without changing a formal charge. Every
node carries as many implicit hydrogens as RDKit's valence model gives it; what would still be a
radical is not valid. A molecule that this would not give back (a radical, an unusual number of
hydrogens) is refused when it is read: every encoded molecule decodes to its own canonical SMILES.

Canonical SMILES differ between versions of RDKit. Compare only those of the same version: sets of
molecules are canonicalised when they are read, never trusted as written in a file.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.extras import later
from nmln.language import NONE, Attribute, Language
from nmln.molecules.chemistry.tables import atomic_numbers, bond_categories, bond_types
from nmln.space import Space
from nmln.worlds import World

if TYPE_CHECKING:
    from rdkit import Chem, rdBase
else:
    Chem = later("rdkit.Chem")
    rdBase = later("rdkit.rdBase")

NODE, ATOM, BOND = "node", "atom", "bond"
BONDS = (NONE, "single", "double", "triple")

Status = Literal["valid", "normalised", "disconnected", "invalid"]
STATUSES: tuple[Status, ...] = get_args(Status)

PARCEL = 1024  # worlds or lines handled at a time, here or by a worker
FRAGMENTS = "several fragments"  # the reason by which texts of disconnected molecules are refused
NORMALISED = "another charge"  # the reason by which worlds that RDKit rewrites are refused
LONGEST = 4000  # characters of a SMILES; RDKit was seen to crash on those of 20,000 atoms
_SHOWN = 80  # of them, in a message


# The language of molecules.


def space_for(atoms: Sequence[str], nodes: int) -> Space:
    """The space of molecules with exactly `nodes` heavy atoms of these kinds.

    An atom is named by element and charge: `C`, `N+`, `O-`, `Fe+2`. Their order is kept.
    """
    for name in atoms:
        _element(name)
    if nodes < 1:
        raise InputError(f"a molecule must have at least one heavy atom, got {nodes}.")
    return Space(
        Language(
            Attribute(ATOM, (NODE,), tuple(atoms)),
            Attribute(BOND, (NODE, NODE), BONDS, symmetric=True, reflexive=False),
        ),
        {NODE: nodes},
    )


def order_atoms(atoms: Iterable[str]) -> tuple[str, ...]:
    """Each name once, by atomic number, the neutral atom of an element first."""

    def key(name: str) -> tuple[int, bool, int]:
        symbol, charge = _element(name)
        return atomic_numbers()[symbol], charge != 0, charge

    return tuple(sorted(set(atoms), key=key))


@cache
def _element(name: str) -> tuple[str, int]:
    """The element and the charge behind the name of an atom."""
    found = re.fullmatch(r"([A-Z][a-z]?)(?:([+-])([2-9]|[1-9]\d+)?)?", name)
    if not found or found[1] not in atomic_numbers():
        raise InputError(
            f"atoms are named by element and charge, such as C, N+, O- or Fe+2 (hydrogens are "
            f"implicit), but one is named {name!r}. Rename it.",
            token=name,
            kind="unknown",
        )
    sign = {"+": 1, "-": -1, None: 0}[found[2]]
    return found[1], sign * int(found[3] or 1)


@cache
def _atom_name(symbol: str, charge: int) -> str:
    sign = "" if not charge else "+" if charge > 0 else "-"
    return symbol + sign + (str(abs(charge)) if abs(charge) > 1 else "")


def atoms_of(space: Space) -> tuple[tuple[str, ...], int]:
    """The kinds of atoms and the number of nodes of a space of molecules."""
    if ATOM in space.language:
        atoms, nodes = space.language[ATOM].values, len(space.domain.get(NODE, ()))
        if nodes and space.language == space_for(atoms, nodes).language:
            return atoms, nodes
    raise InputError(
        "this is not a space of molecules: it must have the attributes atom(node) and "
        f"bond(node, node), but has {', '.join(a.name for a in space.language)}. "
        "Make it with space_for(atoms, nodes).",
        kind="unsupported",
    )


def rdkit_version() -> str:
    """The version of RDKit, on which molecules and their canonical SMILES may depend."""
    return rdBase.rdkitVersion


# From SMILES to worlds.


@dataclass(frozen=True, slots=True)
class Molecule:
    """A kekulised molecule without stereochemistry, known to decode to `smiles`.

    `bonds` holds one category (a position in `BONDS`) for every pair i < j, in row-major order.
    """

    atoms: tuple[str, ...]
    bonds: bytes
    smiles: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a text has no world: a `reason` to count by, and the sentence for this text."""

    reason: str
    detail: str


@dataclass(frozen=True)
class Encoded:
    """The worlds of those molecules that fit, with their canonical SMILES and where they stood.

    `refused` names the positions of all others and why: nothing is dropped silently.
    """

    worlds: Integer[Tensor, "worlds groups"]
    smiles: tuple[str, ...]
    positions: tuple[int, ...]
    refused: tuple[tuple[int, Refusal], ...]


def parse(smiles: str) -> Molecule:
    """Read one SMILES; what follows white space is taken for a name and ignored."""
    (found,) = parse_all([smiles])
    if isinstance(found, Refusal):
        raise InputError(found.detail, token=smiles, kind="unsupported")
    return found


def parse_all(smiles: Sequence[str], processes: int = 1) -> list[Molecule | Refusal]:
    """Read many SMILES, in order; a text that is not a single plain molecule gives a refusal.

    With several `processes` the work is divided among them if there is enough of it (see
    `start_workers`).
    """
    parcels = [smiles[start : start + PARCEL] for start in range(0, len(smiles), PARCEL)]
    if processes == 1 or len(parcels) < 4 * processes:
        return [found for parcel in parcels for found in _parse_parcel(parcel)]
    with start_workers(processes) as workers:
        return [found for part in workers.map(_parse_parcel, parcels) for found in part]


def encode(space: Space, molecule: Molecule | str) -> World:
    """The world of one molecule; an `InputError` says why it has none in this space."""
    encoded = encode_all(space, [molecule])
    if encoded.refused:
        raise InputError(encoded.refused[0][1].detail, kind="unsupported")
    return encoded.worlds[0]


def encode_all(space: Space, molecules: Iterable[Molecule | str]) -> Encoded:
    """The worlds of all molecules that have one in this space, and why the others have none."""
    atoms, nodes = atoms_of(space)
    codes = {name: code for code, name in enumerate(atoms)}
    given = list(molecules)
    parsed = iter(parse_all([text for text in given if isinstance(text, str)]))
    worlds = torch.zeros(len(given), space.groups, dtype=space.dtype)
    rows = worlds.numpy()
    kept: list[tuple[int, str]] = []
    refused: list[tuple[int, Refusal]] = []
    for position, molecule in enumerate(given):
        found = next(parsed) if isinstance(molecule, str) else molecule
        if isinstance(found, Molecule):
            found = _refuse_misfit(found, codes, nodes) or found
        if isinstance(found, Refusal):
            refused.append((position, found))
            continue
        rows[len(kept), :nodes] = [codes[name] for name in found.atoms]
        rows[len(kept), nodes:] = np.frombuffer(found.bonds, dtype=np.uint8)
        kept.append((position, found.smiles))
    return Encoded(
        worlds[: len(kept)].clone(),
        tuple(smiles for _, smiles in kept),
        tuple(position for position, _ in kept),
        tuple(refused),
    )


def _refuse_misfit(molecule: Molecule, codes: dict[str, int], nodes: int) -> Refusal | None:
    if (size := len(molecule.atoms)) != nodes:
        return Refusal(
            "another size",
            f"{molecule.smiles} has {size} heavy atoms, but worlds here have {nodes} nodes.",
        )
    for name in molecule.atoms:
        if name not in codes:
            return Refusal(
                f"atom {name} is not in the language",
                f"{molecule.smiles} has the atom {name}, but this language has only "
                f"{', '.join(codes)}. Add {name}, or leave the molecule out.",
            )
    return None


def _parse_parcel(texts: Sequence[str]) -> list[Molecule | Refusal]:
    with rdBase.BlockLogs():
        return [_parse(text) for text in texts]


def _parse(text: str) -> Molecule | Refusal:
    smiles = (text.split() or [""])[0]
    if refusal := refuse_text(smiles):
        return refusal
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        return _explain_failure(smiles)
    if refusal := _refuse_kind(molecule, smiles):
        return refusal
    Chem.RemoveStereochemistry(molecule)
    names = []
    for atom in molecule.GetAtoms():
        atom.SetAtomMapNum(0)  # a label of the writer's, not chemistry
        names.append(_atom_name(atom.GetSymbol(), atom.GetFormalCharge()))
    canonical = Chem.MolToSmiles(molecule)
    if not kekulised(molecule):
        return Refusal(
            "aromatic bonds without double bonds",
            f"{smiles} has aromatic bonds that single and double ones cannot take the place of.",
        )
    nodes, categories = len(names), bond_categories()
    pairs = [
        (*sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())), categories[bond.GetBondType()])
        for bond in molecule.GetBonds()
    ]
    decoded = _decode_graph(names, pairs)
    if decoded.smiles != canonical:
        return Refusal(
            "hydrogens that the bonds do not imply",
            f"{smiles} has other hydrogens than its atoms and bonds imply: they give "
            f"{decoded.smiles or 'no molecule'}.",
        )
    bonds = bytearray(nodes * (nodes - 1) // 2)
    for i, j, category in pairs:
        bonds[i * nodes - i * (i + 1) // 2 + j - i - 1] = category
    return Molecule(tuple(names), bytes(bonds), canonical)


def refuse_text(smiles: str) -> Refusal | None:
    """Refuse texts that must not be given to RDKit."""
    if len(smiles) > LONGEST:
        return Refusal(
            "too long to be a molecule",
            f"{smiles[:_SHOWN]}... has {len(smiles):,} characters, more than {LONGEST:,}.",
        )
    if not smiles.isascii():
        return Refusal("not SMILES", f"{smiles[:_SHOWN]!a} cannot be read as SMILES.")
    return None


def kekulised(molecule: "Chem.Mol") -> bool:
    """Write a molecule with single and double bonds, in place; False if that is not possible."""
    try:
        Chem.Kekulize(molecule, clearAromaticFlags=True)
    except Chem.KekulizeException:
        return False
    return all(bond.GetBondType() != Chem.BondType.AROMATIC for bond in molecule.GetBonds())


def _explain_failure(smiles: str) -> Refusal:
    raw = Chem.MolFromSmiles(smiles, sanitize=False)
    if raw is None:
        return Refusal("not SMILES", f"{smiles!r} cannot be read as SMILES.")
    problems = [problem.Message() for problem in Chem.DetectChemistryProblems(raw)]
    return Refusal(
        "impossible by its valences",
        f"{smiles} is not a possible molecule: {'; '.join(problems) or 'RDKit refuses it'}.",
    )


def _refuse_kind(molecule: "Chem.Mol", smiles: str) -> Refusal | None:
    """Refuse molecules that the language of worlds cannot express."""
    if not molecule.GetNumAtoms():
        return Refusal("not SMILES", f"{smiles!r} has no atoms.")
    for atom in molecule.GetAtoms():
        if atom.GetIsotope():
            return Refusal("isotope label", f"{smiles} has an isotope label. Take it off.")
        if not atom.GetAtomicNum():
            return Refusal("wildcard atom", f"{smiles} has a wildcard instead of an element.")
        if atom.GetAtomicNum() == 1:
            return Refusal(
                "hydrogen that cannot be implicit",
                f"{smiles} has a hydrogen atom that cannot be left implicit.",
            )
        if atom.GetNumRadicalElectrons():
            return Refusal("radical", f"{smiles} has an unpaired electron.")
    pieces = len(Chem.GetMolFrags(molecule))
    if pieces > 1:
        return Refusal(FRAGMENTS, f"{smiles} has {pieces} fragments; a world is one.")
    for bond in molecule.GetBonds():
        kind = bond.GetBondType()
        if kind not in bond_categories() and kind != Chem.BondType.AROMATIC:
            return Refusal("bond of another kind", f"{smiles} has a bond of the kind {kind.name}.")
    return None


# From worlds to SMILES.


@dataclass(frozen=True, slots=True)
class Decoded:
    """A world as a molecule; `smiles` is its canonical SMILES if it is valid, else None.

    `disconnected` is decided first. A connected world is `invalid` if RDKit refuses it (too many bonds
    at an atom) or reads it as a radical. It is `normalised` if RDKit rewrites a formal charge, such as
    that of a nitro group with two double bonds, or makes a bond dative: the SMILES is then that of
    another world. A valid world's SMILES is read back as the same molecule.
    """

    status: Status
    smiles: str | None = None


_NORMALISED, _DISCONNECTED, _INVALID = map(Decoded, STATUSES[1:])


def decode(space: Space, world: World) -> Decoded:
    """One world as a molecule; for many, `nmln.molecules.decoding.Decoder` is faster."""
    atoms, nodes = atoms_of(space)
    return decode_rows(atoms, nodes, world.detach().cpu()[None].numpy())[0]


def start_workers(processes: int) -> ProcessPoolExecutor:
    """Fresh processes with one compute thread each.

    Each imports the package, which takes seconds: this pays for tens of thousands of molecules, and
    only where cores are idle. A script that uses them must guard its own start with
    `if __name__ == "__main__":`.
    """
    workers = ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,))
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return workers
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:  # Ctrl-C is for the process that starts them: what is blocked now, they never get
        for _ in range(processes):
            workers.submit(int)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return workers


def decode_rows(
    atoms: Sequence[str], nodes: int, rows: Integer[np.ndarray, "worlds groups"]
) -> list[Decoded]:
    """The molecule of each row of categories: first those of the nodes, then those of the pairs."""
    firsts, seconds = (places.tolist() for places in np.triu_indices(nodes, 1))
    connected = _connected(rows[:, nodes:] > 0, nodes).tolist()
    listed: list[list[int]] = rows.tolist()
    answers = []
    with rdBase.BlockLogs():
        for row, joined in zip(listed, connected, strict=True):
            if not joined:
                answers.append(_DISCONNECTED)
                continue
            pairs = [p for p in zip(firsts, seconds, row[nodes:], strict=True) if p[2]]
            answers.append(_decode_graph([atoms[kind] for kind in row[:nodes]], pairs))
    return answers


def _connected(bonded: Bool[np.ndarray, "worlds pairs"], nodes: int) -> Bool[np.ndarray, " worlds"]:
    """Whether each world is connected, for all worlds at once."""
    adjacent = np.zeros((len(bonded), nodes, nodes), dtype=bool)
    firsts, seconds = np.triu_indices(nodes, 1)
    adjacent[:, firsts, seconds] = adjacent[:, seconds, firsts] = bonded
    reached = np.zeros((len(bonded), nodes), dtype=bool)
    reached[:, 0] = True
    for _ in range(nodes - 1):
        reached |= (adjacent & reached[:, :, None]).any(1)
    return np.all(reached, axis=1)


@cache
def _prototype(name: str) -> "Chem.Atom":
    """An atom that RDKit fills up with implicit hydrogens; molecules take copies of it."""
    symbol, charge = _element(name)
    atom = Chem.Atom(symbol)
    atom.SetFormalCharge(charge)
    return atom


def _decode_graph(atoms: Sequence[str], pairs: Iterable[Sequence[int]]) -> Decoded:
    """The molecule of a connected graph, given its atoms and its bonds as (node, node, category)."""
    molecule, types = Chem.RWMol(), bond_types()
    for name in atoms:
        molecule.AddAtom(_prototype(name))
    for i, j, category in pairs:
        molecule.AddBond(i, j, types[category - 1])
    if Chem.SanitizeMol(molecule, catchErrors=True) != Chem.SanitizeFlags.SANITIZE_NONE:
        return _INVALID
    charges = [atom.GetFormalCharge() for atom in molecule.GetAtoms()]
    if charges != [_element(name)[1] for name in atoms]:
        return _NORMALISED
    smiles = Chem.MolToSmiles(molecule)
    if "->" in smiles or "<-" in smiles:  # a bond to a metal made dative
        return _NORMALISED
    return _read_again(smiles, charges) if "[" in smiles else Decoded("valid", smiles)


def _read_again(smiles: str, charges: list[int]) -> Decoded:
    """Accept a SMILES with brackets only if RDKit reads it back as the same molecule.

    Brackets state hydrogens, which the first pass does not check: O=[IH] is read as [O-][IH+], and an
    atom with fewer hydrogens than its valence (Sn in C[SnH]) as a radical.
    """
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or any(atom.GetNumRadicalElectrons() for atom in molecule.GetAtoms()):
        return _INVALID
    if sorted(charges) != sorted(atom.GetFormalCharge() for atom in molecule.GetAtoms()):
        return _NORMALISED
    return Decoded("valid", smiles)
