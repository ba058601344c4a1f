"""Random graphs with valence limits, without any chemistry, and a small R-GCN fitted to them.

A graph is a random tree whose nodes keep within the number of bonds that their type allows, with a few
bonds added or made stronger where there is room. The fit is the simplest that gives a sharp network:
corrupted data against persistent chains, one network for each level.
"""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from nmln.exchange import start_walkers
from nmln.kernels.combined import Composition
from nmln.kernels.gibbs import Gibbs
from nmln.kernels.gradient import GibbsWithGradients
from nmln.ladders import Ladder
from nmln.language import Attribute, Language
from nmln.potentials.graph import GraphPotential
from nmln.recording import Statistic
from nmln.sampler import advance
from nmln.space import Space
from nmln.types import State, Values

TYPES = ("A", "B", "C", "D")
VALENCES = (4, 3, 2, 1)
SHARES = (0.4, 0.3, 0.2, 0.1)
BONDS = ("none", "single", "double", "triple")
LADDER = Ladder((0.1, 0.03, 0.01, 0.002))
WEIGHTS = Path("runs/bench-kernels/weights.npz")


def space_of(nodes: int) -> Space:
    """Four types of nodes and four kinds of bonds."""
    language = Language(
        Attribute("type", ("node",), TYPES),
        Attribute("bond", ("node", "node"), BONDS, symmetric=True, reflexive=False),
    )
    return Space(language, {"node": nodes})


def valence_graphs(space: Space, count: int, seed: int = 0) -> Tensor:
    """Connected graphs in which no node has more bonds than its type allows."""
    draw, nodes = random.Random(seed), len(space.domain["node"])
    table = space.table("bond") + nodes
    worlds = torch.zeros(count, space.groups, dtype=space.dtype)
    for world in worlds:
        types, bonds = _graph(nodes, draw)
        world[:nodes] = torch.tensor(types)
        for (one, other), order in bonds.items():
            world[int(table[one, other])] = order
    return worlds


def _graph(nodes: int, draw: random.Random) -> tuple[list[int], dict[tuple[int, int], int]]:
    while True:
        types = draw.choices(range(len(TYPES)), SHARES, k=nodes)
        room = [VALENCES[kind] for kind in types]
        order = draw.sample(range(nodes), nodes)
        bonds: dict[tuple[int, int], int] = {}
        for place in range(1, nodes):
            open_nodes = [node for node in order[:place] if room[node]]
            if not open_nodes:
                break
            _strengthen(bonds, room, order[place], draw.choice(open_nodes))
        if len(bonds) < nodes - 1:
            continue
        for _ in range(draw.randint(0, 8)):
            one, other = sorted(draw.sample(range(nodes), 2))
            if room[one] and room[other] and bonds.get((one, other), 0) < len(BONDS) - 1:
                _strengthen(bonds, room, one, other)
        return types, bonds


def _strengthen(bonds: dict[tuple[int, int], int], room: list[int], one: int, other: int) -> None:
    pair = (min(one, other), max(one, other))
    bonds[pair] = bonds.get(pair, 0) + 1
    room[one] -= 1
    room[other] -= 1


# Statistics beside the score.


def statistics(space: Space) -> dict[str, Statistic]:
    """Three numbers of a graph: its bonds, its nodes of the first type, how uneven its degrees are."""
    nodes = len(space.domain["node"])
    return {
        "bonds": lambda values: (values[..., nodes:] > 0).sum(-1),
        "first type": lambda values: (values[..., :nodes] == 0).sum(-1),
        "squared degrees": lambda values: _degrees(space, values[..., nodes:] > 0).square().sum(-1),
    }


def _degrees(space: Space, strength: Tensor) -> Tensor:
    """The sum over the pairs of every node."""
    nodes = len(space.domain["node"])
    one, other = space.tuples(space.block("bond"), np.arange(space.block("bond").count))
    incidence = torch.zeros(len(one), nodes)
    incidence[torch.arange(len(one)), torch.from_numpy(one)] = 1
    incidence[torch.arange(len(one)), torch.from_numpy(other)] = 1
    return strength.float() @ incidence


def within_valence(space: Space, values: Values) -> Tensor:
    """Whether every node keeps within the bonds that its type allows."""
    nodes = len(space.domain["node"])
    most = torch.tensor(VALENCES, dtype=torch.float32)[values[..., :nodes].long()]
    return (_degrees(space, values[..., nodes:]) <= most).all(-1)


# The fit.


def fit(
    space: Space,
    data: Tensor,
    steps: int,
    chains: int = 64,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[GraphPotential, Values]:
    """A network for each level, and its persistent chains where they ended.

    Every step corrupts some data again, moves the chains with exchange, and follows the difference of
    the two phases with Adam.
    """
    rng = Generator().manual_seed(seed)
    potential = GraphPotential.preset("small", space, len(LADDER), rng=rng)
    kernel = Composition((GibbsWithGradients(space),) * 5 + (Gibbs(space),))
    optimiser = torch.optim.Adam(potential.parameters(), lr=2e-3, betas=(0.5, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, 3 * (1 - step / steps)) + 0.01
    )
    some = torch.randint(len(data), (chains,), generator=rng)
    values: Values = LADDER.corrupt(space, data[some], rng)
    walkers = start_walkers(values)
    for step in range(1, steps + 1):
        some = torch.randint(len(data), (chains,), generator=rng)
        positive = LADDER.corrupt(space, data[some], rng)
        state: State = kernel.init(potential, values)
        state, walkers, _, _ = advance(potential, kernel, state, walkers, rng, 1)
        values = state.values
        scores = potential.score(torch.cat([positive, values], dim=1))
        above, below = scores.split(chains, dim=1)
        loss = (below.mean(1) - above.mean(1)).sum() + 1e-3 * scores.square().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(potential.parameters(), 10.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            legal = within_valence(space, values).float().mean(1).tolist()
            gap = (above - below).mean(1).tolist()
            tell(
                f"step {step}: chains within the limits {_row(legal)}, data above chains {_row(gap)}"
            )
    return potential.requires_grad_(False), values


def _row(numbers: list[float]) -> str:
    return " ".join(f"{number:5.2f}" for number in numbers)


def save(path: Path, potential: GraphPotential, values: Values) -> None:
    """Keep the weights and the chains as plain arrays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: tensor.numpy() for name, tensor in potential.state_dict().items()}
    np.savez(path, chains=values.numpy(), **arrays)


def load(path: Path, space: Space) -> tuple[GraphPotential, Values]:
    """The weights and chains that `save` wrote."""
    potential = GraphPotential.preset("small", space, len(LADDER))
    with np.load(path, allow_pickle=False) as arrays:
        named = {name: torch.from_numpy(arrays[name]) for name in potential.state_dict()}
        values = torch.from_numpy(arrays["chains"])
    potential.load_state_dict(named)
    return potential.requires_grad_(False), values
