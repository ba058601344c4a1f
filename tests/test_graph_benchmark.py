"""The measures of the graph benchmark, against counts by isomorphism and known sets of graphs."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest

from benchmarks.graphs import (
    BETWEEN,
    LEAST,
    MOST,
    WITHIN,
    clustering,
    communities,
    degrees,
    described,
    discrepancy,
    halves,
    independent,
    orbit_counts,
)

# Every connected graph of 2 to 4 nodes, with the orbit of each node.
SHAPES = [
    (nx.path_graph(2), [0, 0]),
    (nx.path_graph(3), [1, 2, 1]),
    (nx.complete_graph(3), [3, 3, 3]),
    (nx.path_graph(4), [4, 5, 5, 4]),
    (nx.star_graph(3), [7, 6, 6, 6]),
    (nx.cycle_graph(4), [8, 8, 8, 8]),
    (nx.Graph([(0, 1), (1, 2), (2, 0), (0, 3)]), [11, 10, 10, 9]),
    (nx.Graph([(0, 1), (1, 2), (2, 0), (0, 3), (1, 3)]), [13, 13, 12, 12]),
    (nx.complete_graph(4), [14, 14, 14, 14]),
]


def counted_by_isomorphism(graph: nx.Graph) -> np.ndarray:
    found = np.zeros((len(graph), 15))
    for size in (2, 3, 4):
        for chosen in combinations(graph, size):
            part = graph.subgraph(chosen)
            for shape, orbits in SHAPES:
                matcher = nx.isomorphism.GraphMatcher(shape, part)
                if len(shape) == size and matcher.is_isomorphic():
                    for node, image in matcher.mapping.items():
                        found[image, orbits[node]] += 1
    return found


@pytest.mark.parametrize("seed", range(3))
def test_orbits_are_those_found_by_isomorphism(seed: int) -> None:
    graph = nx.gnp_random_graph(8, 0.3 + 0.2 * seed, seed=seed)
    assert np.array_equal(orbit_counts(graph), counted_by_isomorphism(graph))


def test_small_graphs_have_few_orbits() -> None:
    assert orbit_counts(nx.empty_graph(1)).sum() == 0
    assert orbit_counts(nx.path_graph(2))[:, 0].tolist() == [1, 1]


def test_communities_are_as_described() -> None:
    graphs = communities(400, seed=1)
    assert {len(one) for one in graphs} == set(range(LEAST, MOST + 1))
    inside, across = [], []
    for graph in graphs:
        half = len(graph) // 2
        links = nx.to_numpy_array(graph)
        across.append(links[:half, half:].mean())
        inside.append(links[:half, :half].sum() / (half * (half - 1)))
    assert np.mean(inside) == pytest.approx(WITHIN, abs=0.01)
    assert np.mean(across) == pytest.approx(BETWEEN, abs=0.01)
    again = communities(400, seed=1)
    assert all(nx.utils.graphs_equal(one, other) for one, other in zip(graphs, again, strict=True))


def test_distances_are_earth_movers() -> None:
    one, other = nx.cycle_graph(12), nx.complete_graph(12)
    assert np.abs(degrees(one) - degrees(other)).sum() == pytest.approx(11 - 2)
    assert np.abs(clustering(one) - clustering(other)).sum() == pytest.approx(1, abs=0.02)


def test_the_discrepancy_separates_what_differs() -> None:
    graphs = communities(60)
    known = described(graphs)
    near, far = halves(known), discrepancy(described(independent(graphs, 60, 0)), known)
    assert all(abs(value) < 0.01 for value in near.values())
    assert all(value > 0.02 for value in far.values())
