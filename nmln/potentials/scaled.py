"""A potential times a number for each level: its distribution at another temperature."""

from collections.abc import Sequence

from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.potentials.base import BasePotential
from nmln.potentials.stand_in import StandIn
from nmln.space import Space
from nmln.types import Alternatives, Changes, Groups, Scores, Slopes, Ties, Values


class ScaledPotential(BasePotential):
    """A potential whose scores are multiplied by a positive number (beta) at each level.

    A forbidden world stays forbidden, however small beta is.
    """

    def __init__(self, potential: BasePotential, betas: Sequence[float]) -> None:
        super().__init__(potential.space, potential.levels)
        if len(betas) != potential.levels or not all(0 < beta < float("inf") for beta in betas):
            raise InputError(
                f"betas must be one positive number for each of the {potential.levels} levels, got "
                f"{tuple(betas)}. At 0 all worlds are equally likely: draw them directly."
            )
        self.potential = potential
        self.precision = potential.precision
        self.betas = tuple(float(beta) for beta in betas)

    def at_levels(self, levels: Sequence[int]) -> "ScaledPotential":
        betas = [self.betas[level] for level in self.chosen_levels(levels)]
        return ScaledPotential(self.potential.at_levels(levels), betas)

    def grounded(self, space: Space) -> "ScaledPotential":
        return ScaledPotential(self.potential.on(space), self.betas)

    def evaluate(self, values: Values) -> Scores:
        scores = self.potential.evaluate(values)
        return self._factor(scores)[:, None] * scores

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        scores, slopes = self.potential.evaluate_with_slopes(values)
        factor = self._factor(scores)
        return factor[:, None] * scores, factor[:, None, None] * slopes

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        scores = self.potential.evaluate_alternatives(values, groups)
        return self._factor(scores)[:, None, None] * scores

    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        changes = self.potential.evaluate_changes(values, groups)
        return self._factor(changes)[:, None, None, None] * changes

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties | None:
        return self.potential.ties(free)

    def stand_in(self) -> StandIn | None:
        found = self.potential.stand_in()
        return None if found is None else found.times(found.entries.new_tensor(self.betas))

    def violations_of(self, values: Values) -> Float[Tensor, "levels chains"]:
        return self.potential.violations_of(values)

    def forbidden_by(self, level: int, world: Integer[Tensor, " groups"]) -> list[str]:
        return self.potential.forbidden_by(level, world)

    def _factor(self, like: Tensor) -> Tensor:
        return like.new_tensor(self.betas)
