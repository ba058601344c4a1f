"""The cost of blocks of chains: `python -m benchmarks.blocks`.

Sampling divides its chains into blocks of a fixed size, so that the results do not depend on the
number of processes. Here 100 chains of the shipped model run as one block and as several smaller ones,
in one process and on one thread, in turns: the medians of the CPU time of all rounds are compared.
"""

import argparse
import time
from statistics import median

import torch
from torch import Generator

from benchmarks.ratios import Ratio, report
from nmln.model import Model
from nmln.runs.specification import BLOCK

CHAINS = 100
SIZES = (100, 50, 25, 10)
MOST = 1.05  # what blocks of the size that is used may cost


def sweep_blocks(model: Model, size: int, sweeps: int) -> None:
    """All chains, block after block."""
    for block in range(CHAINS // size):
        rng = Generator().manual_seed(block)
        for _ in model.sample(sweeps, rng, chains=size, burn_in=0):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Model.pretrained("pubchem-10")
    sweep_blocks(model, CHAINS, 3)
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(options.rounds):
        for size in SIZES:
            start = time.process_time()
            sweep_blocks(model, size, options.sweeps)
            taken[size].append(time.process_time() - start)
    whole, *parts = (median(taken[size]) for size in SIZES)
    ratios = [
        Ratio(
            f"time of {CHAINS} chains in blocks of {size} / in one block",
            part / whole,
            MOST if size == BLOCK else None,
        )
        for size, part in zip(SIZES[1:], parts, strict=True)
    ]
    report("blocks", ratios, model="pubchem-10", sweeps=options.sweeps, rounds=options.rounds)


if __name__ == "__main__":
    main()
