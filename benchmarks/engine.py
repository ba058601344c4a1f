"""The compiled kernel of the graph potential beside plain PyTorch: `python -m benchmarks.engine`.

Ratios of CPU times, taken in turns in one run on one thread, the best of several. Training steps are
those of `nmln train DATA --preset molecules`, where the data of the tests are at hand (`NMLN_DATA`).
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.molecules_like import space_of, sparse_worlds, uniform_worlds
from benchmarks.ratios import Ratio, report
from nmln.config import configure
from nmln.potentials import compiled
from nmln.potentials.graph import GraphPotential
from nmln.presets import PRESETS
from nmln.runs import train as training

CHAINS = 200
LARGE = 2048
NETWORKS = {"4 x 40": (4, 40), "4 x 64": (4, 64), "10 x 128": (10, 128)}


def turns(*works: Callable[[], object], rounds: int = 8) -> list[float]:
    """The fewest seconds of CPU time of each piece of work, taken in turns."""
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            start = time.process_time()
            work()
            best[index] = min(best[index], time.process_time() - start)
    return best


def plainly(work: Callable[[], object]) -> None:
    """Do the work without the kernel."""
    os.environ["NMLN_COMPILED"] = "0"
    try:
        work()
    finally:
        del os.environ["NMLN_COMPILED"]


def score(potential: GraphPotential, values: Tensor) -> None:
    with torch.no_grad():
        potential.score(values)


def gradient(potential: GraphPotential, values: Tensor) -> None:
    potential.zero_grad()
    potential.score(values).sum().backward()


def network(name: str, nodes: int, dense: bool) -> list[Ratio]:
    """Speed-ups of one network, and how near its scores come to a large matrix product."""
    space, rng = space_of(nodes), torch.Generator().manual_seed(0)
    values = (uniform_worlds if dense else sparse_worlds)(space, CHAINS, rng)
    potential = GraphPotential(space, len(values), *NETWORKS[name])
    large, room = torch.randn(LARGE, LARGE), torch.empty(LARGE, LARGE)
    works = [
        partial(score, potential, values),
        partial(potential.score_and_slopes, values),
        partial(gradient, potential, values),
    ]
    rounds = 4 if potential.hidden > 100 else 8
    product, *times = turns(
        partial(torch.mm, large, large, out=room),
        *works,
        *(partial(plainly, work) for work in works),
        rounds=rounds,
    )
    fast, slow = times[:3], times[3:]
    name = f"{name}, {nodes} nodes{', uniform worlds' if dense else ''}"
    names = ("score", "score and slopes", "gradient by parameters")
    target = 1.5 if potential.hidden < 100 and not dense else None
    found = [
        Ratio(f"{name}: {what}, plain / compiled", two / one, target, at_most=False)
        for what, one, two in zip(names, fast, slow, strict=True)
    ]
    work = potential.weight_products() * values.shape[0] * values.shape[1]
    for what, taken in (("compiled", fast[0]), ("plain", slow[0])):
        rate = work / taken / (2 * LARGE**3 / product)
        wanted = 0.6 if what == "compiled" else None
        found.append(
            Ratio(f"{name}: rate of {what} score / of a matrix product", rate, wanted, False)
        )
    found.append(Ratio(f"{name}: compiled gradient / compiled score", fast[2] / fast[0]))
    return found


def training_step(source: str, name: str) -> list[Ratio]:
    """A whole step of training on molecules, and the share of it that is left outside the network."""
    folder = Path(tempfile.mkdtemp()) / "run"
    choice = {"data": {"source": source}, "training": {"steps": 10**6}}
    settings = {
        key: {**PRESETS["molecules"].get(key, {}), **choice.get(key, {})}
        for key in {*PRESETS["molecules"], *choice}
    }
    trainer = training.begin(folder, configure(settings)).trainer
    plainly(trainer.step)
    trainer.step()
    fast, slow = turns(trainer.step, partial(plainly, trainer.step), rounds=8)
    return [
        Ratio(
            f"a step of nmln train {name} --preset molecules, plain / compiled",
            slow / fast,
            1.5,
            False,
        )
    ]


def main() -> None:
    torch.set_num_threads(1)
    os.environ.pop("NMLN_COMPILED", None)
    ratios: list[Ratio] = []
    for nodes in (10, 15, 20):
        for name in ("4 x 40", "4 x 64"):
            ratios += network(name, nodes, dense=False)
    ratios += network("4 x 64", 10, dense=True)
    ratios += network("10 x 128", 10, dense=False)
    ratios += training_step("pubchem-10", "pubchem-10")
    data = Path(os.environ.get("NMLN_DATA", "")) / "chembl_20.smi.gz"
    if data.is_file():
        ratios += training_step(str(data), "chembl_20")
    report("engine", ratios, levels=5, chains=CHAINS, kernel=compiled.state())


if __name__ == "__main__":
    main()
