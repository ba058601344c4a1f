"""The potential of a knowledge base: embeddings, fragments of pairs or triples, and their log-odds."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Generator, Tensor, nn

from nmln.files import InputError
from nmln.knowledge.factors import Factors
from nmln.knowledge.fragments import Fragments
from nmln.knowledge.paths import Paths
from nmln.knowledge.terms import Bits, Dropout, Part, Prepared
from nmln.potentials.base import NeuralPotential
from nmln.space import Space
from nmln.types import Changes, OneHot, Scores, Ties, Values

_MOST_TIED = 4096  # free atoms whose ties are looked at, a square of them


@dataclass(frozen=True)
class Shape:
    """What a knowledge-base potential is made of; a part of size 0 is left out.

    `width` is that of the fragments (2 or 3), `hidden` and `embedding` are the sizes of their network,
    `rank` that of the factors of single atoms, `paths` the number of products along two steps.
    """

    width: int = 2
    hidden: int = 64
    embedding: int = 16
    rank: int = 64
    paths: int = 0

    def __post_init__(self) -> None:
        if self.width not in (2, 3):
            raise InputError(
                f"fragments have width 2 (pairs) or 3 (triples of constants), not {self.width}."
            )
        if min(self.hidden, self.embedding, self.rank, self.paths) < 0:
            raise InputError(f"sizes are 0 or more, but this is {self}.")
        if not max(self.hidden, self.rank, self.paths):
            raise InputError("a potential needs a part: make hidden, rank or paths larger than 0.")


class KnowledgePotential(NeuralPotential):
    """A potential over Boolean relations between the constants of one sort, with embeddings.

    The sum of factors of single atoms, a network on the fragments of all pairs (or triples) of
    constants, and products along paths; see `Shape`. It has one level. `score` is meant for small
    domains, and `prepare` for large ones: that tells log-odds of atoms one by one.
    """

    def __init__(
        self, space: Space, shape: Shape | None = None, *, rng: Generator | None = None
    ) -> None:
        super().__init__(space, 1)
        shape = shape or Shape()
        rng = rng or Generator().manual_seed(0)
        self.shape = shape
        self.relations, self.constants = len(space.language), _constants(space)
        if self.constants < shape.width:
            raise InputError(
                f"fragments of width {shape.width} need as many constants, but there are "
                f"{self.constants}. Take width 2, or a larger domain."
            )
        parts: list[Part] = []
        sizes = self.constants, self.relations
        if shape.rank:
            parts.append(Factors(*sizes, shape.rank, 0.5 / shape.rank**0.25, rng))
        if shape.hidden:
            parts.append(Fragments(*sizes, shape.width, shape.hidden, shape.embedding, rng))
        if shape.paths:
            parts.append(Paths(*sizes, shape.paths, rng))
        self.parts: Sequence[Part] = nn.ModuleList(parts)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def worlds_at_a_time(self) -> int:
        """So many that the tables of all pairs of constants stay small."""
        widest = max(self.relations, self.shape.hidden, self.shape.paths)
        return max(1, 2**22 // (self.constants**2 * widest))

    @property
    def pairwise(self) -> bool:
        """Whether no part sees more than two constants at a time."""
        return not self.shape.paths and (self.shape.width == 2 or not self.shape.hidden)

    def bits(self, world: Integer[Tensor, " groups"]) -> Bits:
        """A world as 0 and 1 by head, tail and relation."""
        grid = world.reshape(self.relations, self.constants, self.constants)
        return grid.permute(1, 2, 0).to(self.dtype)

    def forward(self, onehot: OneHot) -> Scores:
        n = self.constants
        true = onehot[0].unflatten(-1, (self.relations, n, n, 2))[..., 1].permute(0, 2, 3, 1)
        return self.total(true)[None]

    def total(
        self, worlds: Float[Tensor, "worlds heads tails relations"]
    ) -> Float[Tensor, " worlds"]:
        """The scores of worlds given as bits."""
        return torch.stack([part(worlds) for part in self.parts]).sum(0)

    @torch.no_grad()
    def evaluate_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes:
        """What single atoms would change, by the fragments that they are in."""
        heads, relations, tails = self.atoms(groups)
        found = []
        for world in values[0]:
            odds = self.prepare(self.bits(world)).log_odds(heads, relations, tails)
            now = world[groups].to(odds.dtype)
            found.append(torch.stack([-now * odds, (1 - now) * odds], dim=-1))
        return torch.stack(found)[None]

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties | None:
        """Atoms whose constants fit into one fragment; nothing is said of too many free ones."""
        groups = free.nonzero()[:, 0]
        if len(groups) > _MOST_TIED:
            return None
        if not self.shape.hidden and not self.shape.paths:
            return groups.new_zeros(2, 0)
        heads, _, tails = self.atoms(groups)
        ends = torch.stack([heads, tails])
        width = 2 if self.pairwise else 3
        extra = (ends[0] != ends[1]).long()[:, None] + 1  # how many constants a first atom has
        new_head = (ends[0] != ends[0][:, None]) & (ends[0] != ends[1][:, None])
        new_tail = (ends[1] != ends[0][:, None]) & (ends[1] != ends[1][:, None])
        union = extra + new_head.long() + (new_tail & (ends[0] != ends[1])).long()
        first, second = (union <= width).triu(1).nonzero().T
        return torch.stack([groups[first], groups[second]])

    def atoms(self, groups: Int64[Tensor, " some"]) -> tuple[Tensor, Tensor, Tensor]:
        """Head, relation and tail of some groups."""
        n = self.constants
        return groups // n % n, groups // (n * n), groups % n

    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> "World":
        """One world, ready for questions about its atoms."""
        return World(tuple(part.prepare(bits, dropout) for part in self.parts), self.constants)

    def penalty(
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
    ) -> Float[Tensor, ""]:
        """What keeps the factors of some atoms small."""
        each = [part.penalty(heads, relations, tails) for part in self.parts]
        return torch.stack(each).sum()


@dataclass(frozen=True)
class World:
    """A world that log-odds of atoms are asked of."""

    parts: tuple[Prepared, ...]
    constants: int

    def log_odds(
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
    ) -> Float[Tensor, " atoms"]:
        """log P(atom | the rest of the world) - log P(not atom | the rest), for a list of atoms."""
        columns = [index[:, None] for index in (heads, relations, tails)]
        odds = torch.stack([part.log_odds(*columns)[:, 0] for part in self.parts]).sum(0)
        loop = heads == tails
        if bool(loop.any()):
            odds = odds.index_put((loop.nonzero()[:, 0],), self.loops(heads[loop], relations[loop]))
        return odds

    def of_tails(
        self, heads: Int64[Tensor, " queries"], relations: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """The log-odds of r(a, b) for every b but a, where they are not a number of use."""
        every = torch.arange(self.constants)[None]
        indices = heads[:, None], relations[:, None], every
        return torch.stack([part.log_odds(*indices) for part in self.parts]).sum(0)

    def of_heads(
        self, relations: Int64[Tensor, " queries"], tails: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """The log-odds of r(a, b) for every a but b, where they are not a number of use."""
        every = torch.arange(self.constants)[None]
        indices = every, relations[:, None], tails[:, None]
        return torch.stack([part.log_odds(*indices) for part in self.parts]).sum(0)

    def change(
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
        change: Float[Tensor, " atoms"],
    ) -> None:
        """Add to the bits of some atoms, without gradients; see `Prepared.change`."""
        for part in self.parts:
            part.change(heads, relations, tails, change)

    def loops(
        self, constants: Int64[Tensor, " atoms"], relations: Int64[Tensor, " atoms"]
    ) -> Float[Tensor, " atoms"]:
        """The log-odds of r(a, a)."""
        each = [part.log_odds_of_loops(constants, relations) for part in self.parts]
        return torch.stack(each).sum(0)


def _constants(space: Space) -> int:
    """The number of constants of a space that is one of triples; any other is refused."""
    for block in space.blocks:
        attribute = block.attribute
        if not attribute.boolean or attribute.arity != 2 or not block.plain:
            raise InputError(
                f"{attribute.declaration()} is not a plain relation between two constants. A knowledge "
                "base has Boolean predicates over pairs, neither symmetric nor irreflexive."
            )
    if len(space.domain) != 1:
        raise InputError(
            f"a knowledge base has constants of one sort, but these are {', '.join(space.domain)}."
        )
    return len(next(iter(space.domain.values())))
