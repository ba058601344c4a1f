"""Graphs of several sizes in one model: `python -m benchmarks.graphs [--minutes M]`.

The set is community-small: 100 graphs of 12 to 20 nodes in two communities of equal size (or one node
more), with links of probability 0.7 within and 0.05 between them. One model of all sizes learns from
80 graphs; as many are generated, and compared with the 20 that were held out.

The measure is the squared maximum mean discrepancy, with the Gaussian kernel exp(-d^2 / 2 s^2) of a
distance d between two graphs: the earth mover's distance between their degrees (s = 1) and between
their clustering coefficients in 100 bins (s = 0.1), and the total variation distance between the mean
numbers of times that a node is in each of the 15 orbits of connected graphs of 2 to 4 nodes (s = 30).
Pairs of a graph with itself do not count: with them the discrepancy of two samples of one distribution
is above 0, by more the smaller they are, and rows of sets of different sizes could not be compared.
Without them it is 0 on average, and may come out slightly negative. Beside the model: the training
graphs themselves, graphs with independent links of the same density (Erdos-Renyi), and the two halves
of the data, as a mean of several divisions. docs/results/graphs.json has the numbers.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from nmln.checkpoint import VERSION
from nmln.config import Config, configure, override
from nmln.files import plain, write_lines
from nmln.formats.graphs import parse_graphs
from nmln.model import Model
from nmln.training import Trainer

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "graphs.json"
GRAPHS, TRAINED, LEAST, MOST = 100, 80, 12, 20
WITHIN, BETWEEN = 0.7, 0.05
PILOT = 5  # steps that are timed
DIVISIONS = 20  # of the data into halves
BINS = 100  # of clustering coefficients
SETTINGS: dict[str, Any] = {"model": {"layers": 3, "hidden": 32}}  # small: the data are few
SAMPLING: dict[str, Any] = {"chains": 20, "burn_in": 400, "thin": 20}

Graphs = Sequence[nx.Graph]
Describe = Callable[[nx.Graph], np.ndarray]
Described = dict[str, np.ndarray]
"""One row for each graph, by every measure."""


def communities(count: int = GRAPHS, seed: int = 0) -> list[nx.Graph]:
    """Graphs of two communities, of sizes drawn evenly."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        nodes = int(rng.integers(LEAST, MOST + 1))
        side = np.arange(nodes) < nodes // 2
        chance = np.where(side[:, None] == side, WITHIN, BETWEEN)
        found.append(_graph(np.triu(rng.random((nodes, nodes)) < chance, 1)))
    return found


def independent(like: Graphs, count: int, seed: int) -> list[nx.Graph]:
    """Erdos-Renyi graphs with the sizes and the mean density of others."""
    rng = np.random.default_rng(seed)
    pairs = sum(len(one) * (len(one) - 1) // 2 for one in like)
    density = sum(one.number_of_edges() for one in like) / pairs
    found = []
    for _ in range(count):
        nodes = len(like[int(rng.integers(len(like)))])
        found.append(_graph(np.triu(rng.random((nodes, nodes)) < density, 1)))
    return found


def _graph(links: np.ndarray) -> nx.Graph:
    graph = nx.empty_graph(len(links))
    graph.add_edges_from(np.argwhere(links).tolist())
    return graph


# Descriptions of graphs.


def degrees(graph: nx.Graph) -> np.ndarray:
    """The share of the nodes with at most each degree."""
    return np.bincount([d for _, d in graph.degree], minlength=MOST).cumsum() / len(graph)


def clustering(graph: nx.Graph) -> np.ndarray:
    """The share of the nodes whose clustering coefficient is in each bin or below, per bin."""
    found = nx.clustering(graph)
    assert isinstance(found, dict)
    return (
        np.histogram(list(found.values()), bins=BINS, range=(0, 1))[0].cumsum() / len(graph) / BINS
    )


# The orbit of a node by the sorted degrees of an induced subgraph, and by its own degree there.
ORBITS = {
    (1, 1): {1: 0},
    (1, 1, 2): {1: 1, 2: 2},
    (2, 2, 2): {2: 3},
    (1, 1, 2, 2): {1: 4, 2: 5},
    (1, 1, 1, 3): {1: 6, 3: 7},
    (2, 2, 2, 2): {2: 8},
    (1, 2, 2, 3): {1: 9, 2: 10, 3: 11},
    (2, 2, 3, 3): {2: 12, 3: 13},
    (3, 3, 3, 3): {3: 14},
}


def orbits(graph: nx.Graph) -> np.ndarray:
    """How often a node is in each orbit of the connected graphs of 2 to 4 nodes, on average; halved."""
    return orbit_counts(graph).mean(0) / 2


def orbit_counts(graph: nx.Graph) -> np.ndarray:
    """How often each node is in each orbit, over all induced subgraphs (nodes, 15).

    Connected graphs of up to 4 nodes, and only they, are determined by their degrees.
    """
    links = nx.to_numpy_array(graph, dtype=np.dtype(int))
    counts = np.zeros((len(links), 1 + max(max(own.values()) for own in ORBITS.values())))
    for size in (2, 3, 4):
        chosen = np.array(list(combinations(range(len(links)), size)), dtype=np.int64)
        if not len(chosen):
            continue
        inside = links[chosen[:, :, None], chosen[:, None]].sum(2)
        ordered = np.sort(inside, 1)
        for shape, own in ORBITS.items():
            if len(shape) != size:
                continue
            here = (ordered == shape).all(1)
            for degree, orbit in own.items():
                nodes = chosen[here][inside[here] == degree]
                counts[:, orbit] += np.bincount(nodes, minlength=len(links))
    return counts


MEASURES: dict[str, tuple[Describe, float]] = {
    "degree": (degrees, 1.0),
    "clustering": (clustering, 0.1),
    "orbits": (orbits, 30.0),
}
"""What is compared, and the width of the kernel."""


def described(graphs: Graphs) -> Described:
    """The description of every graph, by every measure."""
    return {
        name: np.stack([describe(graph) for graph in graphs])
        for name, (describe, _) in MEASURES.items()
    }


def discrepancy(one: Described, other: Described) -> dict[str, float]:
    """The squared maximum mean discrepancy between two sets of graphs, by every measure; unbiased."""
    found = {}
    for name, (_, width) in MEASURES.items():
        within = 0.0
        for rows in (one[name], other[name]):
            kernel = _kernel(rows, rows, width)
            within += (kernel.sum() - kernel.trace()) / (len(rows) * (len(rows) - 1))
        found[name] = float(within - 2 * _kernel(one[name], other[name], width).mean())
    return found


def _kernel(one: np.ndarray, other: np.ndarray, width: float) -> np.ndarray:
    """The kernel of all pairs.

    The sum of differences is the earth mover's distance of cumulative histograms, and the total
    variation distance of halved counts.
    """
    distance = np.abs(one[:, None] - other).sum(2)
    return np.exp(-(distance**2) / (2 * width**2))


def halves(graphs: Described, seed: int = 0) -> dict[str, float]:
    """The discrepancy between two halves of one set, as a mean of several divisions."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(DIVISIONS):
        parts = np.array_split(rng.permutation(len(graphs["degree"])), 2)
        found.append(
            discrepancy(*({n: rows[part] for n, rows in graphs.items()} for part in parts))
        )
    return {name: float(np.mean([one[name] for one in found])) for name in MEASURES}


# The model.


def fit(graphs: Graphs, config: Config, minutes: float) -> tuple[Model, float]:
    """One model of all sizes, trained for a CPU time; and the CPU minutes that it took."""
    buckets = parse_graphs(graphs).buckets
    built = Model.build(buckets, config=config)  # its settings name the rates of the ladder
    pilot = Trainer(built.potential, buckets, built.config)
    pilot.step()
    start = time.process_time()
    for _ in range(PILOT):
        pilot.step()
    steps = max(1, round(60 * minutes * PILOT / (time.process_time() - start)))
    start = time.process_time()

    def report(event: object) -> None:
        step = getattr(event, "step", 0)
        if step % 25 == 0:
            print(f"  step {step} of {steps}: {_since(start):.1f} min", flush=True)

    config = override(config, {"training.steps": steps})
    return Model.fit(buckets, config=config, report=report), _since(start)


def _since(start: float) -> float:
    return (time.process_time() - start) / 60


def run(minutes: float, seed: int) -> dict[str, Any]:
    """Train, generate and measure."""
    graphs = communities(seed=seed)
    train, test = graphs[:TRAINED], graphs[TRAINED:]
    config = override(configure(SETTINGS), {"training.seed": seed, "model.seed": seed})
    model, spent = fit(train, config, minutes)
    generated = model.generate(TRAINED, seed=seed, **SAMPLING)
    held_out = described(test)
    rows = {
        "nmln": discrepancy(described(generated), held_out),
        "Erdos-Renyi": discrepancy(described(independent(train, TRAINED, seed)), held_out),
        "training graphs": discrepancy(described(train), held_out),
        "two halves of the data": halves(described(graphs)),
    }
    return {
        "command": f"python -m benchmarks.graphs --minutes {minutes:g} --seed {seed}",
        "nmln": VERSION,
        "kernel": "exp(-d^2 / 2 s^2); d: earth mover's (degree, clustering), total variation (orbits)",
        "widths": {name: width for name, (_, width) in MEASURES.items()},
        "settings": SETTINGS,
        "steps": model.config.training.steps,
        "training_cpu_minutes": spent,
        "mmd_squared": rows,
    }


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| against the held-out graphs | degree | clustering | orbits |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in found["mmd_squared"].items():
        lines.append(f"| {name} | " + " | ".join(f"{row[one]:.3f}" for one in MEASURES) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="CPU minutes of training")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = run(given.minutes, given.seed)
    write_lines(RESULTS, [json.dumps(plain(found), indent=1)])
    print(table(found))


if __name__ == "__main__":
    main()
