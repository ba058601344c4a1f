"""The Kekulé structures of a molecule, and the number of labelled worlds of each.

A world is a graph with single, double and triple bonds on numbered nodes. Two worlds have the same
canonical SMILES if one is the other with its nodes renumbered, or if they differ only in where the
double bonds of their aromatic rings are drawn. So the worlds of a molecule are counted in two steps:
list the structures that differ by more than the numbering, then divide the n! numberings of each
by those that change nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import TYPE_CHECKING

import numpy as np

from nmln.extras import later
from nmln.molecules.chemistry.tables import bond_types
from nmln.molecules.chemistry.worlds import Molecule, _prototype, decode_rows

if TYPE_CHECKING:
    from rdkit import Chem, rdBase
else:
    Chem = later("rdkit.Chem")
    rdBase = later("rdkit.rdBase")

_SINGLE, _DOUBLE = 1, 2  # positions in BONDS

Bond = tuple[int, int, int]
"""Node, node and category."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A molecule with every bond single, double or triple, for any numbering of its nodes.

    `bonds` is as in `Molecule`; `automorphisms` counts the renumberings that keep element, charge and
    bond order everywhere.
    """

    atoms: tuple[str, ...]
    bonds: bytes
    automorphisms: int

    @property
    def labelled(self) -> int:
        """The number of different worlds among its numberings."""
        return factorial(len(self.atoms)) // self.automorphisms


def kekule_structures(molecule: Molecule) -> tuple[Structure, ...]:
    """All structures that decode to the SMILES of a molecule, none of them twice; its own comes first.

    Aromatic bonds are the only ones that a SMILES leaves open, and the hydrogens at every node decide
    whether it has a double bond among them. So the candidates are the perfect matchings of the nodes
    that have one. Each is checked: RDKit must find the same rings aromatic in it.
    """
    kept: list[tuple[bytes, Graph]] = []
    for bonds in _same_smiles(molecule):
        graph = Graph.of(molecule.atoms, _pairs(len(molecule.atoms), bonds))
        if not any(isomorphic(graph, other) for _, other in kept):
            kept.append((bonds, graph))
    return tuple(Structure(molecule.atoms, bonds, automorphisms(graph)) for bonds, graph in kept)


def _same_smiles(molecule: Molecule) -> list[bytes]:
    """The bonds of all worlds with the nodes, hydrogens and aromatic bonds of a molecule."""
    nodes = len(molecule.atoms)
    pairs = _pairs(nodes, molecule.bonds)
    aromatic = _aromatic(molecule.atoms, pairs)
    doubles = [pair for pair, open_ in zip(pairs, aromatic, strict=True) if open_ and pair[2] == 2]
    if not doubles:
        return [molecule.bonds]
    unsaturated = {node for i, j, _ in doubles for node in (i, j)}
    edges = [
        (i, j)
        for (i, j, _), open_ in zip(pairs, aromatic, strict=True)
        if open_ and i in unsaturated and j in unsaturated
    ]
    candidates = [molecule.bonds]
    for matching in _matchings(sorted(unsaturated), edges):
        bonds = bytearray(molecule.bonds)
        for i, j, _ in doubles:
            bonds[_place(nodes, i, j)] = _SINGLE
        for i, j in matching:
            bonds[_place(nodes, i, j)] = _DOUBLE
        if bytes(bonds) != molecule.bonds:
            candidates.append(bytes(bonds))
    rows = np.empty((len(candidates), nodes + len(molecule.bonds)), dtype=np.uint8)
    rows[:, :nodes] = np.arange(
        nodes
    )  # each node is of a kind of its own: decoding looks up its name
    rows[:, nodes:] = [list(bonds) for bonds in candidates]
    decoded = decode_rows(molecule.atoms, nodes, rows)
    return [
        bonds
        for bonds, answer in zip(candidates, decoded, strict=True)
        if answer.smiles == molecule.smiles
    ]


def _aromatic(atoms: Sequence[str], pairs: Sequence[Bond]) -> list[bool]:
    """Which bonds RDKit turns into aromatic ones, whatever their order was."""
    molecule = Chem.RWMol()
    for name in atoms:
        molecule.AddAtom(_prototype(name))
    for i, j, category in pairs:
        molecule.AddBond(i, j, bond_types()[category - 1])
    with rdBase.BlockLogs():
        Chem.SanitizeMol(molecule)
    return [
        molecule.GetBondBetweenAtoms(i, j).GetBondType() == Chem.BondType.AROMATIC
        for i, j, _ in pairs
    ]


def _matchings(
    nodes: Sequence[int], edges: Sequence[tuple[int, int]]
) -> Iterator[list[tuple[int, int]]]:
    """Every choice of edges that touches each node exactly once."""
    if not nodes:
        yield []
        return
    first = nodes[0]
    for edge in edges:
        if first in edge:
            rest = [node for node in nodes if node not in edge]
            left = [other for other in edges if not set(other) & set(edge)]
            for matching in _matchings(rest, left):
                yield [edge, *matching]


def _pairs(nodes: int, bonds: bytes) -> list[Bond]:
    return [
        (i, j, category)
        for (i, j), category in zip(combinations(range(nodes), 2), bonds, strict=True)
        if category
    ]


def _place(nodes: int, i: int, j: int) -> int:
    """The position of the bond of a pair i < j."""
    return i * nodes - i * (i + 1) // 2 + j - i - 1


# Symmetries of graphs with coloured nodes and bonds.


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes with a colour each, and what they are bonded to: (bond, node) for every neighbour."""

    colours: tuple[str, ...]
    neighbours: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def of(colours: Sequence[str], pairs: Sequence[Bond]) -> "Graph":
        found: list[list[tuple[int, int]]] = [[] for _ in colours]
        for i, j, bond in pairs:
            found[i].append((bond, j))
            found[j].append((bond, i))
        return Graph(tuple(colours), tuple(map(tuple, found)))

    def beside(self, other: "Graph") -> "Graph":
        """Both as one graph; the nodes of the other follow."""
        shift = len(self.colours)
        moved = tuple(
            tuple((bond, node + shift) for bond, node in around) for around in other.neighbours
        )
        return Graph(self.colours + other.colours, self.neighbours + moved)

    def ranks(self) -> list[int]:
        names = {colour: rank for rank, colour in enumerate(sorted(set(self.colours)))}
        return [names[colour] for colour in self.colours]


def isomorphic(one: Graph, other: Graph) -> bool:
    """Whether a renumbering makes one graph the other."""
    if len(one.colours) != len(other.colours):
        return False
    both = one.beside(other)
    return _match_halves(both, both.ranks())


def automorphisms(graph: Graph) -> int:
    """The number of renumberings that leave a graph as it is.

    Fix one node after the other: each time the group shrinks by the number of nodes that the fixed
    one could have been sent to. So the group is counted without being listed, however large it is.
    """
    twice = graph.beside(graph)
    nodes = len(graph.colours)
    ranks, count = graph.ranks(), 1
    while True:
        ranks = _refine(graph, ranks)
        cell = _smallest_cell(ranks)
        if not cell:
            return count
        fixed = cell[0]
        count *= sum(
            node == fixed or _match_halves(twice, _mark(ranks + ranks, fixed, nodes + node))
            for node in cell
        )
        ranks = _mark(ranks, fixed)


def _match_halves(both: Graph, ranks: list[int]) -> bool:
    """Whether the first half of the nodes can be sent to the second, colour by colour.

    Where refinement distinguishes all nodes of a half, equal colours are an isomorphism, because
    equally coloured nodes have equally coloured neighbours. Else a node is sent to each of those that
    look like it in turn.
    """
    ranks = _refine(both, ranks)
    nodes = len(ranks) // 2
    if sorted(ranks[:nodes]) != sorted(ranks[nodes:]):
        return False
    cell = _smallest_cell(ranks[:nodes])
    if not cell:
        return True
    images = [node for node in range(nodes, 2 * nodes) if ranks[node] == ranks[cell[0]]]
    return any(_match_halves(both, _mark(ranks, cell[0], node)) for node in images)


def _refine(graph: Graph, ranks: list[int]) -> list[int]:
    """Distinguish nodes by the colours around them, repeatedly until no more differ.

    The new colours depend on the old ones alone, not on the numbering.
    """
    classes = len(set(ranks))
    while True:
        seen = [
            (rank, tuple(sorted((bond, ranks[node]) for bond, node in around)))
            for rank, around in zip(ranks, graph.neighbours, strict=True)
        ]
        order = {key: rank for rank, key in enumerate(sorted(set(seen)))}
        ranks = [order[key] for key in seen]
        if len(order) == classes:
            return ranks
        classes = len(order)


def _smallest_cell(ranks: list[int]) -> list[int]:
    """The nodes of the rarest colour that more than one node has; none if all differ."""
    cells: dict[int, list[int]] = {}
    for node, rank in enumerate(ranks):
        cells.setdefault(rank, []).append(node)
    several = [cell for cell in cells.values() if len(cell) > 1]
    return min(several, key=lambda cell: (len(cell), ranks[cell[0]]), default=[])


def _mark(ranks: list[int], *nodes: int) -> list[int]:
    """The same colours, but some nodes have one that no other node has."""
    marked = list(ranks)
    for node in nodes:
        marked[node] = len(ranks)
    return marked
