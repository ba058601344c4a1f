"""Factors: what an atom is worth by itself."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn

from nmln.knowledge.terms import Bits, Dropout, Index, Part, Prepared, Worlds


class Factors(Part):
    """Every true atom r(a, b) adds Re<e_a, w_r, conj(e_b)> and a bias, as in ComplEx.

    Constants and relations have complex vectors of `rank` numbers. Loops r(a, a) have a bias of their
    own, because most relations are never true of a constant and itself.
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

    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> "PreparedFactors":
        constants, relations = self.constants, self.relations
        if dropout is not None:
            constants, relations = dropout(constants), dropout(relations)
        return PreparedFactors(constants, relations, self.bias, self.loop_bias)

    def penalty(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Float[Tensor, ""]:
        """The cubed moduli of the vectors (the nuclear 3-norm of the factorised tensor)."""
        used = (self.constants[:, heads], self.relations[:, relations], self.constants[:, tails])
        return sum((_cubed_moduli(vectors) for vectors in used), torch.zeros(()))


def _cubed_moduli(vectors: Float[Tensor, "2 atoms rank"]) -> Float[Tensor, ""]:
    return (vectors.square().sum(0) + 1e-12).pow(1.5).sum(-1).mean()


@dataclass(frozen=True)
class PreparedFactors(Prepared):
    """The vectors; they do not depend on the world."""

    constants: Float[Tensor, "2 constants rank"]
    relations: Float[Tensor, "2 relations rank"]
    bias: Float[Tensor, " relations"]
    loop_bias: Float[Tensor, " relations"]

    def log_odds(
        self, heads: Index, relations: Index, tails: Index
    ) -> Float[Tensor, "rows columns"]:
        (x, y), (u, v) = self.constants, self.relations
        u, v = u[relations], v[relations]
        if len(heads) == 1 or heads.shape[1] > 1:  # one side with the relation, then the other
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
