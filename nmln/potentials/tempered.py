"""A potential at several temperatures: parallel tempering is parallel noising on this ladder."""

from collections.abc import Sequence

from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.ladders import Temperatures
from nmln.potentials.base import BasePotential
from nmln.potentials.stand_in import StandIn
from nmln.space import Space
from nmln.types import Alternatives, Changes, Groups, Scores, Slopes, Ties, Values


class TemperedPotential(BasePotential):
    """One potential of a single level, divided by the temperature of each level.

    Hottest first, as in a ladder of corruption rates; the last temperature is usually 1.
    """

    def __init__(
        self, potential: BasePotential, temperatures: Temperatures | Sequence[float]
    ) -> None:
        temperatures = Temperatures(tuple(temperatures))
        super().__init__(potential.space, len(temperatures))
        if potential.levels != 1:
            raise InputError(
                f"tempering takes a potential of one level, got one of {potential.levels} levels. Take "
                "one level of it."
            )
        self.precision = nn.Buffer(
            potential.precision.clone().to(potential.dtype), persistent=False
        )
        self.potential = potential
        self.temperatures = temperatures

    def at_levels(self, levels: Sequence[int]) -> "TemperedPotential":
        chosen = [self.temperatures.rates[level] for level in self.chosen_levels(levels)]
        return TemperedPotential(self.potential.at_levels([0]), chosen)

    def grounded(self, space: Space) -> "TemperedPotential":
        return TemperedPotential(self.potential.on(space), self.temperatures)

    def evaluate(self, values: Values) -> Scores:
        scores = self.potential.evaluate(values.flatten(0, 1)[None])
        return scores.view(values.shape[:2]) / self._divisor(scores)[:, None]

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        scores, slopes = self.potential.evaluate_with_slopes(values.flatten(0, 1)[None])
        divisor, shape = self._divisor(scores), values.shape[:2]
        return (
            scores.view(shape) / divisor[:, None],
            slopes.view(*shape, self.space.entries) / divisor[:, None, None],
        )

    def _divisor(self, like: Tensor) -> Float[Tensor, " levels"]:
        return like.new_tensor(self.temperatures.rates)

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        scores = self.potential.evaluate_alternatives(
            values.flatten(0, 1)[None], groups.reshape(1, -1)
        )
        divided = scores.view(*values.shape[:2], scores.shape[-1])
        return divided / self._divisor(scores)[:, None, None]

    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        changes = self.potential.evaluate_changes(values.flatten(0, 1)[None], groups)
        divided = changes.view(*values.shape[:2], *changes.shape[2:])
        return divided / self._divisor(changes)[:, None, None, None]

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties | None:
        return self.potential.ties(free)

    def stand_in(self) -> StandIn | None:
        found = self.potential.stand_in()
        if found is None:
            return None
        return found.at_levels([0] * self.levels).times(1 / self._divisor(found.entries))

    def violations_of(self, values: Values) -> Float[Tensor, "levels chains"]:
        return self.potential.violations_of(values.flatten(0, 1)[None]).view(values.shape[:2])

    def forbidden_by(self, level: int, world: Integer[Tensor, " groups"]) -> list[str]:
        return self.potential.forbidden_by(0, world)
