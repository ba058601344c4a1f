"""A potential at several temperatures: parallel tempering is parallel noising on this ladder."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from nmln.files import InputError
from nmln.potentials.base import BasePotential
from nmln.types import Alternatives, Groups, Scores, Slopes, Values


class TemperedPotential(BasePotential):
    """One potential of a single level, divided by the temperature of each level.

    Hottest first, as in a ladder of corruption rates; the last temperature is usually 1.
    """

    def __init__(self, potential: BasePotential, temperatures: Sequence[float]) -> None:
        super().__init__(potential.space, len(temperatures))
        if potential.levels != 1:
            raise InputError(
                f"tempering takes a potential of one level, but this one has {potential.levels}."
            )
        for level, temperature in enumerate(temperatures):
            if not 0 < temperature < float("inf"):
                raise InputError(
                    f"temperatures must be positive and finite, but level {level} has {temperature}."
                )
        self.potential = potential
        self.temperatures = tuple(float(temperature) for temperature in temperatures)

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
        return like.new_tensor(self.temperatures)

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        scores = self.potential.evaluate_alternatives(
            values.flatten(0, 1)[None], groups.reshape(1, -1)
        )
        divided = scores.view(*values.shape[:2], scores.shape[-1])
        return divided / self._divisor(scores)[:, None, None]
