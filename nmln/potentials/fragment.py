"""Fragment potentials: worlds scored by the sub-worlds that all small tuples of constants induce."""

from itertools import combinations_with_replacement, product
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn

from nmln.config import ModelConfig
from nmln.errors import InputError
from nmln.memory import refuse_size
from nmln.potentials.base import Labels, NeuralPotential, sharing
from nmln.potentials.layers import LevelMLP, uniform_weights
from nmln.potentials.registry import POTENTIALS, NamedPotential
from nmln.space import Space
from nmln.types import OneHot, Scores

_AT_ONCE = 2**23  # numbers that a gathered batch of fragments may hold


class Fragments(NamedTuple):
    """All ordered tuples of distinct constants of given sorts, with the entries each one sees.

    `grid` is the number of choices for each place; the tuples follow it in row-major order.
    """

    sorts: tuple[str, ...]
    grid: tuple[int, ...]
    constants: Int64[Tensor, "fragments width"]
    entries: Int64[Tensor, "fragments seen"]
    names: tuple[tuple[str, tuple[int, ...], str], ...]  # attribute, places and category seen


def fragments(space: Space, sorts: tuple[str, ...]) -> Fragments:
    """The fragments over tuples of the given sorts."""
    tuples, grid = _distinct_tuples([(sort, len(space.domain[sort])) for sort in sorts])
    seen: list[np.ndarray] = []
    names: list[tuple[str, tuple[int, ...], str]] = []
    for block in space.blocks:
        attribute = block.attribute
        for places in product(range(len(sorts)), repeat=attribute.arity):
            fits = tuple(sorts[place] for place in places) == attribute.sorts
            if not fits or (attribute.symmetric and places[0] > places[1]):
                continue
            if attribute.arity == 0:
                group = np.zeros(len(tuples), dtype=np.int64)
            else:
                group = space.table(attribute.name)[tuple(tuples[:, place] for place in places)]
            if (group < 0).any():
                continue  # a repeated constant of an irreflexive predicate
            first = block.first_entry + group * block.size
            seen.append(first[:, None] + np.arange(block.size))
            names += [(attribute.name, places, value) for value in attribute.categories]
    columns = np.concatenate([*seen, np.zeros((len(tuples), 0), dtype=np.int64)], axis=1)
    tables = torch.from_numpy(tuples), torch.from_numpy(columns)
    return Fragments(sorts, grid, *tables, tuple(names))


def _number_of_tuples(space: Space, sorts: tuple[str, ...]) -> int:
    """How many fragments there are over tuples of the given sorts, by arithmetic alone."""
    return prod(
        max(0, len(space.domain[sort]) - sorts[:place].count(sort))
        for place, sort in enumerate(sorts)
    )


def _distinct_tuples(places: list[tuple[str, int]]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Row-major tuples in which no constant of a sort comes twice."""
    tuples = np.zeros((1, 0), dtype=np.int64)
    grid: list[int] = []
    for index, (sort, count) in enumerate(places):
        earlier = [i for i in range(index) if places[i][0] == sort]
        choices = np.tile(np.arange(count), (len(tuples), 1))
        free = np.ones_like(choices, dtype=bool)
        for place in earlier:
            free[np.arange(len(tuples)), tuples[:, place]] = False
        grid.append(max(0, count - len(earlier)))
        chosen = choices[free].reshape(len(tuples), grid[-1])
        tuples = np.concatenate(
            [tuples.repeat(chosen.shape[1], axis=0), chosen.reshape(-1, 1)], axis=1
        )
    return tuples, tuple(grid)


def all_fragments(space: Space, width: int) -> list[Fragments]:
    """The fragments of a width, one table for every way to choose the sorts of its constants."""
    if width < 1:
        raise InputError(f"the width of fragments must be at least 1, got {width}.")
    for attribute in space.language:
        if attribute.arity > width:
            raise InputError(
                f"{attribute.declaration()} has arity {attribute.arity}, but fragments of width {width} "
                f"see at most {width} constants at a time. Take width={attribute.arity}.",
                token=attribute.name,
                kind="conflict",
            )
    constants = sum(map(len, space.domain.values()))
    choices = combinations_with_replacement(space.domain, width) if width <= constants else ()
    tables, held = [], 0
    for sorts in choices:
        held += 8 * width * _number_of_tuples(space, sorts)
        refuse_size(held, f"the table of fragments of width {width}", "Take a smaller model.width.")
        tables.append(fragments(space, sorts))
    tables = [table for table in tables if len(table.constants)]
    if not tables:
        sizes = ", ".join(f"{len(names)} of sort {sort}" for sort, names in space.domain.items())
        raise InputError(
            f"fragments of width {width} need as many constants, but there are {sizes or 'none'}.",
            kind="conflict",
        )
    return tables


class FragmentNetwork(NeuralPotential):
    """The base of the fragment potentials: gathers fragments and runs a network on each."""

    def __init__(
        self,
        space: Space,
        levels: int,
        tables: list[Fragments],
        sizes: tuple[int, ...],
        embedding: int,
        rng: Generator,
    ) -> None:
        super().__init__(space, levels)
        self.tables = tables
        for index, table in enumerate(tables):
            self.register_buffer(f"entries_{index}", table.entries, persistent=False)
        self.networks = nn.ModuleList(
            LevelMLP(levels, (t.entries.shape[1] + embedding * t.constants.shape[1], *sizes), rng)
            for t in tables
        )
        self.embeddings = nn.ParameterDict()
        if embedding:
            for sort, names in space.domain.items():
                shape = (levels, len(names), embedding)
                self.embeddings[sort] = uniform_weights(shape, embedding, rng)

    def grounded(self, space: Space) -> "FragmentNetwork":
        if len(self.embeddings):
            raise InputError(
                f"this {type(self).__name__} has learned a vector for each constant that it was built "
                "with, and cannot be put on another domain. Build it with embedding=0.",
                token=type(self).__name__,
                kind="unsupported",
            )
        tables = self.tables_of(space)
        here, there = ({table.sorts for table in some} for some in (self.tables, tables))
        if here != there:
            odd = ", ".join(min(here ^ there))
            raise InputError(
                f"fragments of the sorts ({odd}) exist on only one of the two domains, so that the "
                "networks do not fit. Give both domains enough constants of every sort.",
                kind="conflict",
            )
        new = sharing(self, space)
        new.tables = tables
        for index, table in enumerate(tables):
            new.register_buffer(f"entries_{index}", table.entries, persistent=False)
        return new

    def labels(self) -> dict[str, dict[int, Labels]]:
        embedded = next((part.shape[2] for part in self.embeddings.values()), 0)
        found: dict[str, dict[int, Labels]] = {
            f"embeddings.{sort}": {1: self.space.domain[sort]} for sort in self.embeddings
        }
        for index, table in enumerate(self.tables):
            known = range(embedded * len(table.sorts))
            found[f"networks.{index}.layers.0.weight"] = {1: (*table.names, *known)}
        return found

    def tables_of(self, space: Space) -> list[Fragments]:
        """The tables of the same fragments on another space."""
        return all_fragments(space, len(self.tables[0].sorts))

    @property
    def worlds_at_a_time(self) -> int:
        """So many that a gathered batch of fragments stays small."""
        largest = max(table.entries.numel() + 1 for table in self.tables)
        return max(1, _AT_ONCE // (largest * self.levels))

    def outputs(self, onehot: OneHot) -> list[Float[Tensor, "levels chains fragments outputs"]]:
        """The outputs of the network for every fragment of every table."""
        found = []
        for index, (table, network) in enumerate(zip(self.tables, self.networks, strict=True)):
            entries: Tensor = getattr(self, f"entries_{index}")
            seen = onehot.index_select(-1, entries.flatten()).unflatten(-1, entries.shape)
            if len(self.embeddings):
                known = torch.cat(
                    [
                        self.embeddings[sort][:, table.constants[:, place].to(onehot.device)]
                        for place, sort in enumerate(table.sorts)
                    ],
                    dim=-1,
                )
                known = known[:, None].expand(-1, onehot.shape[1], -1, -1)
                seen = torch.cat([seen, known], dim=-1)
            found.append(network(seen))
        return found


class FragmentPotential(FragmentNetwork):
    """The mean score of all fragments of a width, each given by a network: the original NMLN.

    A fragment is what a tuple of `width` constants induces, over predicates of every arity up to the
    width. All orders of the tuple count, so the potential is invariant under relabelling, unless
    `embedding` gives every constant a learned vector of its own, as knowledge bases need. With
    several sorts there is a network for every choice of sorts, and their means are added.

    Costs grow with the number of constants to the power of the width.
    """

    def __init__(
        self,
        space: Space,
        levels: int,
        width: int = 2,
        hidden: tuple[int, ...] = (64, 64),
        *,
        embedding: int = 0,
        rng: Generator | None = None,
    ) -> None:
        rng = rng or Generator().manual_seed(0)
        tables = all_fragments(space, width)
        super().__init__(space, levels, tables, (*hidden, 1), embedding, rng)

    def forward(self, onehot: OneHot) -> Scores:
        return torch.stack([out.squeeze(-1).mean(-1) for out in self.outputs(onehot)]).sum(0)


class DeepSetPotential(FragmentNetwork):
    """Features of all fragments, summed, with a network on top: the DeepSet NMLN.

    Because the network sees sums, it can count; `FragmentPotential` can only average.
    """

    def __init__(
        self,
        space: Space,
        levels: int,
        width: int = 2,
        features: int = 64,
        hidden: tuple[int, ...] = (64,),
        *,
        embedding: int = 0,
        rng: Generator | None = None,
    ) -> None:
        rng = rng or Generator().manual_seed(0)
        tables = all_fragments(space, width)
        super().__init__(space, levels, tables, (*hidden, features), embedding, rng)
        self.top = LevelMLP(levels, (len(tables) * features, *hidden, 1), rng, last_gain=0.1)

    def forward(self, onehot: OneHot) -> Scores:
        sums = [out.relu().sum(2) for out in self.outputs(onehot)]
        return self.top(torch.cat(sums, dim=-1)).squeeze(-1)


def _hidden(model: ModelConfig) -> tuple[int, ...]:
    """The units of each hidden layer."""
    return model.sizes or (model.hidden,) * model.layers


def _mean_network(space: Space, levels: int, model: ModelConfig, rng: Generator) -> NeuralPotential:
    return FragmentPotential(space, levels, model.width, _hidden(model), rng=rng)


def _sum_network(space: Space, levels: int, model: ModelConfig, rng: Generator) -> NeuralPotential:
    hidden = _hidden(model)
    return DeepSetPotential(space, levels, model.width, hidden[-1], hidden, rng=rng)


POTENTIALS.add("fragment", NamedPotential(FragmentPotential, _mean_network))
POTENTIALS.add("deepset", NamedPotential(DeepSetPotential, _sum_network))
