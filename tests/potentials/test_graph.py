import copy
import pickle

import pytest
import torch
from torch import Generator

from nmln.errors import InputError
from nmln.formats.graphs import from_networkx
from nmln.language import Attribute, Language, predicate
from nmln.potentials.base import NeuralPotential, ScoreError
from nmln.potentials.fragment import DeepSetPotential, FragmentPotential
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


def test_ten_layers_start_with_small_scores_only_if_their_initial_weights_are_small() -> None:
    space = Space(MOLECULES, {"node": 10})
    noise = random_worlds(space, 50).expand(2, -1, -1)
    small, large = (
        GraphPotential.preset("paper", space, 2, initial_scale=scale) for scale in (0.45, 1.0)
    )
    assert small.score(noise).abs().max() < 20
    assert large.score(noise).abs().max() > 1000


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
        kind(space, 1, rng=Generator().manual_seed(seed))
        for seed in range(3)
        for kind in (FragmentPotential, DeepSetPotential)
    ]
    for potential in blind:
        assert abs(_gap_after_training(potential, values)) < 1e-4
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
    wide = FragmentPotential(space, 1, width=3).double().score(worlds[None])[0]
    assert not torch.isclose(wide[0], wide[1]), "fragments of three see the triangles"


@pytest.mark.parametrize("mean_messages", [False, True])
def test_what_is_kept_for_speed_follows_the_parameters(mean_messages: bool) -> None:
    space = Space(MOLECULES, {"node": 4})
    potential = GraphPotential(space, 2, 2, 8, mean_messages=mean_messages)
    values = random_worlds(space, 10).view(2, 5, -1)
    for _ in range(2):
        optimiser = torch.optim.SGD(potential.parameters(), lr=0.1)
        potential.score(values).sum().backward()
        optimiser.step()
        potential.load_state_dict(potential.state_dict())
        onehot = space.one_hot(values).requires_grad_()
        (slopes,) = torch.autograd.grad(potential(onehot).sum(), onehot)
        assert torch.allclose(potential.score_and_slopes(values)[1], slopes, atol=1e-5)
    again = pickle.loads(pickle.dumps(potential))
    twin = copy.deepcopy(potential)
    with torch.no_grad():
        potential.readout.layers[0].weight.mul_(2.0)  # pyright: ignore
        expected = potential(space.one_hot(values))
        assert torch.allclose(potential.score(values), expected, atol=1e-5)
        for other in (again, twin):
            assert not torch.allclose(other.score(values), expected, atol=1e-5)


def test_values_changed_before_the_backward_pass_are_noticed() -> None:
    space = Space(MOLECULES, {"node": 4})
    values = random_worlds(space, 4)[None]
    total = GraphPotential(space, 1, 2, 8).score(values).sum()
    values.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_weight_that_only_the_slopes_see_is_noticed() -> None:
    space = Space(MOLECULES, {"node": 4})
    potential = GraphPotential(space, 1, 2, 8)
    with torch.no_grad():
        potential.hear[0][0, :, 16:24] = float(
            "nan"
        )  # of the relation "double", which nobody hears
    nothing = torch.zeros(1, 3, space.groups, dtype=space.dtype)
    with pytest.raises(
        ScoreError, match=r"gives slopes that sum to nan .*the parameter hear\.0 is"
    ):
        potential.score_and_slopes(nothing)


@pytest.mark.parametrize(
    ("language", "build", "message"),
    [
        (
            Language(predicate("between", "a", "a", "a")),
            lambda space: GraphPotential(space, 1),
            r"no place for between.* of arity 3. Use FragmentPotential\(space, levels, width=3\)",
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
            "must be at least 1, got 0",
        ),
        (
            Language(predicate("p", "a"), predicate("between", "a", "a", "a")),
            lambda space: QuantifiedPotential(space, 1, ("min", "max")),
            r"between\(a, a, a\) would never be seen: it needs more variables of sort a than the 2",
        ),
        (MOLECULES, lambda space: GraphPotential(space, 0), "levels must be at least 1"),
        (MOLECULES, lambda space: GraphPotential(space, 1, layers=0), "at least one layer"),
        (
            MOLECULES,
            lambda space: QuantifiedPotential(space, 1, ("most",)),
            "min, max, mean, sum",
        ),
        (MOLECULES, lambda space: QuantifiedPotential(space, 1, ()), "min, max, mean, sum"),
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
