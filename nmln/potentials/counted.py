"""A potential that counts its evaluations."""

import time

from jaxtyping import Int64
from torch import Tensor

from nmln.errors import InputError
from nmln.potentials.base import BasePotential
from nmln.potentials.stand_in import StandIn
from nmln.types import (
    Alternatives,
    Changes,
    Evaluations,
    Groups,
    Potential,
    Scores,
    Slopes,
    Values,
)


class Counted:
    """Counts the worlds that a potential scores, with and without slopes, and the time it takes.

    Every category of a chosen group counts as one world.
    """

    def __init__(self, potential: Potential, before: Evaluations | None = None) -> None:
        self.potential = potential
        self.evaluations = before or Evaluations()

    @property
    def levels(self) -> int:
        return self.potential.levels

    def score(self, values: Values) -> Scores:
        start = time.perf_counter()
        scores = self.potential.score(values)
        self._add(scores.numel(), 0, start)
        return scores

    def score_and_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        start = time.perf_counter()
        scores, slopes = self.potential.score_and_slopes(values)
        self._add(0, scores.numel(), start)
        return scores, slopes

    def score_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        start = time.perf_counter()
        scores = self.potential.score_alternatives(values, groups)
        space = getattr(self.potential, "space", None)
        worlds = scores.numel() if space is None else int(space.sizes[groups.cpu()].sum())
        self._add(worlds, 0, start)
        return scores

    def stand_in(self) -> StandIn | None:
        """That of the potential."""
        return self.potential.stand_in() if isinstance(self.potential, BasePotential) else None

    def score_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        if not isinstance(self.potential, BasePotential):
            raise InputError(
                "this kernel changes many groups at once, which only potentials of nmln can "
                "score. Wrap your function in a OneHotPotential or a ValuesPotential.",
                kind="unsupported",
            )
        start = time.perf_counter()
        changes = self.potential.score_changes(values, groups)
        sizes = int(self.potential.space.sizes[groups.cpu()].sum())
        self._add(values.shape[0] * values.shape[1] * sizes, 0, start)
        return changes

    def _add(self, scores: int, slopes: int, start: float) -> None:
        before, taken = self.evaluations, time.perf_counter() - start
        self.evaluations = Evaluations(
            before.scores + scores, before.slopes + slopes, before.seconds + taken
        )
