"""The cheap part of a potential as tables: all that fast moves need to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from nmln.types import Values

if TYPE_CHECKING:
    from nmln.potentials.local import Neighbourhoods
    from nmln.space import Space


class LocalTables(NamedTuple):
    """The numbers of one symmetric attribute, as `LocalPotential` has them."""

    wiring: Neighbourhoods
    nodes: Float64[Tensor, "levels nodes"]
    ties: Float64[Tensor, "levels ties"]


@dataclass(frozen=True)
class StandIn:
    """A part of a potential that is cheap to score: independent groups, and neighbourhoods.

    A number for each entry, and tables for each symmetric attribute, at every level. The tables are in
    double precision and on the CPU, wherever the potential is: not every device has double precision.
    """

    space: Space
    entries: Float64[Tensor, "levels entries"]
    local: tuple[LocalTables, ...] = ()

    @property
    def levels(self) -> int:
        return len(self.entries)

    @property
    def sound(self) -> bool:
        """Whether no number is NaN or plus infinity; minus infinity forbids a category."""
        tables = [self.entries, *(table for _, *both in self.local for table in both)]
        return all(bool((table < float("inf")).all()) for table in tables)

    def times(self, factors: Float[Tensor, " levels"]) -> StandIn:
        """The same, multiplied by a number at each level; minus infinity stays minus infinity."""
        by_level = doubled(factors)[:, None]

        def product(table: Tensor) -> Tensor:
            return torch.where(table == float("-inf"), table, by_level * table)

        local = [
            one._replace(nodes=product(one.nodes), ties=product(one.ties)) for one in self.local
        ]
        return replace(self, entries=product(self.entries), local=tuple(local))

    def at_levels(self, levels: Sequence[int]) -> StandIn:
        """The same at some of its levels, in this order; a level may come several times."""
        rows = list(levels)
        local = [one._replace(nodes=one.nodes[rows], ties=one.ties[rows]) for one in self.local]
        return replace(self, entries=self.entries[rows], local=tuple(local))

    def spread(self, acts: Sequence[int], levels: int) -> StandIn:
        """The same at some of more levels, and zero at the others."""
        if list(acts) == list(range(levels)):
            return self

        def there(table: Tensor) -> Tensor:
            spread = table.new_zeros(levels, table.shape[1])
            spread[list(acts)] = table
            return spread

        local = [one._replace(nodes=there(one.nodes), ties=there(one.ties)) for one in self.local]
        return replace(self, entries=there(self.entries), local=tuple(local))

    def plus(self, other: StandIn) -> StandIn:
        return replace(self, entries=self.entries + other.entries, local=self.local + other.local)

    def score(self, values: Values) -> Float64[Tensor, "levels chains"]:
        """The score of every world, in double precision, where the worlds are."""
        total = _picked(self.entries, values.long() + self.space.offsets.to(values.device))
        for wiring, nodes, ties in self.local:
            places = wiring.places(values.to(wiring.ends.device))
            for table, place in zip((nodes, ties), places, strict=True):
                total = total + _picked(table, place.to(values.device))
        return total


def doubled(table: Tensor) -> Tensor:
    """Numbers of a potential in double precision, on the CPU and without a graph."""
    return table.detach().cpu().double()


def _picked(table: Float64[Tensor, "levels numbers"], places: Tensor) -> Tensor:
    """The sum of the numbers of a level's table at some places of its worlds."""
    table = table.to(places.device)
    found = table.gather(1, places.flatten(1)).view(places.shape)
    return torch.sum(found, dim=-1)
