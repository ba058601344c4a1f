"""Sweeps of the chains of a finished training under the parameters that sampling uses.

The persistent chains have followed parameters that changed; the model has their moving average. Some
sweeps under it make the chains those of the model, so that sampling can start from them.
"""

from typing import NamedTuple

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.adaptation import with_sizes
from nmln.potentials.base import BasePotential, ScoreError
from nmln.sampler import advance, start
from nmln.training.chains import Chains
from nmln.training.trainer import Trainer
from nmln.types import Kernel, State, Values, Walkers

LEAST_TRAINED = 300
"""Sweeps that the chains of a training must have made to be kept: as many as a burn-in from noise."""

_LEAST, _MOST = 50, 100  # sweeps of the mixing
_SHARE = 20  # one sweep of mixing for so many of the training, between the two
_LEFT = 0.05  # of the chains, beyond chance: that may still be where they were


def mixing_sweeps(trainer: Trainer) -> int:
    """How many sweeps the chains take at the end of a training; 0 if they are not worth keeping.

    They are kept after a training that was no shorter than a burn-in. With one level no world arrives
    from noisier ones, so that copies of a chain could stay alike for ever.
    """
    config = trainer.config
    steps = max(0, trainer.step_number - config.training.warm_start)
    trained = steps * config.chains.sweeps
    if trained < LEAST_TRAINED or trainer.method.chain_levels < 2:
        return 0
    return min(_MOST, max(_LEAST, trained // _SHARE))


class _Running(NamedTuple):
    """The chains of one block on one domain."""

    potential: BasePotential
    kernel: Kernel
    chains: Chains
    state: State
    walkers: Walkers
    rng: Generator


class Mixing:
    """The chains of a trainer under its final parameters; the trainer itself is not changed.

    On several processes each runs its own blocks. The random numbers are those that the chains would
    have continued with: a resumed run keeps the same replicas as an uninterrupted one.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.ranks, self.config, self.number = trainer.ranks, trainer.config.chains, 0
        potential = trainer.average or trainer.potential
        grounded = [
            trainer.method.sampled(potential.on(one.potential.space)) for one in trainer.domains
        ]
        self.running = [
            [_running(part.chains, grounded[part.domain.number]) for part in block.parts]
            for block in trainer.blocks
        ]
        self.target: list[list[list[Values]]] = [[[] for _ in row] for row in self.running]
        self.kept: list[list[list[Values]]] = [[[] for _ in row] for row in self.running]

    @torch.no_grad()
    def sweep(self) -> bool:
        """One sweep of all chains; whether all their scores are numbers."""
        self.number += 1
        parities = (0, 1) if self.config.phases == "both" else (self.number % 2,)
        failed = False
        try:
            for block, row in enumerate(self.running):
                for domain, one in enumerate(row):
                    state, walkers, _, _ = advance(
                        one.potential, one.kernel, one.state, one.walkers, one.rng,
                        one.chains.moves, parities,
                    )  # fmt: skip
                    row[domain] = one._replace(state=state, walkers=walkers)
                    self.target[block][domain].append(state.values[-1:].cpu().clone())
        except ScoreError:
            failed = True
        return not self.ranks.agree(failed)

    def keep(self, domain: int) -> None:
        """Keep the present worlds of a domain."""
        for row, kept in zip(self.running, self.kept, strict=True):
            kept[domain].append(row[domain].state.values.detach().cpu().clone())

    def gathered(self) -> list[tuple[Values, int | None]]:
        """For each domain the kept worlds of all processes, and the sweeps to forget a start."""
        own = {
            "kept": [[torch.cat(one, dim=1) for one in row] for row in self.kept],
            "target": [[torch.cat(one) for one in row] for row in self.target],
        }
        parts = self.ranks.gather(own)
        found = []
        for domain in range(len(self.running[0])):
            values, target = (
                torch.cat([row[domain] for part in parts for row in part[name]], dim=1)
                for name in ("kept", "target")
            )
            found.append((values, forgetting(target)))
        return found


def _running(chains: Chains, potential: BasePotential) -> _Running:
    rng = Generator(device=chains.rng.device)
    rng.set_state(chains.rng.get_state())
    kernel = with_sizes(chains.kernel, chains.tuning)
    with torch.no_grad():
        state = start(potential, kernel, chains.values.clone(), rng)
    return _Running(potential, kernel, chains, state, chains.walkers.clone(), rng)


def forgetting(worlds: Integer[Tensor, "sweeps chains groups"]) -> int | None:
    """The sweeps after which hardly a chain is in the world that it was in, beyond chance.

    Two copies of a chain have about as much in common as it has with its own past. Chance is how often
    two different chains are in one world. None if too many chains stay for half of the sweeps.
    """
    chance = 0.0
    if worlds.shape[1] > 1:
        chance = _alike(worlds, worlds.roll(1, dims=1))
    for lag in range(1, len(worlds) // 2 + 1):
        if _alike(worlds[lag:], worlds[:-lag]) - chance <= _LEFT * (1 - chance):
            return lag
    return None


def _alike(
    ones: Integer[Tensor, "sweeps chains groups"], others: Integer[Tensor, "sweeps chains groups"]
) -> float:
    """The share of worlds that are the same."""
    return float((ones == others).all(-1).double().mean())
