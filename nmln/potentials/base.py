"""The base of all potentials: checks, slopes by autograd, alternatives by brute force."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.language import difference
from nmln.potentials.stand_in import StandIn
from nmln.space import Space
from nmln.types import Alternatives, Changes, Groups, OneHot, Scores, Slopes, Ties, Values
from nmln.worlds import to_text

Labels = Sequence[Hashable]
"""A name for each place of an axis; the same name in two languages means the same."""


class ScoreError(InputError):
    """A score that is NaN or plus infinity; `world` is the first world that has it."""

    def __init__(self, message: str, world: Integer[Tensor, " groups"]) -> None:
        super().__init__(message, kind="numeric")
        self.world = world


class BasePotential(nn.Module, ABC):
    """The public interface of a potential: checks its inputs and its outputs.

    A subclass defines how worlds are scored (`evaluate`) and how slopes are found
    (`evaluate_with_slopes`); most extend `NeuralPotential`, which needs only `forward`.
    """

    def __init__(self, space: Space, levels: int) -> None:
        super().__init__()
        if levels < 1:
            raise InputError(f"levels must be at least 1, got {levels}.")
        self.space = space
        self._levels = levels
        self.precision = nn.Buffer(torch.zeros(0), persistent=False)  # follows `.double()`

    @property
    def levels(self) -> int:
        return self._levels

    @property
    def dtype(self) -> torch.dtype:
        """The type of the scores."""
        return self.precision.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters and tables are; worlds of another device are copied to it and scored."""
        return self.precision.device

    def at_levels(self, levels: Sequence[int]) -> "BasePotential":
        """This potential at some of its levels only, with copies of their parameters.

        A world has the same score there as at that level here, at the cost of the chosen levels alone.
        A parameter or saved buffer whose first axis is the levels is sliced, any other is copied whole.
        A potential that keeps something else for each level overrides this.
        """
        return sliced(self, levels)

    def chosen_levels(self, levels: Sequence[int]) -> list[int]:
        """Levels counted from 0 (-1 is the target); refuses those that do not exist or do not rise."""
        chosen = [level + self.levels if level < 0 else level for level in levels]
        inside = all(0 <= level < self.levels for level in chosen)
        if not chosen or not inside or any(a >= b for a, b in pairwise(chosen)):
            raise InputError(
                f"levels must be one or more rising numbers from 0 to {self.levels - 1}, got "
                f"{list(levels)}."
            )
        return chosen

    def on(self, space: Space) -> "BasePotential":
        """This potential on another domain of the same language, with the same parameters.

        The parameters are shared, not copied: what one of the two learns, the other knows. Convert
        (`.double()`) before: a conversion of the one leaves the precision of the other as it is.
        """
        if space.language != self.space.language:
            names = ("the potential", "the space")
            found = difference(self.space.language, space.language, names)
            raise InputError(
                "a potential can only be put on another domain of its own language, and this is "
                f"another language: {found or 'the space has other values.'}",
                kind="conflict",
            )
        return self if space == self.space else _tables_on(self.grounded(space), self.device)

    def grounded(self, space: Space) -> "BasePotential":
        """`on` for a space that is another one over the same language; for subclasses to define."""
        raise InputError(
            f"{type(self).__name__} belongs to the constants that it was built with, and cannot be put "
            "on another domain. Take a potential that treats all constants alike, such as "
            "GraphPotential.",
            token=type(self).__name__,
            kind="unsupported",
        )

    def labels(self) -> dict[str, dict[int, Labels]]:
        """Which value of the language each row or column of this potential's own parameters belongs to.

        By the name of the parameter and the number of the axis: a label for every place. Axes that are
        as long in every language are left out.
        """
        return {}

    @abstractmethod
    def evaluate(self, values: Values) -> Scores:
        """The scores of worlds that have passed the checks."""

    @abstractmethod
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        """Scores and slopes of worlds that have passed the checks."""

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        """The score of every category of one group per chain: each changed world scored once."""
        edited, place = changed_worlds(self.space, values, groups)
        scores = self.evaluate(torch.cat([values, edited], dim=1))
        chains, most = values.shape[1], int(self.space.sizes.max())
        now = values.gather(2, groups[..., None]).squeeze(2).long()
        own = torch.arange(chains, device=values.device) * most + now
        # Padding goes into a last column, which is dropped.
        found = scores.new_full((len(values), chains * most + 1), float("-inf"))
        found = found.scatter(1, torch.cat([own, place], dim=1), scores)
        return found[:, :-1].unflatten(1, (chains, most))

    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        """How much the score grows when each of some groups, alone, takes each category.

        Here by scoring every changed world; a potential of local terms evaluates only those that change.
        The worlds must be possible.
        """
        most = int(self.space.sizes.max())
        found = values.new_empty((*values.shape[:2], len(groups), most), dtype=self.dtype)
        for place, group in enumerate(groups.tolist()):
            chosen = torch.full(values.shape[:2], group, device=values.device)
            scores = self.evaluate_alternatives(values, chosen)
            now = values[..., group].long()[..., None]
            found[:, :, place] = scores - scores.gather(2, now)
        return found

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties | None:
        """The pairs of free groups that one term or another depends on together, each at least once.

        None if nothing is known, and so any two may be tied. Groups that are not tied are independent
        given the others, and can be redrawn at once.
        """
        return None

    def stand_in(self) -> StandIn | None:
        """The part of the score that costs little, as tables; None if there is no such part.

        Kernels may move by it for a while and correct with the whole score afterwards.
        """
        return None

    def violations_of(self, values: Values) -> Float[Tensor, "levels chains"]:
        """How many violations forbid each world: 0 where the score is finite.

        Here 1 for every forbidden world; a potential that can count its violations overrides this, so
        that a search can measure its progress.
        """
        scores = self.evaluate(values.to(self.device)).to(values.device)
        return (scores == float("-inf")).to(self.dtype)

    def forbidden_by(self, level: int, world: Integer[Tensor, " groups"]) -> list[str]:
        """The hard formulas that forbid a world at a level, as text."""
        return []

    def score(self, values: Values) -> Scores:
        self._check_values(values)
        scores = self.evaluate(values.to(self.device)).to(values.device)
        self._check_scores(scores, values)
        return scores

    def score_and_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        self._check_values(values)
        scores, slopes = self.evaluate_with_slopes(values.to(self.device))
        scores, slopes = scores.to(values.device), slopes.to(values.device)
        self._check_scores(scores, values)
        self._check_scores(slopes.sum(-1), values, "slopes that sum to ")
        return scores, slopes

    def score_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        self._check_values(values)
        if groups.shape != values.shape[:2] or not bool(
            ((groups >= 0) & (groups < self.space.groups)).all()
        ):
            raise InputError(
                f"one group from 0 to {self.space.groups - 1} must be chosen for every chain, in the "
                f"shape (levels, chains) = {tuple(values.shape[:2])}, got {tuple(groups.shape)}."
            )
        scores = self.evaluate_alternatives(values.to(self.device), groups.to(self.device))
        scores = scores.to(values.device)
        self._check_real(scores)
        highest = scores.amax(-1)  # NaN, if one of them is
        if bool((highest.isnan() | (highest == float("inf"))).any()):
            category = (scores.isnan() | (scores == float("inf"))).long().argmax(-1, keepdim=True)
            self._check_scores(
                highest, values.scatter(2, groups[..., None], category.to(values.dtype))
            )
        return scores

    @torch.no_grad()
    def score_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        """`evaluate_changes`, checked; no graph is kept."""
        self._check_values(values)
        changes = self.evaluate_changes(values.to(self.device), groups).to(values.device)
        self._check_real(changes)
        highest = (
            changes.flatten(2).amax(-1) if len(groups) else changes.new_zeros(values.shape[:2])
        )
        self._check_scores(highest, values, "a change of score that is ")
        return changes

    def _check_values(self, values: Tensor) -> None:
        expected = (self.levels, self.space.groups)
        if values.ndim != 3 or (values.shape[0], values.shape[2]) != expected:
            raise InputError(
                f"{type(self).__name__} scores values of shape (levels, chains, groups) = "
                f"({self.levels}, any, {self.space.groups}), but was given {tuple(values.shape)}. "
                "One level of worlds is worlds[None]."
            )
        if values.is_floating_point():
            raise InputError(
                f"values must be integers, one category per group, got {values.dtype}. "
                "Turn one-hot tensors into values with space.categories(onehot)."
            )
        outside = (values < 0) | (values >= self.space.sizes.to(values.device))
        if bool(outside.any()):
            level, chain, group = torch.nonzero(outside)[0].tolist()
            raise InputError(
                f"{self.space.group_name(group)} has the categories 0 to "
                f"{int(self.space.sizes[group]) - 1}, but is {int(values[level, chain, group])} at "
                f"level {level}, chain {chain}."
            )

    def _check_real(self, scores: Tensor) -> None:
        if scores.is_complex():
            raise InputError(
                f"scores must be real numbers, but {type(self).__name__} gives {scores.dtype}. Give it "
                "real weights.",
                kind="numeric",
            )

    def _check_scores(self, scores: Tensor, values: Values, what: str = "") -> None:
        self._check_real(scores)
        wrong = scores.isnan() | (scores == float("inf"))
        if not bool(wrong.any()):
            return
        level, chain = torch.nonzero(wrong)[0].tolist()
        world = values[level, chain].detach().cpu()
        bad = [
            name
            for name, parameter in self.named_parameters()
            if not bool(parameter.isfinite().all())
        ]
        cause = (
            f"the parameter {bad[0]} is not finite. Return to the last good parameters, or take a "
            "smaller step."
            if bad
            else "the parameters are all finite, so it is the function itself that fails here."
        )
        text = to_text(self.space, world).replace("\n", ", ")
        raise ScoreError(
            f"{type(self).__name__} gives {what}{scores[level, chain].item()} at level {level}, chain "
            f"{chain}; {cause} The world: {text[:300] or '(nothing is true)'}",
            world,
        )


Kind = TypeVar("Kind", bound=BasePotential)
_Module = TypeVar("_Module", bound=nn.Module)


def _tables_on(potential: Kind, device: torch.device) -> Kind:
    """The potential, with new tables moved to the device of its parameters."""
    for module in potential.modules():
        for name, table in module._buffers.items():
            if table is not None and table.device != device:
                module._buffers[name] = table.to(device)
    return potential


def sharing(potential: Kind, space: Space) -> Kind:
    """A copy on another space with the same parameters; its tables are still those of the old space."""
    new = copy(potential)
    new._buffers, new._modules = dict(potential._buffers), dict(potential._modules)
    new._non_persistent_buffers_set = set(potential._non_persistent_buffers_set)
    new.space = space
    return new


def by_level(tensor: Tensor, levels: int) -> bool:
    """Whether the first axis of a tensor is the levels; otherwise it belongs to all of them."""
    return tensor.ndim > 0 and len(tensor) == levels


def sliced(potential: Kind, levels: Sequence[int]) -> Kind:
    """The default of `BasePotential.at_levels`, for potentials that extend it."""
    chosen = potential.chosen_levels(levels)
    new = _sliced(potential, potential.levels, chosen)
    new._levels = len(chosen)
    return new


def _sliced(module: _Module, levels: int, chosen: list[int]) -> _Module:
    """A copy of a module with some levels of its tensors; what has no parameters is shared."""

    def some(tensor: Tensor) -> Tensor:
        return tensor.detach()[chosen] if by_level(tensor, levels) else tensor.detach().clone()

    def parameter(old: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(some(old), requires_grad=old.requires_grad)

    new, unsaved = copy(module), set(module._non_persistent_buffers_set)
    new._non_persistent_buffers_set = unsaved
    new._parameters = {
        name: None if old is None else parameter(old) for name, old in module._parameters.items()
    }
    new._buffers = {
        name: old if old is None or name in unsaved else some(old)
        for name, old in module._buffers.items()
    }
    new._modules = {}
    for name, part in module._modules.items():
        if isinstance(part, BasePotential):
            new._modules[name] = part.at_levels(chosen)
        else:
            new._modules[name] = None if part is None else _sliced(part, levels, chosen)
    return new


def refuse_complex(tensors: Mapping[str, Tensor], source: str | None = None) -> None:
    """Refuse saved weights that are complex: a real parameter would silently take their real parts."""
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise InputError(
                f"weights must be real numbers, but {name} is {tensor.dtype}. Save the model with real "
                "weights, or fetch another copy.",
                source,
                token=name,
            )


class NeuralPotential(BasePotential):
    """A potential written as a differentiable function of one-hot encodings: `forward`."""

    @property
    def worlds_at_a_time(self) -> int:
        """How many chains are scored together at each level."""
        return 512

    @abstractmethod
    def forward(self, onehot: OneHot) -> Scores:
        """Scores of one-hot (or relaxed) worlds, differentiable in entries and parameters."""

    def evaluate(self, values: Values) -> Scores:
        parts = values.split(self.worlds_at_a_time, dim=1)
        return torch.cat([self(self.space.one_hot(part, self.dtype)) for part in parts], dim=1)

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        scores, slopes = [], []
        for part in values.split(self.worlds_at_a_time, dim=1):
            with torch.inference_mode(False), torch.enable_grad():
                onehot = self.space.one_hot(part.clone(), self.dtype).requires_grad_()
                score = self(onehot)
                if not score.requires_grad:
                    raise InputError(
                        f"{type(self).__name__} cannot be differentiated by the one-hot entries. Make a "
                        "ValuesPotential of a function that autograd cannot follow.",
                        kind="unsupported",
                    )
                (slope,) = torch.autograd.grad(score.sum(), onehot)
            scores.append(score.detach())
            slopes.append(slope)
        return torch.cat(scores, dim=1), torch.cat(slopes, dim=1)


def changed_worlds(
    space: Space, values: Values, groups: Groups
) -> tuple[Integer[Tensor, "levels edits groups"], Int64[Tensor, "levels edits"]]:
    """Every world with its chosen group set to each other category, and the place of its score.

    The place is chain times the largest size, plus category. Levels with fewer changes are filled up
    with their first world as it is, at a place behind all others.
    """
    most = int(space.sizes.max())
    category = torch.arange(most, device=values.device)
    now = values.gather(2, groups[..., None])
    other = (category < space.sizes.to(values.device)[groups][..., None]) & (category != now)
    counts = other.flatten(1).sum(1)
    edits = int(counts.max()) if counts.numel() else 0
    behind = values.shape[1] * most
    place = torch.full((len(values), edits), behind, device=values.device)
    level, at = other.flatten(1).nonzero().T
    rank = torch.arange(len(at), device=values.device) - (counts.cumsum(0) - counts)[level]
    place[level, rank] = at
    filling = place == behind
    chain = place.masked_fill(filling, 0).div(most, rounding_mode="floor")
    edited = values.gather(1, chain[..., None].expand(-1, -1, space.groups))
    group = groups.gather(1, chain)[..., None]
    chosen = torch.where(filling[..., None], edited.gather(2, group), place[..., None] % most)
    return edited.scatter(2, group, chosen.to(values.dtype)), place
