"""The rate of new molecules at the target: `python -m benchmarks.mixing [--model FOLDER]`.

`benchmarks.kernels` runs each level separately. Sampling needs worlds that travel from the noisiest
level down to the target, so every kernel runs here with exchange, with different numbers
of moves between two swaps, from the same worlds and in turns on one thread.

The report shows the arrivals (worlds at the target that have been at the noisiest level since they were
last there) and the different valid molecules at the target, both per second of CPU time.
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Generator

from benchmarks.ratios import Ratio, report
from nmln.kernels.registry import kernel_named
from nmln.model import Model
from nmln.model.pretrained import folder_of
from nmln.molecules.decoding import Decoder
from nmln.recording import Recorder
from nmln.sampler import sample
from nmln.types import Values

CHAINS, BURN_IN = 100, 200
BASE = ("gradients", 10)
TRIED = (
    BASE,
    ("gradients", 5),
    ("gradients", 3),
    ("gradients", 1),
    ("path", 3),
    ("balanced", 20),
    ("balanced", 6),
    ("screened", 6),
    ("screened", 3),
    ("screened", 1),
    ("metropolis", 20),
    ("gibbs", 6),
    ("systematic", 1),  # a move is a pass over all groups
)


@dataclass(frozen=True)
class Row:
    """One kernel with its number of moves between two swaps."""

    kernel: str
    moves: int
    sweeps: int
    arrivals: float  # per CPU second
    molecules: float  # different and valid, per CPU second
    valid: float
    swaps: tuple[float, ...]


def mix(model: Model, values: Values, kernel: str, moves: int, seconds: float) -> Row:
    """Run one kernel for some CPU seconds; decoding its worlds is not counted."""
    rng, recorder = Generator().manual_seed(1), Recorder(keep=10)
    decoder, found = Decoder(model.space), set[str]()
    spent, sweeps, valid = 0.0, 0, 0
    started = time.process_time()
    for sweep in sample(
        model.potential,
        kernel_named(kernel, model.space),
        values,
        10**9,
        rng,
        moves=moves,
        warm_up=20,
        phases=model.config.chains.phases,
    ):
        recorder.record(sweep)
        spent += time.process_time() - started
        sweeps += 1
        smiles = [one.smiles for one in decoder.decode(sweep.state.values[-1])]
        valid += sum(one is not None for one in smiles)
        found.update(one for one in smiles if one is not None)
        if spent >= seconds:
            break
        started = time.process_time()
    seen = recorder.recording()
    return Row(
        kernel,
        moves,
        sweeps,
        float(seen.restarts.sum()) / spent,
        len(found) / spent,
        valid / (sweeps * values.shape[1]),
        tuple(seen.swap_probability.tolist()),
    )


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="How fast new molecules arrive at the target.")
    parser.add_argument("--model", type=Path, help="a trained model; else the shipped one")
    parser.add_argument("--seconds", type=float, default=60, help="for every kernel")
    parser.add_argument(
        "--kernels", nargs="+", metavar="KERNEL", help="only these, after the first"
    )
    chosen = parser.parse_args()
    model = Model.load(chosen.model or folder_of("pubchem-10") / "model")
    model.potential.requires_grad_(False)
    *_, last = model.sample(
        BURN_IN, Generator().manual_seed(0), chains=CHAINS, burn_in=BURN_IN - 1, thin=1
    )
    rows = []
    print(
        f"{'kernel':<12}{'moves':>6}{'sweeps':>8}{'arrivals/s':>12}{'molecules/s':>13}{'valid':>8}"
    )
    tried = [one for one in TRIED if one == BASE or one[0] in (chosen.kernels or [one[0]])]
    for kernel, moves in tried:
        row = mix(model, last.state.values, kernel, moves, chosen.seconds)
        rows.append(row)
        print(
            f"{row.kernel:<12}{row.moves:>6}{row.sweeps:>8}{row.arrivals:>12.2f}"
            f"{row.molecules:>13.1f}{row.valid:>8.1%}  "
            + " ".join(f"{swap:.2f}" for swap in row.swaps),
            flush=True,
        )
    base = rows[0]
    ratios = [
        Ratio(f"{row.kernel}, {row.moves} moves: {what} / {BASE[0]}, {BASE[1]} moves", value)
        for row in rows[1:]
        for what, value in (
            ("arrivals", row.arrivals / base.arrivals),
            ("different molecules", row.molecules / base.molecules),
        )
    ]
    report(
        "mixing",
        ratios,
        command=" ".join(["python -m benchmarks.mixing", *sys.argv[1:]]),
        chains=CHAINS,
        seconds=chosen.seconds,
        table=[asdict(row) for row in rows],
    )


if __name__ == "__main__":
    main()
