"""The log-likelihood of training and test data, with lower and upper estimates of log Z."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Integer
from torch import Tensor

from nmln.buckets import Bucket, labels_of
from nmln.devices import generator, of_worlds
from nmln.errors import InputError
from nmln.files import write_json
from nmln.model import Model, load_run
from nmln.molecules.likelihood import Structures, log_probabilities
from nmln.partition import LogZBracket, estimate_log_z
from nmln.partition.estimate import CHAINS, STEPS, SWEEPS
from nmln.potentials.base import BasePotential
from nmln.runs.folder import RunFolder

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Mean:
    """The mean of log-probabilities in nats; the error does not include that of log Z."""

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
    """Mean log-probability of training and test data at the target level.

    In nats per world, where every order of the constants is a world of its own. For molecules also in
    nats per molecule, summed over the orders of the atoms and the Kekulé forms of the rings.

    Of several sizes, log P(world) = log P(size) + log P(world | size), and `partition` is the mean of
    log Z by the shares of the sizes. `by_size` has the same numbers for every size, given the size.
    """

    worlds: int
    train_worlds: Mean
    test_worlds: Mean | None
    train_molecules: Mean | None
    test_molecules: Mean | None
    partition: LogZBracket
    by_size: Mapping[str, "SizeLikelihood"] = field(default_factory=dict)

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

    def numbers(self) -> dict[str, Any]:
        """All numbers by name; those per molecule only if the worlds are molecules."""
        found: dict[str, Any] = {
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
        found |= named | {"log_z_least": least, "log_z_most": most}
        if self.by_size:
            found["by_size"] = {
                size: {"share": one.share, **one.given_size.numbers()}
                for size, one in self.by_size.items()
            }
        return found


class SizeLikelihood(NamedTuple):
    """The probability of a size, and the likelihood of its data given the size."""

    share: float
    given_size: Likelihood


def by_log_z(numbers: Mapping[str, Any], name: str) -> tuple[float, float]:
    """The range of a mean in `likelihood.json` that follows from the interval of log Z."""
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
    device: str = "auto",
) -> Likelihood:
    """Estimate the likelihood of the training and test data of a run; writes `likelihood.json`.

    `data` is the new location of the data, if they have moved; `device` is as `--device` has it.
    """
    source = RunFolder(folder).read_source(data=data)
    found = measure(
        load_run(folder).to(device),
        source.learned,
        source.held_out,
        molecules=source.kind == "molecules",
        chains=chains,
        steps=steps,
        sweeps=sweeps,
        seed=seed,
        progress=progress,
    )
    write_json(RunFolder(folder).likelihood, found.numbers())
    return found


@torch.no_grad()
def measure(
    model: Model,
    train: Integer[Tensor, "worlds groups"] | Sequence[Bucket],
    test: Integer[Tensor, "others groups"] | Sequence[Bucket],
    *,
    molecules: bool = False,
    chains: int = CHAINS,
    steps: int = STEPS,
    sweeps: int = SWEEPS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Likelihood:
    """The mean log-probability of worlds under a model, and of molecules if `molecules` is set.

    Worlds of several domains come in buckets, which are those of the model in the same order.
    """
    learnt, held_out = (_buckets(model, worlds) for worlds in (train, test))
    if not all(len(bucket.worlds) for bucket in learnt):
        raise InputError("at least one training world is needed, got none.", kind="missing")
    parts: list[_Logs] = []
    for own, others in zip(learnt, held_out, strict=True):
        grounded = model.on(own.space) if model.domains else model

        def tell(done: int, total: int, before: int = len(parts)) -> None:
            if progress is not None:
                progress(before * total + done, len(learnt) * total)

        annealed = partial(
            log_z_of, grounded, own.worlds, chains, steps, sweeps, seed, progress=tell
        )
        parts.append(_Logs.of(grounded, own.worlds, others.worlds, annealed, molecules))
    shares = [model.share_of(bucket.space) for bucket in learnt]
    if len(parts) == 1:
        return parts[0].likelihood()
    whole = _Logs.joined(parts, shares).likelihood()
    names = labels_of([bucket.space for bucket in learnt])
    by_size = {
        name: SizeLikelihood(share, part.likelihood())
        for name, share, part in zip(names, shares, parts, strict=True)
    }
    return replace(whole, by_size=by_size)


def _buckets(
    model: Model, worlds: Integer[Tensor, "worlds groups"] | Sequence[Bucket]
) -> Sequence[Bucket]:
    return [Bucket(model.space, worlds)] if isinstance(worlds, Tensor) else worlds


class _Logs(NamedTuple):
    """Log-probabilities of training and test worlds and, if they are molecules, of these."""

    train: Float64[Tensor, " worlds"]
    test: Float64[Tensor, " others"]
    molecules: tuple[Float64[Tensor, " worlds"], Float64[Tensor, " others"]] | None
    partition: LogZBracket

    @staticmethod
    def of(
        model: Model,
        train: Tensor,
        test: Tensor,
        annealed: Callable[[], LogZBracket],
        molecules: bool,
    ) -> "_Logs":
        """Those of one domain; data without a likelihood are refused before log Z is estimated."""
        target = model.level(-1)
        structures = [Structures.of(model.space, worlds) for worlds in (train, test) if molecules]
        found = annealed().with_data(_weight_of_data(target, torch.cat([train, test]), structures))
        scores = [
            target.score(worlds[None])[0].double() if len(worlds) else torch.zeros(0).double()
            for worlds in (train, test)
        ]
        logs = [
            log_probabilities(target, one, found.value)
            if one.molecules
            else torch.zeros(0, dtype=torch.float64)
            for one in structures
        ]
        whole = (logs[0], logs[1]) if logs else None
        return _Logs(scores[0] - found.value, scores[1] - found.value, whole, found)

    @staticmethod
    def joined(parts: Sequence["_Logs"], shares: Sequence[float]) -> "_Logs":
        """All sizes together: the size is a part of the world, with its share as its probability."""

        def cat(each: Iterable[Tensor]) -> Tensor:
            return torch.cat([one + log(share) for one, share in zip(each, shares, strict=True)])

        pairs = [one.molecules for one in parts if one.molecules is not None]
        molecules = (cat(a for a, _ in pairs), cat(b for _, b in pairs)) if pairs else None
        mean = LogZBracket.mean([one.partition for one in parts], shares)
        return _Logs(
            cat(one.train for one in parts), cat(one.test for one in parts), molecules, mean
        )

    def likelihood(self) -> Likelihood:
        whole = Mean.of(self.train)
        assert whole is not None
        of_molecules = [Mean.of(one) for one in self.molecules or ()] or [None, None]
        count = len(self.train) + len(self.test)
        return Likelihood(count, whole, Mean.of(self.test), *of_molecules, partition=self.partition)


def _weight_of_data(
    target: BasePotential, worlds: Integer[Tensor, "worlds groups"], structures: list[Structures]
) -> float:
    """The log of the sum of exp(score) over all different worlds of the data, a part of Z.

    A molecule counts with all of its worlds.
    """
    if structures:
        parts = [log_probabilities(target, one, 0.0) for one in structures if one.molecules]
        return float(torch.cat(parts).logsumexp(0))
    return float(target.score(worlds.unique(dim=0)[None])[0].double().logsumexp(0))


@torch.no_grad()
def log_z_of(
    model: Model,
    worlds: Integer[Tensor, "worlds groups"],
    chains: int = CHAINS,
    steps: int = STEPS,
    sweeps: int = SWEEPS,
    seed: int = 0,
    progress: Progress | None = None,
) -> LogZBracket:
    """log Z of the target level of a model; annealing starts from the marginals of the worlds.

    Args:
        model: the model, with its own kernel, moves and exchange phases.
        worlds: data; they are corrupted as for the noisiest level.
        chains: the number of chains, at least 2.
        steps: the number of annealing steps in each direction.
        sweeps: the number of sweeps of the recorded chains, at least 3.
        seed: the seed of all random numbers.
        progress: called with the number of steps and sweeps done, and their total.
    """
    there = model.potential.device
    rng, running = generator(there, seed), model.chains()
    shares = model.method.shares(model.potential)
    return estimate_log_z(
        running.potential,
        model.level(0),
        running.kernel,
        model.method.corrupt(model.space, worlds.to(of_worlds(there)), rng, shares)[0],
        rng,
        chains=chains,
        steps=steps,
        sweeps=sweeps,
        moves=running.moves,
        phases=running.phases,
        progress=progress,
    )
