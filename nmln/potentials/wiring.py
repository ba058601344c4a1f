"""How a space is read as a graph with node features and typed edges.

Nodes are the constants of all sorts. Relation 0 is the self-loop; every category of a binary attribute
but its null one is a relation, in both directions unless the attribute is symmetric. A *cell* is a
place where a node may hear from a node along the relations of one attribute; it is empty, or carries
the relation that the category of its group says.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor, nn

from nmln.files import InputError
from nmln.space import Block, Space


class Edges(NamedTuple):
    """What each node hears, as the bags of an embedding bag over (node, relation) rows.

    `heard` is for messages, `told` for their gradients; `starts` are the beginnings of the bags. One
    more row, the last, belongs to every bag: the bias on the way forward, zero on the way back.
    """

    heard: Int64[Tensor, " edges"]
    told: Int64[Tensor, " edges"]
    starts: Int64[Tensor, " nodes"]


@dataclass(frozen=True)
class _Direction:
    """One attribute read in one direction: `slot` is its first relation, `back` that of its reverse."""

    block: Block
    slot: int
    back: int
    transposed: bool


class Wiring(nn.Module):
    """Static tables that turn worlds into node features and edges; has no parameters."""

    def __init__(self, space: Space, include_null: bool) -> None:
        super().__init__()
        for attribute in space.language:
            if attribute.arity > 2:
                raise InputError(
                    f"a graph has no place for {attribute.declaration()} of arity {attribute.arity}. "
                    f"Use FragmentPotential(space, width={attribute.arity}), which reads any arity."
                )
        self.space = space
        self.first_node = {}
        nodes = 0
        for sort, names in space.domain.items():
            self.first_node[sort] = nodes
            nodes += len(names)
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
            features[:, self._rows(block), columns] = entries
        return features

    def spread_features(
        self,
        slopes: Float[Tensor, "worlds entries"],
        gradient: Float[Tensor, "worlds nodes features"],
    ) -> None:
        """Write the gradient by node features into the slopes: the transpose of `node_features`."""
        for block, column in self.feature_blocks:
            part = gradient[:, self._rows(block), column : column + block.size]
            if block.attribute.arity == 0:
                part = part.sum(1, keepdim=True)
            self.space.entries_of(slopes, block).copy_(part)

    def _rows(self, block: Block) -> slice:
        if block.attribute.arity == 0:
            return slice(None)
        first = self.first_node[block.attribute.sorts[0]]
        return slice(first, first + block.shape[0])

    # Relations and cells.

    def _lay_out_relations(self, include_null: bool) -> None:
        directions: list[_Direction] = []
        codes = np.zeros(self.space.entries, dtype=np.uint8)
        relation = 1
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
                    "relations from one attribute."
                )
            codes[block.entries] = np.tile(code, block.count)
            if attribute.symmetric:
                directions.append(_Direction(block, relation, relation, False))
            else:
                other = relation + len(kept)
                directions.append(_Direction(block, relation, other, False))
                directions.append(_Direction(block, other, relation, True))
            relation += len(kept) * (1 if attribute.symmetric else 2)
        self.relations = relation
        self.codes = nn.Buffer(torch.from_numpy(codes), persistent=False)
        self.offsets = nn.Buffer(self.space.offsets, persistent=False)
        self._lay_out_cells(directions)

    def _lay_out_cells(self, directions: list[_Direction]) -> None:
        """One list of cells for each node, one after the other: itself, the bias, its neighbours."""
        nodes, always = np.arange(self.nodes), self.space.groups  # the group that is always on
        targets, groups = [nodes, nodes], [np.full(self.nodes, always)] * 2
        bias = np.full(self.nodes, 2**40)  # beyond every row, so that it becomes the last one
        heard, told = [nodes * self.relations, bias], [nodes * self.relations, bias]
        for direction in directions:
            block = direction.block
            table = self.space.table(block.attribute.name)
            rows, columns = np.nonzero(table >= 0)
            group = table[rows, columns] + block.first_group
            one, other = (self.first_node[sort] for sort in block.attribute.sorts)
            target, source = rows + one, columns + other
            if direction.transposed:
                target, source = source, target
            targets.append(target)
            groups.append(group)
            heard.append(source * self.relations + direction.slot - 1)
            told.append(source * self.relations + direction.back - 1)
        order = np.argsort(np.concatenate(targets), kind="stable")
        target = np.concatenate(targets)[order]
        tables = {
            "cell_group": np.concatenate(groups)[order],
            "cell_heard": np.concatenate(heard)[order],
            "cell_told": np.concatenate(told)[order],
            "cell_start": np.searchsorted(target, nodes),
        }
        # The first two lists, self-loop and bias, carry code 1 like the first relation of the others.
        first = np.concatenate([np.ones(2 * self.nodes), np.zeros(len(order) - 2 * self.nodes)])
        tables["cell_heard"] -= first[order].astype(np.int64)
        tables["cell_told"] -= first[order].astype(np.int64)
        for name, table in tables.items():
            setattr(self, name, nn.Buffer(torch.from_numpy(table), persistent=False))
        self._lay_out_places()

    cell_group: Int64[Tensor, " cells"]
    cell_heard: Int64[Tensor, " cells"]
    cell_told: Int64[Tensor, " cells"]
    cell_start: Int64[Tensor, " nodes"]

    def edges(self, values: Integer[Tensor, "worlds groups"]) -> Edges:
        """The edges of a batch of worlds."""
        worlds, cells = len(values), len(self.cell_group)
        codes = values.new_ones(worlds, self.space.groups + 1, dtype=torch.uint8)
        codes[:, :-1] = self.codes[values + self.offsets]
        filled: UInt8[Tensor, " all"] = codes.index_select(1, self.cell_group).view(-1)
        at = filled.nonzero().squeeze(1)
        world = at.div(cells, rounding_mode="floor")
        cell = at - world * cells
        shift = world.mul_(self.nodes * self.relations).add_(filled[at])
        last = worlds * self.nodes * self.relations
        starts = torch.arange(0, worlds * cells, cells, device=values.device)[:, None]
        return Edges(
            (shift + self.cell_heard[cell]).clamp_(max=last),
            (shift + self.cell_told[cell]).clamp_(max=last),
            torch.searchsorted(at, (starts + self.cell_start).view(-1)),
        )

    # The same edges as a dense tensor, differentiable in the entries.

    def _lay_out_places(self) -> None:
        """Which entry stands at each place of the adjacency, and at which two places each entry."""
        entries, cells = self.space.entries, len(self.cell_group)
        real = torch.nonzero(self.cell_group < self.space.groups).flatten()
        sizes = self.space.sizes[self.cell_group[real]]
        cell = real.repeat_interleave(sizes)
        before = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        entry = self.space.offsets[self.cell_group[cell]] + torch.arange(len(cell)) - before
        code = self.codes[entry].long()
        node = torch.searchsorted(self.cell_start, torch.arange(cells), right=True) - 1
        place = node[cell] * self.nodes * self.relations + self.cell_heard[cell] + code
        entry, place = entry[code > 0], place[code > 0]

        zero, one = entries, entries + 1
        table = torch.full((self.nodes, self.nodes, self.relations), zero)
        table[range(self.nodes), range(self.nodes), 0] = one
        table.view(-1)[place] = entry
        self.entry_at = nn.Buffer(table.view(-1), persistent=False)

        order = entry.argsort(stable=True)
        known, counts = entry[order].unique_consecutive(return_counts=True)
        first = counts.cumsum(0) - counts
        self.placed = nn.Buffer(known, persistent=False)
        self.place_one = nn.Buffer(place[order][first], persistent=False)
        self.place_two = nn.Buffer(place[order][first + counts - 1], persistent=False)
        self.place_share = nn.Buffer(counts.float() / 2, persistent=False)

    def adjacency(
        self, onehot: Float[Tensor, "worlds entries"]
    ) -> Float[Tensor, "worlds nodes nodes relations"]:
        """A[w, v, u, r] is one where node v hears from node u along relation r."""
        worlds = len(onehot)
        padded = torch.cat([onehot, onehot.new_zeros(worlds, 1), onehot.new_ones(worlds, 1)], 1)
        dense = padded.index_select(1, self.entry_at)
        return dense.view(worlds, self.nodes, self.nodes, self.relations)

    def spread_adjacency(
        self,
        slopes: Float[Tensor, "worlds entries"],
        gradient: Float[Tensor, "worlds places"],
    ) -> None:
        """Write the gradient by A into the slopes: the transpose of `adjacency`.

        An entry stands at two places, or (a symmetric pair with itself) at one, taken twice by half.
        """
        both = gradient.index_select(1, self.place_one)
        both += gradient.index_select(1, self.place_two)
        slopes[:, self.placed] = both.mul_(self.place_share.to(both.dtype))
