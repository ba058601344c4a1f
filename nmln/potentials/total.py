"""The weighted sum of potentials: sum of beta_i Phi_i."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nmln.files import InputError
from nmln.potentials.base import BasePotential
from nmln.types import Alternatives, Groups, Scores, Slopes, Values


class TotalPotential(BasePotential):
    """Sum of beta_i Phi_i over parts, with a learnable beta for every part and level.

    A part acts at the levels that `add` gives it, and has as many levels of its own. Parts can be
    added after training; the old parts and their betas are shared, not copied.
    """

    def __init__(self, parts: Sequence[BasePotential], levels: int | None = None) -> None:
        if not parts:
            raise InputError("a total needs at least one part: TotalPotential([potential]).")
        super().__init__(parts[0].space, parts[0].levels if levels is None else levels)
        self.parts = nn.ModuleList()
        self.betas = nn.ParameterList()
        self.acts: list[tuple[int, ...]] = []
        for part in parts:
            self._append(part, tuple(range(self.levels)), 1.0, learn=True)

    def _append(
        self, part: BasePotential, levels: tuple[int, ...], beta: float, learn: bool
    ) -> None:
        if part.space != self.space:
            raise InputError(
                f"{type(part).__name__} is over another space than the other parts. Build it with the "
                "same space."
            )
        if part.levels != len(levels):
            raise InputError(
                f"{type(part).__name__} has {part.levels} levels, but is to act at {len(levels)}: "
                f"{levels}. Build it with levels={len(levels)}."
            )
        if len(set(levels)) < len(levels) or any(not 0 <= i < self.levels for i in levels):
            raise InputError(
                f"a part acts at different levels out of 0 to {self.levels - 1}, but these are {levels}."
            )
        self.parts.append(part)
        start = torch.full((len(levels),), beta)
        self.betas.append(nn.Parameter(start, requires_grad=learn))
        self.acts.append(levels)

    def add(
        self,
        part: BasePotential,
        levels: Sequence[int] | None = None,
        beta: float = 1.0,
        *,
        learn: bool = False,
    ) -> "TotalPotential":
        """This total with one more part, which acts at some levels (all, if none are named)."""
        new = TotalPotential.__new__(TotalPotential)
        BasePotential.__init__(new, self.space, self.levels)
        new.parts, new.acts = nn.ModuleList(self.parts), list(self.acts)
        new.betas = nn.ParameterList(self.betas)
        chosen = tuple(range(self.levels)) if levels is None else tuple(levels)
        new._append(part, chosen, beta, learn)
        like = self.betas[0]
        new.betas[-1].data = new.betas[-1].data.to(like.device, like.dtype)
        return new

    def _each(self) -> list[tuple[BasePotential, Float[Tensor, " acting"], list[int]]]:
        parts = [part for part in self.parts if isinstance(part, BasePotential)]
        return [
            (part, beta, list(acts))
            for part, beta, acts in zip(parts, self.betas, self.acts, strict=True)
        ]

    def evaluate(self, values: Values) -> Scores:
        total = None
        for part, beta, acts in self._each():
            scores = _times(beta[:, None], part.evaluate(values[acts]))
            if total is None:
                total = scores.new_zeros(values.shape[:2])
            total = total.index_add(0, torch.tensor(acts, device=values.device), scores)
        assert total is not None
        return total

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        total = slopes = None
        for part, beta, acts in self._each():
            scores, some = part.evaluate_with_slopes(values[acts])
            if total is None or slopes is None:
                total = scores.new_zeros(values.shape[:2])
                slopes = some.new_zeros(*values.shape[:2], self.space.entries)
            total[acts] += _times(beta[:, None], scores)
            slopes[acts] += beta[:, None, None] * some
        assert total is not None
        assert slopes is not None
        return total, slopes

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        total = None
        for part, beta, acts in self._each():
            scores = _times(
                beta[:, None, None], part.evaluate_alternatives(values[acts], groups[acts])
            )
            if total is None:
                total = scores.new_zeros(*values.shape[:2], scores.shape[-1])
            total = total.index_add(0, torch.tensor(acts, device=values.device), scores)
        assert total is not None
        return total


def _times(beta: Tensor, scores: Tensor) -> Tensor:
    """beta times scores, where minus infinity stays what it is, whatever beta."""
    forbidden = scores == float("-inf")
    if not bool(forbidden.any()):
        return beta * scores
    return (beta * scores.masked_fill(forbidden, 0)).masked_fill(forbidden, float("-inf"))
