import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.formats.graphs import from_networkx, to_networkx
from nmln.language import Language, predicate
from nmln.space import Space
from tests.strategies import random_worlds


@st.composite
def graphs(draw: st.DrawFn, directed: bool, labelled: bool, nodes: int) -> nx.Graph:
    graph = nx.DiGraph() if directed else nx.Graph()
    for node in range(nodes):
        data = {"color": draw(st.sampled_from("rgb")), "big": draw(st.booleans())}
        graph.add_node(f"n{node}", **(data if labelled else {}))
    pairs = [(a, b) for a in graph for b in graph]
    for one, other in draw(st.lists(st.sampled_from(pairs), unique=True)):
        data = {"bond": draw(st.sampled_from(["single", "double"]))}
        graph.add_edge(one, other, **(data if labelled else {}))
    return graph


@given(st.data(), st.booleans(), st.booleans())
def test_graphs_round_trip_with_all_their_attributes(data, directed: bool, labelled: bool) -> None:
    drawn = [data.draw(graphs(directed, labelled, 4)) for _ in range(3)]
    space, worlds = from_networkx(drawn)
    back = to_networkx(space, worlds)
    for graph, again in zip(drawn, back, strict=True):
        assert nx.utils.graphs_equal(nx.Graph(graph), nx.Graph(again))
        assert set(graph.edges) == set(again.edges) or not directed
    assert torch.equal(from_networkx(back, space)[1], worlds)


def test_a_missing_node_attribute_is_none() -> None:
    graph = nx.Graph([(0, 1)])
    graph.nodes[0]["kind"] = "C"
    space, worlds = from_networkx([graph])
    assert space.language["kind"].categories == ("none", "C")
    assert nx.utils.graphs_equal(
        to_networkx(space, worlds)[0], nx.relabel_nodes(graph, {0: "0", 1: "1"})
    )


def test_graphs_with_other_names_are_numbered_in_order() -> None:
    space, worlds = from_networkx([nx.path_graph(3), nx.path_graph(["a", "b", "c"])])
    assert space.domain == {"node": ("0", "1", "2")}
    assert torch.equal(worlds[0], worlds[1])


def test_several_relations_become_edge_attributes() -> None:
    space = Space(
        Language(predicate("r", "e", "e"), predicate("s", "e", "e", symmetric=True)), {"e": 3}
    )
    worlds = random_worlds(space, 2)
    for world, graph in zip(worlds, to_networkx(space, worlds), strict=True):
        for relation in "rs":
            table = space.pairwise(space.one_hot(world))[relation][..., 1]
            pairs = {(a, b) for a, b, d in graph.edges(data=True) if d.get(relation)}
            assert pairs == {(str(i), str(j)) for i in range(3) for j in range(3) if table[i, j]}
    assert torch.equal(from_networkx(to_networkx(space, worlds), space)[1], worlds)


def test_an_edge_without_the_attribute_of_others_is_still_an_edge() -> None:
    graph = nx.Graph([("a", "b", {"bond": "s"}), ("b", "c", {})])
    space, worlds = from_networkx([graph])
    assert [a.name for a in space.language] == ["bond", "edge"]
    assert nx.utils.graphs_equal(to_networkx(space, worlds)[0], graph)


def test_direction_is_kept_or_refused() -> None:
    directed = Space(Language(predicate("edge", "e", "e")), {"e": 2})
    assert from_networkx([nx.path_graph(2)], directed)[1].tolist() == [[0, 1, 1, 0]]
    symmetric = Space(Language(predicate("edge", "e", "e", symmetric=True)), {"e": 2})
    with pytest.raises(InputError, match="the edge 0 -> 1 has no way back"):
        from_networkx([nx.DiGraph([(0, 1)])], symmetric)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no graphs were given"),
        ([nx.path_graph(2), nx.path_graph(3)], "these graphs have 2, 3 nodes"),
        ([nx.Graph(), nx.DiGraph()], "some graphs are directed"),
        ([nx.MultiGraph([(0, 1)])], "multigraph"),
        ([nx.Graph([(0, "0")])], "the same name as text"),
        ([nx.Graph([(0, 1, {"b": "none"})])], "has the value none"),
        ([nx.Graph([(0, 1, {"edge": "x"})])], "the edge attribute edge needs another name"),
    ],
)
def test_graphs_that_do_not_fit_together_are_refused(given, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_networkx(given)


def test_a_graph_of_another_size_than_the_space_is_refused() -> None:
    space, _ = from_networkx([nx.path_graph(3)])
    with pytest.raises(InputError, match="have 2 nodes, but the space has 3 constants"):
        from_networkx([nx.path_graph(2)], space)
    nullary = Space(Language(predicate("p")), {})
    with pytest.raises(InputError, match="only a language over one sort"):
        to_networkx(nullary, random_worlds(nullary, 1))
