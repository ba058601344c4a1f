"""Fixed blocks of replicas and data, each with random streams of its own.

Which process works on a block does not matter: a block's numbers depend on its place among the blocks
only, and their results are added up in the order of the blocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from nmln.config import Config
from nmln.distributed import Ranks
from nmln.potentials.base import BasePotential
from nmln.training.chains import Chains
from nmln.training.method import Method
from nmln.types import Values


@dataclass(frozen=True)
class BlockPlace:
    """The place of a block among all: `number` of `count`."""

    number: int
    count: int

    def share(self, total: int) -> int:
        """How many of `total` things belong to this block."""
        return Ranks(self.number, self.count).share(total)

    def seed(self, training_seed: int, salt: int = 0) -> int:
        """Where the streams of this block start; runs dealt into other blocks have other streams."""
        return training_seed + 7919 * self.number + 104729 * self.count + 1299709 * salt


class ReplicaBlock:
    """The replicas of one block, its share of every minibatch, and the streams of both."""

    def __init__(
        self,
        place: BlockPlace,
        potential: BasePotential,
        method: Method,
        config: Config,
        worlds: Integer[Tensor, "worlds groups"],
    ) -> None:
        self.place, self.config, self.method = place, config, method
        self.space, self.worlds = potential.space, worlds
        self.batch = place.share(config.training.batch)
        self.data_rng, chain_rng = Generator(), Generator()
        self.seed(chain_rng)
        replicas = place.share(config.chains.replicas)
        self.chains = Chains(potential, method, config.chains, worlds, replicas, chain_rng)
        self.epoch: Values | None = None

    def seed(self, chain_rng: Generator, salt: int = 0) -> None:
        mixed = self.place.seed(self.config.training.seed, salt)
        self.data_rng.manual_seed(2 * mixed % 2**64)
        chain_rng.manual_seed((2 * mixed + 1) % 2**64)

    def minibatch(self, step: int) -> Values:
        """Data corrupted afresh for this step, or taken from copies that serve for an epoch."""
        chosen = torch.randint(len(self.worlds), (self.batch,), generator=self.data_rng)
        if self.config.training.corruption == "step":
            return self.method.corrupt(self.space, self.worlds[chosen], self.data_rng)
        steps = ceil(len(self.worlds) / self.config.training.batch)
        if self.epoch is None or step % steps == 0:
            self.epoch = self.method.corrupt(self.space, self.worlds, self.data_rng)
        return self.epoch[:, chosen]

    def tree(self) -> dict[str, Any]:
        """Everything that is needed to continue, as named tensors and plain values."""
        return {
            **self.chains.tree(),
            "data_rng": self.data_rng.get_state(),
            "epoch": self.epoch,
        }

    def restore(self, part: dict[str, Any]) -> None:
        """Continue from the tree of the same block."""
        self.chains.restore(part)
        self.epoch = part["epoch"]
        self.data_rng.set_state(part["data_rng"])

    def restore_share(
        self, parts: list[dict[str, Any]], potential: BasePotential, step: int
    ) -> None:
        """Continue with a share of the replicas of a run that was dealt into other blocks."""
        first, count = Ranks(self.place.number, self.place.count).slice(self.config.chains.replicas)
        self.chains.restore_share(parts, first, count, potential)
        self.epoch = None
        self.seed(self.chains.rng, salt=1 + step)


def take_gradient(parameters: Iterable[nn.Parameter]) -> Float[Tensor, " parameters"]:
    """The gradient of all parameters in one vector; afterwards it is zero."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    for gradient in gradients:
        gradient.zero_()
    return flat


def put_gradient(parameters: Iterable[nn.Parameter], flat: Float[Tensor, " parameters"]) -> None:
    """Make a vector the gradient of all parameters."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    for gradient, part in zip(
        gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
    ):
        gradient.copy_(part.view_as(gradient))
