"""Give the model of a run, or one of the package, chains to start from, by a burn-in from noise.

    python scripts/mix_chains.py nmln/data/pretrained/pubchem-10

Runs that are trained keep the chains of their training; this is for models that have none.
Blocks of 50 chains burn in from noise for 1,000 sweeps and are kept four times, 100 sweeps apart.
The parameters are not changed. `--chains 100` of the shipped model took about 5 CPU minutes.
"""

import argparse
import sys
from pathlib import Path

import torch

from nmln.checkpoint import load_model, save_model
from nmln.model import Model
from nmln.model.replicas import parameters_in


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--burn-in", type=int, default=1000)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)

    def report(done: int, total: int) -> None:
        if done % 100 == 0:
            sys.stderr.write(f"sweep {done:,} of {total:,}\n")

    model = Model.load(given.run / "model").mixed(
        given.chains,
        given.burn_in,
        times=given.times,
        every=given.every,
        seed=given.seed,
        report=report,
    )
    assert model.replicas is not None
    tensors, content = load_model(given.run / "model")  # all else stays as it is, byte for byte
    tensors = parameters_in(tensors) | model.replicas.tensors()
    save_model(given.run / "model", tensors, {**content, "replicas": model.replicas.described()})
    sys.stdout.write(
        f"{model.replicas.count:,} chains are kept; {model.replicas.forgetting} sweeps to forget them\n"
    )


if __name__ == "__main__":
    main()
