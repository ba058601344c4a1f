"""The held-out log-likelihood of a trained model, with log Z from both sides.

Chains are annealed from independent groups, with the marginals of the data, to the noisiest level and
back again. From there to the target it goes level by level, by worlds recorded at all of them. Uniform
worlds are much further away: they have the wrong atoms and far too many bonds. And the levels overlap
well, as they must to exchange worlds, which a way from noise straight to the target cannot use.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64, Integer
from torch import Generator, Tensor

from nmln.files import InputError, plain, write_lines
from nmln.kernels.registry import kernel_named
from nmln.memory import refuse_size, told
from nmln.model import Model, load_run
from nmln.molecules.likelihood import Structures, log_probabilities
from nmln.partition import mbar, stepping_stone
from nmln.partition.blocks import effective_size
from nmln.partition.carrying import bennett, carry, draw_possible, log_mean_of
from nmln.potentials.base import BasePotential
from nmln.potentials.independent import IndependentPotential
from nmln.sampler import sample
from nmln.types import Values
from nmln.workflow import sources
from nmln.workflow.heads import read_source

CHAINS, STEPS, SWEEPS = 100, 3000, 1000

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LogZ:
    """log Z of the target level from both sides, from below and from above, with standard errors.

    `low` and `high` err to their own side on average and close in on the truth with more steps and
    sweeps. `value` weighs both ways by how well they overlap (Bennett's ratio) and has the least error.
    """

    value: float
    error: float
    low: float
    low_error: float
    high: float
    high_error: float
    effective_size: float  # of the chains that were annealed to the noisiest level
    data: float = float("-inf")  # what the data alone add up to: log Z is at least this

    def with_data(self, data: float) -> "LogZ":
        """The same, knowing that log Z is not below what the data alone add up to.

        Chains that never find some of the data miss their part of Z; then this is the better value.
        """
        return replace(self, data=data, value=max(self.value, data))

    @property
    def missed(self) -> bool:
        """Whether the data weigh more than the chains have found altogether."""
        return self.data > max(self.high + 2 * self.high_error, self.low + 2 * self.low_error)

    @property
    def interval(self) -> tuple[float, float]:
        """From two errors below the low estimate to two above the high one; never below `data`."""
        least = min(self.low - 2 * self.low_error, self.value - 2 * self.error)
        most = max(self.high + 2 * self.high_error, self.value + 2 * self.error)
        return max(least, self.data), max(most, self.data)

    @property
    def contradictory(self) -> bool:
        """Whether what must be low is above what must be high: chains that have not settled."""
        return self.low - 2 * self.low_error > self.high + 2 * self.high_error


@dataclass(frozen=True)
class Mean:
    """Of log-probabilities, in nats; the error is over worlds or molecules, that of log Z not in it."""

    value: float
    error: float

    @staticmethod
    def of(logs: Float64[Tensor, " some"]) -> "Mean | None":
        if not len(logs):
            return None
        spread = float(logs.std()) if len(logs) > 1 else float("nan")
        return Mean(float(logs.mean()), spread / len(logs) ** 0.5)


@dataclass(frozen=True)
class Likelihood:
    """Mean log-probability at the target level of training and test data.

    In nats a world, as the worlds stand in the data: all orders of the constants count apart. For
    molecules also in nats a molecule, whatever the order of its atoms and the way its rings are drawn.
    """

    worlds: int
    train_worlds: Mean
    test_worlds: Mean | None
    train_molecules: Mean | None
    test_molecules: Mean | None
    partition: LogZ

    @property
    def train(self) -> float:
        return self.train_worlds.value

    @property
    def test(self) -> float | None:
        return None if self.test_worlds is None else self.test_worlds.value

    @property
    def log_z(self) -> float:
        return self.partition.value

    @property
    def log_z_error(self) -> float:
        return self.partition.error

    def numbers(self) -> dict[str, float | None]:
        """All of it under one name each; nothing about molecules where the worlds are none."""
        found: dict[str, float | None] = {
            "worlds": self.worlds,
            "train": self.train,
            "train_error": self.train_worlds.error,
            "test": self.test,
            "test_error": self.test_worlds and self.test_worlds.error,
        }
        if self.train_molecules is not None:
            found |= {
                "train_molecules": self.train_molecules.value,
                "train_molecules_error": self.train_molecules.error,
                "test_molecules": self.test_molecules and self.test_molecules.value,
                "test_molecules_error": self.test_molecules and self.test_molecules.error,
            }
        least, most = self.partition.interval
        named = {
            name if name == "effective_size" else f"log_z_{name}".removesuffix("_value"): number
            for name, number in asdict(self.partition).items()
        }
        return found | named | {"log_z_least": least, "log_z_most": most}


def by_log_z(numbers: Mapping[str, Any], name: str) -> tuple[float, float]:
    """Where the ends of the interval of log Z would put a mean of `likelihood.json`."""
    value, log_z = float(numbers[name]), float(numbers["log_z"])
    return value + log_z - float(numbers["log_z_most"]), value + log_z - float(
        numbers["log_z_least"]
    )


def run(
    folder: Path,
    *,
    chains: int = CHAINS,
    steps: int = STEPS,
    sweeps: int = SWEEPS,
    seed: int = 0,
    progress: Progress | None = None,
    data: str | None = None,
) -> Likelihood:
    """The likelihood of the training and test worlds of a run; kept as `likelihood.json`.

    `data` says where the data of the run are now, if they have moved.
    """
    source = read_source(folder, data=data)
    found = measure(
        load_run(folder),
        sources.pick(source.worlds, source.train),
        sources.pick(source.worlds, source.test),
        molecules=source.kind == "molecules",
        chains=chains,
        steps=steps,
        sweeps=sweeps,
        seed=seed,
        progress=progress,
    )
    write_lines(folder / "likelihood.json", [json.dumps(plain(found.numbers()), indent=2)])
    return found


@torch.no_grad()
def measure(
    model: Model,
    train: Integer[Tensor, "worlds groups"],
    test: Integer[Tensor, "others groups"],
    *,
    molecules: bool = False,
    chains: int = CHAINS,
    steps: int = STEPS,
    sweeps: int = SWEEPS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Likelihood:
    """The mean log-probability of worlds under a model, and of molecules if the worlds are some."""
    if not len(train):
        raise InputError("there are no worlds to measure the likelihood of.")
    target = model.level(-1)
    structures = [Structures.of(model.space, worlds) for worlds in (train, test) if molecules]
    found = estimate_log_z(model, train, chains, steps, sweeps, seed, progress)
    found = found.with_data(_weight_of_data(target, torch.cat([train, test]), structures))

    def mean(worlds: Tensor) -> Mean | None:
        scores = target.score(worlds[None])[0].double() if len(worlds) else torch.zeros(0)
        return Mean.of(scores.double() - found.value)

    of_molecules = [
        Mean.of(log_probabilities(target, one, found.value)) if one.molecules else None
        for one in structures
    ] or [None, None]
    whole = mean(train)
    assert whole is not None
    return Likelihood(len(train) + len(test), whole, mean(test), *of_molecules, partition=found)


def _weight_of_data(
    target: BasePotential, worlds: Integer[Tensor, "worlds groups"], structures: list[Structures]
) -> float:
    """The log of the sum of exp(score) over all different worlds of the data, a part of Z.

    Molecules count with all of their worlds.
    """
    if structures:
        parts = [log_probabilities(target, one, 0.0) for one in structures if one.molecules]
        return float(torch.cat(parts).logsumexp(0))
    return float(target.score(worlds.unique(dim=0)[None])[0].double().logsumexp(0))


# log Z, from both sides.


@torch.no_grad()
def estimate_log_z(
    model: Model,
    worlds: Integer[Tensor, "worlds groups"],
    chains: int = CHAINS,
    steps: int = STEPS,
    sweeps: int = SWEEPS,
    seed: int = 0,
    progress: Progress | None = None,
) -> LogZ:
    """log Z of the target level: annealed from independent groups to the noisiest level and back, then
    from level to level by the worlds that the model's own chains record.

    The groups have the marginals of some worlds, corrupted as for the noisiest level. Annealing takes
    `steps` steps of one move each way; the chains take `sweeps` sweeps, and the way back begins where
    they end.
    """
    for name, number, least in (("chains", chains, 2), ("steps", steps, 1), ("sweeps", sweeps, 3)):
        if number < least:
            raise InputError(f"{name} must be at least {least}, but is {number}.")
    recorded = sweeps // 4 * chains * model.method.chain_levels
    refuse_size(
        recorded * model.space.measure.bytes_per_world,
        f"recording {told(recorded)} worlds",
        "Take fewer chains or sweeps.",
    )
    rng = Generator().manual_seed(seed)
    kernel = kernel_named(model.config.sampling.kernel, model.space)
    noisiest = model.level(0)
    corrupted = model.method.corrupt(model.space, worlds, rng)[:1]
    start = IndependentPotential.fit(model.space, corrupted).to(noisiest.dtype)
    done, total = 0, sweeps + 2 * steps

    def tick(number: int = 1) -> None:
        nonlocal done
        done += number
        if progress is not None:
            progress(done, total)

    drawn, share, share_error = draw_possible(start, noisiest, chains, rng)
    there, arrived = carry(start, noisiest, kernel, drawn, range(steps + 1), rng, tick)
    draws = _record(model, arrived, sweeps, rng, tick)
    back, _ = carry(start, noisiest, kernel, draws[-1][:1], range(steps, -1, -1), rng, tick)

    (low, low_error), (high, high_error) = log_mean_of(there), log_mean_of(back)
    middle, middle_error = bennett(there, -back)
    found = [(middle, middle_error), (low, low_error), (-high, high_error)]
    climbed = _climb(model.method.sampled(model.potential), draws)
    numbers = [
        number
        for (first, error), (rest, other) in zip(found, climbed, strict=True)
        for number in (first + rest + share, (error**2 + other**2 + share_error**2) ** 0.5)
    ]
    return LogZ(*numbers, effective_size=float(effective_size(there[None, None])))


def _record(
    model: Model,
    worlds: Integer[Tensor, "1 chains groups"],
    sweeps: int,
    rng: Generator,
    tick: Callable[[int], None],
) -> list[Values]:
    """Worlds of all levels, every second of the later half of the sweeps, the last one included.

    Chains that start at worlds annealed to the noisiest level settle sooner than from pure noise, and
    have not seen the data, so that they find what the model likes besides.
    """
    method, config = model.method, model.config
    burn_in, draws = sweeps // 2, []
    for sweep in sample(
        method.sampled(model.potential),
        kernel_named(config.sampling.kernel, model.space),
        worlds.expand(method.chain_levels, -1, -1).clone(),
        sweeps,
        rng,
        moves=config.sampling.moves,
        phases=config.chains.phases,
        burn_in=burn_in,
    ):
        if (sweeps - sweep.number) % 2 == 0:
            draws.append(sweep.state.values.clone())
        tick(1 if sweep.number > burn_in + 1 else burn_in + 1)
    return draws


def _climb(potential: BasePotential, draws: list[Values]) -> list[tuple[float, float]]:
    """log Z of the target less that of the noisiest level: best, from below and from above."""
    if potential.levels == 1:
        return [(0.0, 0.0)] * 3
    ratios, differences = stepping_stone(potential, draws), mbar(potential, draws)
    return [
        (float(differences.log_ratios[0, -1]), float(differences.errors[0, -1])),
        (ratios.forward_sum, ratios.forward_sum_error),
        (ratios.reverse_sum, ratios.reverse_sum_error),
    ]
