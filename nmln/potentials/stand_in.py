"""The cheap part of a potential as tables: all that fast moves need to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float64
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

    A number for each entry, and tables for each symmetric attribute, at every level.
    """

    space: Space
    entries: Float64[Tensor, "levels entries"]
    local: tuple[LocalTables, ...] = ()

    @property
    def levels(self) -> int:
        return len(self.entries)

    def times(self, factors: Float64[Tensor, " levels"]) -> StandIn:
        """The same, multiplied by a number at each level."""
        by_level = factors.detach().double()[:, None]
        local = [
            one._replace(nodes=by_level * one.nodes, ties=by_level * one.ties) for one in self.local
        ]
        return replace(self, entries=by_level * self.entries, local=tuple(local))

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
        """The score of every world, in double precision."""
        entry = values.long() + self.space.offsets.to(values.device)
        total = _picked(self.entries, entry)
        for wiring, nodes, ties in self.local:
            node_places, tie_places = wiring.places(values)
            total = total + _picked(nodes, node_places) + _picked(ties, tie_places)
        return total


def _picked(table: Float64[Tensor, "levels numbers"], places: Tensor) -> Tensor:
    """The sum of the numbers of a level's table at some places of its worlds."""
    table = table.to(places.device)
    found = table.gather(1, places.flatten(1)).view(places.shape)
    return torch.sum(found, dim=-1)
