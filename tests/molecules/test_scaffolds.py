"""Scaffolds: what they fix, what they leave open, and what is wrong with some."""

import pytest
import torch
from rdkit import Chem

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.molecules.chemistry import BOND, BONDS, atoms_of, decode, encode, space_for
from nmln.molecules.chemistry.scaffold import Scaffold, parse_scaffold
from nmln.molecules.scaffolds import scaffold_evidence
from nmln.space import Space

ATOMS = ("C", "N", "O", "N+", "O-")


def bonds(space: Space, world: torch.Tensor) -> dict[tuple[int, int], str]:
    _, nodes = atoms_of(space)
    table, block = space.table(BOND), space.block(BOND)
    values = world[block.groups].tolist()
    return {
        (i, j): BONDS[values[table[i, j]]] for i in range(nodes) for j in range(nodes) if i != j
    }


def uniform(evidence: Evidence, count: int = 300) -> torch.Tensor:
    """Random worlds that agree with evidence."""
    rng = torch.Generator().manual_seed(0)
    groups = torch.arange(evidence.space.groups).expand(count, -1)
    share = torch.rand(groups.shape, generator=rng, dtype=torch.float64)
    ranks = (share * evidence.counts).long()
    return evidence.choices(groups, ranks).to(evidence.space.dtype)


def test_a_star_opens_its_atom_and_no_other() -> None:
    space = space_for(ATOMS, 8)
    evidence = scaffold_evidence(space, "c1ccccc1*")
    for world in uniform(evidence):
        found = bonds(space, world)
        ring = sorted(found[i, (i + 1) % 6] for i in range(6))
        assert ring == ["double"] * 3 + ["single"] * 3
        assert all(found[i, j] == "none" for i in range(5) for j in (6, 7))
        assert [ATOMS[kind] for kind in world[:6].tolist()] == ["C"] * 6
    free = {evidence.space.group_name(g) for g in torch.nonzero(evidence.free).flatten().tolist()}
    assert free == {"atom(6)", "atom(7)", "bond(5, 6)", "bond(5, 7)", "bond(6, 7)"}


def test_without_a_star_every_atom_is_open() -> None:
    space = space_for(ATOMS, 4)
    evidence = scaffold_evidence(space, "CO")
    free = {space.group_name(g) for g in torch.nonzero(evidence.free).flatten().tolist()}
    within = {"atom(0)", "atom(1)", "bond(0, 1)"}
    assert free == {space.group_name(g) for g in range(space.groups)} - within


@pytest.mark.parametrize(
    ("scaffold", "molecule"),
    [
        ("*c1ccccc1", "Cc1ccccc1"),
        ("*c1cc[nH]c1", "Cc1cc[nH]c1"),
        ("n1(*)cccc1", "CCn1cccc1"),
        ("O=C(*)O", "CC(=O)O"),
        ("[O-][N+](=O)*", "C[N+](=O)[O-]"),
        ("[*:1]C#N", "CC#N"),
    ],
)
def test_a_molecule_that_contains_the_scaffold_agrees_with_it(scaffold: str, molecule: str) -> None:
    """Some order of its atoms and some Kekulé form does, and no molecule without it does."""
    given = Chem.MolFromSmiles(molecule)
    space = space_for(ATOMS, given.GetNumAtoms())
    evidence = scaffold_evidence(space, scaffold)
    query = Chem.MolFromSmarts(scaffold)
    real = [a.GetIdx() for a in query.GetAtoms() if a.GetAtomicNum()]
    agreeing = []
    for match in given.GetSubstructMatches(query, uniquify=False):
        first = [match[i] for i in real]
        order = first + [i for i in range(given.GetNumAtoms()) if i not in first]
        renumbered = Chem.RenumberAtoms(given, order)
        forms = Chem.ResonanceMolSupplier(renumbered, Chem.KEKULE_ALL)
        agreeing += [bool(evidence.allows(world_of(space, form))) for form in forms]
    assert any(agreeing)
    assert not evidence.allows(encode(space, "C" * given.GetNumAtoms()))


def world_of(space: Space, molecule: Chem.Mol) -> torch.Tensor:
    """The world with the atoms in the order and the bonds in the form that a molecule has."""
    plain = Chem.Mol(molecule)
    Chem.Kekulize(plain, clearAromaticFlags=True)
    world = torch.zeros(space.groups, dtype=space.dtype)
    for atom in plain.GetAtoms():
        charge = {1: "+", -1: "-", 0: ""}[atom.GetFormalCharge()]
        world[atom.GetIdx()] = ATOMS.index(atom.GetSymbol() + charge)
    first = space.block(BOND).first_group
    for bond in plain.GetBonds():
        group = space.table(BOND)[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()]
        world[first + group] = int(bond.GetBondTypeAsDouble())
    return world


def test_the_scaffold_is_in_every_valid_molecule() -> None:
    space = space_for(ATOMS, 5)
    query = Chem.MolFromSmarts("C(=O)[#7]")
    found = 0
    for world in uniform(scaffold_evidence(space, "C(=O)N*"), 3000):
        answer = decode(space, world)
        if answer.smiles:
            found += 1
            assert Chem.MolFromSmiles(answer.smiles).HasSubstructMatch(query)
    assert found > 30


def test_fragments_are_not_bonded_to_each_other() -> None:
    space = space_for(ATOMS, 5)
    evidence = scaffold_evidence(space, "CC.O")
    assert all(bonds(space, world)[1, 2] == "none" for world in uniform(evidence))
    assert parse_scaffold("CC.O").open == (0, 1, 2)
    assert parse_scaffold("CC*.O*").open == (1, 2)


@pytest.mark.parametrize(
    ("scaffold", "message"),
    [
        ("c1ccccc1", "fewer atoms .* 6, got 6"),
        ("CC(Cl)*", r"the atom Cl, but this model has only C, N, O, N\+, O-\. Use one of these\.$"),
        ("C[O+](C)*", r"the atom O\+, but this model has only .*, O-\. Use one of these\.$"),
        ("CC(", "cannot be read as SMILES"),
        ("C(C)(C)(C)(C)C", "cannot be read as SMILES"),
        ("", "has no atom"),
        ("C*.O", "fragment 2 of the scaffold"),
        ("C=*", "the bond that takes its place can be of any order"),
        ("C*C", "it only marks the one atom before it"),
        ("*", "alone"),
        ("**", r"marks another '\*'"),
        ("[13CH3]*", "an isotope"),
        ("C->[Zn]", "a bond of the kind DATIVE"),
    ],
)
def test_a_scaffold_that_cannot_be_is_refused(scaffold: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scaffold_evidence(space_for(ATOMS, 6), scaffold)


def test_a_known_atom_in_other_letters_is_proposed() -> None:
    given = Scaffold("Cl*", ("cl",), (), (0,))
    with pytest.raises(InputError, match=r"has only C, Cl\. Did you mean Cl\?$"):
        scaffold_evidence(space_for(("C", "Cl"), 4), given)
