"""Paths: what two steps from a to c to b say of the pair (a, b)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn

from nmln.knowledge.terms import Bits, Dropout, Index, Part, Prepared, Worlds
from nmln.potentials.base import uniform_weights


class Paths(Part):
    """Fragments of three constants, scored by products: sum of A(a, c) B(c, b) C(a, b).

    A, B and C are `features` linear functions of the relations between two constants, both ways. All
    three constants differ. A product is linear in each pair, so that matrix products over the middle
    constant give the log-odds of all atoms at once: rules such as r(a, c) and s(c, b) imply t(a, b),
    for as many constants as a table of pairs can be held for.
    """

    def __init__(self, constants: int, relations: int, features: int, rng: Generator) -> None:
        super().__init__()
        self.scale = max(1, constants - 2) ** -0.5
        self.weights = uniform_weights((3, 2, relations, features), 2, rng, gain=0.5)
        self.bias = nn.Parameter(torch.zeros(3, features))
        self.readout = uniform_weights((features,), features, rng, gain=0.5)

    def sides(self, worlds: Worlds) -> list[Float[Tensor, "worlds features heads tails"]]:
        """A, B and C of all pairs, zero where both constants are the same."""
        apart = 1 - torch.eye(worlds.shape[1], dtype=worlds.dtype)
        found = []
        for (forth, back), bias in zip(self.weights, self.bias, strict=True):
            side = worlds @ forth + worlds.transpose(1, 2) @ back + bias
            found.append(side.permute(0, 3, 1, 2).contiguous() * apart)
        return found

    def forward(self, worlds: Worlds) -> Float[Tensor, " worlds"]:
        first, second, across = self.sides(worlds)
        return ((first @ second) * across).sum((2, 3)) @ self.readout * self.scale

    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> "PreparedPaths":
        first, second, across = (side[0] for side in self.sides(bits[None]))
        readout = self.readout if dropout is None else dropout(self.readout)
        # What each side of a pair is multiplied by, summed over the third constant.
        around = (across @ second.mT, first.mT @ across, first @ second)
        scaled = torch.stack(around) * (readout * self.scale)[:, None, None]
        return PreparedPaths(scaled.permute(0, 2, 3, 1), self.weights)


@dataclass(frozen=True)
class PreparedPaths(Prepared):
    """What the other two sides say, for every side and pair."""

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
