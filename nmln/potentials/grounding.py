"""Formulas grounded over a space: truth on worlds, and the effect of one changed group on it.

Tables have one row for every grounding of the free variables, and behind it one axis for every
quantified variable, of length one where a part of the formula does not depend on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod

import torch
from jaxtyping import Bool, Float, Int8, Int64, Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.logic import (
    And,
    Atom,
    Constant,
    Equal,
    Exists,
    ForAll,
    Formula,
    Iff,
    Implies,
    Not,
    Or,
    Term,
    free_variables,
    parts,
)
from nmln.memory import in_digits
from nmln.space import Space

_AT_ONCE = 2**23  # truth values held at a time
_MOST_TIES = 2**23  # pairs of groups in one grounding that are worth listing
_MOST = 2**26  # rows, with quantified variables, that the tables of a formula may have


@dataclass(frozen=True)
class _Ground:
    """An atom: the group and the wanted category of every grounding; group -1 is always false."""

    group: Int64[Tensor, "groundings *bound"]
    category: Int64[Tensor, "groundings *bound"]


@dataclass(frozen=True)
class _Fixed:
    """An equality: its truth does not depend on the world."""

    truth: Bool[Tensor, "groundings *bound"]


@dataclass(frozen=True)
class _Node:
    """A connective, or a quantifier over some of the axes of quantified variables."""

    kind: type
    inside: "tuple[_Node | _Ground | _Fixed, ...]"
    axes: tuple[int, ...] = ()


class Grounding:
    """One formula over a space."""

    def __init__(self, formula: Formula, space: Space) -> None:
        self.space = space
        self.free = free_variables(formula)
        self.sizes = tuple(len(self._constants(variable.sort)) for variable in self.free)
        self.bound = tuple(self._bound_sizes(formula))
        self.count = prod(self.sizes)
        self._room = self._deepest(formula)  # truth values a grounding takes at the most
        if self.count * self._room > _MOST:
            raise InputError(
                f"{str(formula)[:200]} has {in_digits(self.count)} groundings, "
                f"{in_digits(self.count * self._room)} with its quantified variables: too many to hold. "
                "Take fewer constants or variables.",
                kind="size",
            )
        self._leaves: list[_Ground] = []
        self._next_axis = len(self.free)
        scope = {variable.name: axis for axis, variable in enumerate(self.free)}
        self._root = self._build(formula, scope)

    def _constants(self, sort: str) -> tuple[str, ...]:
        return {**self.space.domain, **self.space.language.value_sorts}[sort]

    def _bound_sizes(self, formula: Formula) -> list[int]:
        own = formula.variables if isinstance(formula, Exists | ForAll) else ()
        sizes = [len(self._constants(variable.sort)) for variable in own]
        return sizes + [size for part in parts(formula) for size in self._bound_sizes(part)]

    def _deepest(self, formula: Formula) -> int:
        """The quantified variables multiply where they are nested, not where they are side by side."""
        own = formula.variables if isinstance(formula, Exists | ForAll) else ()
        sizes = prod(len(self._constants(variable.sort)) for variable in own)
        return sizes * max((self._deepest(part) for part in parts(formula)), default=1)

    # Building the tables. Axes are numbered through: free variables first, then quantified ones.

    def _build(self, formula: Formula, scope: dict[str, int]) -> "_Node | _Ground | _Fixed":
        match formula:
            case Atom():
                self._leaves.append(self._ground(formula, scope))
                return self._leaves[-1]
            case Equal(left, right):
                same = self._positions(left, scope) == self._positions(right, scope)
                return _Fixed(self._in_rows(same))
            case Exists(variables, body) | ForAll(variables, body):
                axes = range(self._next_axis, self._next_axis + len(variables))
                self._next_axis += len(variables)
                inner = {v.name: axis for v, axis in zip(variables, axes, strict=True)}
                own = tuple(axis - len(self.free) for axis in axes)
                return _Node(type(formula), (self._build(body, {**scope, **inner}),), own)
            case _:
                inside = tuple(self._build(part, scope) for part in parts(formula))
                return _Node(type(formula), inside)

    def _positions(self, term: Term, scope: dict[str, int]) -> Int64[Tensor, "*axes"]:
        """The position of a term in its sort, along the axis of its variable."""
        constants = self._constants(term.sort)
        shape = [1] * (len(self.sizes) + len(self.bound))
        if isinstance(term, Constant):
            return torch.tensor(constants.index(term.name)).view(shape)
        shape[scope[term.name]] = len(constants)
        return torch.arange(len(constants)).view(shape)

    def _ground(self, atom: Atom, scope: dict[str, int]) -> _Ground:
        block = self.space.block(atom.predicate)
        places = [self._positions(term, scope) for term in atom.arguments]
        category = torch.ones([1] * (len(self.sizes) + len(self.bound)), dtype=torch.int64)
        if not block.attribute.boolean:
            category = places.pop() + block.attribute.optional
        row = torch.zeros([1] * (len(self.sizes) + len(self.bound)), dtype=torch.int64)
        for place, size in zip(places, block.shape, strict=True):
            row = row * size + place
        table = torch.from_numpy(self.space.table(atom.predicate).flatten())
        group = torch.where(table[row] >= 0, table[row] + block.first_group, -1)
        group, category = torch.broadcast_tensors(group, category)
        return _Ground(self._in_rows(group), self._in_rows(category))

    def _in_rows(self, table: Tensor) -> Tensor:
        """One row for every grounding of the free variables."""
        shape = [*self.sizes, *table.shape[len(self.sizes) :]]
        return table.expand(shape).reshape(self.count, *shape[len(self.sizes) :])

    # Truth on worlds.

    def counts(self, worlds: Integer[Tensor, "worlds groups"]) -> Int64[Tensor, " worlds"]:
        """The number of true groundings in every world."""
        size = max(1, _AT_ONCE // (self.count * self._room))
        return torch.cat([self._truth(part).sum(1) for part in worlds.split(size)])

    def _truth(self, worlds: Integer[Tensor, "worlds groups"]) -> Bool[Tensor, "worlds groundings"]:
        def look_up(leaf: _Ground | _Fixed) -> Tensor:
            if isinstance(leaf, _Fixed):
                return leaf.truth.to(worlds.device)[None]
            return _holds(worlds, leaf.group, leaf.category)

        truth = self._evaluate(self._root, look_up)
        return truth.reshape(len(truth), self.count).expand(len(worlds), -1)

    def _evaluate(
        self, node: _Node | _Ground | _Fixed, look_up: Callable[[_Ground | _Fixed], Tensor]
    ) -> Tensor:
        if not isinstance(node, _Node):
            return look_up(node)
        inside = [self._evaluate(part, look_up) for part in node.inside]
        if node.kind in (Exists, ForAll):
            truth = inside[0]
            first = truth.ndim - len(self.bound)
            for axis in node.axes:
                truth = (truth.any if node.kind is Exists else truth.all)(
                    first + axis, keepdim=True
                )
            return truth
        return _CONNECTIVES[node.kind](inside)

    # The truth of each grounding as a table over the categories of its groups.

    @cached_property
    def _distinct(self) -> Int64[Tensor, "groundings width"]:
        """The groups of every grounding, each once, in order; -1 fills up."""
        seen = [leaf.group.reshape(self.count, -1) for leaf in self._leaves]
        listed = torch.cat([*seen, torch.full((self.count, 1), -1)], 1)
        listed = listed.sort(1, descending=True).values
        first = torch.ones_like(listed, dtype=torch.bool)
        first[:, 1:] = listed[:, 1:] != listed[:, :-1]
        listed = torch.where(first, listed, -1).sort(1, descending=True).values
        return listed[:, : max(1, int((listed >= 0).sum(1).max()))]

    @cached_property
    def _strides(self) -> Int64[Tensor, "groundings width"]:
        """What each group counts for in the table of its grounding."""
        sizes = torch.where(self._distinct >= 0, self.space.sizes[self._distinct.clamp(min=0)], 1)
        return sizes.cumprod(1) // sizes

    def widest_table(self) -> int:
        """How many combinations of categories the groups of a grounding have at the most.

        Counted before anything is built, as if no group came twice.
        """
        return prod(
            int(self.space.sizes[leaf.group.clamp(min=0)].max()) ** min(leaf.group[0].numel(), 60)
            for leaf in self._leaves
        )

    def tables(
        self, widest: int
    ) -> tuple[
        Int64[Tensor, "groundings width"],
        Int64[Tensor, "groundings width"],
        Int8[Tensor, "groundings codes"],
    ]:
        """The groups of every grounding, what each counts for, and the truth for every combination.

        A combination has the place that is the sum of category times stride over the groups.
        """
        groups, strides = self._distinct, self._strides
        sizes = torch.where(groups >= 0, self.space.sizes[groups.clamp(min=0)], 1)
        codes = torch.arange(min(widest, int(sizes.prod(1).max())))
        category = (codes[:, None, None] // strides) % sizes  # (codes, groundings, width)

        def look_up(leaf: _Ground | _Fixed) -> Tensor:
            if isinstance(leaf, _Fixed):
                return leaf.truth[None]
            flat, wanted = (part.reshape(self.count, -1) for part in (leaf.group, leaf.category))
            slot = (groups[:, None] == flat[..., None]).int().argmax(-1)
            held = category.gather(2, slot.expand(len(codes), -1, -1))
            return ((held == wanted) & (flat >= 0)).reshape(len(codes), *leaf.group.shape)

        truth = self._evaluate(self._root, look_up)
        truth = truth.reshape(len(truth), self.count).expand(len(codes), -1)
        return groups, strides, truth.T.to(torch.int8).contiguous()

    # Changes of the groundings when one group takes another category.

    @cached_property
    def _pairs(self) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
        """Every grounding with every group that occurs in it, each pair once."""
        keys = [torch.zeros(0, dtype=torch.int64)]
        for leaf in self._leaves:
            row = torch.arange(self.count).view(-1, *[1] * len(self.bound))
            keys.append((row * self.space.groups + leaf.group)[leaf.group >= 0])
        key = torch.cat(keys).unique()
        return key.div(self.space.groups, rounding_mode="floor"), key.remainder(self.space.groups)

    def add_differences(
        self,
        worlds: Integer[Tensor, "worlds groups"],
        weights: Float[Tensor, " worlds"],
        slopes: Float[Tensor, "worlds entries"],
    ) -> None:
        """Add weight times the change in the number of true groundings to the slopes.

        Exact for every single change, also where a group occurs several times in a grounding.
        """
        grounding, group = self._pairs
        if not len(group) or not len(worlds):
            return
        most = int(self.space.sizes[group].max())
        each = most * self._room
        some_pairs = max(1, _AT_ONCE // each)
        for pairs in torch.arange(len(group)).split(some_pairs):
            size = max(1, _AT_ONCE // (len(pairs) * each))
            for rows in torch.arange(len(worlds)).split(size):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                change = self._changes(worlds[part], grounding[pairs], group[pairs], most)
                change = change.to(slopes.dtype) * weights[part, None, None]
                category = torch.arange(most)
                exists = category < self.space.sizes[group[pairs]][:, None]
                entry = (self.space.offsets[group[pairs]][:, None] + category)[exists]
                index = entry.to(worlds.device).expand(len(change), -1)
                slopes[part].scatter_add_(1, index, change[:, exists.to(worlds.device)])

    @cached_property
    def _by_group(self) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
        """The same pairs in the order of the groups."""
        grounding, group = self._pairs
        order = group.argsort(stable=True)
        return grounding[order], group[order]

    def _pairs_of(
        self, groups: Int64[Tensor, " some"]
    ) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
        """The groundings that some groups occur in, and which of these groups it is each time."""
        grounding, group = self._by_group
        first = torch.searchsorted(group, groups)
        count = torch.searchsorted(group, groups, right=True) - first
        place = torch.arange(len(groups)).repeat_interleave(count)
        start = (count.cumsum(0) - count)[place]
        return grounding[first[place] + torch.arange(len(place)) - start], place

    def add_changes(
        self,
        worlds: Integer[Tensor, "worlds groups"],
        groups: Int64[Tensor, " some"],
        weights: Float[Tensor, " worlds"],
        changes: Float[Tensor, "worlds some most"],
    ) -> None:
        """Add weight times the change in the number of true groundings when one of the groups changes.

        Looks only at the groundings that these groups occur in.
        """
        groups = groups.cpu()
        grounding, place = self._pairs_of(groups)
        if not len(place) or not len(worlds):
            return
        most = changes.shape[2]
        each = most * self._room
        for pairs in torch.arange(len(place)).split(max(1, _AT_ONCE // each)):
            size = max(1, _AT_ONCE // (len(pairs) * each))
            for rows in torch.arange(len(worlds)).split(size):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                grown = self._changes(worlds[part], grounding[pairs], groups[place[pairs]], most)
                grown = grown.to(changes.dtype) * weights[part, None, None]
                changes[part].index_add_(1, place[pairs].to(worlds.device), grown)

    def ties(self, free: Bool[Tensor, " groups"]) -> Int64[Tensor, "2 ties"] | None:
        """The pairs of free groups that occur in one grounding; None if they are too many to list."""
        grounding, group = self._pairs
        kept = free[group]
        grounding, group = grounding[kept], group[kept]
        _, row, count = grounding.unique_consecutive(return_inverse=True, return_counts=True)
        if int((count**2).sum()) > _MOST_TIES:
            return None
        partners = count[row]
        one = torch.arange(len(group)).repeat_interleave(partners)
        first = (count.cumsum(0) - count)[row][one]
        within = torch.arange(len(one)) - (partners.cumsum(0) - partners)[one]
        pairs = torch.stack([group[one], group[first + within]])
        return pairs[:, pairs[0] < pairs[1]].unique(dim=1)

    def _changes(
        self,
        worlds: Integer[Tensor, "worlds groups"],
        grounding: Int64[Tensor, " pairs"],
        group: Int64[Tensor, " pairs"],
        most: int,
    ) -> Integer[Tensor, "worlds pairs most"]:
        """By how much the truth of a grounding grows when a group is set to each category."""
        device = worlds.device
        category = torch.arange(most, device=device)
        tail = [1] * len(self.bound)

        def look_up(leaf: _Ground | _Fixed) -> Tensor:
            if isinstance(leaf, _Fixed):
                return leaf.truth[grounding].to(device)[None, :, None]
            seen, wanted = leaf.group[grounding].to(device), leaf.category[grounding].to(device)
            now = _holds(worlds, seen, wanted)[:, :, None]
            mine = (seen == group.to(device).view(-1, *tail))[:, None]
            then = wanted[:, None] == category.view(-1, *tail)
            return torch.where(mine, then, now)

        truth = self._evaluate(self._root, look_up)
        truth = truth.flatten(3).squeeze(3) if self.bound else truth
        truth = truth.expand(len(worlds), len(group), most).to(torch.int8)
        current = worlds[:, group.to(device)].long().clamp(max=most - 1)[..., None]
        return truth - truth.gather(2, current)


def _holds(worlds: Tensor, group: Tensor, category: Tensor) -> Bool[Tensor, "worlds *axes"]:
    """Whether groups are in the wanted categories; those that do not exist are not."""
    group, category = group.to(worlds.device), category.to(worlds.device)
    held = worlds[:, group.clamp(min=0).flatten()].unflatten(1, group.shape)
    return (held.long() == category) & (group >= 0)


_CONNECTIVES: dict[type, Callable[[list[Tensor]], Tensor]] = {
    Not: lambda inside: ~inside[0],
    And: lambda inside: reduce(torch.logical_and, inside),
    Or: lambda inside: reduce(torch.logical_or, inside),
    Implies: lambda inside: ~inside[0] | inside[1],
    Iff: lambda inside: inside[0] == inside[1],
}
