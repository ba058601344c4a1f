"""The potential of a knowledge base: a sum of parts, and the log-odds of atoms that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Generator, Tensor, nn

from nmln.errors import InputError
from nmln.knowledge.fragments import KnowledgeFragments
from nmln.knowledge.parts import (
    AtomFactors,
    Bits,
    Dropout,
    PathProducts,
    PotentialPart,
    PreparedPart,
)
from nmln.potentials.base import NeuralPotential
from nmln.space import Space
from nmln.types import Changes, OneHot, Scores, Ties, Values

_MOST_TIED = 4096  # free atoms whose ties are listed; the cost is quadratic


@dataclass(frozen=True)
class Shape:
    """The sizes of the parts of a knowledge-base potential; a part of size 0 is left out.

    Args:
        width: constants per fragment, 2 or 3.
        hidden: hidden units of the network on fragments; 0 leaves the network out.
        embedding: length of the learned vector of a constant that the network sees.
        rank: length of the complex vectors of the factors of single atoms; 0 leaves them out.
        paths: number of products along paths of two steps; 0 leaves them out.
    """

    width: int = 2
    hidden: int = 64
    embedding: int = 16
    rank: int = 64
    paths: int = 0

    def __post_init__(self) -> None:
        if self.width not in (2, 3):
            raise InputError(
                f"width must be 2 (pairs) or 3 (triples of constants), got {self.width}."
            )
        if min(self.hidden, self.embedding, self.rank, self.paths) < 0:
            raise InputError(f"all sizes must be 0 or more, got {self}.")
        if not max(self.hidden, self.rank, self.paths):
            raise InputError(
                "a potential needs at least one part, got hidden, rank and paths all 0. "
                "Set one of them above 0.",
                kind="empty",
            )


class KnowledgePotential(NeuralPotential):
    """A potential over Boolean relations between the constants of one sort, with embeddings.

    It is the sum of factors of single atoms, a network on the fragments of all pairs (or triples) of
    constants, and products along paths; see `Shape`. It has one level. `score` is meant for small
    domains; `prepare` is meant for large ones and gives the log-odds of single atoms.

    Args:
        space: Boolean relations over pairs of constants of one sort.
        shape: the sizes of the parts.
        rng: draws the initial parameters; a fixed seed by default.
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
                f"fragments of width {shape.width} need at least {shape.width} constants, got "
                f"{self.constants}. Use width 2, or a larger domain."
            )
        parts: list[PotentialPart] = []
        sizes = self.constants, self.relations
        if shape.rank:
            parts.append(AtomFactors(*sizes, shape.rank, 0.5 / shape.rank**0.25, rng))
        if shape.hidden:
            parts.append(
                KnowledgeFragments(*sizes, shape.width, shape.hidden, shape.embedding, rng)
            )
        if shape.paths:
            parts.append(PathProducts(*sizes, shape.paths, rng))
        self.parts: Sequence[PotentialPart] = nn.ModuleList(parts)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def worlds_at_a_time(self) -> int:
        """So many that the tables of all pairs of constants stay small."""
        widest = max(self.relations, self.shape.hidden, self.shape.paths)
        return max(1, 2**22 // (self.constants**2 * widest))

    @property
    def pairwise(self) -> bool:
        """Whether no part depends on more than two constants at once."""
        return not self.shape.paths and (self.shape.width == 2 or not self.shape.hidden)

    def bits(self, world: Integer[Tensor, " groups"]) -> Bits:
        """A world as zeros and ones, indexed by head, tail and relation."""
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
        """Score changes of single atoms, from the fragments that contain them."""
        heads, relations, tails = self.atoms(groups)
        found = []
        for world in values[0]:
            odds = self.prepare(self.bits(world)).log_odds(heads, relations, tails)
            now = world[groups].to(odds.dtype)
            found.append(torch.stack([-now * odds, (1 - now) * odds], dim=-1))
        return torch.stack(found)[None]

    def ties(self, free: Bool[Tensor, " groups"]) -> Ties | None:
        """Pairs of free atoms whose constants fit into one fragment; None for too many free atoms."""
        groups = free.nonzero()[:, 0]
        if len(groups) > _MOST_TIED:
            return None
        if not self.shape.hidden and not self.shape.paths:
            return groups.new_zeros(2, 0)
        heads, _, tails = self.atoms(groups)
        ends = torch.stack([heads, tails])
        width = 2 if self.pairwise else 3
        extra = (ends[0] != ends[1]).long()[
            :, None
        ] + 1  # the number of constants of the first atom
        new_head = (ends[0] != ends[0][:, None]) & (ends[0] != ends[1][:, None])
        new_tail = (ends[1] != ends[0][:, None]) & (ends[1] != ends[1][:, None])
        union = extra + new_head.long() + (new_tail & (ends[0] != ends[1])).long()
        first, second = (union <= width).triu(1).nonzero().T
        return torch.stack([groups[first], groups[second]])

    def atoms(self, groups: Int64[Tensor, " some"]) -> tuple[Tensor, Tensor, Tensor]:
        """Head, relation and tail of some groups."""
        n = self.constants
        return groups // n % n, groups // (n * n), groups % n

    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> "PreparedWorld":
        """Compute what all atoms of one world share, so that their log-odds are cheap."""
        return PreparedWorld(
            tuple(part.prepare(bits, dropout) for part in self.parts), self.constants
        )

    def penalty(
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
    ) -> Float[Tensor, ""]:
        """The regulariser of the factors of some atoms."""
        each = [part.penalty(heads, relations, tails) for part in self.parts]
        return torch.stack(each).sum()


@dataclass(frozen=True)
class PreparedWorld:
    """One world with all parts prepared for it; gives the log-odds of its atoms."""

    parts: tuple[PreparedPart, ...]
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
        """The log-odds of r(a, b) for every tail b; the entry of b = a has no meaning."""
        every = torch.arange(self.constants)[None]
        indices = heads[:, None], relations[:, None], every
        return torch.stack([part.log_odds(*indices) for part in self.parts]).sum(0)

    def of_heads(
        self, relations: Int64[Tensor, " queries"], tails: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """The log-odds of r(a, b) for every head a; the entry of a = b has no meaning."""
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
        """Add to the bits of some atoms, without gradients; see `PreparedPart.change`."""
        for part in self.parts:
            part.change(heads, relations, tails, change)

    def loops(
        self, constants: Int64[Tensor, " atoms"], relations: Int64[Tensor, " atoms"]
    ) -> Float[Tensor, " atoms"]:
        """The log-odds of r(a, a)."""
        each = [part.log_odds_of_loops(constants, relations) for part in self.parts]
        return torch.stack(each).sum(0)


def _constants(space: Space) -> int:
    """The number of constants of a space of triples; any other space is an error."""
    for block in space.blocks:
        attribute = block.attribute
        if not attribute.boolean or attribute.arity != 2 or not block.plain:
            raise InputError(
                "every attribute of a knowledge base must be a plain Boolean relation between two "
                f"constants, neither symmetric nor irreflexive, got {attribute.declaration()}.",
                token=attribute.name,
                kind="unsupported",
            )
    if len(space.domain) != 1:
        raise InputError(
            f"a knowledge base must have constants of one sort, got {', '.join(space.domain)}.",
            kind="unsupported",
        )
    return len(next(iter(space.domain.values())))
