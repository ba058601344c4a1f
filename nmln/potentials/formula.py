"""The formula potential: weighted first-order logic, so that a Markov logic network is a model."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from nmln.files import InputError
from nmln.logic import WeightedFormula, expand_templates, resolve
from nmln.potentials.base import BasePotential
from nmln.potentials.grounding import Grounding
from nmln.space import Space
from nmln.types import Changes, Scores, Slopes, Ties, Values


class FormulaPotential(BasePotential):
    """The sum over formulas of weight times number of true groundings.

    Weights are parameters, one for every level and formula; a formula without a weight starts at 0.
    A world that violates a hard formula scores minus infinity. `strengths` scales every level: at a
    level of strength s below 1 weights count s times, and a hard formula costs s times `penalty` for
    every violated grounding instead, so that chains can cross there.

    Slopes are those of the multilinear extension, and so exact: the slope of a category, less that of
    the current one, is the change in score when the group is set to it. Where a hard formula gives
    minus infinity it adds nothing to the slopes. Counts of millions of groundings leave a float32
    score little room for small differences; `dtype=torch.float64` keeps them, slopes are exact anyway.
    """

    def __init__(
        self,
        space: Space,
        formulas: Sequence[WeightedFormula],
        levels: int = 1,
        *,
        strengths: Sequence[float] | None = None,
        penalty: float = 10.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(space, levels)
        strengths = [1.0] * levels if strengths is None else list(map(float, strengths))
        if len(strengths) != levels or not all(0 <= s <= 1 for s in strengths):
            raise InputError(
                f"strengths are one number from 0 to 1 for each of the {levels} levels, but these are "
                f"{strengths}."
            )
        if not 0 < penalty < float("inf"):
            raise InputError(f"a penalty must be positive and finite, but is {penalty}.")
        expanded = [one for formula in formulas for one in self._expand(formula)]
        self.soft = [one for one in expanded if not one.hard]
        self.hard = [one for one in expanded if one.hard]
        self._soft = [Grounding(one.formula, space) for one in self.soft]
        self._hard = [Grounding(one.formula, space) for one in self.hard]
        start = torch.tensor([one.weight or 0.0 for one in self.soft], dtype=dtype)
        self.weights = nn.Parameter(start.repeat(levels, 1))
        self.precision = nn.Buffer(self.precision.to(dtype), persistent=False)
        self.strengths = tuple(strengths)
        self.penalty = penalty

    def _expand(self, formula: WeightedFormula) -> list[WeightedFormula]:
        sorted_ = resolve(formula.formula, self.space.language, self.space.domain)
        whole = WeightedFormula(sorted_, formula.weight, formula.hard, formula.templates)
        return expand_templates(whole, self.space.language, self.space.domain)

    def counts(self, values: Values) -> Float[Tensor, "levels chains formulas"]:
        """The number of true groundings of every soft formula."""
        return self._count(self._soft, values)

    def violations(self, values: Values) -> Float[Tensor, "levels chains formulas"]:
        """The number of false groundings of every hard formula."""
        whole = torch.tensor([grounding.count for grounding in self._hard], device=values.device)
        return whole - self._count(self._hard, values)

    def violations_of(self, values: Values) -> Float[Tensor, "levels chains"]:
        strict = self.weights.new_tensor(self.strengths) == 1
        return self.violations(values).sum(-1) * strict[:, None]

    def forbidden_by(self, level: int, world: Integer[Tensor, " groups"]) -> list[str]:
        if self.strengths[level] < 1:
            return []
        found = self.violations(world.expand(self.levels, 1, -1))[level, 0]
        return [str(one) for one, count in zip(self.hard, found, strict=True) if count > 0]

    @torch.no_grad()
    def _count(self, groundings: list[Grounding], values: Values) -> Tensor:
        worlds = values.flatten(0, 1)
        found = [grounding.counts(worlds) for grounding in groundings]
        counts = torch.stack(found, 1) if found else worlds.new_zeros(len(worlds), 0)
        return counts.to(self.weights.dtype).unflatten(0, values.shape[:2])

    def evaluate(self, values: Values) -> Scores:
        strengths = self.weights.new_tensor(self.strengths)
        scaled = self.weights * strengths[:, None]
        scores = torch.einsum("lcf,lf->lc", self.counts(values), scaled)
        if not self._hard:
            return scores
        violations = self.violations(values).sum(-1)
        mild = scores - self.penalty * strengths[:, None] * violations
        forbidden = (violations > 0) & (strengths == 1)[:, None]
        return mild.masked_fill(forbidden, float("-inf"))

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        dtype, chains = self.weights.dtype, values.shape[1]
        worlds = values.flatten(0, 1)
        slopes = torch.zeros(len(worlds), self.space.entries, dtype=dtype, device=values.device)
        strengths = self.weights.new_tensor(self.strengths)
        for index, grounding in enumerate(self._soft):
            weight = self.weights[:, index] * strengths
            grounding.add_differences(worlds, weight.repeat_interleave(chains), slopes)
        mild = self.penalty * strengths * (strengths < 1)
        if bool((mild > 0).any()):
            for grounding in self._hard:
                grounding.add_differences(worlds, mild.repeat_interleave(chains), slopes)
        return self.evaluate(values), slopes.unflatten(0, values.shape[:2])

    @torch.no_grad()
    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        dtype, chains = self.weights.dtype, values.shape[1]
        worlds, most = values.flatten(0, 1), int(self.space.sizes.max())
        changes = torch.zeros(len(worlds), len(groups), most, dtype=dtype, device=values.device)
        strengths = self.weights.new_tensor(self.strengths)
        for index, grounding in enumerate(self._soft):
            weight = self.weights[:, index] * strengths
            grounding.add_changes(worlds, groups, weight.repeat_interleave(chains), changes)
        if self._hard:
            true = torch.zeros_like(changes)
            for grounding in self._hard:
                grounding.add_changes(worlds, groups, true.new_ones(len(worlds)), true)
            cost = (self.penalty * strengths).repeat_interleave(chains)[:, None, None]
            strict = (strengths == 1).repeat_interleave(chains)[:, None, None]
            changes = (changes + cost * true).masked_fill(strict & (true < 0), float("-inf"))
        exists = torch.arange(most) < self.space.sizes[groups][:, None]
        changes = changes.masked_fill(~exists.to(values.device), float("-inf"))
        return changes.unflatten(0, values.shape[:2])

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties | None:
        found = [grounding.ties(free) for grounding in (*self._soft, *self._hard)]
        known = [ties for ties in found if ties is not None]
        if len(known) < len(found):
            return None
        return torch.cat([torch.zeros(2, 0, dtype=torch.int64), *known], dim=1).unique(dim=1)


def constraint(
    space: Space, formulas: Sequence[WeightedFormula], levels: int, penalty: float = 10.0
) -> FormulaPotential:
    """Formulas that steer a trained model: in full at the target, weaker the noisier the level.

    Level i of N has strength (i + 1) / N: the target obeys hard formulas strictly, noisier levels
    pay for violations and can cross.
    """
    strengths = [(level + 1) / levels for level in range(levels)]
    return FormulaPotential(space, formulas, levels, strengths=strengths, penalty=penalty)
