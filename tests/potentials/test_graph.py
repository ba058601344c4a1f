import pytest
import torch
from torch import Generator

from nmln.files import InputError
from nmln.formats.graphs import from_networkx
from nmln.language import Attribute, Language, predicate
from nmln.potentials.base import NeuralPotential
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.graph import PRESETS, GraphPotential
from nmln.potentials.quantified import QuantifiedPotential
from nmln.space import Space
from tests.strategies import random_worlds

nx = pytest.importorskip("networkx")

MOLECULES = Language(
    Attribute("atom", ("node",), tuple("CNO")),
    Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False),
)


def test_presets_have_the_sizes_of_the_paper_and_of_a_small_machine() -> None:
    space = Space(MOLECULES, {"node": 3})
    paper = GraphPotential.preset("paper", space, 1)
    assert (paper.layers, paper.hidden) == (10, 128)
    assert PRESETS["small"] == {"layers": 4, "hidden": 64}
    with pytest.raises(InputError, match="unknown preset 'huge'"):
        GraphPotential.preset("huge", space, 1)


@pytest.mark.parametrize("hidden", [16, 128])
@pytest.mark.parametrize("nodes", [1, 7, 23])
def test_batches_in_the_cache_score_like_the_plain_network(hidden: int, nodes: int) -> None:
    space = Space(MOLECULES, {"node": nodes})
    potential = GraphPotential(space, 3, 3, hidden).double()
    values = random_worlds(space, 3 * 211).view(3, 211, -1)
    onehot = space.one_hot(values, torch.float64).requires_grad_()
    expected = potential(onehot)
    (slopes,) = torch.autograd.grad(expected.sum(), onehot)
    found = potential.score_and_slopes(values)
    assert torch.allclose(found[0], expected)
    assert torch.allclose(found[1], slopes)


def test_two_edges_apart_and_a_path_have_the_same_fragments_of_width_two_but_not_the_same_graph() -> (
    None
):
    """The worked example for the limits of fragments: only the global network can tell them apart."""
    apart, path = nx.Graph([(0, 1), (2, 3)]), nx.Graph([(0, 1), (1, 2)])
    path.add_node(3)
    space, worlds = from_networkx([apart, path])
    values = worlds[None]
    blind: list[NeuralPotential] = [
        FragmentPotential(space, 1, rng=Generator().manual_seed(seed)) for seed in range(5)
    ]
    for potential in blind:
        assert abs(_gap_after_training(potential, values)) < 1e-5
    assert _gap_after_training(GraphPotential(space, 1, 2, 16), values) > 5
    # Quantifiers see it too: "every vertex has a neighbour" holds in the first only.
    assert _gap_after_training(QuantifiedPotential(space, 1, ("min", "max")), values) > 5


def _gap_after_training(potential, values: torch.Tensor) -> float:
    """How far the first world scores above the second after learning to prefer it."""
    optimiser = torch.optim.Adam(potential.parameters(), lr=0.02)
    for _ in range(60):
        one, other = potential.score(values)[0]
        loss = (other - one) + 1e-3 * (one**2 + other**2)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    one, other = potential.score(values)[0].tolist()
    return one - other


def test_regular_graphs_look_alike_to_message_passing() -> None:
    """The known limit of such networks: a hexagon and two triangles are both 2-regular."""
    whole, halves = nx.cycle_graph(6), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))
    space, worlds = from_networkx([whole, halves])
    scores = GraphPotential(space, 1, 3, 16).double().score(worlds[None])[0]
    assert torch.isclose(scores[0], scores[1])


@pytest.mark.parametrize(
    ("language", "build", "message"),
    [
        (
            Language(predicate("between", "a", "a", "a")),
            lambda space: GraphPotential(space, 1),
            r"no place for between\(a, a, a\) of arity 3. Use FragmentPotential\(space, width=3\)",
        ),
        (
            Language(predicate("between", "a", "a", "a")),
            lambda space: FragmentPotential(space, 1, width=2),
            "fragments of width 2 see at most 2 constants at a time. Take width=3",
        ),
        (
            MOLECULES,
            lambda space: FragmentPotential(space, 1, width=5),
            "need as many constants, but there are 3",
        ),
        (
            MOLECULES,
            lambda space: FragmentPotential(space, 1, width=0),
            "must be at least 1, but is 0",
        ),
        (MOLECULES, lambda space: GraphPotential(space, 0), "at least one level, but levels is 0"),
        (MOLECULES, lambda space: GraphPotential(space, 1, layers=0), "at least one layer"),
        (
            MOLECULES,
            lambda space: QuantifiedPotential(space, 1, ("most",)),
            "one of min, max, mean, sum",
        ),
        (MOLECULES, lambda space: QuantifiedPotential(space, 1, ()), "one of min, max, mean, sum"),
        (
            MOLECULES,
            lambda space: QuantifiedPotential(space, 1, ("min",), ("city",)),
            "needs a sort of the",
        ),
        (
            MOLECULES,
            lambda space: QuantifiedPotential(space, 1, ("min",) * 4),
            "not enough constants",
        ),
        (
            Language(predicate("p", "a"), predicate("q", "node")),
            lambda space: QuantifiedPotential(space, 1, ("min",)),
            "say which each variable ranges over",
        ),
    ],
)
def test_languages_and_sizes_that_cannot_be_read_are_refused(language, build, message: str) -> None:
    space = Space(language, {"a": 3, "node": 3})
    with pytest.raises(InputError, match=message):
        build(space)


def test_a_graph_of_two_hundred_and_fifty_relations_is_the_limit() -> None:
    values = ("none", *map(str, range(251)))
    space = Space(Language(Attribute("r", ("a", "a"), values)), {"a": 2})
    with pytest.raises(InputError, match="at most 250 relations"):
        GraphPotential(space, 1)
