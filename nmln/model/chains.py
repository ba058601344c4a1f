"""The chains of a model: the one place where its potential, kernel and settings are put together."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Generator

from nmln.config import Config
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.registry import kernel_named
from nmln.noise import uniform
from nmln.potentials.base import BasePotential
from nmln.potentials.scaled import ScaledPotential
from nmln.potentials.total import TotalPotential
from nmln.sampler import Phases, sample
from nmln.space import Space
from nmln.training.method import Method
from nmln.types import Kernel, Sweep, Values


@dataclass(frozen=True)
class ModelChains:
    """Everything that runs chains of a model at all of its levels, but their worlds."""

    space: Space
    levels: int
    potential: BasePotential
    kernel: Kernel
    moves: int
    phases: Phases
    evidence: Evidence | None = None

    @staticmethod
    def of(
        space: Space,
        potential: BasePotential,
        config: Config,
        *,
        moves: int = 0,
        kernel: str = "",
        evidence: Evidence | None = None,
        added: BasePotential | None = None,
        sharpen: float = 1.0,
    ) -> "ModelChains":
        """The chains of a model, as its settings say.

        Args:
            space: the language and the domain.
            potential: the potential of the model, with the levels that were trained.
            config: the settings of the model.
            moves: steps of the kernel per sweep; 0 for `config.sampling.moves`.
            kernel: the name of a kernel; empty for `config.sampling.kernel`.
            evidence: what every world agrees with.
            added: one more potential with as many levels as the chains have.
            sharpen: a number that the model's scores at the target are multiplied by.
        """
        method = Method.of(config.ladder)
        sampled = sharpened(method.sampled(potential), sharpen)
        if added is not None:
            sampled = TotalPotential([sampled]).add(added)
        return ModelChains(
            space,
            method.chain_levels,
            sampled,
            kernel_named(kernel or config.sampling.kernel, space, evidence),
            moves or config.sampling.moves,
            config.chains.phases,
            evidence,
        )

    def noise(self, chains: int, rng: Generator) -> Values:
        """Worlds to start from: uniform at every level, in agreement with the evidence."""
        return uniform(self.space, self.levels, chains, rng, self.evidence)

    def run(
        self, values: Values | None, sweeps: int, rng: Generator, **options: Any
    ) -> Iterator[Sweep]:
        """Sweeps from these worlds; `options` are those of `nmln.sampler.sample`."""
        return sample(
            self.potential,
            self.kernel,
            values,
            sweeps,
            rng,
            moves=self.moves,
            phases=self.phases,
            **options,
        )


def check_sharpening(sharpen: float) -> None:
    """Refuse a number that scores cannot be multiplied by."""
    if not 0 < sharpen < float("inf"):
        raise InputError(
            f"sharpen must be a positive finite number, got {sharpen:g}: the scores of the target level "
            "are multiplied by it. Above 1, probable worlds become more probable; 1 changes nothing.",
            token="sharpen",
        )


def sharpened(potential: BasePotential, sharpen: float) -> BasePotential:
    """A potential whose target has its scores multiplied by a number: exp(sharpen * rho) / Z.

    Only the target changes, so that the noisier levels supply it as before. At 1 it is the same object.
    """
    check_sharpening(sharpen)
    if sharpen == 1:
        return potential
    return ScaledPotential(potential, [*[1.0] * (potential.levels - 1), float(sharpen)])
