"""Path-auxiliary moves: several groups change at once, drawn one after the other from the slopes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.combined import Lazy
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.moves import Attributes, accept, draw, free_groups, normalised, perturbed
from nmln.kernels.registry import KERNELS
from nmln.space import Space
from nmln.types import Info, Potential, Scores, Slopes, State, Values

Order = Int64[Tensor, "levels chains length"]


@dataclass(frozen=True)
class PathAuxiliary:
    """Change U groups, U uniform on 1 to 2m - 1, drawn without replacement by how much they would move.

    A group is drawn with the weight that Gibbs with gradients gives to all of its changes together, then
    one of its other categories. The way back draws the same groups in the opposite order. `mean_length`
    is m, one number or one for each level. A random length keeps no parity. With `attributes` only those
    are moved, and another kernel must move the others.
    """

    space: Space
    evidence: Evidence | None = None
    mean_length: int | Sequence[int] = 2
    attributes: Attributes = None

    def __post_init__(self) -> None:
        free = len(free_groups(self.space, self.evidence, self.attributes))
        lengths = self.step_sizes
        if not lengths or any(not 1 <= 2 * m - 1 <= free for m in lengths):
            raise InputError(
                f"a path of mean length m changes up to 2m - 1 of the {free} free groups, but m is "
                f"{self.mean_length}. Take m from 1 to {(free + 1) // 2}."
            )

    @property
    def step_sizes(self) -> tuple[float, ...]:
        length = self.mean_length
        return (float(length),) if isinstance(length, int) else tuple(map(float, length))

    def with_step_sizes(self, sizes: Sequence[float]) -> "PathAuxiliary":
        """Whole lengths, so that the longest path changes no more than all free groups."""
        most = (len(free_groups(self.space, self.evidence, self.attributes)) + 1) // 2
        return replace(self, mean_length=tuple(min(most, max(1, round(m))) for m in sizes))

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, *potential.score_and_slopes(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        assert state.slopes is not None
        weights, choices = self.proposal(state.values, state.slopes)
        length = self._draw_length(state.values, rng)
        order = self._draw_order(weights, rng)
        picked = self._draw_categories(choices, order, rng)
        values = self.change(state.values, order, picked, length)
        proposed = State(values, *potential.score_and_slopes(values))
        assert proposed.slopes is not None
        new_weights, new_choices = self.proposal(values, proposed.slopes)
        there = self.path_probability(weights, choices, order, values, length)
        back_order = reverse(order, length)
        back = self.path_probability(new_weights, new_choices, back_order, state.values, length)
        gained = proposed.scores.double() - state.scores.double()
        return accept(state, proposed, gained + (back.double() - there.double()), rng)

    @property
    def longest(self) -> int:
        return 2 * int(max(self.step_sizes)) - 1

    def _draw_length(self, values: Values, rng: Generator) -> Int64[Tensor, "levels chains"]:
        most = 2 * torch.as_tensor(self.mean_length, device=values.device).view(-1, 1) - 1
        uniform = torch.rand(
            values.shape[:2], generator=rng, dtype=torch.float64, device=values.device
        )
        return 1 + (uniform * most).long()

    def proposal(
        self, values: Values, slopes: Slopes
    ) -> tuple[Float[Tensor, "levels chains groups"], Slopes]:
        """The logarithms of each group's weight, up to a constant, and of its categories' shares."""
        logits = GibbsWithGradients(self.space, self.evidence, self.attributes).logits(
            values, slopes
        )
        weights = logits.new_empty(values.shape)
        for block in self.space.blocks:
            entries = self.space.entries_of(logits, block)
            shares, weights[..., block.groups] = normalised(entries)
            entries.copy_(shares)
        return weights, logits

    def _draw_order(self, weights: Float[Tensor, "levels chains groups"], rng: Generator) -> Order:
        """The longest possible path, drawn without replacement."""
        return perturbed(weights, rng).topk(self.longest, dim=-1).indices

    def _draw_categories(self, choices: Slopes, order: Order, rng: Generator) -> Order:
        """Another category for every group on the path."""
        most = int(self.space.sizes.max())
        offsets, sizes = (t.to(order.device)[order] for t in (self.space.offsets, self.space.sizes))
        category = torch.arange(most, device=order.device)
        entry = (offsets[..., None] + category).clamp(max=self.space.entries - 1)
        logits = choices.gather(2, entry.flatten(2)).view(entry.shape)
        return draw(logits.masked_fill(category >= sizes[..., None], float("-inf")), rng)

    def change(
        self, values: Values, order: Order, picked: Order, length: Int64[Tensor, "levels chains"]
    ) -> Values:
        """The worlds at the end of the paths."""
        on_path = torch.arange(order.shape[-1], device=order.device) < length[..., None]
        chosen = torch.where(on_path, picked, values.gather(2, order).long())
        return values.scatter(2, order, chosen.to(values.dtype))

    def path_probability(
        self,
        weights: Float[Tensor, "levels chains groups"],
        choices: Slopes,
        order: Order,
        end: Values,
        length: Int64[Tensor, "levels chains"],
    ) -> Scores:
        """The log-probability of drawing these groups in this order, and the categories they end in."""
        on_path = torch.arange(order.shape[-1], device=order.device) < length[..., None]
        drawn = weights.gather(2, order)
        # What is left at a place: the groups from there to the end of the order, and those outside it.
        outside = weights.scatter(2, order, float("-inf")).logsumexp(-1, keepdim=True)
        left = torch.cat([drawn, outside], dim=-1).flip(-1).logcumsumexp(-1).flip(-1)[..., :-1]
        entry = self.space.offsets.to(order.device)[order] + end.gather(2, order).long()
        step = drawn - left + choices.gather(2, entry)
        return step.masked_fill(~on_path, 0.0).sum(-1)


def reverse(order: Order, length: Int64[Tensor, "levels chains"]) -> Order:
    """The first `length` groups in the opposite order, the others where they were."""
    place = torch.arange(order.shape[-1], device=order.device).expand(order.shape)
    back = torch.where(place < length[..., None], length[..., None] - 1 - place, place)
    return order.gather(2, back)


def _short_paths(space: Space, evidence: Evidence | None) -> Lazy:
    """Paths of two groups on average, or of one where few groups are free."""
    several = len(free_groups(space, evidence)) > 2
    return Lazy(PathAuxiliary(space, evidence, mean_length=1 + several))


KERNELS.add("path", _short_paths)
