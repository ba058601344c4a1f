"""Counting the worlds of molecules, held against enumeration, and what follows for likelihoods."""

from collections import Counter
from itertools import combinations, permutations, product
from math import exp, factorial, log
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.language import NONE
from nmln.logic import Atom, Constant, WeightedFormula
from nmln.molecules.chemistry import BOND, decode_rows, parse, space_for
from nmln.molecules.chemistry.kekule import (
    Graph,
    Structure,
    automorphisms,
    isomorphic,
    kekule_structures,
)
from nmln.molecules.datasets import load
from nmln.molecules.decoding import Decoder
from nmln.molecules.likelihood import Structures, log_probabilities, molecule_log_likelihood
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space

FOUR = space_for(("C", "O"), 4)


def structures(smiles: str) -> tuple[Structure, ...]:
    return kekule_structures(parse(smiles))


def labelled(smiles: str) -> int:
    return sum(one.labelled for one in structures(smiles))


def random_model(space: Space, levels: int = 2) -> BasePotential:
    """A network with a base term, as training makes it, with scores that differ a good deal."""
    rng = torch.Generator().manual_seed(0)
    network = GraphPotential(space, levels, 1, 4, rng=rng).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    worlds = torch.stack(
        [torch.randint(int(size), (200,), generator=rng) for size in space.sizes], 1
    ).to(space.dtype)
    base = IndependentPotential.fit(space, worlds.expand(levels, -1, -1)).double()
    return TotalPotential([network]).add(base)


# Against all worlds of four atoms.


@pytest.fixture(scope="module")
def names_of_all_worlds() -> list[str | None]:
    """What each of the 65,536 worlds of four atoms decodes to."""
    return [answer.smiles for answer in Decoder(FOUR).decode(FOUR.enumerate())]


def test_every_molecule_of_four_atoms_has_as_many_worlds_as_are_counted(
    names_of_all_worlds: list[str | None],
) -> None:
    found = Counter(name for name in names_of_all_worlds if name is not None)
    assert len(names_of_all_worlds) == 65_536
    assert len(found) > 80
    assert {name: labelled(name) for name in found} == dict(found)


def test_the_summed_probabilities_of_all_worlds_are_those_of_the_formula(
    names_of_all_worlds: list[str | None],
) -> None:
    potential = random_model(FOUR)
    worlds = FOUR.enumerate()
    with torch.no_grad():
        scores = potential.score(worlds.expand(2, -1, -1))[-1]
    chances = scores.softmax(0).tolist()
    summed: dict[str, float] = {}
    for name, chance in zip(names_of_all_worlds, chances, strict=True):
        if name is not None:
            summed[name] = summed.get(name, 0.0) + chance
    names = sorted(summed)
    found = molecule_log_likelihood(potential, FOUR, names, float(scores.logsumexp(0)))
    wanted = torch.tensor([log(summed[name]) for name in names], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    assert wanted.std() > 0.3  # molecules that are alike would show little


# Rings: all numberings of all places of the double bonds.


def count_by_brute_force(smiles: str) -> int:
    """Number the molecule in all n! ways, and give every bond every order that the valences allow."""
    molecule = parse(smiles)
    nodes = len(molecule.atoms)
    pairs = list(combinations(range(nodes), 2))
    bonded = [pair for pair, bond in zip(pairs, molecule.bonds, strict=True) if bond]
    place = {pair: number for number, pair in enumerate(pairs)}
    drawn = []
    for orders in product((1, 2, 3), repeat=len(bonded)):
        valences = Counter[int]()
        for pair, order in zip(bonded, orders, strict=True):
            for node in pair:
                valences[node] += order
        if max(valences.values()) <= 4:
            drawn.append(orders)
    rows = np.zeros((len(drawn), nodes + len(pairs)), dtype=np.uint8)
    rows[:, :nodes] = np.arange(nodes)
    for row, orders in zip(rows, drawn, strict=True):
        row[[nodes + place[pair] for pair in bonded]] = orders
    answers = decode_rows(molecule.atoms, nodes, rows)
    worlds = set()
    for orders, answer in zip(drawn, answers, strict=True):
        if answer.smiles != molecule.smiles:
            continue
        for order in permutations(range(nodes)):
            atoms = [""] * nodes
            for node, name in enumerate(molecule.atoms):
                atoms[order[node]] = name
            moved = (tuple(sorted((order[i], order[j]))) for i, j in bonded)
            worlds.add((tuple(atoms), frozenset(zip(moved, orders, strict=True))))
    return len(worlds)


@pytest.mark.parametrize(
    ("smiles", "worlds"),
    [
        ("c1ccccc1", 120),  # 6! / 6, of one structure: its two drawings differ by a turn
        ("c1ccoc1", 60),
        ("c1ccsc1", 60),
        ("c1cc[nH]c1", 60),
        ("c1cc[cH-]c1", 60),
        ("c1ccncc1", 720),  # two drawings, mirror images
        ("c1c[nH]cn1", 120),
        ("c1cn[nH]n1", 60),
        ("c1ccpcc1", 720),
        ("c1ccccc#1", 360),
        ("C1=CCC=C1", 60),
        ("O=c1ccc1=O", 360),
    ],
)
def test_rings_have_as_many_worlds_as_brute_force_finds(smiles: str, worlds: int) -> None:
    assert parse(smiles).smiles == smiles
    assert labelled(smiles) == worlds == count_by_brute_force(smiles)


@pytest.mark.parametrize(
    ("smiles", "groups"),
    [
        ("c1ccc2ccccc2c1", [2, 4]),  # naphthalene: three drawings, two of them mirror images
        ("Cc1ccccc1C", [2, 2]),  # o-xylene: the bond between the methyls is single or double
        ("Cc1ccc(C)cc1", [2]),
        ("c1ccc2cccc-2cc1", [1]),  # azulene
        ("c1cc2ccc3cccc4ccc(c1)c2c34", [2, 2, 2]),  # pyrene: six drawings
        ("c1ccc2c3ccccc3c2c1", [2, 4, 4]),  # the fifth drawing of biphenylene has another SMILES
        ("CC(C)(C)C", [24]),
        ("FS(F)(F)(F)(F)F", [720]),
        ("C12C3C4C1C5C2C3C45", [48]),  # cubane
        ("FC(F)(F)C(C(F)(F)F)(C(F)(F)F)C(F)(F)F", [6**4 * 24]),
        ("C[N+](=O)[O-]", [1]),  # the charges are part of the world
        ("C", [1]),
    ],
)
def test_structures_and_their_symmetries_are_those_of_the_books(
    smiles: str, groups: list[int]
) -> None:
    assert sorted(one.automorphisms for one in structures(smiles)) == groups


def test_the_first_structure_is_the_world_that_was_given() -> None:
    molecule = parse("Oc1ccccc1O")
    first, second = kekule_structures(molecule)
    assert first.bonds == molecule.bonds != second.bonds


def test_no_other_bond_orders_on_the_same_skeleton_have_the_same_smiles() -> None:
    """The claim behind the matchings, on molecules from the data that are drawn in several ways."""
    names = [name for name in load("pubchem-9").smiles if "c" in name and "-" not in name]
    for name in names[::400]:
        molecule = parse(name)
        assert sorted(one.automorphisms for one in kekule_structures(molecule)) == sorted(
            automorphisms(graph) for graph in all_structures(name)
        )


def all_structures(smiles: str) -> list[Graph]:
    """The structures found by giving every bond of the skeleton every order within valence 6."""
    molecule = parse(smiles)
    nodes = len(molecule.atoms)
    pairs = list(combinations(range(nodes), 2))
    bonded = [place for place, bond in enumerate(molecule.bonds) if bond]
    most = {"C": 4, "N": 3, "O": 2, "P": 5, "S": 6}
    found: list[tuple[int, ...]] = []

    def extend(orders: tuple[int, ...], valences: tuple[int, ...]) -> None:
        if len(orders) == len(bonded):
            found.append(orders)
            return
        ends = pairs[bonded[len(orders)]]
        for order in (1, 2, 3):
            grown = tuple(v + order * (node in ends) for node, v in enumerate(valences))
            if all(grown[node] <= most.get(molecule.atoms[node], 1) for node in ends):
                extend((*orders, order), grown)

    extend((), (0,) * nodes)
    rows = np.zeros((len(found), nodes + len(pairs)), dtype=np.uint8)
    rows[:, :nodes] = np.arange(nodes)
    rows[:, [nodes + place for place in bonded]] = found
    kept: list[Graph] = []
    for row, answer in zip(rows, decode_rows(molecule.atoms, nodes, rows), strict=True):
        if answer.smiles == smiles:
            bonds = zip(pairs, row[nodes:].tolist(), strict=True)
            graph = Graph.of(molecule.atoms, [(i, j, bond) for (i, j), bond in bonds if bond])
            if not any(isomorphic(graph, other) for other in kept):
                kept.append(graph)
    return kept


# Symmetries against all permutations.

Drawn = tuple[list[str], list[int]]

coloured_graphs = st.integers(1, 5).flatmap(
    lambda nodes: st.tuples(
        st.lists(st.sampled_from("CN"), min_size=nodes, max_size=nodes),
        st.lists(
            st.sampled_from((0, 0, 1, 2)),
            min_size=nodes * (nodes - 1) // 2,
            max_size=nodes * (nodes - 1) // 2,
        ),
    )
)


def graph_of(colours: list[str], bonds: list[int]) -> Graph:
    pairs = combinations(range(len(colours)), 2)
    return Graph.of(colours, [(i, j, b) for (i, j), b in zip(pairs, bonds, strict=True) if b])


def renumberings(
    colours: list[str], bonds: list[int]
) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The graph in all numberings, written out."""
    nodes = len(colours)
    pairs = dict(zip(combinations(range(nodes), 2), bonds, strict=True))
    return [
        (
            tuple(colours[node] for node in order),
            tuple(pairs[min(i, j), max(i, j)] for i, j in combinations(order, 2)),
        )
        for order in permutations(range(nodes))
    ]


@given(coloured_graphs)
def test_symmetries_are_counted_as_by_trying_all_renumberings(
    drawn: Drawn,
) -> None:
    forms = renumberings(*drawn)
    assert automorphisms(graph_of(*drawn)) == forms.count(forms[0])


@given(coloured_graphs, coloured_graphs, st.randoms(use_true_random=False))
def test_graphs_are_the_same_if_some_renumbering_says_so(
    one: Drawn, other: Drawn, chance: Random
) -> None:
    colours, bonds = chance.choice(renumberings(*one))
    assert isomorphic(graph_of(*one), graph_of(list(colours), list(bonds)))
    same = (tuple(other[0]), tuple(other[1])) in renumberings(*one)
    assert isomorphic(graph_of(*one), graph_of(*other)) == same


def test_graphs_that_colours_alone_cannot_separate_are_distinguished() -> None:
    ring = [(i, (i + 1) % 6, 1) for i in range(6)]
    triangles = [(0, 1, 1), (1, 2, 1), (2, 0, 1), (3, 4, 1), (4, 5, 1), (5, 3, 1)]
    assert not isomorphic(Graph.of("CCCCCC", ring), Graph.of("CCCCCC", triangles))
    assert automorphisms(Graph.of("CCCCCC", ring)) == 12
    assert automorphisms(Graph.of("CCCCCC", triangles)) == 72


# Likelihoods.


def test_a_uniform_model_gives_each_molecule_its_share_of_the_worlds() -> None:
    space = space_for(("C", "O"), 6)
    flat = FormulaPotential(space, [])
    (found,) = molecule_log_likelihood(flat, space, ["c1ccccc1"], 0.0).tolist()
    assert exp(found) == pytest.approx(120)


def test_a_molecule_with_several_structures_sums_over_them() -> None:
    space = space_for(("C", "O"), 8)
    potential = random_model(space)
    found = Structures.of_smiles(space, ["Cc1ccccc1C", "CCCCCCCC"])
    assert found.molecule.tolist() == [0, 0, 1]
    with torch.no_grad():
        scores = potential.score(found.worlds.expand(2, -1, -1))[-1].tolist()
    both, chain = log_probabilities(potential, found, 3.0).tolist()
    count = factorial(8) / 2
    assert both == pytest.approx(log(count * exp(scores[0]) + count * exp(scores[1])) - 3)
    assert chain == pytest.approx(log(count) + scores[2] - 3)


def test_any_spelling_of_a_molecule_has_the_same_likelihood() -> None:
    space = space_for(("C", "O"), 8)
    one, other = molecule_log_likelihood(
        random_model(space), space, ["Cc1ccccc1C", "CC1=CC=CC=C1C"], 0.0
    ).tolist()
    assert one == pytest.approx(other)


def test_scores_that_depend_on_the_numbering_are_refused() -> None:
    first_is_bonded = Atom(BOND, (Constant("0"), Constant("1"), Constant(NONE)))
    potential = FormulaPotential(FOUR, [WeightedFormula(first_is_bonded, 2.0)])
    with pytest.raises(InputError, match="do not depend on how its atoms are numbered"):
        molecule_log_likelihood(potential, FOUR, ["CCCC", "CCCO", "CCOC"], 0.0)


def test_what_is_no_molecule_of_the_space_is_refused() -> None:
    with pytest.raises(InputError, match="3 heavy atoms"):
        molecule_log_likelihood(random_model(FOUR), FOUR, ["CCCC", "CCO"], 0.0)
    with pytest.raises(InputError, match="world 0 is disconnected"):
        Structures.of(FOUR, torch.zeros(1, FOUR.groups, dtype=FOUR.dtype))


def test_no_molecules_have_no_likelihoods() -> None:
    assert molecule_log_likelihood(random_model(FOUR), FOUR, [], 0.0).shape == (0,)
