"""A network on fragments: it scores all relations among two or three constants together."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn

from nmln.knowledge.parts import Bits, Dropout, Index, PotentialPart, PreparedPart, Worlds
from nmln.potentials.layers import uniform_weights

_AT_ONCE = 2**23  # the most numbers in one gathered batch of fragments


class KnowledgeFragments(PotentialPart):
    """A network on the fragment of every tuple of `width` (2 or 3) different constants.

    Its input is all relations among the constants, in both directions and of each constant with
    itself, and a learned vector of each constant; it has one hidden layer. Every order of a tuple is a
    fragment. The sum is divided by the number of third constants, so that the weights mean the same
    for any number of constants.
    """

    def __init__(
        self,
        constants: int,
        relations: int,
        width: int,
        hidden: int,
        embedding: int,
        rng: Generator,
    ) -> None:
        super().__init__()
        self.width = width
        self.scale = 1.0 if width == 2 else 1 / max(1, constants - 2)
        inputs = 4 + embedding  # a typical fragment has about four true bits
        self.weights = uniform_weights((width, width, relations, hidden), inputs, rng)
        self.embeddings = uniform_weights((constants, embedding), max(1, embedding), rng)
        self.placing = uniform_weights((width, embedding, hidden), inputs, rng)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.readout = uniform_weights((hidden,), hidden, rng, gain=0.5)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of places in a tuple, the first place smaller."""
        return list(combinations(range(self.width), 2))

    def tables(self, worlds: Worlds, embeddings: Tensor) -> list[Tensor]:
        """For each pair of places: what each pair of constants there adds to the hidden layer."""
        n = worlds.shape[1]
        loops = worlds.diagonal(dim1=1, dim2=2).transpose(1, 2)
        alone = [
            loops @ self.weights[place, place] + embeddings @ self.placing[place]
            for place in range(self.width)
        ]
        alone[0] = alone[0] + self.bias
        tables = []
        between = worlds * (1 - torch.eye(n, dtype=worlds.dtype))[..., None]
        for i, j in self.pairs:
            table = between @ self.weights[i, j] + between.transpose(1, 2) @ self.weights[j, i]
            if (i, j) == (0, 1):
                table = table + alone[0][:, :, None] + alone[1][:, None]
            elif i == 0:
                table = table + alone[j][:, None]  # the third place is added once
            tables.append(table)
        return tables

    def forward(self, worlds: Worlds) -> Float[Tensor, " worlds"]:
        tables = self.tables(worlds, self.embeddings)
        n = worlds.shape[1]
        apart = (1 - torch.eye(n, dtype=worlds.dtype)) * self.scale
        if self.width == 2:
            return (tables[0].relu() @ self.readout * apart).sum((1, 2))
        total = worlds.new_zeros(len(worlds))
        for third in range(n):  # one constant in the last place at a time, to save memory
            hidden = tables[0] + tables[1][:, :, None, third] + tables[2][:, None, :, third]
            others = torch.ones(n, dtype=worlds.dtype)
            others[third] = 0
            total = total + (hidden.relu() @ self.readout * apart * others * others[:, None]).sum(
                (1, 2)
            )
        return total

    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> "PreparedFragments":
        embeddings, readout = self.embeddings, self.readout
        if dropout is not None:
            embeddings, readout = dropout(embeddings), dropout(readout)
        tables = [table[0] for table in self.tables(bits[None], embeddings)]
        return PreparedFragments(bits.clone(), dict(zip(self.pairs, tables, strict=True)),
                                 self.weights, readout * self.scale)  # fmt: skip


@dataclass(frozen=True)
class PreparedFragments(PreparedPart):
    """The first layer of all fragments of a world, as one table per pair of places."""

    bits: Bits
    tables: dict[tuple[int, int], Float[Tensor, "constants constants hidden"]]
    weights: Float[Tensor, "width width relations hidden"]
    readout: Float[Tensor, " hidden"]

    @property
    def width(self) -> int:
        return len(self.weights)

    def log_odds(
        self, heads: Index, relations: Index, tails: Index
    ) -> Float[Tensor, "rows columns"]:
        shape = torch.broadcast_shapes(heads.shape, relations.shape, tails.shape)
        if self.width == 2:
            return self._pairs(heads, relations, tails, shape.numel())
        flat = [index.expand(shape).flatten() for index in (heads, relations, tails)]
        n, hidden = len(self.bits), self.weights.shape[-1]
        each = max(1, _AT_ONCE // (n * hidden))
        whole = self._whole() if len(flat[0]) > n * n and n**3 * hidden <= _AT_ONCE else None
        split = zip(*(index.split(each) for index in flat), strict=True)
        found = [self._triples(some, kinds, others, whole) for some, kinds, others in split]
        return torch.cat(found).reshape(shape)

    def _pairs(
        self, heads: Index, relations: Index, tails: Index, atoms: int
    ) -> Float[Tensor, "rows columns"]:
        """Width 2: the pair of an atom, in both orders."""
        table = self.tables[0, 1]
        now = self.bits[heads, tails, relations]
        # The current scores of all pairs, if there are fewer pairs than atoms.
        settled = table.relu() @ self.readout if atoms > len(table) ** 2 else None
        total = torch.zeros((), dtype=table.dtype)
        for i, j, ends in ((0, 1, (heads, tails)), (1, 0, (tails, heads))):
            before = None if settled is None else settled[ends]
            hidden = _at(table, *ends)
            total = total + self._gain(hidden, self.weights[i, j][relations], now, before)
        return total

    def change(
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
        change: Float[Tensor, " atoms"],
    ) -> None:
        self.bits[heads, tails, relations] += change
        loop = heads == tails
        for (i, j), table in self.tables.items():
            for one, other, ends in ((i, j, (heads, tails)), (j, i, (tails, heads))):
                step = change[:, None] * self.weights[one, other][relations]
                table.index_put_(ends, step * ~loop[:, None], accumulate=True)
        for constant, relation, by in zip(
            heads[loop].tolist(), relations[loop].tolist(), change[loop], strict=True
        ):
            self._change_loop(constant, relation, by)

    def _change_loop(self, constant: int, relation: int, change: Tensor) -> None:
        for (i, j), table in self.tables.items():
            if i == 0 and j == 1:
                table[constant] += change * self.weights[0, 0, relation]
            if i == 0:
                table[:, constant] += change * self.weights[j, j, relation]

    def _triples(
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
        whole: tuple[Tensor, Tensor] | None,
    ) -> Float[Tensor, " atoms"]:
        """Width 3: the pair of an atom in any two places, with every other constant in the third.

        `whole` is the result of `_whole`, where that costs less than gathering for each atom.
        """
        now = self.bits[heads, tails, relations][:, None]
        total = self.bits.new_zeros(len(heads))
        third = torch.arange(len(self.bits))
        other = (third != heads[:, None]) & (third != tails[:, None])
        for i, j in permutations(range(3), 2):
            last, before = 3 - i - j, None
            if whole is None:
                hidden = self._between(i, j, heads, tails)[:, None]
                hidden = hidden + self._rows(i, last, heads) + self._rows(j, last, tails)
            else:
                hidden, before = (
                    table.movedim((i, j, last), (0, 1, 2))[heads, tails] for table in whole
                )
            gain = self._gain(hidden, self.weights[i, j][relations][:, None], now, before)
            total = total + (gain * other).sum(1)
        return total

    def _whole(self) -> tuple[Tensor, Tensor]:
        """The first layer and the current score of all triples of constants."""
        one, two, three = self.tables[0, 1], self.tables[0, 2], self.tables[1, 2]
        hidden = one[:, :, None] + two[:, None] + three
        return hidden, hidden.relu() @ self.readout

    def _between(self, i: int, j: int, ones: Tensor, others: Tensor) -> Tensor:
        """The share of the first layer that comes from constants in place i and others in place j."""
        return self.tables[i, j][ones, others] if i < j else self.tables[j, i][others, ones]

    def _rows(self, i: int, j: int, ones: Tensor) -> Tensor:
        """The same, with every constant in place j."""
        return self.tables[i, j][ones] if i < j else self.tables[j, i].transpose(0, 1)[ones]

    def _gain(
        self, hidden: Tensor, weights: Tensor, now: Tensor, before: Tensor | None = None
    ) -> Tensor:
        """The score of fragments with one bit true minus that with it false; `now` is its value."""
        sign = 1 - 2 * now
        if before is None:
            before = hidden.relu() @ self.readout
        after = torch.addcmul(hidden, sign[..., None], weights).relu() @ self.readout
        return sign * (after - before)

    def log_odds_of_loops(
        self, constants: Int64[Tensor, " atoms"], relations: Int64[Tensor, " atoms"]
    ) -> Float[Tensor, " atoms"]:
        n = len(self.bits)
        per_atom = n ** (self.width - 1) * self.weights.shape[-1]
        each = max(1, _AT_ONCE // per_atom)
        parts = [
            self._loops(*part)
            for part in zip(constants.split(each), relations.split(each), strict=True)
        ]
        return torch.cat(parts) if parts else self.bits.new_zeros(0)

    def _loops(
        self, constants: Int64[Tensor, " atoms"], relations: Tensor
    ) -> Float[Tensor, " atoms"]:
        now = self.bits[constants, constants, relations]
        total = self.bits.new_zeros(len(constants))
        other = torch.arange(len(self.bits)) != constants[:, None]
        for place, hidden in self._around(constants):
            shape = (len(constants),) + (1,) * (hidden.ndim - 2)
            weights = self.weights[place, place][relations].reshape(*shape, -1)
            gain = self._gain(hidden, weights, now.reshape(shape))
            if self.width == 2:
                total = total + (gain * other).sum(1)
            else:
                both = other[:, :, None] & other[:, None] & ~torch.eye(len(self.bits)).bool()
                total = total + (gain * both).sum((1, 2))
        return total

    def _around(self, constants: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each place: the first layer of all tuples with the constants in that place."""
        for place in range(self.width):
            rest = [other for other in range(self.width) if other != place]
            first = self._rows(place, rest[0], constants)
            if self.width == 2:
                yield place, first
            else:
                second = self._rows(place, rest[1], constants)
                rows = self.tables[rest[0], rest[1]]
                yield place, first[:, :, None] + second[:, None] + rows


def _at(
    table: Float[Tensor, "constants constants hidden"], ones: Index, others: Index
) -> Float[Tensor, "rows columns hidden"]:
    """The entries of some pairs; copies whole rows or columns where all constants are asked for."""
    every = torch.arange(len(table))
    if ones.shape[1] == 1 and len(others) == 1 and torch.equal(others[0], every):
        return table.index_select(0, ones[:, 0])
    if others.shape[1] == 1 and len(ones) == 1 and torch.equal(ones[0], every):
        return table.transpose(0, 1).contiguous().index_select(0, others[:, 0])
    return table[ones, others]
