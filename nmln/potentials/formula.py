"""The formula potential: weighted first-order logic, so that a Markov logic network is a model."""

from collections.abc import Sequence
from functools import cached_property
from itertools import zip_longest

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.logic import WeightedFormula, expand_templates, resolve
from nmln.potentials.base import BasePotential, Labels, sliced
from nmln.potentials.factors import Factors
from nmln.potentials.grounding import Grounding
from nmln.potentials.registry import POTENTIALS, NamedPotential
from nmln.space import Space
from nmln.types import Changes, Scores, Slopes, Ties, Values

LARGEST = 1e20  # of a weight: millions of groundings stay far below `_FORBIDDING`
_SINGLE = 1e4  # a weight that float32 holds to a thousandth
_FORBIDDING = 1e30  # a cost that no weight can offset, and that can still be added


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
    Without a `dtype` scores are float32, and float64 where a weight is given that is very large.
    """

    def __init__(
        self,
        space: Space,
        formulas: Sequence[WeightedFormula],
        levels: int = 1,
        *,
        strengths: Sequence[float] | None = None,
        penalty: float = 10.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(space, levels)
        strengths = [1.0] * levels if strengths is None else list(map(float, strengths))
        if len(strengths) != levels or not all(0 <= s <= 1 for s in strengths):
            raise InputError(
                f"strengths must be one number from 0 to 1 for each of the {levels} levels, got "
                f"{strengths}."
            )
        for one in formulas:
            if abs(one.weight or 0.0) > LARGEST:
                raise InputError(
                    f"a weight must be between -{LARGEST:g} and {LARGEST:g}, but is {one.weight:g} for "
                    f"{str(one.formula)[:200]}. Make the formula hard: a '.' at its end instead of the "
                    "weight."
                )
        if not 0 < penalty < float("inf"):
            raise InputError(f"penalty must be positive and finite, got {penalty}.")
        self.formulas = tuple(formulas)
        expanded = [one for formula in formulas for one in self._expand(formula)]
        self.soft = [one for one in expanded if not one.hard]
        self.hard = [one for one in expanded if one.hard]
        self._soft = [Grounding(one.formula, space) for one in self.soft]
        self._hard = [Grounding(one.formula, space) for one in self.hard]
        if dtype is None:
            largest = max((abs(one.weight or 0.0) for one in self.soft), default=0.0)
            dtype = torch.float32 if largest < _SINGLE else torch.float64
        start = torch.tensor([one.weight or 0.0 for one in self.soft], dtype=dtype)
        self.weights = nn.Parameter(start.repeat(levels, 1))
        self.precision = nn.Buffer(self.precision.to(dtype), persistent=False)
        self.strengths = tuple(strengths)
        self.penalty = penalty

    def at_levels(self, levels: Sequence[int]) -> "FormulaPotential":
        new = sliced(self, levels)
        new.strengths = tuple(self.strengths[level] for level in self.chosen_levels(levels))
        return new

    def grounded(self, space: Space) -> "FormulaPotential":
        new = FormulaPotential(
            space, self.formulas, self.levels, strengths=self.strengths, penalty=self.penalty
        )
        for mine, theirs in zip_longest(map(str, self.soft), map(str, new.soft)):
            if mine != theirs:
                raise InputError(
                    f"{theirs or mine} has a weight on only one of the two domains, because a formula "
                    "with + has a weight for each constant. Write it without +.",
                    token=theirs or mine,
                    kind="conflict",
                )
        new.weights, new.precision = self.weights, self.precision
        return new

    def labels(self) -> dict[str, dict[int, Labels]]:
        return {"weights": {1: [str(one.formula) for one in self.soft]}}

    def _expand(self, formula: WeightedFormula) -> list[WeightedFormula]:
        sorted_ = resolve(formula.formula, self.space.language, self.space.domain)
        whole = WeightedFormula(sorted_, formula.weight, formula.hard, formula.templates)
        return expand_templates(whole, self.space.language, self.space.domain)

    @cached_property
    def _factors(self) -> Factors:
        """The formulas whose groundings have small tables."""
        every = enumerate((*self._soft, *self._hard))
        return Factors(self.space, [(i, one) for i, one in every if Factors.suits(one)])

    @cached_property
    def _others(self) -> list[tuple[int, Grounding]]:
        every = enumerate((*self._soft, *self._hard))
        return [(i, one) for i, one in every if not Factors.suits(one)]

    @property
    def groundings(self) -> int:
        """How many ground formulas there are."""
        return sum(grounding.count for grounding in (*self._soft, *self._hard))

    @property
    def most(self) -> list[int]:
        """How many groundings every soft formula has."""
        return [grounding.count for grounding in self._soft]

    def counts(self, values: Values) -> Float[Tensor, "levels chains formulas"]:
        """The number of true groundings of every soft formula."""
        return self._count(values)[..., : len(self._soft)]

    def violations(self, values: Values) -> Float[Tensor, "levels chains formulas"]:
        """The number of false groundings of every hard formula."""
        return self._violated(self._count(values))

    def _violated(self, counts: Float[Tensor, "*batch formulas"]) -> Float[Tensor, "*batch hard"]:
        whole = torch.tensor([grounding.count for grounding in self._hard], device=counts.device)
        return whole - counts[..., len(self._soft) :]

    def violations_of(self, values: Values) -> Float[Tensor, "levels chains"]:
        strict = self.weights.new_tensor(self.strengths) == 1
        return self.violations(values).sum(-1) * strict.to(values.device)[:, None]

    def forbidden_by(self, level: int, world: Integer[Tensor, " groups"]) -> list[str]:
        if self.strengths[level] < 1:
            return []
        found = self.violations(world.expand(self.levels, 1, -1))[level, 0]
        return [str(one) for one, count in zip(self.hard, found, strict=True) if count > 0]

    @torch.no_grad()
    def _count(self, values: Values) -> Float[Tensor, "levels chains formulas"]:
        """The number of true groundings of every formula, the hard ones last."""
        worlds = values.flatten(0, 1)
        counts = self._factors.counts(worlds, len(self._soft) + len(self._hard))
        for index, grounding in self._others:
            counts[:, index] = grounding.counts(worlds)
        return counts.to(self.weights.dtype).unflatten(0, values.shape[:2])

    def evaluate(self, values: Values) -> Scores:
        counts, soft = self._count(values), len(self._soft)
        strengths = self.weights.new_tensor(self.strengths)
        scaled = self.weights * strengths[:, None]
        scores = torch.einsum("lcf,lf->lc", counts[..., :soft], scaled)
        if not self._hard:
            return scores
        violations = self._violated(counts).sum(-1)
        mild = scores - self.penalty * strengths[:, None] * violations
        forbidden = (violations > 0) & (strengths == 1)[:, None]
        return mild.masked_fill(forbidden, float("-inf"))

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        worlds, space = values.flatten(0, 1), self.space
        every, most = torch.arange(space.groups), int(space.sizes.max())
        weights = self._all_weights()
        strict = weights.new_tensor(self.strengths) == 1
        weights[strict, len(self._soft) :] = 0  # where they forbid, they have no slope
        weights = weights.repeat_interleave(values.shape[1], 0)
        changes = torch.zeros(
            len(worlds), space.groups, most, dtype=weights.dtype, device=values.device
        )
        self._factors.add_changes(worlds, every, weights, changes)
        exists = (torch.arange(most) < space.sizes[:, None]).to(values.device)
        slopes = changes[:, exists]  # groups in order, each with its categories: the entries
        for index, grounding in self._others:
            grounding.add_differences(worlds, weights[:, index], slopes)
        return self.evaluate(values), slopes.unflatten(0, values.shape[:2])

    @torch.no_grad()
    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        worlds, most = values.flatten(0, 1), int(self.space.sizes.max())
        shape = (len(worlds), len(groups), most)
        changes = torch.zeros(shape, dtype=self.weights.dtype, device=values.device)
        weights = self._all_weights().repeat_interleave(values.shape[1], 0)
        self._factors.add_changes(worlds, groups.cpu(), weights, changes)
        for index, grounding in self._others:
            grounding.add_changes(worlds, groups, weights[:, index], changes)
        if self._hard:
            changes = changes.masked_fill(changes < -_FORBIDDING / 2, float("-inf"))
        exists = torch.arange(most) < self.space.sizes[groups.cpu()][:, None]
        changes = changes.masked_fill(~exists.to(values.device), float("-inf"))
        return changes.unflatten(0, values.shape[:2])

    def _all_weights(self) -> Float[Tensor, "levels formulas"]:
        """The weight of a true grounding of every formula at every level, the hard ones last."""
        strengths = self.weights.new_tensor(self.strengths)[:, None]
        hard = torch.where(strengths == 1, _FORBIDDING, self.penalty * strengths)
        return torch.cat([self.weights * strengths, hard.expand(-1, len(self._hard))], dim=1)

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
    pay for violations and can cross. Its precision is double, so that large weights leave the model's
    own scores their digits.

    Args:
        space: of the worlds.
        formulas: soft and hard ones.
        levels: as many as the chains have.
        penalty: what a violated grounding of a hard formula costs at full strength.
    """
    strengths = [(level + 1) / levels for level in range(levels)]
    return FormulaPotential(
        space, formulas, levels, strengths=strengths, penalty=penalty, dtype=torch.float64
    )


POTENTIALS.add("formula", NamedPotential(FormulaPotential, network=None))
