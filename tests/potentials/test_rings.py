"""The rings of worlds, against a library for graphs, and a potential that sees them."""

import networkx as nx
import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.potentials import compiled as kernel
from nmln.potentials.graph import GraphPotential
from nmln.potentials.rings import RingsPotential, with_rings
from nmln.space import Space
from tests.potentials.test_pieces import SPACE, sparse
from tests.strategies import random_worlds

GRAPHS = Space(
    Language(predicate("edge", "node", "node", symmetric=True, reflexive=False)), {"node": 11}
)


def rings_of(space: Space, hidden: int = 8) -> RingsPotential:
    rng = Generator().manual_seed(0)
    return RingsPotential(space, lambda seen: GraphPotential(seen, 1, 2, hidden, rng=rng))


def graph_of(space: Space, world: Tensor) -> nx.Graph:
    """The graph of a world, by its links."""
    graph = nx.Graph()
    graph.add_nodes_from(range(rings_of(space).nodes))
    for one, other, group, null in rings_of(space).links.T.tolist():
        if world[group] != null and one != other:
            graph.add_edge(one, other)
    return graph


def rings_by_networkx(graph: nx.Graph) -> list[list[int]]:
    smallest, links = [0] * len(graph), [0] * len(graph)
    for one, other in graph.edges:
        rest = graph.copy()
        rest.remove_edge(one, other)
        if nx.has_path(rest, one, other):
            size = nx.shortest_path_length(rest, one, other) + 1
            for node in (one, other):
                smallest[node] = min(size, smallest[node] or size)
                links[node] += 1
    return [smallest, links]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("space", [SPACE, GRAPHS], ids=["two sorts", "graphs"])
def test_rings_are_those_of_a_library(
    space: Space, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMLN_COMPILED", "1" if compiled else "0")
    if compiled and kernel.library() is None:
        pytest.skip("the kernel was not compiled")
    rng = Generator().manual_seed(1)
    worlds = random_worlds(space, 60, 1)
    worlds = worlds * (torch.rand(worlds.shape, generator=rng) < 0.25)
    found = rings_of(space).rings(worlds)
    expected = [rings_by_networkx(graph_of(space, world)) for world in worlds]
    assert found.tolist() == expected
    assert {size for row in expected for size in row[0]} >= {0, 3, 4}


def ring(size: int, start: int = 0) -> list[tuple[int, int]]:
    nodes = [start + number for number in range(size)]
    pairs = zip(nodes, nodes[1:] + nodes[:1], strict=True)
    return [(min(pair), max(pair)) for pair in pairs]


def world_of(space: Space, edges: list[tuple[int, int]]) -> Tensor:
    table, world = space.table("edge"), torch.zeros(space.groups, dtype=space.dtype)
    for one, other in edges:
        world[int(table[one, other])] = 1
    return world


def test_two_rings_and_one_large_ring_differ_only_for_a_potential_that_sees_rings() -> None:
    worlds = torch.stack([world_of(GRAPHS, ring(5) + ring(5, 5)), world_of(GRAPHS, ring(10))])[None]
    blind = GraphPotential(GRAPHS, 1, 2, 8).score(worlds)
    assert torch.allclose(blind[:, 0], blind[:, 1])
    seen = rings_of(GRAPHS).score(worlds)
    assert (seen[:, 0] - seen[:, 1]).abs() > 1e-4


def test_categories_name_the_sizes() -> None:
    potential = rings_of(GRAPHS)
    worlds = torch.stack([world_of(GRAPHS, ring(size)) for size in (3, 8, 9)])[None]
    inner = with_rings(GRAPHS)
    seen = potential.seen(worlds)
    names = [
        [inner.blocks[1].attribute.values[int(row[inner.blocks[1].first_group])],
         inner.blocks[2].attribute.values[int(row[inner.blocks[2].first_group])]]
        for row in seen[0]
    ]  # fmt: skip
    assert names == [["3", "2"], ["8", "2"], ["more", "2"]]
    assert torch.equal(seen[..., : GRAPHS.groups], worlds)


def test_relabelling_the_nodes_changes_nothing() -> None:
    worlds = sparse(20, 3)
    moved = SPACE.relabel(worlds, {"node": [3, 0, 4, 1, 2], "thing": [1, 0]})
    potential = rings_of(SPACE)
    assert torch.allclose(potential.score(worlds[None]), potential.score(moved[None]), atol=1e-5)


def test_another_domain_shares_the_parameters() -> None:
    larger = Space(GRAPHS.language, {"node": [f"n{number}" for number in range(14)]})
    potential = rings_of(GRAPHS)
    there = potential.on(larger)
    assert isinstance(there, RingsPotential)
    ours, theirs = dict(potential.named_parameters()), dict(there.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[name] is theirs[name] for name in ours)
    world = world_of(larger, ring(9))
    assert there.rings(world[None])[0, 0].tolist() == [9] * 9 + [0] * 5


def test_a_language_without_links_is_refused() -> None:
    space = Space(Language(Attribute("colour", ("node",), ("red", "green"))), {"node": 3})
    with pytest.raises(InputError, match="no binary attribute") as caught:
        with_rings(space)
    assert caught.value.token == "model.rings"


def test_names_that_are_taken_are_avoided() -> None:
    language = Language(*GRAPHS.language, Attribute("ring of node", ("node",), ("yes", "no")))
    inner = with_rings(Space(language, {"node": 4}))
    assert "ring of node_" in inner.language
