"""How many pieces a world falls into, against a library for graphs."""

import networkx as nx
import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.potentials.graph import GraphPotential
from nmln.potentials.pieces import PiecesPotential
from nmln.space import Space
from tests.strategies import random_worlds

SPACE = Space(
    Language(
        Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False),
        predicate("likes", "node", "node"),
        predicate("holds", "node", "thing"),
        predicate("red", "node"),
    ),
    {"node": 5, "thing": 2},
)


def sparse(count: int, seed: int) -> Tensor:
    """Random worlds with few links, so that there are several pieces."""
    rng = Generator().manual_seed(seed)
    worlds = random_worlds(SPACE, count, seed)
    return worlds * (torch.rand(worlds.shape, generator=rng) < 0.2)


def pieces_by_networkx(world: Tensor) -> int:
    graph = nx.Graph()
    graph.add_nodes_from(range(7))
    for name, first in (("bond", 0), ("likes", 0), ("holds", 5)):
        block, table = SPACE.block(name), SPACE.table(name)
        for row in range(table.shape[0]):
            for column in range(table.shape[1]):
                if table[row, column] >= 0 and world[block.first_group + table[row, column]]:
                    graph.add_edge(row, first + column)
    return nx.number_connected_components(graph)


@pytest.mark.parametrize("compiled", [True, False])
def test_pieces_are_the_connected_components(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setenv("NMLN_COMPILED", "0")
    worlds = sparse(300, 0)
    expected = [pieces_by_networkx(world) for world in worlds]
    assert PiecesPotential(SPACE, 1).pieces(worlds).tolist() == expected
    assert set(expected) >= {1, 2, 3, 4}


def test_each_further_piece_costs_what_the_weight_says() -> None:
    potential = PiecesPotential(SPACE, 2)
    assert not potential.score(sparse(4, 1).expand(2, -1, -1)).any()
    with torch.no_grad():
        potential.weight.copy_(torch.tensor([0.5, -0.1]))
    worlds = sparse(20, 1)
    more = potential.pieces(worlds) - 1
    scores = potential.score(worlds.expand(2, -1, -1))
    assert torch.allclose(scores, torch.stack([-5.0 * more, 1.0 * more]))


def test_slopes_are_the_differences_to_all_neighbours() -> None:
    potential = PiecesPotential(SPACE, 1)
    with torch.no_grad():
        potential.weight.fill_(0.1)
    worlds = sparse(40, 2)
    scores, slopes = potential.score_and_slopes(worlds[None])
    for group in range(SPACE.groups):
        first, size = int(SPACE.offsets[group]), int(SPACE.sizes[group])
        for category in range(size):
            changed = worlds.clone()
            changed[:, group] = category
            difference = potential.score(changed[None]) - scores
            assert torch.equal(slopes[0, :, first + category], difference[0])


def test_a_ring_beside_a_ring_is_one_ring_to_a_network_but_not_to_the_count() -> None:
    space = Space(
        Language(Attribute("bond", ("node", "node"), ("none", "single"), True, False)), {"node": 6}
    )

    def world(edges: list[tuple[int, int]]) -> Tensor:
        values = torch.zeros(space.groups, dtype=space.dtype)
        for one, other in edges:
            values[space.table("bond")[one, other]] = 1
        return values

    ring = world([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)])
    two = world([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)])
    both = torch.stack([ring, two])[None]
    network = GraphPotential(space, 1, layers=6, hidden=16)
    one, other = network.score(both)[0].tolist()
    assert one == pytest.approx(other, abs=1e-5)
    assert PiecesPotential(space, 1).pieces(both[0]).tolist() == [1, 2]


def test_a_language_without_links_is_refused() -> None:
    with pytest.raises(InputError, match=r"leave out --pieces, or set model\.pieces=false"):
        PiecesPotential(Space(Language(predicate("p", "a")), {"a": 3}), 1)
