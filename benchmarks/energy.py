"""The speed of the graph potential in PyTorch: `python -m benchmarks.energy`; benchmarks.engine has
that of the compiled kernel.

All ratios come from one run on one thread. The rate counts the floating-point work of the weight
products of the network as it is written down, and is compared with that of a large matrix product; rows
that no node receives are skipped, so the rate by executed work is reported beside it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.molecules_like import space_of, sparse_worlds, uniform_worlds
from benchmarks.pyg import Batch, GeometricNetwork, batch_of
from benchmarks.ratios import Ratio, interleaved, report
from nmln.potentials.graph import GraphPotential

CHAINS = 100
LARGE = 2048

# In a separate process, so that its peak memory is that of the potential.
MEMORY = """
import resource, sys, torch
torch.set_num_threads(1)
from benchmarks.energy import prepare
potential, values = prepare("paper", 20)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with torch.no_grad():
    potential.score(values[:, :2]); potential.score_and_slopes(values[:, :2])
before = peak()
if sys.argv[1] == "score":
    with torch.no_grad(): potential.score(values)
elif sys.argv[1] == "slopes": potential.score_and_slopes(values)
else: potential.score(values).sum().backward()
print(peak() - before)
"""
WORKER = """
import time, torch
torch.set_num_threads(1)
from benchmarks.energy import prepare
potential, values = prepare("paper", 10)
with torch.no_grad():
    potential.score(values)
    input()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < 8:
        potential.score(values); count += 1
    print(count / (time.perf_counter() - start))
"""


def prepare(preset: str, nodes: int, dense: bool = False) -> tuple[GraphPotential, Tensor]:
    """A potential with five levels and a hundred chains to score at each."""
    space = space_of(nodes)
    rng = torch.Generator().manual_seed(0)
    worlds = (uniform_worlds if dense else sparse_worlds)(space, CHAINS, rng)
    return GraphPotential.preset(preset, space, len(worlds)), worlds


def _repeat(times: int, work: Callable[[Tensor], object], values: Tensor) -> None:
    for _ in range(times):
        work(values)


def _run_all(networks: list[GeometricNetwork], batches: list[Batch]) -> list[Tensor]:
    return [network(batch) for network, batch in zip(networks, batches, strict=True)]


@torch.no_grad()
def rates() -> list[Ratio]:
    large = torch.randn(LARGE, LARGE)
    room = torch.empty(LARGE, LARGE)
    found = []
    for preset, nodes, dense, rate, ratio in (
        ("paper", 10, False, 0.75, 2.6),
        ("paper", 20, False, 0.75, 2.6),
        ("small", 10, False, 0.6, 2.6),
        ("paper", 10, True, None, None),
        ("small", 10, True, None, None),
    ):
        potential, values = prepare(preset, nodes, dense)
        times = 1 if preset == "paper" else 8  # short work is repeated and timed as a whole
        product, score, slopes = interleaved(
            lambda: torch.mm(large, large, out=room),
            partial(_repeat, times, potential.score, values),
            partial(_repeat, times, potential.score_and_slopes, values),
            rounds=12,
        )
        score, slopes = score / times, slopes / times
        work = potential.weight_products() * values.shape[0] * values.shape[1]
        name = f"{preset}, {nodes} nodes{', uniform worlds' if dense else ''}"
        reached = work / score / (2 * LARGE**3 / product)
        found.append(Ratio(f"{name}: rate of score / of a matrix product", reached, rate, False))
        done = executed(potential, values) / work
        if done < 1:
            found.append(Ratio(f"{name}: the same, counting executed work only", reached * done))
        if done < 1 and not dense:
            found.extend(without_skipping(name, potential, values, score))
        if ratio is not None:
            found.append(Ratio(f"{name}: score_and_slopes / score", slopes / score, ratio))
    return found


def without_skipping(
    name: str, potential: GraphPotential, values: Tensor, score: float
) -> list[Ratio]:
    """The time of a score when rows that no node receives are computed too."""
    potential._compact = False
    every, slopes = interleaved(
        lambda: potential.score(values), lambda: potential.score_and_slopes(values), rounds=8
    )
    potential._compact = True
    return [
        Ratio(f"{name}: score without skipping / score", every / score),
        Ratio(f"{name}: without skipping, score_and_slopes / score", slopes / every),
    ]


def executed(potential: GraphPotential, values: Tensor) -> int:
    """Floating-point operations of the weight products that are not skipped."""
    if not potential._compact:
        return potential.weight_products() * values.shape[0] * values.shape[1]
    all_rows = values.shape[0] * values.shape[1] * potential.wiring.nodes
    all_rows *= potential.wiring.relations - 1
    rows = 0
    for _, _, edges in potential.wiring.batches(values, potential._batch_size(values), True):
        assert edges.heard.rows is not None
        rows += len(edges.heard.rows.nodes)
    inputs = potential.wiring.features + (potential.layers - 1) * potential.hidden
    skipped = 2 * (all_rows - rows) * inputs * potential.hidden
    return potential.weight_products() * values.shape[0] * values.shape[1] - skipped


@torch.no_grad()
def against_geometric() -> list[Ratio]:
    potential, values = prepare("paper", 10)
    batches = [batch_of(potential, worlds) for worlds in values]
    times = []
    for fast in (False, True):
        networks = [GeometricNetwork(potential, level, fast) for level in range(potential.levels)]
        run = partial(_run_all, networks, batches)
        apart = (torch.stack(run()) - potential.score(values)).abs().max()
        assert apart < 1e-4, f"the networks disagree by {apart}"
        ours, theirs = interleaved(lambda: potential.score(values), run, rounds=6)
        times.append(theirs / ours)
    return [
        Ratio(
            "paper, 10 nodes: throughput / PyTorch Geometric's faster layer", min(times), 4, False
        )
    ]


def memory() -> list[Ratio]:
    found = []
    for what, target in (("score", 300), ("slopes", 300), ("gradient", 300)):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, what], capture_output=True, text=True, check=True
        )
        name = f"paper, 20 nodes: peak extra memory of {what} (MB)"
        found.append(Ratio(name, float(done.stdout), target))
    return found


def processes() -> list[Ratio]:
    def run(count: int) -> float:
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        time.sleep(8)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        return sum(float(worker.communicate()[0]) for worker in workers)

    one, two, again = run(1), run(2), run(1)
    return [Ratio("paper, 10 nodes: two processes / one", two / max(one, again), 1.7, False)]


def main() -> None:
    torch.set_num_threads(1)
    os.environ["NMLN_COMPILED"] = "0"  # also in the processes that are started
    ratios = memory() + rates() + against_geometric() + processes()
    report("energy", ratios, levels=5, chains=CHAINS, matrix_product=LARGE)


if __name__ == "__main__":
    main()
