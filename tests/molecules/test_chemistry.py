from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.language import Language, predicate
from nmln.logic import GroundAtom
from nmln.molecules import decoding
from nmln.molecules.chemistry import (
    Decoded,
    Molecule,
    Refusal,
    decode,
    encode,
    encode_all,
    order_atoms,
    parse,
    parse_all,
    space_for,
)
from nmln.molecules.chemistry import worlds as chemistry
from nmln.molecules.datasets import load
from nmln.molecules.decoding import Decoder
from nmln.space import Space
from nmln.worlds import World, from_atoms, true_atoms
from tests.strategies import random_worlds

PUBCHEM = load("pubchem-9")
SYMBOLS = {1: "single", 2: "double", 3: "triple"}


def world_of(space: Space, atoms: str, *bonds: tuple[int, int, int]) -> World:
    """A world written down by hand: atoms separated by spaces, bonds as (node, node, order)."""
    stated = [GroundAtom("atom", (str(node), name)) for node, name in enumerate(atoms.split())]
    stated += [GroundAtom("bond", (str(i), str(j), SYMBOLS[order])) for i, j, order in bonds]
    return from_atoms(space, stated)


def decode_by_hand(kinds: str, atoms: str, *bonds: tuple[int, int, int]) -> Decoded:
    space = space_for(kinds.split(), len(atoms.split()))
    return decode(space, world_of(space, atoms, *bonds))


# The language.


def test_atoms_are_groups_of_elements_with_charges_and_bonds_are_symmetric_pairs() -> None:
    space = space_for(("C", "N+", "O-"), 4)
    assert space.language["atom"].categories == ("C", "N+", "O-")
    assert space.language["bond"].categories == ("none", "single", "double", "triple")
    assert space.groups == 4 + 6


def test_atoms_are_ordered_by_element_with_the_neutral_one_first() -> None:
    assert order_atoms(["O-", "N+", "Br", "C", "N-", "O", "N", "C"]) == (
        "C", "N", "N-", "N+", "O", "O-", "Br",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["H", "c", "Xx", "N+1", "N++", "+", ""])
def test_a_name_that_is_no_atom_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="named by element and charge"):
        space_for(("C", name), 2)


def test_a_space_of_something_else_is_refused() -> None:
    space = Space(Language(predicate("smokes", "node")), {"node": 3})
    with pytest.raises(InputError, match="not a space of molecules"):
        Decoder(space)


# Round trips.


def test_an_encoded_molecule_says_what_it_is_in_ground_atoms() -> None:
    space = space_for(("C", "O"), 3)
    assert list(map(str, true_atoms(space, encode(space, "CC=O ethanal"), skip_null=True))) == [
        "atom(0, C)", "atom(1, C)", "atom(2, O)", "bond(0, 1, single)", "bond(1, 2, double)",
    ]  # fmt: skip


def test_every_built_in_molecule_comes_back_as_its_canonical_smiles() -> None:
    for molecules in (PUBCHEM, load("pubchem-10")):
        answers = Decoder(molecules.space).decode(molecules.worlds)
        assert [answer.smiles for answer in answers] == list(molecules.smiles)


@given(st.integers(0, len(PUBCHEM) - 1), st.permutations(range(9)))
def test_relabelling_the_nodes_changes_nothing(index: int, permutation: list[int]) -> None:
    moved = PUBCHEM.space.relabel(PUBCHEM.worlds[index], {"node": permutation})
    assert decode(PUBCHEM.space, moved) == Decoded("valid", PUBCHEM.smiles[index])


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("C1=CC=CC=C1O", "Oc1ccccc1"),
        ("N[C@@H](C)C(=O)O", "CC(N)C(=O)O"),
        ("C/C=C/C", "CC=CC"),
        ("[H]C([H])([H])[H]", "C"),
        ("[CH3:1][CH2:2][OH:3]", "CCO"),
        ("c1cc[nH]c1", "c1cc[nH]c1"),
        ("CN(=O)=O", "C[N+](=O)[O-]"),
        ("C[N+](C)(C)CC([O-])=O", "C[N+](C)(C)CC(=O)[O-]"),
        ("O=S(=O)(O)O", "O=S(=O)(O)O"),
        ("[C-]#[O+]", "[C-]#[O+]"),
    ],
)
def test_spellings_of_a_molecule_have_one_world_up_to_names(written: str, canonical: str) -> None:
    molecule = parse(written)
    assert molecule.smiles == canonical
    space = space_for(order_atoms(molecule.atoms), len(molecule.atoms))
    assert decode(space, encode(space, written)) == Decoded("valid", canonical)


def test_both_kekule_structures_of_an_aromatic_ring_have_the_same_smiles() -> None:
    space = space_for(("C", "F", "Cl"), 8)
    ring = [(i, (i + 1) % 6) for i in range(6)]
    tails = ((0, 6, 1), (1, 7, 1))
    names = set()
    for shift in (0, 1):
        bonds = [(i, j, 1 + (i + shift) % 2) for i, j in ring]
        names.add(decode(space, world_of(space, "C C C C C C F Cl", *bonds, *tails)))
    assert names == {Decoded("valid", "Fc1ccccc1Cl")}


# Statuses.


def test_a_possible_connected_world_is_valid() -> None:
    assert decode_by_hand("C O", "C C O", (0, 1, 1), (1, 2, 1)) == Decoded("valid", "CCO")


def test_one_atom_is_a_molecule() -> None:
    assert decode_by_hand("C O", "O") == Decoded("valid", "O")


def test_two_pieces_are_disconnected_even_if_one_is_impossible() -> None:
    assert decode_by_hand("C O", "C C O", (0, 1, 1)) == Decoded("disconnected")
    assert decode_by_hand("C F", "C F F", (1, 2, 3)) == Decoded("disconnected")


def test_too_many_bonds_are_invalid() -> None:
    assert decode_by_hand("O", "O O", (0, 1, 3)) == Decoded("invalid")
    star = [(0, node, 1) for node in range(1, 6)]
    assert decode_by_hand("C", "C C C C C C", *star) == Decoded("invalid")


def test_a_nitro_group_is_valid_with_charges_and_normalised_without() -> None:
    kinds = "C N N+ O O-"
    charged = decode_by_hand(kinds, "C N+ O O-", (0, 1, 1), (1, 2, 2), (1, 3, 1))
    assert charged == Decoded("valid", "C[N+](=O)[O-]")
    neutral = [(0, 1, 1), (1, 2, 2), (1, 3, 2)]
    assert decode_by_hand(kinds, "C N O O", *neutral) == Decoded("normalised")
    assert decode_by_hand("C N O", "C N O O", *neutral) == Decoded("normalised")


def test_a_bond_that_rdkit_makes_dative_is_normalised() -> None:
    space = space_for(("C", "N", "Pt"), 5)
    world = world_of(space, "N C C C Pt", (0, 1, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1))
    assert decode(space, world) == Decoded("normalised")


def test_charges_open_and_close_valences() -> None:
    square = [(0, node, 1) for node in range(1, 5)]
    assert decode_by_hand("C N N+", "N+ C C C C", *square) == Decoded("valid", "C[N+](C)(C)C")
    assert decode_by_hand("C N N+", "N C C C C", *square) == Decoded("invalid")
    assert decode_by_hand("C O-", "C O-", (0, 1, 1)) == Decoded("valid", "C[O-]")
    assert decode_by_hand("C O-", "C O-", (0, 1, 2)) == Decoded("invalid")


def test_a_world_that_is_read_back_as_another_is_not_valid() -> None:
    assert decode_by_hand("O I", "O I", (0, 1, 2)) == Decoded("normalised")  # read as [O-][IH+]
    assert decode_by_hand("C Sn", "C Sn", (0, 1, 1)) == Decoded("invalid")  # read as a radical


def test_all_small_worlds_agree_with_a_table_of_valences() -> None:
    valences = {"C": 4, "N": 3, "O": 2, "F": 1}
    space = space_for(tuple(valences), 3)
    allowed = torch.tensor(list(valences.values()))
    worlds = space.enumerate().long()
    first, second, third = worlds[:, 3:].unbind(1)  # the pairs (0, 1), (0, 2), (1, 2)
    used = torch.stack([first + second, first + third, second + third], 1)
    connected = (worlds[:, 3:] > 0).sum(1) >= 2
    possible = (used <= allowed[worlds[:, :3]]).all(1)
    for answer, joined, fits in zip(
        Decoder(space).decode(worlds), connected.tolist(), possible.tolist(), strict=True
    ):
        assert (answer.status == "disconnected") == (not joined)
        assert (answer.status == "valid") == (joined and fits)
        assert (answer.smiles is not None) == (answer.status == "valid")


def test_what_is_valid_is_read_back_as_the_same_molecule() -> None:
    kinds = "B B- C C- C+ N N- N+ O O- O+ F Na Al Si P P+ S S- S+ Cl As Se Br Sn I I+"
    space = space_for(kinds.split(), 2)
    decoder = Decoder(space)
    smiles = {answer.smiles for answer in decoder.decode(space.enumerate()) if answer.smiles}
    again = parse_all(sorted(smiles))
    assert [getattr(molecule, "smiles", molecule) for molecule in again] == sorted(smiles)
    assert len(smiles) > 300
    assert decoder.counts["normalised"] == 2  # iodosyl, both ways round


# Refusals.


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C1CC", "not SMILES"),
        ("", "not SMILES"),
        ("hello", "not SMILES"),
        ("C(C)(C)(C)(C)C", "impossible by its valences"),
        ("c1cccc1", "impossible by its valences"),
        ("CC.O", "several fragments"),
        ("[13CH4]", "isotope label"),
        ("C[CH2]", "radical"),
        ("[O-][N+]=O", "radical"),
        ("C*", "wildcard atom"),
        ("[H][H]", "hydrogen that cannot be implicit"),
        ("C->[Fe]", "bond of another kind"),
        ("[PH5]", "hydrogens that the bonds do not imply"),
        ("C:C", "aromatic bonds without double bonds"),
        ("Cn1=C(C)C(=[C@H]O)C=CC1=O", "aromatic bonds without double bonds"),
        ("C" * 20_000, "too long to be a molecule"),
        ("CC\xd6", "not SMILES"),
        ("CC\udcff", "not SMILES"),
    ],
    ids=lambda text: ascii(text)[1:30],
)
def test_what_is_no_single_plain_molecule_is_refused_with_a_reason(
    smiles: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (refusal,) = parse_all([smiles])
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    with pytest.raises(InputError) as caught:
        parse(smiles)
    assert str(caught.value) == refusal.detail
    assert capfd.readouterr() == ("", "")  # RDKit keeps quiet


def test_what_does_not_fit_the_space_is_refused_and_the_rest_is_kept() -> None:
    space = space_for(("C", "O"), 3)
    encoded = encode_all(space, ["CCO", "CCC=O", "CCBr", "C1CC", parse("OCC")])
    assert encoded.smiles == ("CCO", "CCO")
    assert encoded.positions == (0, 4)
    assert encoded.worlds.shape == (2, space.groups)
    assert [(position, refusal.reason) for position, refusal in encoded.refused] == [
        (1, "another size"), (2, "atom Br is not in the language"), (3, "not SMILES"),
    ]  # fmt: skip
    with pytest.raises(InputError, match="has the atom Br, but this language has only C, O"):
        encode(space, "CCBr")
    with pytest.raises(InputError, match="has 4 heavy atoms, but worlds here have 3 nodes"):
        encode(space, "CCC=O")


# Many worlds.


def noisy_worlds(count: int) -> tuple[Space, World]:
    """Molecules of the data with a few groups redrawn: a mixture of all statuses."""
    rng = torch.Generator().manual_seed(1)
    rows = PUBCHEM.worlds[torch.randint(len(PUBCHEM), (count,), generator=rng)]
    redrawn = torch.rand(rows.shape, generator=rng) < 0.02
    return PUBCHEM.space, torch.where(redrawn, random_worlds(PUBCHEM.space, count), rows)


def test_a_decoder_answers_as_one_world_at_a_time_would() -> None:
    space, worlds = noisy_worlds(400)
    decoder = Decoder(space)
    answers = decoder.decode(worlds.view(20, 20, -1))
    assert answers == [decode(space, world) for world in worlds]
    assert decoder.counts == Counter(answer.status for answer in answers)
    assert len({answer.status for answer in answers}) >= 3


def test_a_decoder_asks_rdkit_once_for_each_world(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def count(atoms: tuple[str, ...], nodes: int, rows: np.ndarray) -> list[Decoded]:
        asked.append(len(rows))
        return chemistry.decode_rows(atoms, nodes, rows)

    monkeypatch.setattr(decoding, "decode_rows", count)
    decoder = Decoder(PUBCHEM.space)
    twice = PUBCHEM.worlds[:50].repeat(2, 1)
    parts = [part for batch in decoder.stream(twice.split(30)) for part in batch]
    assert sum(asked) == 50 == len(decoder)
    assert [part.smiles for part in parts] == list(PUBCHEM.smiles[:50]) * 2
    assert decoder.counts["valid"] == 100
    assert decoder.decode(PUBCHEM.worlds[:50].long()) == parts[:50]
    assert sum(asked) == 50


def test_a_bounded_memory_keeps_the_recently_used_and_forgets_no_answer() -> None:
    decoder = Decoder(PUBCHEM.space, most=3)
    a, b = PUBCHEM.worlds[:2]
    decoder.decode(PUBCHEM.worlds[:3])
    decoder.decode(a)
    decoder.decode(PUBCHEM.worlds[3])
    assert len(decoder) == 3
    assert decoder.space.pack(a).numpy().tobytes() in decoder._seen
    assert decoder.space.pack(b).numpy().tobytes() not in decoder._seen
    answers = decoder.decode(PUBCHEM.worlds[:20])
    assert [answer.smiles for answer in answers] == list(PUBCHEM.smiles[:20])
    assert len(decoder) == 3


def test_no_worlds_have_no_answers() -> None:
    assert Decoder(PUBCHEM.space).decode(PUBCHEM.worlds[:0]) == []


def test_several_processes_give_the_same_answers_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "PARCEL", 100)
    monkeypatch.setattr(chemistry, "PARCEL", 10)
    space, worlds = noisy_worlds(1000)
    with Decoder(space, processes=2) as decoder:
        assert decoder.decode(worlds) == Decoder(space).decode(worlds)
        assert decoder._workers is not None
        # The same workers can read, too.
        monkeypatch.setattr(chemistry, "start_workers", lambda _: decoder._workers)
        texts = [*PUBCHEM.smiles[:90], "C1CC"]
        assert parse_all(texts, processes=2) == parse_all(texts)
    assert isinstance(parse("C"), Molecule)


@pytest.mark.parametrize("arguments", [{"processes": 0}, {"most": -1}])
def test_a_decoder_without_room_or_processes_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(InputError, match="processes must be at least 1"):
        Decoder(PUBCHEM.space, **arguments)
