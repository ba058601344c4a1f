"""Random worlds that are as sparse as molecules, without any chemistry."""

import torch
from torch import Generator, Tensor

from nmln.ladders import Ladder
from nmln.language import Attribute, Language
from nmln.space import Space

BONDS = ("none", "single", "double", "triple")
PAPER = Ladder((0.1, 0.01, 0.005, 0.0025, 0.001))


def space_of(nodes: int) -> Space:
    """10 node types and 4 edge types."""
    language = Language(
        Attribute("atom", ("node",), tuple("ABCDEFGHIJ")),
        Attribute("bond", ("node", "node"), BONDS, symmetric=True, reflexive=False),
    )
    return Space(language, {"node": nodes})


def sparse_worlds(space: Space, chains: int, rng: Generator) -> Tensor:
    """A random tree with two more bonds, mostly single, corrupted at the paper's five rates."""
    nodes = len(space.domain["node"])
    table = torch.from_numpy(space.table("bond").copy())
    worlds = torch.zeros(chains, space.groups, dtype=space.dtype)
    for world in worlds:
        world[:nodes] = torch.randint(10, (nodes,), generator=rng)
        pairs = [(i, int(torch.randint(i, (), generator=rng))) for i in range(1, nodes)]
        for _ in range(2):
            one, other = torch.randperm(nodes, generator=rng)[:2].tolist()
            pairs.append((one, other))
        for one, other in pairs:
            kind = 1 + int(torch.multinomial(torch.tensor([0.75, 0.2, 0.05]), 1, generator=rng))
            world[nodes + table[one, other]] = kind
    return PAPER.corrupt(space, worlds, rng)


def uniform_worlds(space: Space, chains: int, rng: Generator) -> Tensor:
    """All categories equally likely: three of four pairs are bonded, so that no row can be skipped."""
    uniform = torch.rand(len(PAPER), chains, space.groups, generator=rng)
    return (uniform * space.sizes).to(space.dtype)
