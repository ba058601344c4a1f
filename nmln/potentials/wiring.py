"""How a space is read as a graph with node features and typed edges.

Nodes are the constants of all sorts. Relation 0 is the self-loop; every category of a binary attribute
but its null one is a relation, in both directions unless the attribute is symmetric. A *cell* is a
place where a node may hear from a node along the relations of one attribute; it is empty, or carries
the relation that the category of its group says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64, Integer
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.space import Block, Space
from nmln.types import Values

_CELLS = 2**21  # how many cells are looked at together


class Rows(NamedTuple):
    """The (relation, node) pairs that take part in a batch, relation by relation.

    Most nodes have no neighbour along most relations: rows that no node hears are not computed.
    """

    nodes: Int64[Tensor, " rows"]
    counts: list[int]  # of each relation but the self-loop


class Bags(NamedTuple):
    """Which rows each node sums up, as an embedding bag.

    With `rows` they are numbered among those; without, among all (node, relation) pairs.
    """

    indices: Int32[Tensor, " edges"]
    rows: Rows | None


class Graphs(NamedTuple):
    """The worlds of a batch: node features, the rows that each node hears, and those of gradients.

    `starts` is where the bag of every node starts. `all_heard` numbers the heard rows among all
    (node, relation) pairs.
    """

    features: Float[Tensor, "nodes features"]
    starts: Int32[Tensor, " nodes"]
    heard: Bags
    told: Bags
    all_heard: Int32[Tensor, " edges"]


class _Sources(NamedTuple):
    """What is heard in each filled cell: relation and node, in which batch."""

    batch: Tensor
    relation: Tensor
    node: Tensor

    def among_all(self, kinds: int) -> Int32[Tensor, " edges"]:
        """Numbers among all (node, relation) pairs."""
        return (self.node * kinds + self.relation).int()

    def numbered(
        self, batches: int, kinds: int, nodes: int
    ) -> tuple[Int32[Tensor, " edges"], list[Rows | None]]:
        """Numbers among the pairs that occur in each batch, and these pairs."""
        key = (self.batch * kinds + self.relation) * nodes + self.node
        taken = torch.zeros(batches * kinds * nodes, dtype=torch.bool, device=key.device)
        taken[key] = True
        counts = taken.view(batches, kinds, nodes).sum(2).tolist() if kinds else [[]] * batches
        before = [0, *accumulate(map(sum, counts))]
        active = taken.nonzero().squeeze(1).remainder(nodes)
        number = taken.cumsum(0).index_select(0, key) - 1 - key.new_tensor(before)[self.batch]
        rows: list[Rows | None] = [
            Rows(active[before[i] : before[i + 1]], counts[i]) for i in range(batches)
        ]
        return number.int(), rows


class _Places(NamedTuple):
    """Tables between the entries and the dense adjacency."""

    entry_at: Tensor  # the entry at each place; two more are zero and one
    entries: Tensor  # those that have a place
    one: Tensor  # their first place in the gradient
    two: Tensor  # their second, or the first again
    share: Tensor  # one, or one half where the two are the same


@dataclass(frozen=True)
class _Direction:
    """One attribute read in one direction: `slot` is its first relation, `back` that of its reverse."""

    block: Block
    slot: int
    back: int
    transposed: bool


def number_nodes(space: Space) -> tuple[dict[str, int], int]:
    """All constants numbered through: where those of each sort start, and how many there are."""
    first, nodes = {}, 0
    for sort, names in space.domain.items():
        first[sort] = nodes
        nodes += len(names)
    return first, nodes


class Wiring(nn.Module):
    """Static tables that turn worlds into node features and edges; has no parameters."""

    def __init__(self, space: Space, include_null: bool) -> None:
        super().__init__()
        for attribute in space.language:
            if attribute.arity > 2:
                raise InputError(
                    f"a graph has no place for {attribute.declaration()} of arity {attribute.arity}. "
                    f"Use FragmentPotential(space, levels, width={attribute.arity}).",
                    token=attribute.name,
                    kind="unsupported",
                )
        self.space = space
        self._cached_bases: dict[tuple, Tensor] = {}
        self.first_node, nodes = number_nodes(space)
        self.nodes = max(1, nodes)  # a language without constants still has one node
        self._lay_out_features()
        self._lay_out_relations(include_null)

    # Node features: unary attributes, nullary attributes at every node, the sort if there are several.

    def _lay_out_features(self) -> None:
        self.feature_blocks: list[tuple[Block, int]] = []
        self.features = 0
        for block in self.space.blocks:
            if block.attribute.arity < 2:
                self.feature_blocks.append((block, self.features))
                self.features += block.size
        sorts = len(self.space.domain)
        constant = 1 if sorts <= 1 else sorts
        template = torch.zeros(self.nodes, self.features + constant)
        for index, (sort, names) in enumerate(self.space.domain.items()):
            first = self.first_node[sort]
            template[first : first + len(names), self.features + (index if sorts > 1 else 0)] = 1
        if not sorts:
            template[:, -1] = 1
        named = [
            (block.attribute.name, value)
            for block, _ in self.feature_blocks
            for value in block.attribute.categories
        ]
        self.feature_names = (*named, *(self.space.domain if sorts > 1 else ["constant"]))
        self.features += constant
        self.template = nn.Buffer(template, persistent=False)

    def node_features(
        self, onehot: Float[Tensor, "worlds entries"]
    ) -> Float[Tensor, "worlds nodes features"]:
        """Features of every node, differentiable in the entries."""
        features = self.template.to(onehot.dtype).repeat(len(onehot), 1, 1)
        for block, column in self.feature_blocks:
            entries = self.space.entries_of(onehot, block)
            columns = slice(column, column + block.size)
            features[:, self.rows_of(block), columns] = entries
        return features

    def features_of(
        self, worlds: Integer[Tensor, "worlds groups"]
    ) -> Float[Tensor, "worlds nodes features"]:
        """The same for worlds as they are, without going through all entries."""
        features = self.template.repeat(len(worlds), 1, 1)
        for block, column in self.feature_blocks:
            part = features[:, self.rows_of(block), column : column + block.size]
            chosen = worlds[:, block.groups, None].long()
            part.scatter_(2, chosen.expand(-1, part.shape[1], -1), 1.0)
        return features

    def spread_features(
        self,
        slopes: Float[Tensor, "worlds entries"],
        gradient: Float[Tensor, "worlds nodes features"],
    ) -> None:
        """Write the gradient by node features into the slopes: the transpose of `node_features`."""
        for block, column in self.feature_blocks:
            part = gradient[:, self.rows_of(block), column : column + block.size]
            if block.attribute.arity == 0:
                part = part.sum(1, keepdim=True)
            self.space.entries_of(slopes, block).copy_(part)

    def rows_of(self, block: Block) -> slice:
        """The nodes that have a feature."""
        if block.attribute.arity == 0:
            return slice(None)
        first = self.first_node[block.attribute.sorts[0]]
        return slice(first, first + block.shape[0])

    # Relations and cells.

    def _lay_out_relations(self, include_null: bool) -> None:
        directions: list[_Direction] = []
        codes = np.zeros(self.space.entries, dtype=np.uint8)
        relation, self.relation_names = 1, ["itself"]
        for block in self.space.blocks:
            attribute = block.attribute
            if attribute.arity != 2:
                continue
            kept = [c for c in range(block.size) if include_null or c != attribute.null]
            code = np.zeros(block.size, dtype=np.uint8)
            code[kept] = np.arange(1, len(kept) + 1)
            if len(kept) > 250:
                raise InputError(
                    f"{attribute.name} has {len(kept)} values, but a graph potential takes at most 250 "
                    "relations from one attribute.",
                    token=attribute.name,
                    kind="unsupported",
                )
            codes[block.entries] = np.tile(code, block.count)
            if attribute.symmetric:
                directions.append(_Direction(block, relation, relation, False))
            else:
                other = relation + len(kept)
                directions.append(_Direction(block, relation, other, False))
                directions.append(_Direction(block, other, relation, True))
            for way in ("",) if attribute.symmetric else ("forwards", "backwards"):
                self.relation_names += [
                    (attribute.name, attribute.categories[c], way) for c in kept
                ]
            relation = len(self.relation_names)
        self.relations = relation
        self.codes_are_values = not include_null and all(
            block.attribute.null == 0 for block in self.space.blocks if block.attribute.arity == 2
        )
        self.codes = nn.Buffer(torch.from_numpy(codes), persistent=False)
        self.offsets = nn.Buffer(self.space.offsets, persistent=False)
        self._lay_out_cells(directions)

    def _lay_out_cells(self, directions: list[_Direction]) -> None:
        """One list of cells for each node, one after the other.

        A source is kept with the first relation of its attribute: the node in the upper half of the
        number, the relation in the lower, counted without the self-loop.
        """
        nodes = np.arange(self.nodes)
        targets, groups, heard, told = [], [], [], []
        for direction in directions:
            block = direction.block
            table = self.space.table(block.attribute.name)
            rows, columns = np.nonzero(table >= 0)
            one, other = (self.first_node[sort] for sort in block.attribute.sorts)
            target, source = rows + one, columns + other
            if direction.transposed:
                target, source = source, target
            targets.append(target)
            groups.append(table[rows, columns] + block.first_group)
            heard.append((source << 32) + direction.slot - 1)
            told.append((source << 32) + direction.back - 1)
        target = np.concatenate([*targets, nodes[:0]])
        order = np.argsort(target, kind="stable")
        tables = {"cell_group": groups, "cell_heard": heard, "cell_told": told}
        for name, parts in tables.items():
            table = np.concatenate([*parts, nodes[:0]])[order]
            setattr(self, name, nn.Buffer(torch.from_numpy(table), persistent=False))
        starts = torch.from_numpy(np.searchsorted(target[order], nodes))
        self.cell_start = nn.Buffer(starts, persistent=False)
        self.directed = any(direction.slot != direction.back for direction in directions)

    cell_group: Int64[Tensor, " cells"]
    cell_heard: Int64[Tensor, " cells"]
    cell_told: Int64[Tensor, " cells"]
    cell_start: Int64[Tensor, " nodes"]

    def batches(
        self, values: Values, size: int, compact: bool
    ) -> Iterator[tuple[int, slice, Graphs]]:
        """The graphs of all worlds, level by level in batches of at most `size` chains.

        With `compact`, rows that no node hears are left out, which costs time here and saves it later.
        Many worlds are handled at once, because many small steps cost more than a few large ones.
        """
        levels, chains, _ = values.shape
        room = max(1, _CELLS // (max(1, len(self.cell_group)) * size))
        for first in range(0, chains, room * size):
            some = values[:, first : first + room * size]
            together = max(1, room * size // some.shape[1])
            for level in range(0, levels, together):
                yield from self._run(some[level : level + together], size, level, first, compact)

    def _run(
        self, values: Values, size: int, first_level: int, first_chain: int, compact: bool
    ) -> Iterator[tuple[int, slice, Graphs]]:
        levels, chains, _ = values.shape
        worlds = values.reshape(levels * chains, -1)
        features = self.features_of(worlds).flatten(0, 1)
        codes = worlds if self.codes_are_values else self.codes[worlds + self.offsets]
        filled = codes.gather(1, self.cell_group.expand(len(worlds), -1))
        at = filled.view(-1).nonzero().squeeze(1)
        code = filled.view(-1).index_select(0, at).long().sub_(1)
        starts = torch.nn.functional.pad(self._count_heard(filled).cumsum(0), (1, 0))
        cuts = [(lvl, chain) for lvl in range(levels) for chain in range(0, chains, size)]
        bounds = starts[[(lvl * chains + chain) * self.nodes for lvl, chain in cuts]].tolist()
        bounds.append(len(at))

        heard = self._sources(at, code, levels, chains, size, self.cell_heard)
        told = heard
        if self.directed:
            told = self._sources(at, code, levels, chains, size, self.cell_told)
        all_heard = heard.among_all(self.relations - 1)
        if compact:
            heard_bags, heard_rows = heard.numbered(
                len(cuts), self.relations - 1, size * self.nodes
            )
            told_bags, told_rows = heard_bags, heard_rows
            if self.directed:
                told_bags, told_rows = told.numbered(
                    len(cuts), self.relations - 1, size * self.nodes
                )
        else:
            heard_bags, heard_rows = all_heard, [None] * len(cuts)
            told_bags = told.among_all(self.relations - 1) if self.directed else all_heard
            told_rows = heard_rows
        for index, (level, chain) in enumerate(cuts):
            stop = min(chains, chain + size)
            first, last = ((level * chains + c) * self.nodes for c in (chain, stop))
            low, high = bounds[index], bounds[index + 1]
            yield (
                first_level + level,
                slice(first_chain + chain, first_chain + stop),
                Graphs(
                    features[first:last],
                    (starts[first:last] - low).int(),
                    Bags(heard_bags[low:high], heard_rows[index]),
                    Bags(told_bags[low:high], told_rows[index]),
                    all_heard[low:high],
                ),
            )

    def _sources(
        self, at: Tensor, code: Tensor, levels: int, chains: int, size: int, cells: Tensor
    ) -> "_Sources":
        """Batch, relation and node of each filled cell."""
        base = self._base(levels, chains, size).index_select(0, at)
        source = cells.index_select(0, at.remainder(max(1, len(cells))))
        low = 2**32 - 1
        return _Sources(base >> 32, (source & low) + code, (base & low) + (source >> 32))

    def _count_heard(self, filled: Integer[Tensor, "worlds cells"]) -> Int64[Tensor, " nodes"]:
        """How many cells of each node are filled."""
        cells = filled.shape[1]
        if not cells:
            return self.cell_start.new_zeros(len(filled) * self.nodes)
        if cells % self.nodes == 0 and bool((self.cell_start.diff() == cells // self.nodes).all()):
            return filled.view(-1, cells // self.nodes).ne(0).sum(1)
        ends = torch.cat([self.cell_start[1:], self.cell_start.new_tensor([cells])])
        totals = torch.nn.functional.pad(filled.ne(0).cumsum(1), (1, 0))
        return (totals[:, ends] - totals[:, self.cell_start]).view(-1)

    def _base(self, levels: int, chains: int, size: int) -> Int64[Tensor, " cells"]:
        """For every cell of every world: its batch (upper half), and the world's first node in it."""
        key = (levels, chains, size, self.cell_group.device)
        if key not in self._cached_bases:
            chain = torch.arange(chains, device=self.cell_group.device)
            per_level = -(-chains // size)
            batch = torch.arange(levels, device=chain.device)[:, None] * per_level + chain // size
            base = (batch << 32) + (chain % size) * self.nodes
            while len(self._cached_bases) >= 4:
                self._cached_bases.pop(next(iter(self._cached_bases)))
            self._cached_bases[key] = base.view(-1).repeat_interleave(len(self.cell_group))
        return self._cached_bases[key]

    # The same edges as a dense tensor, differentiable in the entries.

    @cached_property
    def _places(self) -> "_Places":
        with torch.inference_mode(False):  # what is kept must serve outside of it too
            return self._find_places()

    def _find_places(self) -> "_Places":
        """The entry at each place of the adjacency, and the two places of each entry."""
        group, heard, start = self.cell_group.cpu(), self.cell_heard.cpu(), self.cell_start.cpu()
        entries = self.space.entries
        sizes = self.space.sizes[group]
        cell = torch.arange(len(group)).repeat_interleave(sizes)
        before = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        entry = self.space.offsets[group[cell]] + torch.arange(len(cell)) - before
        code = self.codes.cpu()[entry].long()
        cell, entry, code = cell[code > 0], entry[code > 0], code[code > 0]
        target = (torch.searchsorted(start, torch.arange(len(group)), right=True) - 1)[cell]
        source, kind = heard[cell] >> 32, (heard[cell] & (2**32 - 1)) + code - 1

        zero, one = entries, entries + 1
        table = torch.full((self.nodes, self.nodes, self.relations), zero)
        table[range(self.nodes), range(self.nodes), 0] = one
        table[target, source, kind + 1] = entry

        # The gradient comes without the self-loop, and turned: (source, relation, target).
        place = (source * (self.relations - 1) + kind) * self.nodes + target
        order = entry.argsort(stable=True)
        known, counts = entry[order].unique_consecutive(return_counts=True)
        first = counts.cumsum(0) - counts
        last = first + counts - 1
        return _Places(table.view(-1), known, place[order][first], place[order][last], counts / 2)

    def adjacency(
        self, onehot: Float[Tensor, "worlds entries"]
    ) -> Float[Tensor, "worlds nodes nodes relations"]:
        """A[w, v, u, r] is one where node v hears from node u along relation r."""
        worlds = len(onehot)
        padded = torch.cat([onehot, onehot.new_zeros(worlds, 1), onehot.new_ones(worlds, 1)], 1)
        dense = padded.index_select(1, self._places.entry_at.to(onehot.device))
        return dense.view(worlds, self.nodes, self.nodes, self.relations)

    def spread_adjacency(
        self,
        slopes: Float[Tensor, "worlds entries"],
        gradient: Float[Tensor, "worlds places"],
    ) -> None:
        """Write the gradient by A, laid out as (u, r, v), into the slopes.

        An entry has two places, or (a symmetric pair with itself) one, which counts twice by half.
        """
        _, entries, one, two, share = (table.to(slopes.device) for table in self._places)
        both = gradient.index_select(1, one)
        both += gradient.index_select(1, two)
        slopes[:, entries] = both.mul_(share.to(both.dtype))
