"""How many worlds of a molecule agree with evidence, such as a scaffold.

A molecule with n atoms has n! / |Aut| worlds, one for each way to number its atoms, up to symmetry. With
evidence, which treats numbered nodes differently, only some of them are possible: so many that the
molecule's probability given the evidence is their number times that of one of them.
"""

from collections.abc import Sequence
from math import factorial

from jaxtyping import Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.molecules.chemistry import ATOM, BOND, NODE

_MOST = 10_000  # places tried for one molecule


class Agreement:
    """Counts the numberings of worlds that agree with one evidence.

    Nodes that the evidence treats alike, such as those outside a scaffold, are filled together, so that
    the cost depends on the others: about a millisecond for a ring of six.
    """

    def __init__(self, evidence: Evidence) -> None:
        space = evidence.space
        self.nodes = len(space.domain[NODE])
        atom, bond = space.block(ATOM), space.block(BOND)
        kinds = evidence.allowed[atom.entries].view(atom.count, atom.size)
        orders = evidence.allowed[bond.entries].view(bond.count, bond.size)
        self._kinds: list[list[bool]] = kinds.tolist()
        pairs, listed = space.table(BOND), orders.tolist()
        self._orders: list[list[list[bool]]] = [
            [listed[int(pairs[one, other])] if one != other else [] for other in range(self.nodes)]
            for one in range(self.nodes)
        ]
        self._pairs = [
            [int(pairs[one, other]) if one != other else 0 for other in range(self.nodes)]
            for one in range(self.nodes)
        ]
        alike = max(self._classes(), key=len)
        self._alike = alike
        self._apart = [node for node in range(self.nodes) if node not in alike]

    def numberings(self, world: Integer[Tensor, " groups"]) -> int:
        """In how many ways the atoms of a world can be numbered so that it agrees with the evidence.

        Divided by the symmetries of the world, this is the number of different worlds.
        """
        row = world.tolist()
        atoms = row[: self.nodes]
        bonds = row[self.nodes :]
        orders = [[bonds[pair] for pair in pairs] for pairs in self._pairs]
        tried = 0

        def extend(placed: list[int], left: frozenset[int]) -> int:
            nonlocal tried
            tried += 1
            if tried > _MOST:
                raise InputError(
                    "the evidence leaves too many ways to number a molecule to count them. Evidence on "
                    "fewer nodes, or a scaffold, can be counted.",
                    kind="unsupported",
                )
            if len(placed) == len(self._apart):
                return self._rest(placed, left, atoms, orders)
            node = self._apart[len(placed)]
            found = 0
            for one in left:
                if self._fits(node, one, self._apart, placed, atoms, orders):
                    found += extend([*placed, one], left - {one})
            return found

        return extend([], frozenset(range(self.nodes)))

    def _fits(
        self,
        node: int,
        one: int,
        nodes: Sequence[int],
        placed: Sequence[int],
        atoms: Sequence[int],
        orders: Sequence[Sequence[int]],
    ) -> bool:
        """Whether an atom can have the number `node` beside atoms that are placed already."""
        return self._kinds[node][atoms[one]] and all(
            self._orders[node][other][orders[one][neighbour]]
            for other, neighbour in zip(nodes, placed, strict=False)
        )

    def _rest(
        self,
        placed: Sequence[int],
        left: frozenset[int],
        atoms: Sequence[int],
        orders: Sequence[Sequence[int]],
    ) -> int:
        """The orders of the remaining atoms on the nodes that are alike: all of them, or none."""
        filled, nodes = list(placed), list(self._apart)
        for node, one in zip(self._alike, left, strict=True):
            if not self._fits(node, one, nodes, filled, atoms, orders):
                return 0
            filled.append(one)
            nodes.append(node)
        return factorial(len(left))

    def _classes(self) -> list[list[int]]:
        """The nodes in classes of those that can be swapped without changing the evidence."""
        classes: list[list[int]] = []
        for node in range(self.nodes):
            for one in classes:
                if self._swappable(one[0], node):
                    one.append(node)
                    break
            else:
                classes.append([node])
        return classes

    def _swappable(self, one: int, other: int) -> bool:
        return self._kinds[one] == self._kinds[other] and all(
            self._orders[one][third] == self._orders[other][third]
            for third in range(self.nodes)
            if third not in (one, other)
        )
