"""The local part of a model: every node with the numbers of its neighbours, every tie with its two ends.

It costs little, and leaves to the network only what is not local. It is first fitted to the data in
closed form, so that chains have the right valences before anything is learned.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.potentials import compiled
from nmln.potentials.base import BasePotential, Labels, sharing
from nmln.potentials.compiled import Library
from nmln.potentials.compiled_local import part_of, tables_of
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.stand_in import LocalTables, StandIn, doubled
from nmln.space import Block, Space
from nmln.types import Changes, Scores, Slopes, Values

_MOST_AROUND = 512  # numbers of neighbours that are told apart, of all kinds together
_MOST_COUNT = 7  # neighbours of one kind that are told apart
_MOST_KINDS = 64  # kinds of nodes; where unary attributes make more, nodes are not told apart
_FARTHEST = 30.0  # nats that a start may be away from zero
_LEAST = 1e-300  # worlds in which a neighbourhood that no domain has room for is taken to occur
_TABLE = 2**22  # cells of a table of pairs and nodes that is worth its memory
_TOGETHER = 2**22  # groups that are counted at a time
Frequencies = Float64[Tensor, " places"]


class Neighbourhoods(nn.Module):
    """The numbers for one symmetric attribute, whose categories but the null one are ties.

    A *kind* of node is a category of each of its unary attributes. The numbers of its neighbours are
    counted by the category of their ties, each up to a cap.
    """

    def __init__(self, space: Space, levels: int, block: Block) -> None:
        super().__init__()
        assert block.attribute.null is not None
        (sort, _), null = block.attribute.sorts, block.attribute.null
        unary = [b for b in space.blocks if b.attribute.sorts == (sort,)]
        if prod(one.size for one in unary) > _MOST_KINDS:
            unary = []
        self.block, self.unary = block, unary
        self.kinds = prod(one.size for one in unary)
        self.ties = [category for category in range(block.size) if category != null]
        self.cap = _cap_of(block)
        self.around = (self.cap + 1) ** len(self.ties)
        self.nodes, self.width = len(space.domain[sort]), space.groups
        sizes = (self.kinds * self.around, block.size * self.kinds**2)
        self.node_start, self.tie_start = (nn.Buffer(torch.zeros(levels, size)) for size in sizes)
        self.node_weight, self.tie_weight = (
            nn.Parameter(torch.zeros(levels, size)) for size in sizes
        )
        groups = np.arange(block.count)
        ends = torch.from_numpy(np.stack(space.tuples(block, groups))).long()
        apart = ends[0] != ends[1]  # a tie of a node to itself has no other end
        pairs = int(apart.sum())
        touches = torch.zeros(pairs if pairs * self.nodes <= _TABLE else 0, self.nodes)
        if len(touches):
            touches.scatter_(1, ends[:, apart].T, 1.0)
        tables = {
            "ends": ends[:, apart],
            "groups": block.first_group + torch.from_numpy(groups)[apart],
            "touches": touches,
        }
        for name, table in tables.items():
            setattr(self, name, nn.Buffer(table, persistent=False))

    ends: Int64[Tensor, "two pairs"]
    groups: Int64[Tensor, " pairs"]
    touches: Float[Tensor, "some nodes"]

    def kinds_of(self, values: Values) -> Int64[Tensor, "levels chains nodes"]:
        """The kind of every node."""
        found = values.new_zeros((*values.shape[:2], self.nodes), dtype=torch.int64)
        for one in self.unary:
            found = found * one.size + values[..., one.groups]
        return found

    def counts_of(self, pairs: Values) -> list[Int64[Tensor, "levels chains nodes"]]:
        """How many ties of each category every node has."""
        return [self._at_nodes((pairs == tie).to(self.touches.dtype)) for tie in self.ties]

    def _at_nodes(self, there: Float[Tensor, "levels chains pairs"]) -> Tensor:
        """How many of some pairs touch every node: a product with a table, where it fits."""
        if len(self.touches) == there.shape[2]:
            return (there @ self.touches).long()
        found = there.new_zeros(*there.shape[:2], self.nodes)
        for end in self.ends:
            found.index_add_(2, end, there)
        return found.long()

    def around_of(self, counts: Sequence[Tensor]) -> Tensor:
        """The number of a neighbourhood, by the numbers of ties of each category."""
        found = torch.zeros_like(counts[0])
        for count in counts:
            found = found * (self.cap + 1) + count.clamp(max=self.cap)
        return found

    def places(self, values: Values) -> tuple[Tensor, Tensor]:
        """The place of every node and of every pair in the tables."""
        kinds, pairs = self.kinds_of(values), values[..., self.groups]
        nodes = kinds * self.around + self.around_of(self.counts_of(pairs))
        return nodes, self.pair_places(pairs.long(), *(kinds[..., end] for end in self.ends))

    def pair_places(self, ties: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """The place of pairs, whose two ends are alike."""
        low, high = torch.minimum(one, other), torch.maximum(one, other)
        return (ties * self.kinds + low) * self.kinds + high

    def tables(self) -> tuple[Float[Tensor, "levels nodes"], Float[Tensor, "levels ties"]]:
        return self.node_start + self.node_weight, self.tie_start + self.tie_weight

    def score(self, values: Values) -> Scores:
        library = compiled.library()
        if (
            library is not None
            and not torch.is_grad_enabled()
            and compiled.usable(self.node_weight, values)
        ):
            return self._compiled(library, values)
        found = zip(self.tables(), self.places(values), strict=True)
        first, second = (_gathered(table, places).sum(-1) for table, places in found)
        return first + second

    def _compiled(self, library: Library, values: Values) -> Scores:
        kept = []

        def at(table: Tensor) -> int:
            kept.append(table.contiguous())
            return kept[-1].data_ptr()

        nodes, ties = (table.double() for table in self.tables())
        part = part_of(self, nodes, ties, at)
        scores = torch.zeros(values.shape[:2], dtype=torch.float64)
        library.neighbourhoods(
            part, self.nodes * (1 + len(self.ties)), values.int().contiguous(), scores
        )
        return scores.to(self.node_weight.dtype)

    @cached_property
    def kernel_tables(self) -> dict[str, Int64[Tensor, "..."]]:
        """The tables that the compiled kernel needs, see `compiled_local`."""
        return tables_of(self, self.width)

    def changes(self, space: Space, values: Values, found: Slopes) -> None:
        """Add how much the score grows with one group in each of its categories."""
        nodes, ties = self.tables()
        kinds, pairs = self.kinds_of(values), values[..., self.groups].long()
        counts = self.counts_of(pairs)
        one, other = (kinds[..., end] for end in self.ends)
        now = _gathered(nodes, kinds * self.around + self.around_of(counts))
        linked = _gathered(ties, self.pair_places(pairs, one, other))
        for category in range(self.block.size):
            change = (
                _gathered(ties, self.pair_places(torch.full_like(pairs, category), one, other))
                - linked
            )
            for end in self.ends:
                moved = [
                    count[..., end] + (category == tie) - (pairs == tie).long()
                    for tie, count in zip(self.ties, counts, strict=True)
                ]
                places = kinds[..., end] * self.around + self.around_of(moved)
                change += _gathered(nodes, places) - now[..., end]
            found[..., space.offsets.to(values.device)[self.groups] + category] += change
        self._change_kinds(space, values, found)

    def _change_kinds(self, space: Space, values: Values, found: Slopes) -> None:
        """The same for the unary groups."""
        nodes, ties = self.tables()
        kinds, pairs = self.kinds_of(values), values[..., self.groups].long()
        around = self.around_of(self.counts_of(pairs))
        one, other = (kinds[..., end] for end in self.ends)
        of_node = torch.empty(*kinds.shape, self.kinds, dtype=nodes.dtype, device=nodes.device)
        for kind in range(self.kinds):
            of_node[..., kind] = _gathered(nodes, kind * self.around + around)
            same = torch.full_like(one, kind)
            for end, far in ((self.ends[0], other), (self.ends[1], one)):
                linked = _gathered(ties, self.pair_places(pairs, same, far))
                of_node[..., kind].index_add_(2, end, linked)
        of_node = of_node - of_node.gather(3, kinds[..., None])
        step = 1
        for block in reversed(self.unary):
            own = values[..., block.groups].long()
            for category in range(block.size):
                there = kinds + (category - own) * step
                entries = space.offsets.to(values.device)[block.groups] + category
                found[..., entries] += of_node.gather(3, there[..., None])[..., 0]
            step *= block.size

    # The start.

    def frequencies(
        self, values: Values, level: int
    ) -> tuple[Float64[Tensor, " nodes"], Float64[Tensor, " ties"]]:
        """How often each place of the two tables occurs per world."""
        sizes = self.node_start.shape[1], self.tie_start.shape[1]
        found = tuple(torch.zeros(size, dtype=torch.float64) for size in sizes)
        for some in values[level : level + 1].split(max(1, _TOGETHER // values.shape[2]), dim=1):
            for total, places, size in zip(found, self.places(some), sizes, strict=True):
                total += torch.bincount(places.flatten().cpu(), minlength=size)
        nodes, ties = (total / values.shape[1] for total in found)
        return nodes, ties

    def expected_ties(self, space: Space, logs: Float[Tensor, " entries"]) -> Frequencies:
        """How many pairs of each category a world has where all groups are independent."""
        return len(self.groups) * _marginals(space, logs, self.block)

    def expected(self, space: Space, logs: Float[Tensor, " entries"]) -> Frequencies:
        """How often each neighbourhood occurs per world where all groups are independent."""
        kinds = torch.ones(1, dtype=torch.float64)
        for block in self.unary:
            kinds = torch.kron(kinds, _marginals(space, logs, block))
        tie, table = (
            _marginals(space, logs, self.block),
            torch.zeros([self.cap + 1] * len(self.ties)),
        )
        table = table.double()
        table.view(-1)[0] = 1
        null = self.block.attribute.null
        for _ in range(self.nodes - 1):
            more = table * tie[null]
            for axis, category in enumerate(self.ties):
                moved = torch.zeros_like(table)
                moved.narrow(axis, 1, self.cap).copy_(table.narrow(axis, 0, self.cap))
                moved.select(axis, self.cap).add_(table.select(axis, self.cap))
                more = more + moved * tie[category]
            table = more
        return self.nodes * torch.kron(kinds, table.flatten())

    def labels(self, space: Space) -> dict[str, dict[int, Labels]]:
        """Names for the places of the two weights."""
        # Another language may list attributes and categories in another order: labels have none.
        names, own = self.block.attribute.categories, [b.attribute.name for b in self.unary]
        nodes = [
            tuple(sorted(zip(own, one, strict=True)))
            for one in product(*(b.attribute.categories for b in self.unary))
        ]
        numbers = [*range(self.cap), f"{self.cap} or more"]  # another cap, another meaning
        around = [
            tuple(sorted((names[t], str(n)) for t, n in zip(self.ties, row, strict=True) if n))
            for row in product(numbers, repeat=len(self.ties))
        ]
        # The places whose first kind comes after the second are not used.
        ends = [
            tuple(sorted((one, other))) if at <= place else ("not used", one, other)
            for at, one in enumerate(nodes)
            for place, other in enumerate(nodes)
        ]
        return {
            "node_weight": {1: list(product(nodes, around))},
            "tie_weight": {1: list(product(names, ends))},
        }


def _cap_of(block: Block) -> int:
    """Up to how many neighbours of each category are told apart; 0 if there are too many categories."""
    ties = block.size - 1
    caps = range(1, _MOST_COUNT + 1)
    return max((cap for cap in caps if (cap + 1) ** ties <= _MOST_AROUND), default=0)


class LocalPotential(BasePotential):
    """A sum over nodes and over ties, for every symmetric attribute with none or false.

    Each node has a number for its kind and for how many neighbours it has along each tie, up to a cap;
    each tie has one for its category and the kinds of its ends. A number is a fixed start, which `fit`
    takes from data, plus a learned weight; every level has its own. Slopes are exact differences. A
    score takes time in proportion to the number of groups. Attributes of more than nine values beside
    none have no part in it.
    """

    def __init__(self, space: Space, levels: int) -> None:
        super().__init__(space, levels)
        chosen = [
            block
            for block in space.blocks
            if block.attribute.symmetric and block.attribute.null is not None and _cap_of(block)
        ]
        if not chosen:
            raise InputError(
                "the local part needs a symmetric attribute that can say none or false and has at most "
                "nine other values, but the language has none. Do without: set model.local=false.",
                token="model.local",
                kind="unsupported",
            )
        chosen.sort(key=lambda block: block.attribute.name)  # whatever the order of a language
        self.parts = nn.ModuleList([Neighbourhoods(space, levels, block) for block in chosen])

    def grounded(self, space: Space) -> "LocalPotential":
        new = sharing(self, space)
        parts = []
        for old in self.each:
            part = Neighbourhoods(space, 1, space.block(old.block.attribute.name))
            for name in ("node_start", "tie_start", "node_weight", "tie_weight"):
                setattr(part, name, getattr(old, name))
            parts.append(part.to(old.node_weight.dtype))
        new.parts = nn.ModuleList(parts)
        return new

    @property
    def each(self) -> list[Neighbourhoods]:
        return [part for part in self.parts if isinstance(part, Neighbourhoods)]

    @property
    def dtype(self) -> torch.dtype:
        return self.each[0].node_weight.dtype

    @torch.no_grad()
    def forget(self) -> None:
        """Set the start to zero, for a potential whose other parts know what is local already."""
        for part in self.each:
            part.node_start.zero_()
            part.tie_start.zero_()

    def labels(self) -> dict[str, dict[int, Labels]]:
        return {
            f"parts.{number}.{name}": axes
            for number, part in enumerate(self.each)
            for name, axes in part.labels(self.space).items()
        }

    def evaluate(self, values: Values) -> Scores:
        total = self.each[0].score(values)
        for part in self.each[1:]:
            total = total + part.score(values)
        return total

    @torch.no_grad()
    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        shape = (*values.shape[:2], self.space.entries)
        slopes = torch.zeros(shape, dtype=self.dtype, device=values.device)
        for part in self.each:
            part.changes(self.space, values, slopes)
        return self.evaluate(values), slopes

    def stand_in(self) -> StandIn:
        local = [LocalTables(part, *map(doubled, part.tables())) for part in self.each]
        zeros = local[0].nodes.new_zeros(self.levels, self.space.entries)
        return StandIn(self.space, zeros, tuple(local))

    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        _, slopes = self.evaluate_with_slopes(values)
        category = torch.arange(int(self.space.sizes.max()), device=values.device)
        groups = groups.to(values.device)
        exists = category < self.space.sizes.to(values.device)[groups][:, None]
        entry = self.space.offsets.to(values.device)[groups][:, None] + category
        found = slopes[..., entry.clamp(max=self.space.entries - 1)]
        return found.masked_fill(~exists, float("-inf"))

    @torch.no_grad()
    def fit(
        self,
        worlds: Sequence[tuple[Space, Tensor]],
        base: IndependentPotential,
        shares: Sequence[float],
        prior: float = 1.0,
    ) -> None:
        """Start from worlds of one or several domains, at every level, beside the base term of the same.

        The start is the Bethe approximation, written as a correction of the base term. For a node it is
        the logarithm of how often its neighbourhood occurs, over how often it would if all groups were
        independent; for a tie the same with its ends, given the tie, less that of the tie itself, which
        both ends have counted. The sum with the base is exact for worlds of two nodes whose kinds are
        independent where nothing ties them, and has nearly the local frequencies of the data where the
        ties of a sparse world make few rings.

        Args:
            worlds: the domains, each with its worlds: levels, worlds, groups.
            base: the base term, which holds the marginals of independent groups.
            shares: the share of each domain in the data.
            prior: how many independent worlds are added to those that are counted.
        """
        copies = sum(values.shape[1] for _, values in worlds)
        grounded = [self.on(space) for space, _ in worlds]
        for number, own in enumerate(self.each):
            parts = [one.each[number] for one in grounded if isinstance(one, LocalPotential)]
            for level in range(self.levels):
                seen, expected = [], []
                for part, (space, values), share in zip(parts, worlds, shares, strict=True):
                    logs = _table_on(base, space)[level]
                    seen.append([share * one for one in part.frequencies(values, level)])
                    independent = part.expected(space, logs), part.expected_ties(space, logs)
                    expected.append([share * one for one in independent])
                nodes, ties = (torch.stack(each).sum(0) for each in zip(*seen, strict=True))
                by_node, by_tie = (
                    torch.stack(each).sum(0).clamp(min=_LEAST)
                    for each in zip(*expected, strict=True)
                )
                weights = copies / (copies + prior), prior / (copies + prior)
                more = ((weights[0] * nodes + weights[1] * by_node) / by_node).log()
                own.node_start[level] = more.clamp(-_FARTHEST, _FARTHEST).to(own.node_start)
                counts = ties.view(len(by_tie), -1).sum(1)
                twice = ((weights[0] * counts + weights[1] * by_tie) / by_tie).log()
                ends = _of_ends(copies * ties, own, prior).view(len(by_tie), -1)
                found = (ends - (twice - twice[own.block.attribute.null])[:, None]).flatten()
                own.tie_start[level] = found.clamp(-_FARTHEST, _FARTHEST).to(own.tie_start)


def _table_on(base: IndependentPotential, space: Space) -> Float[Tensor, "levels entries"]:
    there = base.on(space)
    assert isinstance(there, IndependentPotential)
    return there.table


def _of_ends(seen: Frequencies, part: Neighbourhoods, prior: float) -> Frequencies:
    """How much more often the ends of a tie occur together than ends that are tied at random."""
    counts = seen.view(-1, part.kinds, part.kinds)
    both = (counts + counts.mT) / 2  # both orders of the ends
    found = torch.zeros_like(both)
    for tie in part.ties:
        ends = both[tie].sum(1)
        if float(ends.sum()):
            alone = ends[:, None] * ends / ends.sum()
            found[tie] = ((both[tie] + prior) / (alone + prior)).log()
    return found.flatten()


def _marginals(space: Space, logs: Float[Tensor, " entries"], block: Block) -> Frequencies:
    """The marginals of an attribute, all of whose groups have the same."""
    if not block.count:
        return torch.full((block.size,), 1 / block.size, dtype=torch.float64)
    return logs[block.entries][: block.size].cpu().double().softmax(0)


def _gathered(table: Float[Tensor, "levels places"], places: Tensor) -> Tensor:
    """The numbers of a level's table at some places of its worlds."""
    return table.gather(1, places.flatten(1)).view(places.shape)
