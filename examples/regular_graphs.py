"""Learn plain graphs, generate new ones, and compare degrees and clustering with the data."""

from collections import Counter

import networkx as nx
import torch

import nmln

torch.set_num_threads(1)
graphs = [nx.connected_watts_strogatz_graph(7, 4, 0.1, seed=seed) for seed in range(200)]
space, worlds = nmln.from_networkx(graphs)
config = nmln.configure(
    {
        "ladder": {"rates": [0.3, 0.15, 0.05, 0.01]},
        "model": {"layers": 2, "hidden": 32},
        "chains": {"replicas": 40, "moves": 4},
        "optimiser": {"learning_rate": 5e-3, "average": 0.98},
        "training": {"steps": 120, "batch": 40},
    }
)
model = nmln.Model.fit(space, worlds, config)

samples = []
for sweep in model.sample(120, torch.Generator().manual_seed(0), chains=40, burn_in=60, thin=12):
    samples += nmln.to_networkx(space, sweep.state.values[-1])
for name, found in (("data", graphs), ("samples", samples)):
    degrees = Counter(degree for graph in found for _, degree in graph.degree())
    shares = "  ".join(f"{d}: {degrees[d] / degrees.total():4.0%}" for d in range(7))
    clustering = sum(map(nx.average_clustering, found)) / len(found)
    print(f"{name:8} degrees {shares}   clustering {clustering:.2f}")
