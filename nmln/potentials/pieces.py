"""The number of pieces of a world's graph, which message passing cannot determine reliably."""

import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.potentials import compiled
from nmln.potentials.base import BasePotential
from nmln.potentials.links import Links, linking, links_of
from nmln.potentials.wiring import number_nodes
from nmln.space import Space
from nmln.types import Scores, Slopes, Values

UNIT = 10.0  # nats per piece for a weight of 1: weights are learned in steps that suit a network
_ROWS = 2**20  # places of adjacency that are looked at together


class PiecesPotential(BasePotential):
    """-10 w (pieces - 1), with a learned w for every level: the cost of each further piece.

    Nodes are the constants of all sorts; two are linked where a binary attribute is anything but none
    or false for them, in either order. Attributes without a category none or false, and those of more
    than two constants, link nothing. The connected components of this graph are its pieces. A node
    that hears only its neighbours cannot distinguish two rings from one large ring, so that a graph
    potential alone leaves such worlds too probable. Scores take time in proportion to the links with the
    compiled kernel, else to the cube of the nodes; slopes a few times as long.
    """

    def __init__(self, space: Space, levels: int) -> None:
        super().__init__(space, levels)
        if not linking(space):
            raise InputError(
                "pieces are counted by links, but no binary attribute here can say none or false. "
                "Do without: leave out --pieces, or set model.pieces=false.",
                kind="unsupported",
            )
        _, self.nodes = number_nodes(space)
        self.weight = nn.Parameter(torch.zeros(levels))
        tables = {
            "links": links_of(space),
            "before": torch.ones(self.nodes, self.nodes, dtype=torch.bool).tril(-1),
        }
        for name, table in tables.items():
            setattr(self, name, nn.Buffer(table, persistent=False))
        self.links_at = nn.Buffer(self._lay_out(), persistent=False)

    def grounded(self, space: Space) -> "PiecesPotential":
        new = PiecesPotential(space, self.levels).to(self.weight)
        new.weight, new.precision = self.weight, self.precision
        return new

    links: Links
    before: Bool[Tensor, "nodes nodes"]

    @property
    def ends(self) -> Int64[Tensor, "two links"]:
        return self.links[:2]

    @property
    def groups(self) -> Int64[Tensor, " links"]:
        return self.links[2]

    @property
    def null(self) -> Int64[Tensor, " links"]:
        return self.links[3]

    def _lay_out(self) -> Int64[Tensor, "most places"]:
        """The links at each place of the adjacency, filled up with one that is never there."""
        one, other = self.ends
        link = torch.arange(len(self.groups)).repeat(2)
        place = torch.cat([one * self.nodes + other, other * self.nodes + one])
        order = place.argsort(stable=True)
        place, link = place[order], link[order]
        rank = torch.arange(len(place)) - torch.searchsorted(place, place)
        most = int(rank.max()) + 1 if len(rank) else 1
        table = torch.full((most, self.nodes**2), len(self.groups))
        table[rank, place] = link
        return table

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def pieces(self, worlds: Integer[Tensor, "worlds groups"]) -> Int64[Tensor, " worlds"]:
        """How many pieces each world has."""
        library = compiled.library()
        if library is not None and worlds.device.type == "cpu" and type(worlds) is Tensor:
            return library.pieces(worlds, self.nodes, self.links)
        parts = [self._reach(self._linked(part)) for part in worlds.split(self._at_a_time)]
        return torch.cat([(~(reach & self.before).any(2)).sum(1) for reach in parts])

    @property
    def _at_a_time(self) -> int:
        return max(1, _ROWS // max(1, self.nodes**2))

    def _linked(self, worlds: Integer[Tensor, "worlds groups"]) -> Bool[Tensor, "worlds links"]:
        return worlds[:, self.groups] != self.null

    def _reach(self, linked: Bool[Tensor, "worlds links"]) -> Bool[Tensor, "worlds nodes nodes"]:
        """Which nodes are in the same piece (Warshall's algorithm)."""
        padded = torch.cat([linked, linked.new_zeros(len(linked), 1)], 1)
        reach = padded[:, self.links_at[0]]
        for more in self.links_at[1:]:
            reach |= padded[:, more]
        reach = reach.view(-1, self.nodes, self.nodes)
        for node in range(self.nodes):
            reach |= reach[:, :, node, None] & reach[:, None, node]
        return reach

    def evaluate(self, values: Values) -> Scores:
        return self._cost(self.pieces(values.flatten(0, 1)).view(values.shape[:2]) - 1)

    def _cost(self, more: Tensor) -> Tensor:
        """What so many more pieces cost; levels come first."""
        return more.to(self.dtype) * (-UNIT * self.weight).view(-1, *[1] * (more.ndim - 1))

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        """Slopes are exact differences: a link added between two pieces, or one taken that held them."""
        parts = [self._changes(worlds) for worlds in values.flatten(0, 1).split(self._at_a_time)]
        more = torch.cat(parts).view(*values.shape[:2], self.space.entries)
        return self.evaluate(values), self._cost(more)

    def _changes(
        self, worlds: Integer[Tensor, "worlds groups"]
    ) -> Integer[Tensor, "worlds entries"]:
        """How many more pieces each world has with one group in one category."""
        linked = self._linked(worlds)
        one, other = self.ends
        place = one * self.nodes + other
        same = self._reach(linked) | torch.eye(self.nodes, dtype=torch.bool, device=place.device)
        joins = ~linked & ~same.flatten(1)[:, place]
        # Every category but none links; none parts what the link alone held together.
        more = torch.zeros(len(worlds), self.space.groups, dtype=torch.int8, device=place.device)
        more[:, self.groups] = -joins.to(torch.int8)
        entries = more[:, self.space.group_of_entry.to(place.device)]
        none = self.space.offsets.to(place.device)[self.groups] + self.null
        entries[:, none] = self._holds(linked, same).to(torch.int8)
        return entries

    def _holds(
        self, linked: Bool[Tensor, "worlds links"], same: Bool[Tensor, "worlds nodes nodes"]
    ) -> Bool[Tensor, "worlds links"]:
        """Which links a piece would fall apart without: those that carry all of a current.

        Take every link for a wire of resistance 1. Between the ends of a link there is resistance 1 if
        it is the only way, and at most 1 - 1/n if it lies on a ring of n nodes. Resistances are in
        the inverse of the graph's Laplacian, made regular by what is constant on every piece.
        """
        one, other = self.ends
        place = one * self.nodes + other
        wires = (linked & (one != other)).double()
        laplacian = wires.new_zeros(len(linked), self.nodes**2)
        laplacian.index_add_(1, place, -wires).index_add_(1, other * self.nodes + one, -wires)
        laplacian = laplacian.unflatten(1, (self.nodes, self.nodes))
        laplacian.diagonal(dim1=1, dim2=2).sub_(laplacian.sum(2))
        inverse = torch.linalg.inv(laplacian + same / same.sum(2, keepdim=True))
        own = inverse.diagonal(dim1=1, dim2=2)
        resistance = own[:, one] + own[:, other] - 2 * inverse.flatten(1)[:, place]
        return (wires > 0) & (resistance > 1 - 0.5 / self.nodes)
