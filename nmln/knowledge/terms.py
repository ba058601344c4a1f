"""What the parts of a knowledge-base potential have in common.

Every part is a sum over fragments of a world, given as bits (head, tail, relation). It scores whole
worlds, and it tells the log-odds of single atoms given the rest of a world without scoring that: first
`prepare` works out for one world what all of its atoms share, then `log_odds` costs only the fragments
that the atoms are in.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn

Bits = Float[Tensor, "heads tails relations"]
Worlds = Float[Tensor, "worlds heads tails relations"]
Index = Int64[Tensor, "#rows #columns"]
"""Constants or relations of a grid of atoms; an axis of length one is repeated along the other."""


@dataclass(frozen=True)
class Dropout:
    """Which share of the features to leave out while training, and what draws them."""

    share: float
    rng: Generator

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor with a share of its numbers set to zero and the others scaled up."""
        if not self.share:
            return tensor
        kept = torch.rand(tensor.shape, generator=self.rng) >= self.share
        return tensor * (kept.to(tensor.dtype) / (1 - self.share))


class Prepared(ABC):
    """What a part knows of one world."""

    @abstractmethod
    def log_odds(
        self, heads: Index, relations: Index, tails: Index
    ) -> Float[Tensor, "rows columns"]:
        """How much the part scores higher with an atom true than false, all else as it is.

        Only for atoms of two different constants.
        """

    @abstractmethod
    def log_odds_of_loops(
        self, constants: Int64[Tensor, " atoms"], relations: Int64[Tensor, " atoms"]
    ) -> Float[Tensor, " atoms"]:
        """The same for atoms r(a, a)."""

    def change(  # noqa: B027 (most parts need not follow)
        self,
        heads: Int64[Tensor, " atoms"],
        relations: Int64[Tensor, " atoms"],
        tails: Int64[Tensor, " atoms"],
        change: Float[Tensor, " atoms"],
    ) -> None:
        """Follow a change of atoms: the log-odds of their own pairs are right afterwards.

        Those of pairs that share one constant with them may not be. Only without gradients.
        """


class Part(nn.Module, ABC):
    """One summand of the potential."""

    @abstractmethod
    def forward(self, worlds: Worlds) -> Float[Tensor, " worlds"]:
        """The score of whole worlds, differentiable in bits and parameters."""

    @abstractmethod
    def prepare(self, bits: Bits, dropout: Dropout | None = None) -> Prepared:
        """What all atoms of a world share; with `dropout` for one training step."""

    def penalty(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Float[Tensor, ""]:
        """What keeps the factors of some atoms small; nothing for most parts."""
        return torch.zeros(())
