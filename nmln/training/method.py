"""Noising, tempering and single-level training: methods that differ only in their levels."""

from dataclasses import dataclass

from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.config import LadderConfig
from nmln.errors import InputError
from nmln.ladders import Ladder, LadderLike, Temperatures
from nmln.marginals import Shares, shares_of
from nmln.potentials.base import BasePotential
from nmln.potentials.tempered import TemperedPotential
from nmln.potentials.total import base_of
from nmln.space import Space
from nmln.types import Values


@dataclass(frozen=True)
class Method:
    """How the levels that chains run at correspond to the levels that are trained."""

    noise: Ladder  # the rates that the data are corrupted at, one for each trained level
    temperatures: Temperatures | None = None
    marginal: bool = False  # corrupted groups are redrawn from their frequencies

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
        marginal = config.noise == "marginals"
        if config.method == "noising":
            return Method(Ladder(config.rates), marginal=marginal)
        target = Ladder(config.rates[-1:])
        if config.method == "single":
            return Method(target, marginal=marginal)
        return Method(target, Temperatures(config.temperatures), marginal)

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

    def shares(self, potential: BasePotential) -> Shares | None:
        """The frequencies that corrupted groups are redrawn from on the domain of a potential.

        They are those of its base term; None if groups change uniformly.
        """
        if not self.marginal:
            return None
        base = base_of(potential)
        assert base is not None, "a configuration without a base term is refused"
        return shares_of(base.space, base.table[-1])

    def corrupt(
        self,
        space: Space,
        worlds: Integer[Tensor, "worlds groups"],
        rng: Generator,
        shares: Shares | None,
    ) -> Values:
        """Corrupted data for every trained level; `shares` is what `shares` gives for the potential."""
        return self.noise.corrupt(space, worlds, rng, shares=shares)

    def starts(
        self,
        space: Space,
        worlds: Integer[Tensor, "worlds groups"],
        rng: Generator,
        shares: Shares | None,
    ) -> Values:
        """Corrupted data for every level that chains run at."""
        values = self.corrupt(space, worlds, rng, shares)
        return values.expand(self.chain_levels, -1, -1).clone()
