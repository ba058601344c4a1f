"""A scaffold as evidence: its atoms and all pairs within it are observed, the rest is sampled."""

import torch

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.molecules.chemistry import ATOM, BOND, atoms_of
from nmln.molecules.chemistry.scaffold import Scaffold, parse_scaffold
from nmln.space import Space


def scaffold_evidence(space: Space, scaffold: Scaffold | str) -> Evidence:
    """The evidence for a molecule that contains a scaffold, whose atoms are the first nodes.

    The kinds of its atoms, the bond of each pair of them, and the absence of bonds from its closed
    atoms to other nodes are observed. Scores do not depend on the numbering, so nothing is lost by the
    choice of nodes; a molecule that contains the scaffold k times has k times the probability.
    """
    given = parse_scaffold(scaffold) if isinstance(scaffold, str) else scaffold
    kinds, nodes = atoms_of(space)
    size = len(given.atoms)
    if size >= nodes:
        raise InputError(
            f"the scaffold {given.smiles} must have fewer atoms than molecules of this model, {nodes}, "
            f"got {size}. Use a smaller scaffold or a larger model.",
            kind="size",
        )
    allowed = torch.ones(space.entries, dtype=torch.bool)
    atom, bond = space.block(ATOM), space.block(BOND)
    by_atom = allowed[atom.entries].view(atom.count, atom.size)
    by_bond = allowed[bond.entries].view(bond.count, bond.size)
    pairs = space.table(BOND)
    for node, name in enumerate(given.atoms):
        by_atom[node] = False
        by_atom[node, _kind(name, kinds, given)] = True
        known = range(size) if node in given.open else range(nodes)
        for other in known:
            if other != node:
                by_bond[pairs[node, other], 1:] = False  # no bond, unless the scaffold has one
    for one, other, category in given.bonds:
        by_bond[pairs[one, other]] = False
        by_bond[pairs[one, other], category] = True
    return Evidence(space, allowed)


def _kind(name: str, kinds: tuple[str, ...], scaffold: Scaffold) -> int:
    if name in kinds:
        return kinds.index(name)
    alike = [kind for kind in kinds if kind.lower() == name.lower()]
    raise InputError(
        f"the scaffold {scaffold.smiles} has the atom {name}, but this model has only "
        f"{', '.join(kinds)}. {f'Did you mean {alike[0]}?' if alike else 'Use one of these.'}",
        token=name,
        kind="unknown",
    )
