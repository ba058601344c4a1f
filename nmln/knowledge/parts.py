"""The parts of a knowledge-base potential: their common interface, factors of atoms, paths.

A part is a sum over fragments of a world, and the world is given as bits by head, tail and relation. A
part scores whole worlds. It also gives the log-odds of single atoms, given the rest of a world, without
scoring the world again: `prepare` computes once what all atoms of the world share, and `log_odds` then
costs only the fragments that contain the atoms. The largest part, a network on fragments, has a file
of its own: `fragments`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn

from nmln.potentials.layers import uniform_weights

Bits = Float[Tensor, "heads tails relations"]
Worlds = Float[Tensor, "worlds heads tails relations"]
Index = Int64[Tensor, "#rows #columns"]
"""Constants or relations of a grid of atoms; an axis of length one is repeated along the other."""


@dataclass(frozen=True)
class Dropout:
    """The share of features that a training step drops, and the generator that chooses them."""

    share: float
    rng: Generator

    def __call__(self, tensor: Tensor) -> Tensor:
        """Set a share of the numbers to zero and scale up the others, so that the mean stays."""
        if not self.share:
            return tensor
        kept = torch.rand(tensor.shape, generator=self.rng) >= self.share
        return tensor * (kept.to(tensor.dtype) / (1 - self.share))


class PreparedPart(ABC):
    """One part of a potential, prepared for the atoms of one world."""

    @abstractmethod
    def log_odds(
        self, heads: Index, relations: Index, tails: Index
    ) -> Float[Tensor, "rows columns"]:
        """The score with an atom true minus the score with it false, all other atoms fixed.

        Only valid for atoms of two different constants.
        """

    @abstractmethod
    def log_odds_of_loops(
        self, constants: Int64[Tensor, " atoms"], relations: Int64[Tensor, " atoms"]
    ) -> Float[Tensor, " atoms"]:
        """The same difference for atoms r(a, a)."""

    def change(  # noqa: B027 (most parts do not depend on the world)
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
        change: Float[Tensor, " atoms"],
    ) -> None:
        """Add `change` to the bits of some atoms, in place and without gradients.

        The log-odds of the same pairs of constants are correct afterwards. Those of pairs that share
        only one constant with them may be out of date.
        """


class PotentialPart(nn.Module, ABC):
    """One term of the sum that is the potential."""

    @abstractmethod
    def forward(self, worlds: Worlds) -> Float[Tensor, " worlds"]:
        """The score of whole worlds, differentiable in bits and parameters."""

    @abstractmethod
    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> PreparedPart:
        """Compute what all atoms of a world share; `dropout` is for one training step."""

    def penalty(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Float[Tensor, ""]:
        """The regulariser of the factors of some atoms; zero for a part without factors."""
        return torch.zeros(())


class AtomFactors(PotentialPart):
    """Factors of single atoms: a true r(a, b) adds Re<e_a, w_r, conj(e_b)> and a bias, as in ComplEx.

    Constants and relations have complex vectors of `rank` numbers. Loops r(a, a) have an extra bias,
    because most relations never hold between a constant and itself.
    """

    def __init__(self, constants: int, relations: int, rank: int, scale: float, rng: Generator):
        super().__init__()
        self.constants = nn.Parameter(scale * torch.randn(2, constants, rank, generator=rng))
        self.relations = nn.Parameter(scale * torch.randn(2, relations, rank, generator=rng))
        self.bias = nn.Parameter(torch.zeros(relations))
        self.loop_bias = nn.Parameter(torch.zeros(relations))

    def forward(self, worlds: Worlds) -> Float[Tensor, " worlds"]:
        n, relations = len(worlds[0]), worlds.shape[3]
        place = torch.arange(n)[:, None]
        prepared = self.prepare(worlds[0])
        each = [prepared.log_odds(place, torch.full((1, 1), r), place.T) for r in range(relations)]
        odds = torch.stack(each, dim=-1)
        loops = torch.eye(n, dtype=odds.dtype)[..., None] * self.loop_bias
        return (worlds * (odds + loops)).sum((1, 2, 3))

    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> "PreparedAtomFactors":
        constants, relations = self.constants, self.relations
        if dropout is not None:
            constants, relations = dropout(constants), dropout(relations)
        return PreparedAtomFactors(constants, relations, self.bias, self.loop_bias)

    def penalty(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Float[Tensor, ""]:
        """The mean cubed moduli of the vectors: the nuclear 3-norm of the factorised tensor."""
        used = (self.constants[:, heads], self.relations[:, relations], self.constants[:, tails])
        return sum((_cubed_moduli(vectors) for vectors in used), torch.zeros(()))


def _cubed_moduli(vectors: Float[Tensor, "2 atoms rank"]) -> Float[Tensor, ""]:
    return (vectors.square().sum(0) + 1e-12).pow(1.5).sum(-1).mean()


@dataclass(frozen=True)
class PreparedAtomFactors(PreparedPart):
    """The vectors of constants and relations, which do not depend on the world."""

    constants: Float[Tensor, "2 constants rank"]
    relations: Float[Tensor, "2 relations rank"]
    bias: Float[Tensor, " relations"]
    loop_bias: Float[Tensor, " relations"]

    def log_odds(
        self, heads: Index, relations: Index, tails: Index
    ) -> Float[Tensor, "rows columns"]:
        (x, y), (u, v) = self.constants, self.relations
        u, v = u[relations], v[relations]
        if (
            len(heads) == 1 or heads.shape[1] > 1
        ):  # multiply the relation into the side that varies less
            x, y, tx, ty = x[heads], y[heads], x[tails], y[tails]
            given, asked = torch.cat([u * tx + v * ty, u * ty - v * tx], -1), torch.cat([x, y], -1)
        else:
            hx, hy, x, y = x[heads], y[heads], x[tails], y[tails]
            given, asked = torch.cat([u * hx - v * hy, u * hy + v * hx], -1), torch.cat([x, y], -1)
        if given.shape[1] == 1 and len(asked) == 1:
            product = given[:, 0] @ asked[0].T
        else:
            product = (given * asked).sum(-1)
        return product + self.bias[relations]

    def log_odds_of_loops(
        self, constants: Int64[Tensor, " atoms"], relations: Int64[Tensor, " atoms"]
    ) -> Float[Tensor, " atoms"]:
        place = constants[:, None]
        own = self.log_odds(place, relations[:, None], place)[:, 0]
        return own + self.loop_bias[relations]


class PathProducts(PotentialPart):
    """Products along paths of two steps: the sum of A(a, c) B(c, b) C(a, b) over a, b and c.

    A, B and C are `features` linear functions of the relations between two constants, in both
    directions, and all three constants differ. They express rules such as r(a, c) and s(c, b) imply
    t(a, b). A product is linear in each pair, so matrix products over the middle constant give the
    log-odds of all atoms at once. Memory is that of a few tables of all pairs of constants.
    """

    def __init__(self, constants: int, relations: int, features: int, rng: Generator) -> None:
        super().__init__()
        self.scale = max(1, constants - 2) ** -0.5
        self.weights = uniform_weights((3, 2, relations, features), 2, rng, gain=0.5)
        self.bias = nn.Parameter(torch.zeros(3, features))
        self.readout = uniform_weights((features,), features, rng, gain=0.5)

    def sides(self, worlds: Worlds) -> list[Float[Tensor, "worlds features heads tails"]]:
        """A, B and C for all pairs of constants; zero where both constants are the same."""
        apart = 1 - torch.eye(worlds.shape[1], dtype=worlds.dtype)
        found = []
        for (forth, back), bias in zip(self.weights, self.bias, strict=True):
            side = worlds @ forth + worlds.transpose(1, 2) @ back + bias
            found.append(side.permute(0, 3, 1, 2).contiguous() * apart)
        return found

    def forward(self, worlds: Worlds) -> Float[Tensor, " worlds"]:
        first, second, across = self.sides(worlds)
        return ((first @ second) * across).sum((2, 3)) @ self.readout * self.scale

    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> "PreparedPathProducts":
        first, second, across = (side[0] for side in self.sides(bits[None]))
        readout = self.readout if dropout is None else dropout(self.readout)
        # The factor of each side at a pair: the other two sides, summed over the third constant.
        around = (across @ second.mT, first.mT @ across, first @ second)
        scaled = torch.stack(around) * (readout * self.scale)[:, None, None]
        return PreparedPathProducts(scaled.permute(0, 2, 3, 1), self.weights)


@dataclass(frozen=True)
class PreparedPathProducts(PreparedPart):
    """For each side and pair of constants, the sum of products of the other two sides."""

    around: Float[Tensor, "3 heads tails features"]
    weights: Float[Tensor, "3 2 relations features"]

    def log_odds(
        self, heads: Index, relations: Index, tails: Index
    ) -> Float[Tensor, "rows columns"]:
        total = self.around.new_zeros(())
        for around, (forth, back) in zip(self.around, self.weights, strict=True):
            total = total + (around[heads, tails] * forth[relations]).sum(-1)
            total = total + (around[tails, heads] * back[relations]).sum(-1)
        return total

    def log_odds_of_loops(
        self, constants: Int64[Tensor, " atoms"], relations: Int64[Tensor, " atoms"]
    ) -> Float[Tensor, " atoms"]:
        return self.around.new_zeros(len(constants))
