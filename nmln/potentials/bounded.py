"""A soft bound on the scores of a potential: (2c / pi) arctan(pi score / 2c)."""

from math import pi

import torch
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.potentials.base import BasePotential, sharing
from nmln.space import Space
from nmln.types import Alternatives, Groups, Scores, Slopes, Values


class BoundedPotential(BasePotential):
    """Scores between -c and c: nearly unchanged where they are small, flat where they are large.

    A network can come to give hundreds of nats to worlds that no chain has visited for long, and data
    corrupted into such a world would raise it further. Near the bound the slope is small but never
    zero: it falls with the square of the score. That of a hyperbolic tangent falls exponentially, and
    whole regions of worlds were seen to stay at the bound, with no gradient that leads back.
    """

    def __init__(self, potential: BasePotential, bound: float) -> None:
        super().__init__(potential.space, potential.levels)
        if not 0 < bound < float("inf"):
            raise InputError(f"bound must be a positive number of nats, got {bound}.")
        self.precision = nn.Buffer(potential.precision.clone(), persistent=False)
        self.potential, self.bound = potential, float(bound)

    @property
    def dtype(self) -> torch.dtype:
        return self.potential.dtype

    def grounded(self, space: Space) -> "BoundedPotential":
        new = sharing(self, space)
        new.potential = self.potential.on(space)
        return new

    def evaluate(self, values: Values) -> Scores:
        return self._bend(self.potential.evaluate(values))

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        scores, slopes = self.potential.evaluate_with_slopes(values)
        slope = 1 / (1 + (pi * scores / (2 * self.bound)).square())
        return self._bend(scores), slopes * slope[..., None]

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        scores = self.potential.evaluate_alternatives(values, groups)
        absent = scores == float("-inf")  # categories that a group does not have
        return self._bend(scores.masked_fill(absent, 0.0)).masked_fill(absent, float("-inf"))

    def _bend(self, scores: Tensor) -> Tensor:
        return 2 * self.bound / pi * torch.atan(pi * scores / (2 * self.bound))
