"""Fixed blocks of replicas and data, each with random streams of its own.

A block has replicas of every domain that the data have, as `DomainBlock`s.

Which process works on a block does not matter: a block's numbers depend on its place among the blocks
only, and their results are added up in the order of the blocks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from nmln.config import Config
from nmln.devices import continues, generator
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

    def seed(self, training_seed: int, salt: int = 0, domain: int = 0) -> int:
        """Where the streams of this block start; runs dealt into other blocks have other streams."""
        own = 7919 * self.number + 104729 * self.count + 15485863 * domain
        return training_seed + own + 1299709 * salt


class Learned(NamedTuple):
    """One domain of a training: the potential there, its data, and its part of every step."""

    number: int
    potential: BasePotential
    worlds: Integer[Tensor, "worlds groups"]
    share: float  # of all data
    replicas: int  # in all blocks
    batch: int  # in all blocks


class DomainBlock:
    """The replicas of one block on one domain, their share of a minibatch, and the streams of both."""

    def __init__(self, place: BlockPlace, domain: Learned, method: Method, config: Config) -> None:
        self.place, self.domain, self.config, self.method = place, domain, config, method
        self.space, self.worlds = domain.potential.space, domain.worlds
        self.shares = method.shares(domain.potential)
        self.batch = place.share(domain.batch)
        self.data_rng, chain_rng = (generator(domain.potential.device) for _ in range(2))
        self.seed(chain_rng)
        replicas = place.share(domain.replicas)
        self.chains = Chains(
            domain.potential, method, config.chains, domain.worlds, replicas, chain_rng
        )
        self.epoch: Values | None = None

    def seed(self, chain_rng: Generator, salt: int = 0) -> None:
        mixed = self.place.seed(self.config.training.seed, salt, self.domain.number)
        self.data_rng.manual_seed(2 * mixed % 2**64)
        chain_rng.manual_seed((2 * mixed + 1) % 2**64)

    def minibatch(self, step: int) -> Values:
        """Data corrupted afresh for this step, or taken from copies that serve for an epoch."""
        chosen = torch.randint(
            len(self.worlds), (self.batch,), generator=self.data_rng, device=self.worlds.device
        )
        if self.config.training.corruption == "step":
            return self._corrupted(self.worlds[chosen])
        steps = ceil(len(self.worlds) / self.domain.batch)
        if self.epoch is None or step % steps == 0:
            self.epoch = self._corrupted(self.worlds)
        return self.epoch[:, chosen]

    def _corrupted(self, worlds: Integer[Tensor, "worlds groups"]) -> Values:
        return self.method.corrupt(self.space, worlds, self.data_rng, self.shares)

    def tree(self) -> dict[str, Any]:
        """Everything that is needed to continue, as named tensors and plain values."""
        return {
            **self.chains.tree(),
            "data_rng": self.data_rng.get_state(),
            "epoch": self.epoch,
        }

    def restore(self, part: dict[str, Any], step: int) -> bool:
        """Continue from the tree of the same block.

        On another kind of device with new random numbers; then it returns False.
        """
        self.chains.restore(part)
        self.epoch = None if part["epoch"] is None else part["epoch"].to(self.worlds.device)
        if continues(self.data_rng, part["data_rng"]):
            self.chains.rng.set_state(part["chain_rng"])
            self.data_rng.set_state(part["data_rng"])
            return True
        self.seed(self.chains.rng, salt=1 + step)
        return False

    def restore_share(self, parts: list[dict[str, Any]], step: int) -> None:
        """Continue with a share of the replicas of a run that was dealt into other blocks."""
        first, count = Ranks(self.place.number, self.place.count).slice(self.domain.replicas)
        self.chains.restore_share(parts, first, count, self.domain.potential)
        self.epoch = None
        self.seed(self.chains.rng, salt=1 + step)


class ReplicaBlock:
    """A block: its replicas and data on every domain."""

    def __init__(
        self, place: BlockPlace, domains: Sequence[Learned], method: Method, config: Config
    ) -> None:
        self.place = place
        self.parts = [DomainBlock(place, domain, method, config) for domain in domains]

    @property
    def chains(self) -> Chains:
        """The chains on the first domain."""
        return self.parts[0].chains

    def tree(self) -> dict[str, Any]:
        """Everything that is needed to continue; that of a single domain is its own."""
        trees = [part.tree() for part in self.parts]
        return trees[0] if len(trees) == 1 else {"domains": trees}

    def restore(self, tree: dict[str, Any], step: int) -> bool:
        """Continue from the tree of the same block; False if with new random numbers."""
        each = zip(self.parts, _trees(tree), strict=True)
        kept = [part.restore(found, step) for part, found in each]
        return all(kept)

    def restore_share(self, trees: list[dict[str, Any]], step: int) -> None:
        """Continue with a share of the replicas of a run that was dealt into other blocks."""
        for part, found in zip(self.parts, zip(*map(_trees, trees), strict=True), strict=True):
            part.restore_share(list(found), step)


def _trees(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return tree.get("domains", [tree])


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
