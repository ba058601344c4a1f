"""Ground formulas as tables: the truth of each for all categories of the few groups that it depends on.

The effect of one changed group on thousands of ground formulas then takes a few look-ups, however the
formulas are built.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int8, Int64, Integer
from torch import Tensor

from nmln.potentials.grounding import Grounding
from nmln.space import Space

_WIDEST = 1024  # combinations of categories that the table of a ground formula may have
_LARGEST = 2**25  # truth values in all tables
_AT_ONCE = 2**22  # numbers held at a time
_KEPT = 4096  # selections of groups that are remembered


class _Selection(NamedTuple):
    """The pairs of a ground formula and one of its groups that some chosen groups take part in."""

    factor: Int64[Tensor, " pairs"]
    place: Int64[Tensor, " pairs"]  # which of the chosen groups
    stride: Int64[Tensor, " pairs"]  # what the group counts for in the table


class Factors:
    """Ground formulas of several formulas, with their groups, strides and tables."""

    def __init__(self, space: Space, groundings: Sequence[tuple[int, Grounding]]) -> None:
        """`groundings` come with the number of their formula."""
        tables = [(number, *one.tables(_WIDEST)) for number, one in groundings]
        widest = max((groups.shape[1] for _, groups, _, _ in tables), default=0)
        self.space = space
        self.formula = torch.cat(
            [torch.full((len(g),), number) for number, g, _, _ in tables]
            or [torch.zeros(0, dtype=torch.int64)]
        )
        self.groups = torch.cat(
            [_padded(groups, widest) for _, groups, _, _ in tables]
            or [torch.zeros(0, widest, dtype=torch.int64)]
        )
        self.strides = torch.cat(
            [_padded(strides, widest, 0) for _, _, strides, _ in tables]
            or [torch.zeros(0, widest, dtype=torch.int64)]
        )
        self.truth: Int8[Tensor, " codes"] = torch.cat(
            [truth.flatten() for _, _, _, truth in tables] or [torch.zeros(0, dtype=torch.int8)]
        )
        sizes = [torch.full((len(truth),), truth.shape[1]) for _, _, _, truth in tables]
        length = torch.cat(sizes or [torch.zeros(0, dtype=torch.int64)])
        self.base = length.cumsum(0) - length
        self.strides = self.strides.masked_fill(self.groups < 0, 0)
        used = torch.nonzero(self.groups >= 0)
        order = self.groups[used[:, 0], used[:, 1]].argsort(stable=True)
        self._factor = used[order, 0]
        self._group = self.groups[used[:, 0], used[:, 1]][order]
        self._stride = self.strides[used[:, 0], used[:, 1]][order]
        self._selections: dict[bytes, _Selection] = {}
        self.groups = self.groups.clamp(min=0)  # where there is none the stride is 0

    @staticmethod
    def suits(grounding: Grounding) -> bool:
        """Whether the tables of a formula are small enough."""
        width = grounding.widest_table()
        return width <= _WIDEST and width * grounding.count <= _LARGEST

    def _select(self, groups: Int64[Tensor, " some"]) -> _Selection:
        key = groups.numpy().tobytes()
        found = self._selections.get(key)
        if found is None:
            first = torch.searchsorted(self._group, groups)
            count = torch.searchsorted(self._group, groups, right=True) - first
            place = torch.arange(len(groups)).repeat_interleave(count)
            pair = first[place] + torch.arange(len(place)) - (count.cumsum(0) - count)[place]
            found = _Selection(self._factor[pair], place, self._stride[pair])
            if len(self._selections) >= _KEPT:
                self._selections.clear()
            self._selections[key] = found
        return found

    def counts(
        self, worlds: Integer[Tensor, "worlds groups"], formulas: int
    ) -> Int64[Tensor, "worlds formulas"]:
        """The number of true groundings of every formula in every world."""
        counts = torch.zeros(len(worlds), formulas, dtype=torch.int64, device=worlds.device)
        truth, formula = self.truth.to(worlds.device), self.formula.to(worlds.device)
        rows = max(1, _AT_ONCE // max(1, len(self.base) * self.groups.shape[1]))
        for start in range(0, len(worlds), rows) if len(self.base) else ():
            some = slice(start, start + rows)
            held = truth[self._codes(worlds[some], slice(None))].long()
            counts[some].index_add_(1, formula, held)
        return counts

    def _codes(
        self, worlds: Integer[Tensor, "worlds groups"], factors: Int64[Tensor, " some"] | slice
    ) -> Int64[Tensor, "worlds some"]:
        """The place of the truth of ground formulas in the tables, in every world."""
        device = worlds.device
        code = self.base[factors].to(device).expand(len(worlds), -1).clone()
        for place in range(self.groups.shape[1]):  # one column at a time: quicker than one sum
            held = worlds[:, self.groups[factors, place].to(device)]
            code += held * self.strides[factors, place].to(device)
        return code

    def add_changes(
        self,
        worlds: Integer[Tensor, "worlds groups"],
        groups: Int64[Tensor, " some"],
        weights: Float[Tensor, "worlds formulas"],
        changes: Float[Tensor, "worlds some most"],
    ) -> None:
        """Add, for every category of every chosen group alone, weight times the change in truth."""
        factor, place, stride = self._select(groups)
        most = changes.shape[2]
        if not len(place) or not len(worlds):
            return
        device = worlds.device
        category = torch.arange(most, device=device)
        rows = max(1, _AT_ONCE // max(1, len(worlds) * most))
        for part in torch.arange(len(place)).split(rows):
            seen, own, step = factor[part], place[part], stride[part].to(device)
            code = self._codes(worlds, seen)
            now = worlds[:, groups[own].to(device)].long()
            truth = self.truth.to(device)
            other = (category - now[..., None]) * step[:, None] + code[..., None]
            exists = category < self.space.sizes[groups[own]].to(device)[:, None]
            other = torch.where(exists, other, code[..., None])
            grown = (truth[other] - truth[code][..., None]).to(changes.dtype)
            grown *= weights[:, self.formula[seen].to(device), None]
            changes.index_add_(1, own.to(device), grown)


def _padded(numbers: Int64[Tensor, "rows width"], width: int, value: int = -1) -> Tensor:
    return torch.nn.functional.pad(numbers, (0, width - numbers.shape[1]), value=value)
