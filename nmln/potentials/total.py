"""The weighted sum of potentials: sum of beta_i Phi_i."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from nmln.devices import move
from nmln.errors import InputError
from nmln.potentials.base import BasePotential, sharing
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.stand_in import StandIn
from nmln.space import Space
from nmln.types import Alternatives, Changes, Groups, Scores, Slopes, Ties, Values


class TotalPotential(BasePotential):
    """Sum of beta_i Phi_i over parts, with a learnable beta for every part and level.

    A part acts at the levels that `add` gives it, and has as many levels of its own. Parts can be
    added after training; the old parts and their betas are shared, not copied, so that converting the
    new total (`.double()`) converts the parts of the old one too.

    The sum is taken in the widest precision of its parts: a formula with a large weight, in double
    precision, does not take the digits of a network of single precision.
    """

    def __init__(self, parts: Sequence[BasePotential]) -> None:
        if not parts:
            raise InputError(
                "a total needs at least one part: TotalPotential([potential]).", kind="empty"
            )
        super().__init__(parts[0].space, parts[0].levels)
        self.precision = nn.Buffer(parts[0].precision.clone(), persistent=False)
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
                "same space.",
                kind="conflict",
            )
        if part.levels != len(levels):
            raise InputError(
                f"{type(part).__name__} has {part.levels} levels, but is to act at {len(levels)}: "
                f"{levels}. Build it with levels={len(levels)}.",
                kind="conflict",
            )
        if len(set(levels)) < len(levels) or any(not 0 <= i < self.levels for i in levels):
            raise InputError(
                f"levels must be different numbers from 0 to {self.levels - 1}, got {levels}."
            )
        self.parts.append(part if part.device == self.device else move(part, self.device))
        wide = torch.promote_types(self.precision.dtype, part.dtype)
        self.precision = nn.Buffer(self.precision.to(wide), persistent=False)
        start = torch.full((len(levels),), beta, dtype=self.dtype, device=self.precision.device)
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
        new.precision = nn.Buffer(self.precision.clone(), persistent=False)
        new.parts, new.acts = nn.ModuleList(self.parts), list(self.acts)
        new.betas = nn.ParameterList(self.betas)
        chosen = tuple(range(self.levels)) if levels is None else tuple(levels)
        new._append(part, chosen, beta, learn)
        return new

    def at_levels(self, levels: Sequence[int]) -> "TotalPotential":
        """Some levels of every part; a part that acts at none of them is left out."""
        chosen = self.chosen_levels(levels)
        new = TotalPotential.__new__(TotalPotential)
        BasePotential.__init__(new, self.space, len(chosen))
        new.precision = nn.Buffer(self.precision.clone(), persistent=False)
        new.parts, new.betas, new.acts = nn.ModuleList(), nn.ParameterList(), []
        for part, beta, acts in self._each():
            places = [place for place, level in enumerate(chosen) if level in acts]
            own = [acts.index(chosen[place]) for place in places]
            if own:
                new.parts.append(part.at_levels(own))
                new.betas.append(nn.Parameter(beta.detach()[own], beta.requires_grad))
                new.acts.append(tuple(places))
        return new

    def grounded(self, space: Space) -> "TotalPotential":
        """Every part on the space, with the same betas."""
        new = sharing(self, space)
        new.parts = nn.ModuleList([part.on(space) for part, _, _ in self._each()])
        return new

    def _each(self) -> list[tuple[BasePotential, Float[Tensor, " acting"], list[int]]]:
        parts = [part for part in self.parts if isinstance(part, BasePotential)]
        return [
            (part, beta, list(acts))
            for part, beta, acts in zip(parts, self.betas, self.acts, strict=True)
        ]

    def evaluate(self, values: Values) -> Scores:
        total = torch.zeros(values.shape[:2], dtype=self.dtype, device=values.device)
        for part, beta, acts in self._each():
            scores = _times(beta[:, None], part.evaluate(values[acts]).to(self.dtype))
            total = total.index_add(0, torch.tensor(acts, device=values.device), scores)
        return total

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        shape = (*values.shape[:2], self.space.entries)
        total = torch.zeros(shape[:2], dtype=self.dtype, device=values.device)
        slopes = torch.zeros(shape, dtype=self.dtype, device=values.device)
        for part, beta, acts in self._each():
            scores, some = part.evaluate_with_slopes(values[acts])
            total[acts] += _times(beta[:, None], scores.to(self.dtype))
            slopes[acts] += beta[:, None, None] * some.to(self.dtype)
        return total, slopes

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        shape = (*values.shape[:2], int(self.space.sizes.max()))
        total = torch.zeros(shape, dtype=self.dtype, device=values.device)
        for part, beta, acts in self._each():
            found = part.evaluate_alternatives(values[acts], groups[acts]).to(self.dtype)
            scores = _times(beta[:, None, None], found)
            total = total.index_add(0, torch.tensor(acts, device=values.device), scores)
        return total

    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        shape = (*values.shape[:2], len(groups), int(self.space.sizes.max()))
        total = torch.zeros(shape, dtype=self.dtype, device=values.device)
        for part, beta, acts in self._each():
            found = part.evaluate_changes(values[acts], groups).to(self.dtype)
            changes = _times(beta[:, None, None, None], found)
            total = total.index_add(0, torch.tensor(acts, device=values.device), changes)
        return total

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties | None:
        found = [part.ties(free) for part, _, _ in self._each()]
        known = [ties for ties in found if ties is not None]
        none = torch.zeros(2, 0, dtype=torch.int64)
        return torch.cat([none, *known], dim=1) if len(known) == len(found) else None

    def stand_in(self) -> StandIn | None:
        """The sum of those of the parts."""
        found: StandIn | None = None
        for part, beta, acts in self._each():
            own = part.stand_in()
            if own is not None:
                own = own.times(beta).spread(acts, self.levels)
                found = own if found is None else found.plus(own)
        return found

    def violations_of(self, values: Values) -> Float[Tensor, "levels chains"]:
        total = torch.zeros(values.shape[:2], dtype=self.dtype, device=values.device)
        for part, _, acts in self._each():
            total[acts] += part.violations_of(values[acts]).to(self.dtype)
        return total

    def forbidden_by(self, level: int, world: Integer[Tensor, " groups"]) -> list[str]:
        return [
            name
            for part, _, acts in self._each()
            if level in acts
            for name in part.forbidden_by(acts.index(level), world)
        ]


def base_of(potential: BasePotential) -> IndependentPotential | None:
    """The independent groups that a potential corrects, if it has such a term."""
    if isinstance(potential, IndependentPotential):
        return potential
    if isinstance(potential, TotalPotential):
        for part in potential.parts:
            if isinstance(part, IndependentPotential):
                return part
    return None


def _times(beta: Tensor, scores: Tensor) -> Tensor:
    """beta times scores, where minus infinity stays minus infinity for every beta."""
    forbidden = scores == float("-inf")
    if not bool(forbidden.any()):
        return beta * scores
    return (beta * scores.masked_fill(forbidden, 0)).masked_fill(forbidden, float("-inf"))
