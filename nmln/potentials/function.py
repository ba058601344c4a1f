"""Potentials of your own: a plain function of one-hot tensors, or of values."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nmln.counting import more_than, worlds_text
from nmln.errors import InputError
from nmln.potentials.base import BasePotential, NeuralPotential, sliced
from nmln.space import Space
from nmln.types import OneHot, Scores, Slopes, Values


class OneHotPotential(NeuralPotential):
    """A differentiable function of one-hot tensors (levels, chains, entries) to scores.

        potential = OneHotPotential(space, lambda onehot: onehot @ weights)

    A function that is the same at every level can ignore the first axis.
    """

    def __init__(self, space: Space, function: Callable[[Tensor], Tensor], levels: int = 1) -> None:
        super().__init__(space, levels)
        self.function = function

    def at_levels(self, levels: Sequence[int]) -> "OneHotPotential":
        new = sliced(self, levels)
        new.function = _only(self.function, self.chosen_levels(levels), self.levels)
        return new

    def forward(self, onehot: OneHot) -> Scores:
        return checked_scores(self.function(onehot), onehot.shape[:2])


class ValuesPotential(BasePotential):
    """Any function of values (levels, chains, groups) to scores, differentiable or not.

        potential = ValuesPotential(space, lambda values: -(values > 0).sum(-1).float())

    Slopes are the exact differences to every world that differs in one group: as many evaluations as
    there are entries.
    """

    def __init__(self, space: Space, function: Callable[[Tensor], Tensor], levels: int = 1) -> None:
        super().__init__(space, levels)
        self.function = function

    def at_levels(self, levels: Sequence[int]) -> "ValuesPotential":
        new = sliced(self, levels)
        new.function = _only(self.function, self.chosen_levels(levels), self.levels)
        return new

    def evaluate(self, values: Values) -> Scores:
        return checked_scores(self.function(values), values.shape[:2])

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        scores = self.evaluate(values)
        return scores, exact_differences(self, values, scores)


class TablePotential(ValuesPotential):
    """The scores of all worlds, looked up: a row for every level, worlds in the order of `enumerate`.

    With the exact noised distributions of a small space this is parallel noising as the theory has it:

        table = torch.stack([noised(space, probabilities, rate) for rate in ladder]).log()
        potential = TablePotential(space, table)
    """

    def __init__(self, space: Space, table: Float[Tensor, "levels worlds"]) -> None:
        if (
            table.ndim != 2
            or more_than(space.sizes, table.shape[1])
            or (table.shape[1] != space.number_of_worlds)
        ):
            raise InputError(
                f"a table has a row for every level and a column for each of the "
                f"{worlds_text(space.sizes)} worlds, but this one has the shape {tuple(table.shape)}."
            )
        super().__init__(space, self._look_up, len(table))
        self.table = nn.Buffer(table)

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    def at_levels(self, levels: Sequence[int]) -> "TablePotential":
        new = sliced(self, levels)
        new.function = new._look_up
        return new

    def _look_up(self, values: Tensor) -> Tensor:
        levels = torch.arange(self.levels, device=values.device)[:, None]
        return self.table[levels, self.space.index(values)]


def _only(
    function: Callable[[Tensor], Tensor], chosen: list[int], levels: int
) -> Callable[[Tensor], Tensor]:
    """A function of all levels at some of them; the others are computed too, and left out."""
    places = [chosen.index(level) if level in chosen else 0 for level in range(levels)]
    return lambda worlds: function(worlds[places])[chosen]


def exact_differences(potential: BasePotential, values: Values, scores: Scores) -> Slopes:
    """How much the score changes when one group is set to one category; finite parts only."""
    space = potential.space
    slopes = torch.zeros(*values.shape[:2], space.entries, dtype=scores.dtype, device=values.device)
    for group in range(space.groups):
        chosen = torch.full(values.shape[:2], group, device=values.device)
        first, size = int(space.offsets[group]), int(space.sizes[group])
        found = potential.evaluate_alternatives(values, chosen)[..., :size]
        forbidden = (found == float("-inf")) | (scores == float("-inf"))[..., None]
        difference = (found - scores[..., None]).masked_fill(forbidden, 0.0)
        slopes[..., first : first + size] = difference
    return slopes


def checked_scores(scores: Tensor, shape: torch.Size) -> Scores:
    """The scores that a user's function returned, checked."""
    if not isinstance(scores, Tensor) or scores.shape != shape or not scores.is_floating_point():
        found = (
            f"{scores.dtype} of shape {tuple(scores.shape)}"
            if isinstance(scores, Tensor)
            else type(scores).__name__
        )
        raise InputError(
            f"your function must return floating-point scores of shape (levels, chains) = "
            f"{tuple(shape)}, but it returned {found}."
        )
    return scores
