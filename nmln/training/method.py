"""Noising, tempering and single-level training: methods that differ only in their levels."""

from dataclasses import dataclass

from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.config import LadderConfig
from nmln.errors import InputError
from nmln.ladders import Ladder, LadderLike, Temperatures
from nmln.potentials.base import BasePotential
from nmln.potentials.tempered import TemperedPotential
from nmln.space import Space
from nmln.types import Values


@dataclass(frozen=True)
class Method:
    """How the levels that chains run at correspond to the levels that are trained."""

    noise: Ladder  # the rates that the data are corrupted at, one for each trained level
    temperatures: Temperatures | None = None

    @staticmethod
    def of(config: LadderConfig) -> "Method":
        """The levels of a configuration whose rates are known."""
        if config.rates == "auto":
            raise InputError(
                "the rates of this ladder are not chosen yet: they depend on the number of groups of a "
                "world. Take Model.build(...).config.",
                token="ladder.rates",
                kind="missing",
            )
        if config.method == "noising":
            return Method(Ladder(config.rates))
        target = Ladder(config.rates[-1:])
        if config.method == "single":
            return Method(target)
        return Method(target, Temperatures(config.temperatures))

    @property
    def trained_levels(self) -> int:
        return len(self.noise)

    @property
    def chain_levels(self) -> int:
        return len(self.noise if self.temperatures is None else self.temperatures)

    @property
    def ladder(self) -> LadderLike:
        """The ladder along which the chains exchange."""
        return self.noise if self.temperatures is None else self.temperatures

    def sampled(self, potential: BasePotential) -> BasePotential:
        """The potential that the chains sample from."""
        if self.temperatures is None:
            return potential
        return TemperedPotential(potential, self.temperatures)

    def negative(self, values: Integer[Tensor, "running chains groups"]) -> Values:
        """The chains of the negative phase: all levels, or the one at T = 1."""
        return values[-self.trained_levels :]

    def corrupt(
        self, space: Space, worlds: Integer[Tensor, "worlds groups"], rng: Generator
    ) -> Values:
        """Data for every trained level."""
        return self.noise.corrupt(space, worlds, rng)

    def starts(
        self, space: Space, worlds: Integer[Tensor, "worlds groups"], rng: Generator
    ) -> Values:
        """Corrupted data for every level that chains run at."""
        values = self.corrupt(space, worlds, rng)
        return values.expand(self.chain_levels, -1, -1).clone()
