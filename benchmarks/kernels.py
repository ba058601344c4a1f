"""The mixing speed of the kernels: `python -m benchmarks.kernels` (`--weights FILE` skips the fit).

All kernels run on one sharp R-GCN, fitted here to random graphs with valence limits, or, with `--model
FOLDER`, on a model of molecules that `nmln train` made; at all levels at once, without exchange and
from the same worlds, in turns on one thread. The effective sample size of a level is that of the worst
of four traces: the score and three numbers of the graph. It is reported only where all four have an
R-hat below 1.05, so that stuck chains do not count.
"""

import argparse
import gc
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from torch import Generator

from benchmarks import energy, valence_graphs
from benchmarks.ratios import Ratio, report, resident
from nmln.adaptation import start_tuning, tune, with_sizes
from nmln.diagnostics import GOOD_RHAT, effective_sample_size, rank_rhat
from nmln.kernels.balanced import BalancedMetropolis
from nmln.kernels.combined import Composition, Lazy
from nmln.kernels.gibbs import Gibbs, redraw
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.kernels.path import PathAuxiliary
from nmln.kernels.registry import KERNELS, kernel_named
from nmln.model import Model
from nmln.potentials.base import BasePotential
from nmln.recording import Recorder, Statistic
from nmln.sampler import sample
from nmln.space import Space
from nmln.types import Info, Kernel, Potential, State, Values

BASE = "systematic"
NODES, CHAINS = 10, 64
FIT_STEPS = 1400
AIM = 4.0  # effective draws per second over systematic Gibbs, at the target
INTERVAL = 0.25  # seconds from one draw of the traces to the next, for every kernel
WARM_UP = 100  # moves in which step sizes are tuned


def kernels(space: Space) -> dict[str, Kernel]:
    """Every kernel of the package in its default form, and some combinations."""
    change, gradients = BalancedMetropolis(space, moves=20), GibbsWithGradients(space)
    node, bond = ((attribute.name,) for attribute in space.language)
    langevin = DiscreteLangevin(space, attributes=node)
    path = PathAuxiliary(space, attributes=bond)
    return {
        **{name: kernel_named(name, space) for name in KERNELS},
        BASE: Scan(space),
        "balanced": BalancedMetropolis(space),
        "balanced x20, gradients x4": Composition((change, *[gradients] * 4)),
        "langevin types, path bonds x2": Composition((langevin, path, path)),
    }


@dataclass
class Scan:
    """Systematic Gibbs, cut after every redraw.

    R-hat depends on how often a trace is recorded, so all kernels are recorded equally often; once per
    sweep would be too seldom for the fast ones, which would be limited to one effective draw per record.
    """

    space: Space
    next: int = 0

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        groups = torch.full(state.values.shape[:2], self.next)
        self.next = (self.next + 1) % self.space.groups
        return redraw(potential, self.space, None, state, groups, rng)


# Mixing.


@dataclass
class Run:
    """The chains of one kernel, and their recorded traces."""

    kernel: Kernel
    state: State
    rng: Generator
    moves: int = 0
    seconds: float = 0.0
    hops: list[ndarray] = field(default_factory=list)
    draws: list[dict[str, ndarray]] = field(default_factory=list)

    def go_on(
        self, potential: Potential, statistics: Mapping[str, Statistic], seconds: float
    ) -> None:
        """Move for some seconds; recording the chains is not counted."""
        end = self.seconds + seconds
        while self.seconds < end:
            before = self.state.values
            start = time.thread_time()  # other work on this machine is not counted
            self.state, _ = self.kernel.step(potential, self.state, self.rng)
            self.seconds += time.thread_time() - start
            self.moves += 1
            changed = (self.state.values != before).sum(-1).double().mean(1)
            self.hops.append(changed.numpy())
            if self.seconds >= (len(self.draws) + 1) * INTERVAL:
                draw = {"score": self.state.scores.double().numpy()}
                for name, statistic in statistics.items():
                    draw[name] = statistic(self.state.values).double().numpy()
                self.draws.append(draw)

    def hops_per_second(self) -> ndarray:
        """Groups changed per second, at every level, in all chains together."""
        return np.sum(self.hops, axis=0) * self.state.values.shape[1] / self.seconds

    def mixing(self) -> dict[str, list[tuple[float, float]]]:
        """Effective draws per second and R-hat, of every trace and level."""
        found = {}
        for name in self.draws[0]:
            trace = np.stack([draw[name] for draw in self.draws])
            found[name] = [
                (effective_sample_size(trace[:, level]) / self.seconds, rank_rhat(trace[:, level]))
                for level in range(trace.shape[1])
            ]
        return found


def begin(
    potential: BasePotential, kernel: Kernel, values: Values, seconds: float, seed: int
) -> Run:
    """Tune the step sizes of a kernel on its chains, then put them back to their start."""
    rng = Generator().manual_seed(seed)
    state, tuning = kernel.init(potential, values), start_tuning(kernel, potential.levels)
    moves, start = 0, time.thread_time()
    while moves < WARM_UP and time.thread_time() - start < max(2.0, seconds / 10):
        state, info = kernel.step(potential, state, rng)
        tuning = tune(kernel, tuning, info)
        kernel = with_sizes(kernel, tuning)
        moves += 1
    return Run(kernel, kernel.init(potential, values), rng)


def mix(
    potential: BasePotential, values: Values, named: Mapping[str, Kernel], seconds: float
) -> dict[str, Run]:
    """Run every kernel for the same time, in turns, so that noise affects all equally."""
    statistics, rounds = valence_graphs.statistics(potential.space), 10
    runs = {
        name: begin(potential, kernel, values, seconds, seed)
        for seed, (name, kernel) in enumerate(named.items())
    }
    for _ in range(rounds):
        for run in runs.values():
            run.go_on(potential, statistics, seconds / rounds)
    return runs


def start_values(potential: BasePotential, values: Values, sweeps: int) -> Values:
    """Well-mixed worlds at every level, from a run with exchange."""
    space = potential.space
    kernel = Composition((Lazy(GibbsWithGradients(space)),) * 10 + (Gibbs(space),))
    rng = Generator().manual_seed(1)
    *_, last = sample(potential, kernel, values, sweeps, rng, rescue=None)
    return last.state.values


@dataclass(frozen=True)
class Row:
    """Measurements of a kernel at a level; ratios are over systematic Gibbs."""

    kernel: str
    level: int
    moves: int
    hops_per_second: float
    hops_ratio: float
    rhat: float  # the largest of all traces
    mixed: bool
    ess_per_second: float  # the smallest of all traces
    ess_ratio: float
    ess_ratio_of: dict[str, float]


def table(runs: Mapping[str, Run]) -> list[Row]:
    """A row for every kernel and level."""
    rows = []
    found = {name: run.mixing() for name, run in runs.items()}
    base_hops = runs[BASE].hops_per_second()
    for name, run in runs.items():
        hops = run.hops_per_second()
        for level in range(len(hops)):
            sizes = {what: traces[level][0] for what, traces in found[name].items()}
            base = {what: traces[level][0] for what, traces in found[BASE].items()}
            rhat = max(traces[level][1] for traces in found[name].values())
            rows.append(
                Row(
                    kernel=name,
                    level=level,
                    moves=run.moves,
                    hops_per_second=float(hops[level]),
                    hops_ratio=float(hops[level] / base_hops[level]),
                    rhat=rhat,
                    mixed=bool(rhat < GOOD_RHAT),
                    ess_per_second=min(sizes.values()),
                    ess_ratio=min(sizes.values()) / min(base.values()),
                    ess_ratio_of={what: sizes[what] / base[what] for what in sizes},
                )
            )
    return rows


def tell(rows: list[Row], levels: int) -> None:
    """Print the table: hops and effective draws per second over those of systematic Gibbs."""
    print("hops per second and effective draws per second, over those of systematic Gibbs")
    print(f"{'':<32}" + "".join(f"{f'level {level}':>23}" for level in range(levels)))
    for name in dict.fromkeys(row.kernel for row in rows):
        cells = [
            f"{row.hops_ratio:>8.2f} |{f'{row.ess_ratio:.2f}' if row.mixed else 'not mixed':>13}"
            for row in rows
            if row.kernel == name
        ]
        print(f"{name:<32}{''.join(cells)}")
    print("\nat the target, trace by trace")
    for row in rows:
        if row.level == levels - 1:
            each = "  ".join(f"{what} {ratio:.2f}" for what, ratio in row.ess_ratio_of.items())
            told = f"ESS/s {row.ess_per_second:8.2f}  R-hat {row.rhat:.3f}"
            print(f"{row.kernel:<32}{told}  {each}")
    print()


def of_mixing(rows: list[Row], levels: int) -> list[Ratio]:
    """The best kernel at the target that has mixed, and each of the other levels."""
    found = []
    for level in reversed(range(levels)):
        here = [row for row in rows if row.level == level and row.mixed and row.kernel != BASE]
        base = next(row for row in rows if row.level == level and row.kernel == BASE)
        name = "the target" if level == levels - 1 else f"level {level}"
        told = "" if base.mixed else ", which has not mixed"
        best = max(here, key=lambda row: row.ess_ratio, default=None)
        found.append(
            Ratio(
                f"{name}: ESS/s of {best.kernel if best else 'no kernel'} / systematic Gibbs{told}",
                best.ess_ratio if best else float("nan"),
                AIM if level == levels - 1 else None,
                at_most=False,
            )
        )
        if best and level == levels - 1:
            trace, least = min(best.ess_ratio_of.items(), key=lambda item: item[1])
            found.append(Ratio(f"{name}: the same kernel, trace by trace, least ({trace})", least))
    return found


# Bookkeeping and memory.


def bookkeeping() -> list[Ratio]:
    """The share of a sweep that is not spent in the potential: the median over some sweeps."""
    found = []
    for preset, most, moves, sweeps in (("paper", 0.15, 2, 4), ("small", 0.25, 10, 8)):
        potential, values = energy.prepare(preset, 10)
        potential.requires_grad_(False)
        for name in ("gibbs", "metropolis", "gradients", "langevin", "path"):
            kernel = kernel_named(name, potential.space)
            shares, last = [], (time.perf_counter(), 0.0)
            rng = Generator().manual_seed(0)
            for sweep in sample(
                potential, kernel, values, sweeps + 1, rng, moves=moves, rescue=None
            ):
                now = (time.perf_counter(), sweep.evaluations.seconds)
                shares.append(1 - (now[1] - last[1]) / (now[0] - last[0]))
                last = now
            share = float(np.median(shares[1:]))  # the first sweep also starts the chains
            found.append(Ratio(f"{preset}, {name}: bookkeeping / sweep", share, most))
    return found


def memory(sweeps: int = 100) -> list[Ratio]:
    """Resident memory after ten times as many sweeps, with a recorder."""
    potential, values = energy.prepare("small", 10)
    potential.requires_grad_(False)
    kernel, rng = kernel_named("gradients", potential.space), Generator().manual_seed(0)
    recorder, seen = Recorder(keep=sweeps // 2), []
    few = values[:, :10]
    for sweep in sample(potential, kernel, few, 10 * sweeps, rng, recorder=recorder, rescue=None):
        if sweep.number in (sweeps, 10 * sweeps):
            gc.collect()
            seen.append(resident())
    name = f"resident memory after {10 * sweeps:,} sweeps / after {sweeps}"
    return [Ratio(name, seen[1] / seen[0], 1.02)]


# The models that the kernels run on.


def of_graphs(weights: Path | None) -> tuple[BasePotential, Values]:
    """A network fitted to random graphs, with worlds drawn from it at every level."""
    space = valence_graphs.space_of(NODES)
    if weights is None:
        data = valence_graphs.valence_graphs(space, 4000)
        potential, values = valence_graphs.fit(space, data, FIT_STEPS, tell=print)
        valence_graphs.save(valence_graphs.WEIGHTS, potential, values)
    else:
        potential, values = valence_graphs.load(weights, space)
    return potential, start_values(potential, values, 50)


def of_molecules(folder: Path) -> tuple[BasePotential, Values, tuple[float, ...]]:
    """A trained model, with worlds at every level from a run with exchange out of noise."""
    model = Model.load(folder)
    *_, last = model.sample(200, Generator().manual_seed(1), chains=CHAINS, burn_in=199)
    return model.potential.requires_grad_(False), last.state.values, model.method.noise.rates


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="How fast the kernels mix.")
    parser.add_argument("--weights", type=Path, help="take the network of an earlier run")
    parser.add_argument("--model", type=Path, help="take a trained model of molecules")
    parser.add_argument("--seconds", type=float, default=60, help="for every kernel")
    chosen = parser.parse_args()
    if chosen.model is not None:
        potential, values, rates = of_molecules(chosen.model)
    else:
        potential, values = of_graphs(chosen.weights)
        rates = valence_graphs.LADDER.rates
        legal = valence_graphs.within_valence(potential.space, values).float().mean(1)
        print("within valence: " + ", ".join(f"{share:.0%}" for share in legal.tolist()))
    rows = table(mix(potential, values, kernels(potential.space), chosen.seconds))
    tell(rows, potential.levels)
    name = "kernels" if chosen.model is None else "kernels-molecules"
    report(
        name,
        of_mixing(rows, potential.levels)
        + (bookkeeping() + memory() if chosen.model is None else []),
        command=" ".join(["python -m benchmarks.kernels", *sys.argv[1:]]),
        nodes=NODES,
        chains=values.shape[1],
        rates=rates,
        seconds=chosen.seconds,
        table=[asdict(row) for row in rows],
    )


if __name__ == "__main__":
    main()
