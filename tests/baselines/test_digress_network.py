"""The network of DiGress and its extra features: cycles by enumeration, sizes, equivariance."""

from itertools import combinations, permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from nmln.baselines import base
from nmln.baselines.digress_features import Features, components_of, cycle_counts, spectrum
from nmln.baselines.digress_network import GraphTransformer, NetworkSettings

TINY = {
    "layers": 2, "heads": 2, "node_width": 8, "edge_width": 4, "whole_width": 4,
    "node_feedforward": 8, "edge_feedforward": 4, "whole_feedforward": 8,
    "node_hidden": 8, "edge_hidden": 8, "whole_hidden": 8,
}  # fmt: skip


# Features.


def random_graphs(count: int, nodes: int, share: float, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    upper = (torch.rand(count, nodes, nodes, generator=rng) < share).triu(1).double()
    return upper + upper.transpose(1, 2)


def cycles_through(graph: Tensor, length: int) -> tuple[list[int], int]:
    """The cycles of a length through each node and in all, by listing them."""
    nodes = len(graph)
    through, total = [0] * nodes, 0
    for chosen in combinations(range(nodes), length):
        for rest in permutations(chosen[1:]):
            if rest[0] > rest[-1]:
                continue  # the other direction
            walk = (chosen[0], *rest)
            if all(graph[i, j] for i, j in zip(walk, (*rest, chosen[0]), strict=True)):
                total += 1
                for node in chosen:
                    through[node] += 1
    return through, total


@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_cycles_are_counted_as_by_listing_them_with_triangles(share: float) -> None:
    graphs = random_graphs(2, 7, share)
    nodes, whole = cycle_counts(graphs)
    for place, graph in enumerate(graphs.long().tolist()):
        for column, length in enumerate((3, 4, 5, 6)):
            through, total = cycles_through(torch.tensor(graph), length)
            assert float(whole[place, column]) == pytest.approx(total)
            if length < 6:
                assert nodes[place, :, column].tolist() == pytest.approx(through)


def test_components_and_spectrum_of_a_graph_in_pieces() -> None:
    graph = torch.zeros(1, 6, 6).double()
    for i, j in [(0, 1), (1, 2), (3, 4)]:
        graph[0, i, j] = graph[0, j, i] = 1
    outside, components = components_of(graph)
    assert outside.tolist() == [[False, False, False, True, True, True]]
    assert components.tolist() == [3]
    values, vectors = spectrum(graph, components)
    # A path of three has 1 and 3, a path of two 2; where there are no more, 2 is given.
    assert values[0].tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 2, 2])
    laplacian = torch.diag_embed(graph.sum(-1)) - graph
    torch.testing.assert_close(
        laplacian[0] @ vectors[0], vectors[0] * torch.tensor([1.0, 2.0]).double()
    )


def test_charge_valence_and_weight_are_orders_and_weights_not_positions() -> None:
    orders = torch.tensor([[[0, 3, 0], [3, 0, 1], [0, 1, 0]]])
    features = Features(weights=(12.0, 14.0), valences=(4, 3), heaviest=76.0, largest=3)
    nodes, whole = features(torch.tensor([[1, 0, 0]]), orders)
    assert nodes.shape == (1, 3, 8)
    assert whole.shape == (1, 12)
    assert nodes[0, :, -1].tolist() == [3, 4, 1]
    assert nodes[0, :, -2].tolist() == [0, 0, 3]
    assert float(whole[0, -1]) == pytest.approx(0.5)


def test_features_do_not_depend_on_the_numbering() -> None:
    graphs = random_graphs(8, 7, 0.3, seed=5).long()
    kinds = torch.randint(2, (8, 7), generator=torch.Generator().manual_seed(1))
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    features = Features(weights=(12.0, 14.0), valences=(4, 3), heaviest=90.0, largest=7)
    nodes, whole = features(kinds, graphs)
    moved_nodes, moved_whole = features(kinds[:, order], graphs[:, order][:, :, order])
    torch.testing.assert_close(moved_whole, whole)
    equivariant = [0, 1, 2, 3, 6, 7]  # eigenvectors have arbitrary signs
    torch.testing.assert_close(moved_nodes[..., equivariant], nodes[:, order][..., equivariant])


# The network.

PUBLISHED = [
    ("digress-5l", 4, 4_611_977),
    ("digress-9l", 4, 8_163_721),
    ("digress-12l", 8, 16_245_965),  # MOSES
    ("digress-12l", 12, 16_248_017),  # GuacaMol
]


@pytest.mark.parametrize(("name", "atoms", "expected"), PUBLISHED)
def test_networks_have_the_published_numbers_of_parameters(
    name: str, atoms: int, expected: int
) -> None:
    with torch.device("meta"):
        network = GraphTransformer(base.BASELINES[name].settings, (atoms + 8, 5, 13), (atoms, 5))
    assert sum(one.numel() for one in network.parameters()) == expected


def test_the_network_is_equivariant_and_symmetric() -> None:
    torch.manual_seed(0)
    network = GraphTransformer(NetworkSettings(**TINY), (5, 4, 3), (2, 4)).double().eval()
    x, e, y = torch.randn(2, 6, 5), torch.randn(2, 6, 6, 4), torch.randn(2, 3)
    x, e, y = x.double(), (e + e.transpose(1, 2)).double(), y.double()
    order = torch.randperm(6)
    nodes, edges = network(x, e, y)
    moved_nodes, moved_edges = network(x[:, order], e[:, order][:, :, order], y)
    torch.testing.assert_close(moved_nodes, nodes[:, order], atol=1e-12, rtol=0)
    torch.testing.assert_close(moved_edges, edges[:, order][:, :, order], atol=1e-12, rtol=0)
    assert torch.equal(edges, edges.transpose(1, 2))
    assert not edges.diagonal(dim1=1, dim2=2).any()


def test_many_graphs_are_denoised_in_parts_without_gradients_to_the_same_result() -> None:
    torch.manual_seed(0)
    network = GraphTransformer(NetworkSettings(**TINY), (5, 4, 3), (2, 4)).double().eval()
    count, nodes = 401, 20  # several parts, the last one smaller
    x, e, y = (
        torch.randn(count, nodes, 5),
        torch.randn(count, nodes, nodes, 4),
        torch.randn(count, 3),
    )
    passes: list[int] = []
    network.nodes_in.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    with torch.no_grad():
        found = network(x.double(), e.double(), y.double())
    assert sum(passes) == count
    assert len(passes) > 1
    for one, expected in zip(found, network(x.double(), e.double(), y.double()), strict=True):
        torch.testing.assert_close(one, expected.detach(), atol=1e-12, rtol=0)


def test_a_layer_is_the_published_one_written_plainly() -> None:
    """The vector attention with loops over nodes and separate projections."""
    torch.manual_seed(0)
    network = GraphTransformer(NetworkSettings(**TINY), (5, 4, 3), (2, 4)).double().eval()
    layer: Any = network.layers[0]
    x, e, y = (torch.randn(*shape).double() for shape in ((1, 4, 8), (1, 4, 4, 4), (1, 4)))
    found_x, found_e, found_y = layer(x, e, y, True)
    q, k, v = (layer.qkv.weight[8 * i : 8 * i + 8] for i in range(3))
    bq, bk, bv = (layer.qkv.bias[8 * i : 8 * i + 8] for i in range(3))
    c_x, d_x, c_e, d_e = layer.whole_film(y)[0].chunk(4)
    for i in range(4):
        scores = []
        for j in range(4):
            factor, shift = layer.edge_film(e[0, i, j]).chunk(2)
            both = (q @ x[0, i] + bq) * (k @ x[0, j] + bk) / 4**0.5
            scores.append(both * (1 + factor) + shift)
        odds = torch.stack(scores).softmax(0)
        seen = sum(odds[j] * (v @ x[0, j] + bv) for j in range(4))
        change = layer.nodes_out(c_x + (1 + d_x) * seen)
        torch.testing.assert_close(found_x[0, i], layer.nodes_after(x[0, i], change))
        change = layer.edges_out(c_e + (1 + d_e) * scores[2])
        torch.testing.assert_close(found_e[0, i, 2], layer.edges_after(e[0, i, 2], change))
    flat = e.flatten(1, 2)
    of_x, of_e = (
        torch.cat((one.mean(1), one.amin(1), one.amax(1), one.std(1)), -1) for one in (x, flat)
    )
    change = layer.whole_to_whole(y) + layer.nodes_to_whole(of_x) + layer.edges_to_whole(of_e)
    torch.testing.assert_close(found_y, layer.whole_after(y, layer.whole_out(change)))
