"""The chains of a model: the one place where its potential, kernel and settings are put together."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Generator

from nmln.config import Config
from nmln.evidence import Evidence
from nmln.kernels.registry import kernel_named
from nmln.noise import uniform
from nmln.potentials.base import BasePotential
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
        """
        method = Method.of(config.ladder)
        sampled = method.sampled(potential)
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
