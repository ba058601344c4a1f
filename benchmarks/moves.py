"""Structural moves by level: `python -m benchmarks.moves [--model FOLDER] [--settings NAME ...]`.

Every setting mixes balanced moves with structural ones, at all levels or only at those near the target,
and runs with exchange from the same burnt-in worlds, in turns on one thread. As in `benchmarks.mixing`,
the report shows arrivals at the target and different valid molecules there per second of CPU time, and
their ratios to balanced moves alone, with standard errors from the parts of the run. Before it stands
the probability that one proposal of each kind leads to another valid molecule at the target.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Generator

from benchmarks.ratios import Ratio, report
from nmln.checkpoint.runs import load
from nmln.kernels.balanced import BalancedMetropolis
from nmln.kernels.combined import ByLevel, Lazy
from nmln.kernels.moves import log_ratio
from nmln.kernels.structural import LocalSlide, Regraft, Switch
from nmln.model import Model
from nmln.model.pretrained import folder_of
from nmln.molecules.decoding import Decoder
from nmln.noise import uniform
from nmln.recording import Recorder
from nmln.sampler import sample
from nmln.space import Space
from nmln.types import Kernel, Sweep, Values

CHAINS, ROUNDS = 100, 10
MOVES = {"local": LocalSlide, "switch": Switch, "regraft": Regraft}
BASE = "balanced"
TRIED = (
    "local+regraft:0.5",
    "local+switch+regraft:0.6",
    "local+switch+regraft:0.6@2",
)


def shares_of(name: str, levels: int) -> dict[str, tuple[float, ...]]:
    """The share of each structural move at every level, the noisiest first; the rest is balanced.

    `local+regraft:0.5@2` gives half of the moves at the two levels next to the target, the target
    included, to these two kinds; without `@2` it is all levels.
    """
    if name == BASE:
        return {}
    kinds, share = name.split(":")
    share, _, lowest = share.partition("@")
    moves, number = kinds.split("+"), int(lowest or levels)
    row = (0.0,) * (levels - number) + (float(share) / len(moves),) * number
    return dict.fromkeys(moves, row)


def kernel_of(space: Space, shares: dict[str, tuple[float, ...]]) -> Kernel:
    """Balanced moves with these shares of structural ones."""
    balanced = BalancedMetropolis(space)
    if not shares:
        return Lazy(balanced)
    rows = zip(*shares.values(), strict=True)
    weights = tuple((1 - sum(row), *row) for row in rows)
    return Lazy(ByLevel((balanced, *(MOVES[name](space) for name in shares)), weights))


@dataclass(frozen=True)
class Chance:
    """What one proposal of a kernel does, from worlds of the model."""

    kernel: str
    new: float  # at the target: the probability of another valid molecule
    acceptance: tuple[float, ...]  # by level
    impossible: tuple[float, ...]  # nothing to propose, by level


@torch.no_grad()
def chances(model: Model, values: Values, repeats: int = 5) -> list[Chance]:
    """The chance per score, of balanced moves and of every structural one."""
    rng, decoder, rows = Generator().manual_seed(0), Decoder(model.space), []
    scores = model.potential.score(values)
    now = [one.smiles for one in decoder.decode(values[-1])]
    for kernel in (BalancedMetropolis, *MOVES.values()):
        new, accepted, impossible = 0.0, torch.zeros(len(values)), torch.zeros(len(values))
        for _ in range(repeats):
            proposal = kernel(model.space).propose(values, rng)
            proposed = model.potential.score(proposal.values)
            chance = log_ratio(scores, proposed, proposal.factor).clamp(max=0).exp()
            accepted += chance.mean(1) / repeats
            impossible += (proposal.factor == float("-inf")).double().mean(1) / repeats
            then = [one.smiles for one in decoder.decode(proposal.values[-1])]
            new += sum(
                float(one)
                for one, old, found in zip(chance[-1], now, then, strict=True)
                if found is not None and found != old
            )
        rows.append(
            Chance(
                kernel.__name__,
                new / repeats / values.shape[1],
                tuple(accepted.tolist()),
                tuple(impossible.tolist()),
            )
        )
    return rows


@dataclass
class Run:
    """The chains of one setting and what they have found, part by part of the time."""

    sweeps: Iterator[Sweep]
    recorder: Recorder
    decoder: Decoder
    found: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    states: int = 0
    valid: int = 0

    def go_on(self, seconds: float) -> None:
        """Move for some CPU seconds; decoding is not counted."""
        spent, before, arrived = 0.0, len(self.found), self._arrived()
        while spent < seconds:
            started = time.process_time()
            sweep = next(self.sweeps)
            self.recorder.record(sweep)
            spent += time.process_time() - started
            smiles = [one.smiles for one in self.decoder.decode(sweep.state.values[-1])]
            self.states += len(smiles)
            self.valid += sum(one is not None for one in smiles)
            self.found.update(one for one in smiles if one is not None)
        self.seconds.append(spent)
        self.new.append(len(self.found) - before)
        self.arrivals.append(self._arrived() - arrived)

    def _arrived(self) -> int:
        return int(self.recorder.recording().restarts.sum()) if self.states else 0


@dataclass(frozen=True)
class Row:
    """Measurements of a setting; ratios are over balanced moves in the same parts of the run."""

    name: str
    sweeps: int
    molecules: float  # different and valid, per CPU second
    arrivals: float  # per CPU second
    valid: float
    molecules_ratio: float
    molecules_error: float  # from the parts of the run
    arrivals_ratio: float | None  # None where balanced moves had no arrival
    arrivals_error: float | None  # from the numbers of arrivals
    swaps: tuple[float, ...]


def row(name: str, run: Run, base: Run) -> Row:
    spent, others = sum(run.seconds), sum(base.seconds)
    arrivals: float | None = None
    if sum(base.arrivals):
        arrivals = (sum(run.arrivals) / spent) / (sum(base.arrivals) / others)
    parts = [
        (a / s) / (b / t)
        for a, s, b, t in zip(run.new, run.seconds, base.new, base.seconds, strict=True)
    ]
    counts = [max(sum(one.arrivals), 1) for one in (run, base)]
    return Row(
        name,
        run.states // CHAINS,
        len(run.found) / spent,
        sum(run.arrivals) / spent,
        run.valid / run.states,
        (len(run.found) / spent) / (len(base.found) / others),
        statistics.stdev(parts) / len(parts) ** 0.5,
        arrivals,
        None if arrivals is None else arrivals * sum(1 / count for count in counts) ** 0.5,
        tuple(run.recorder.recording().swap_probability.tolist()),
    )


def of_training(folder: Path) -> tuple[Model, Values]:
    """The averaged model of the newest checkpoint of a run, and chains of its training."""
    saved = load(folder)
    model = Model.described(dict(saved.content), str(folder))
    average = {
        name.removeprefix("average/"): tensor
        for name, tensor in saved.tensors.items()
        if name.startswith("average/")
    }
    model.take(average, str(folder))
    return model, saved.tensors["ranks/0/values"][:, :CHAINS]


def mixed(model: Model, start: Values | None, burn_in: int, kept: Path | None) -> Values:
    """Worlds at every level after a burn-in by balanced moves, taken from a file if there is one."""
    if kept is not None and kept.exists():
        return torch.load(kept, weights_only=True)
    if start is None:
        start = uniform(model.space, model.potential.levels, CHAINS, Generator().manual_seed(0))
    *_, last = sample(
        model.potential,
        kernel_of(model.space, {}),
        start,
        burn_in,
        Generator().manual_seed(0),
        moves=model.config.sampling.moves,
        phases=model.config.chains.phases,
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(last.state.values, kept)
    return last.state.values


def show(rows: list[Row], rounds: int) -> None:
    """The table so far."""
    print(f"after {rounds} of {ROUNDS} rounds")
    print(
        f"{'setting':<34}{'sweeps':>7}{'molecules/s':>13}{'ratio':>16}{'arrivals/s':>12}{'ratio':>16}"
    )
    for one in rows:
        arrivals = "-"
        if one.arrivals_ratio is not None:
            arrivals = f"{one.arrivals_ratio:.2f} ({one.arrivals_error:.2f})"
        print(
            f"{one.name:<34}{one.sweeps:>7}{one.molecules:>13.1f}"
            f"{f'{one.molecules_ratio:.2f} ({one.molecules_error:.2f})':>16}{one.arrivals:>12.2f}"
            f"{arrivals:>16}{one.valid:>8.1%}  " + " ".join(f"{swap:.2f}" for swap in one.swaps),
            flush=True,
        )


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="Structural moves, by level.")
    parser.add_argument("--model", type=Path, help="a trained model; else the shipped one")
    parser.add_argument("--run", type=Path, help="a run, whose training chains are the start")
    parser.add_argument("--name", default="moves", help="of the results")
    parser.add_argument("--settings", nargs="*", default=TRIED, help="such as local+regraft:0.5@2")
    parser.add_argument("--burn-in", type=int, default=200, help="sweeps")
    parser.add_argument("--worlds", type=Path, help="keep the burnt-in worlds here")
    parser.add_argument("--seconds", type=float, default=60, help="for every setting")
    parser.add_argument("--moves", type=int, default=6, help="between two exchanges")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    start: Values | None = None
    if chosen.run is not None:
        model, start = of_training(chosen.run)
    else:
        model = Model.load(chosen.model or folder_of("pubchem-10") / "model")
    model.potential.requires_grad_(False)
    values = mixed(model, start, chosen.burn_in, chosen.worlds)
    single = chances(model, values)
    for one in single:
        levels = " ".join(f"{level:.2f}" for level in one.acceptance)
        print(f"{one.kernel:<34}another valid molecule {one.new:.3f}, accepted by level {levels}")
    named = {name: shares_of(name, len(values)) for name in (BASE, *chosen.settings)}
    runs = {}
    for name, shares in named.items():
        sweeps = sample(
            model.potential,
            kernel_of(model.space, shares),
            values,
            10**9,
            Generator().manual_seed(chosen.seed),
            moves=chosen.moves,
            phases=model.config.chains.phases,
        )
        runs[name] = Run(sweeps, Recorder(keep=10), Decoder(model.space))
    rows: list[Row] = []
    for number in range(ROUNDS):
        for run in runs.values():
            run.go_on(chosen.seconds / ROUNDS)
        if number:
            rows = [row(name, run, runs[BASE]) for name, run in runs.items()]
            show(rows, number + 1)
    ratios = [
        Ratio(f"{one.name}: {what} / {BASE}", value)
        for one in rows[1:]
        for what, value in (
            ("different molecules", one.molecules_ratio),
            ("arrivals", one.arrivals_ratio),
        )
        if value is not None
    ]
    report(
        chosen.name,
        ratios,
        command=" ".join(["python -m benchmarks.moves", *sys.argv[1:]]),
        chains=CHAINS,
        seconds=chosen.seconds,
        moves=chosen.moves,
        levels=len(values),
        chances=[asdict(one) for one in single],
        table=[asdict(one) for one in rows],
    )


if __name__ == "__main__":
    main()
