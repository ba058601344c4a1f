"""Rings: what a node cannot know from its neighbours, as two more attributes for a potential to see.

A node that hears only its neighbours cannot distinguish a ring of five from one of eight, or two rings
from one large ring. So every node has two further attributes, which the other attributes determine: the
size of the smallest ring that it lies on, and how many of its links lie on rings.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.language import Attribute, Language
from nmln.potentials import compiled
from nmln.potentials.base import BasePotential, sharing
from nmln.potentials.links import Links, linking, links_of
from nmln.potentials.wiring import number_nodes
from nmln.space import Space
from nmln.types import Scores, Slopes, Values

SIZES = ("none", "3", "4", "5", "6", "7", "8", "more")
LINKS = ("none", "2", "3", "more")  # a node on a ring has at least two links on it
_ROWS = 2**22  # places of adjacency that are looked at together


class RingsPotential(BasePotential):
    """A potential that sees the smallest ring of every node, and how many of its links lie on rings.

    Nodes are the constants of all sorts; two are linked where a binary attribute is anything but none
    or false for them, in either order. A ring is the shortest way from one end of a link to the other
    without that link, together with the link. Slopes are those of the inner potential with the rings
    as they are, so they serve proposals but are no exact differences of scores.
    """

    def __init__(self, space: Space, build: Callable[[Space], BasePotential]) -> None:
        """`build` makes the potential that sees more, on the space that it is given."""
        potential = build(with_rings(space))
        super().__init__(space, potential.levels)
        self.precision = nn.Buffer(potential.precision.clone(), persistent=False)
        self.potential = potential
        self._lay_out(space)

    links: Links

    def _lay_out(self, space: Space) -> None:
        _, self.nodes = number_nodes(space)
        self.links = nn.Buffer(links_of(space), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.potential.dtype

    def grounded(self, space: Space) -> "RingsPotential":
        new = sharing(self, space)
        new.potential = self.potential.on(with_rings(space))
        new._lay_out(space)
        return new

    def seen(self, values: Values) -> Integer[Tensor, "levels chains more"]:
        """The worlds with the two attributes of every node, as the inner potential scores them."""
        found = self.rings(values.flatten(0, 1)).view(*values.shape[:2], 2, self.nodes)
        sizes, links = found.unbind(2)
        sizes = (sizes - 2).clamp(0, len(SIZES) - 1)
        links = (links - 1).clamp(0, len(LINKS) - 1)
        return torch.cat([values, sizes.to(values.dtype), links.to(values.dtype)], dim=2)

    def rings(
        self, worlds: Integer[Tensor, "worlds groups"]
    ) -> Integer[Tensor, "worlds two nodes"]:
        """The size of the smallest ring of every node, 0 if none, and its links on rings."""
        library = compiled.library()
        if library is not None and worlds.device.type == "cpu" and type(worlds) is Tensor:
            return library.rings(worlds, self.nodes, self.links)
        at_a_time = max(1, _ROWS // max(1, self.nodes**3))
        parts = [self._rings(part) for part in worlds.split(at_a_time)]
        return torch.cat(parts) if parts else worlds.new_zeros(0, 2, self.nodes)

    def _rings(self, worlds: Integer[Tensor, "worlds groups"]) -> Int64[Tensor, "worlds two nodes"]:
        one, other, groups, null = self.links
        count, nodes = len(worlds), self.nodes
        adjacent = torch.zeros(count, nodes, nodes, device=worlds.device)
        linked = (worlds[:, groups] != null) & (one != other)
        world, link = linked.nonzero().T
        adjacent[world, one[link], other[link]] = 1
        adjacent[world, other[link], one[link]] = 1
        world, low, high = adjacent.triu(1).nonzero().T
        at_a_time = max(1, _ROWS // nodes**2)
        links = zip(*(one.split(at_a_time) for one in (world, low, high)), strict=True)
        around = torch.cat([low[:0], *(self._ways_round(adjacent, *some) for some in links)])
        size = torch.where(around > 0, around + 1, 0)
        far = torch.where(size > 0, size, nodes + 1)
        smallest = far.new_full((count, nodes), nodes + 1)
        links = far.new_zeros(count, nodes)
        for end in (low, high):
            place = world * nodes + end
            smallest.view(-1).scatter_reduce_(0, place, far, "amin")
            links.view(-1).index_add_(0, place, (size > 0).to(links.dtype))
        return torch.stack([smallest.where(smallest <= nodes, 0), links], dim=1)

    def _ways_round(
        self, adjacent: Tensor, world: Tensor, low: Tensor, high: Tensor
    ) -> Int64[Tensor, " links"]:
        """The shortest way between the ends of each link without it, 0 if there is none."""
        own = adjacent[world]
        every = torch.arange(len(world), device=world.device)
        own[every, low, high] = own[every, high, low] = 0
        found = torch.zeros_like(low)
        reached: Bool[Tensor, "links nodes"] = torch.zeros(
            len(world), self.nodes, dtype=torch.bool, device=world.device
        )
        reached[every, low] = True
        edge = reached.clone()
        for steps in range(1, self.nodes):
            edge = (edge.to(own.dtype)[:, None] @ own)[:, 0].bool() & ~reached
            if not bool(edge.any()):
                break
            reached |= edge
            found = torch.where(edge[every, high], steps, found)
        return found

    def evaluate(self, values: Values) -> Scores:
        return self.potential.evaluate(self.seen(values))

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        scores, slopes = self.potential.evaluate_with_slopes(self.seen(values))
        return scores, slopes[..., : self.space.entries]


def with_rings(space: Space) -> Space:
    """The space with two more attributes for the nodes of every sort, behind all others."""
    if not linking(space):
        raise InputError(
            "rings are made of links, but no binary attribute here can say none or false. Do without: "
            "set model.rings=false.",
            token="model.rings",
            kind="unsupported",
        )
    taken, more = {one.name for one in space.language}, []
    for name, values in (("ring", SIZES), ("ring links", LINKS)):
        for sort in space.domain:
            own = f"{name} of {sort}"
            while own in taken:
                own += "_"
            more.append(Attribute(own, (sort,), values))
    return Space(Language(*space.language, *more), space.domain)
