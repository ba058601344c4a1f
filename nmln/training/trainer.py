"""One run of training: its parts, one step, and all that must be kept to go on."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Float64, Integer
from torch import Generator, Tensor

from nmln.config import Config
from nmln.distributed import Ranks
from nmln.files import InputError
from nmln.potentials.base import BasePotential, ScoreError
from nmln.training.chains import Chains, Followed
from nmln.training.method import Method
from nmln.training.objective import Phases, accumulate_gradient, accumulate_local_gradient
from nmln.training.optimiser import (
    clip_by_level,
    follow,
    learning_rate,
    make_optimiser,
    next_pace,
    paced,
)
from nmln.types import Evaluations, Values

Part = TypeVar("Part")


@dataclass(frozen=True)
class Metrics:
    """What one step tells; lists go from the noisiest level to the target."""

    step: int
    learning_rate: float
    gap: tuple[float, ...]  # mean score of the data less that of the chains
    score: tuple[float, ...]  # of the data
    gradient: tuple[float, ...]  # norm, before clipping
    acceptance: tuple[float, ...]
    moved: tuple[float, ...]
    swaps: tuple[float, ...]  # mean probability for each pair
    evaluations: int  # worlds scored so far, with and without slopes
    log_z: tuple[float, ...] = ()  # as the chains have followed it
    moves: int = 0  # in each sweep of this step
    effective_share: float = 1.0  # of the chains, by what the update made of them
    pace: tuple[float, ...] = ()  # of each level, as a share of the learning rate


class Trainer:
    """Everything that changes in a run, and the step that changes it.

    A step moves the parameters along the gradient between corrupted data and the persistent chains, then
    lets the chains follow for some sweeps. `tree` is all that is needed to go on bit for bit.
    """

    def __init__(
        self,
        potential: BasePotential,
        worlds: Integer[Tensor, "worlds groups"],
        config: Config,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.ranks = config, ranks or Ranks()
        self.space, self.worlds = potential.space, worlds
        self.method = Method.of(config.ladder)
        if not len(worlds):
            raise InputError("there are no worlds to train on.")
        if self.replicas < 1 or self.batch < 1:
            raise InputError(
                f"{self.ranks.count} processes share {config.chains.replicas} replicas and a batch of "
                f"{config.training.batch}: each needs at least one. Take fewer processes."
            )
        if config.chains.renewal and config.ladder.method != "noising":
            raise InputError(
                "chains are renewed from corrupted data at the noisiest level, which only noising fits "
                "to them. Set chains.renewal to 0."
            )
        if potential.levels != self.method.trained_levels:
            raise InputError(
                f"this ladder trains {self.method.trained_levels} levels, but the potential has "
                f"{potential.levels}."
            )
        _refuse_forbidden(potential, self.method, worlds)
        self.potential = potential
        self.average = deepcopy(potential) if config.optimiser.average else None
        self.optimiser = make_optimiser(potential.parameters(), config.optimiser, potential.levels)
        self.step_number, self.slowed = 0, 1.0
        self.pace = torch.ones(potential.levels, dtype=torch.float64)
        self.data_rng, chain_rng = Generator(), Generator()
        self._seed_generators(chain_rng)
        self.chains = Chains(
            potential, self.method, config.chains, worlds, self.replicas, chain_rng
        )
        self.epoch: Values | None = None

    def _seed_generators(self, chain_rng: Generator, salt: int = 0) -> None:
        """Every process draws for itself; a run on other processes starts new streams."""
        mixed = (
            self.config.training.seed
            + 7919 * self.ranks.rank
            + 104729 * self.ranks.count
            + 1299709 * salt
        )
        self.data_rng.manual_seed(2 * mixed % 2**64)
        chain_rng.manual_seed((2 * mixed + 1) % 2**64)

    @property
    def replicas(self) -> int:
        """How many of all replicas run in this process."""
        return self.ranks.share(self.config.chains.replicas)

    @property
    def batch(self) -> int:
        return self.ranks.share(self.config.training.batch)

    @property
    def values(self) -> Values:
        """The worlds of the chains."""
        return self.chains.values

    @property
    def evaluations(self) -> Evaluations:
        """What the chains have cost in this process."""
        return self.chains.evaluations

    @property
    def warming(self) -> bool:
        """Whether the next step is one of those at the start that learn by pseudo-likelihood."""
        return self.step_number < self.config.training.warm_start

    def step(self) -> Metrics:
        """One update of the parameters, then sweeps of the chains under the new ones."""
        optimiser = self.config.optimiser
        rate = self.slowed * learning_rate(optimiser, self.step_number, self.config.training.steps)
        phases, norms = self._update(rate)
        if self.average is not None:
            follow(self.average, self.potential, optimiser.average, self.step_number)
        moves = 0 if self.warming else self.chains.moves
        followed = self._shared(self._follow)
        self.step_number += 1
        return self._metrics(rate, phases, norms, followed, moves)

    def _update(self, rate: float) -> tuple[Phases, Float[Tensor, " levels"]]:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=False)
        phases = self._shared(self._accumulate)
        self.ranks.average_gradients(self.potential.parameters())
        norms = clip_by_level(
            self.potential.parameters(), self.potential.levels, self.config.optimiser.clip
        )
        with paced(self.potential.parameters(), self.pace):
            self.optimiser.step()
        return phases, norms

    def _accumulate(self) -> Phases:
        if self.warming:
            return accumulate_local_gradient(self.potential, self._minibatch(), self.data_rng)
        return accumulate_gradient(
            self.potential,
            self._minibatch(),
            self.method.negative(self.values),
            penalty=self.config.optimiser.energy_penalty,
            spread=self.config.optimiser.spread,
        )

    def _follow(self) -> Followed:
        if self.warming:
            return self.chains.wait(self.potential)
        return self.chains.follow(self.potential, self.step_number)

    def _shared(self, work: Callable[[], Part]) -> Part:
        """Do a part of a step, and fail on all processes when a score fails on one.

        Otherwise the others would wait for an average that never comes.
        """
        done, failure = None, None
        try:
            done = work()
        except ScoreError as error:
            failure = error
        if self.ranks.agree(failure is not None):
            raise failure or ScoreError("in another process", self.values[-1, 0])
        assert done is not None
        return done

    def _minibatch(self) -> Values:
        """Data corrupted afresh for this step, or taken from copies that serve for an epoch."""
        chosen = torch.randint(len(self.worlds), (self.batch,), generator=self.data_rng)
        if self.config.training.corruption == "step":
            return self.method.corrupt(self.space, self.worlds[chosen], self.data_rng)
        steps = ceil(len(self.worlds) / self.config.training.batch)
        if self.epoch is None or self.step_number % steps == 0:
            self.epoch = self.method.corrupt(self.space, self.worlds, self.data_rng)
        return self.epoch[:, chosen]

    @torch.no_grad()
    def log_likelihood(
        self, worlds: Integer[Tensor, "worlds groups"]
    ) -> Float64[Tensor, " levels"]:
        """The mean log-probability of worlds at every trained level, by the log Z that was followed."""
        scores = self.potential.score(worlds.expand(self.potential.levels, -1, -1))
        return scores.double().mean(1).cpu() - self.chains.log_z

    def _metrics(
        self,
        rate: float,
        phases: Phases,
        norms: Float[Tensor, " levels"],
        followed: Followed,
        moves: int,
    ) -> Metrics:
        info = followed.info
        pairs = torch.full((self.method.chain_levels - 1,), float("nan"))
        for swap in followed.swaps:
            if swap.pairs:
                pairs[list(swap.pairs)] = swap.probabilities.float().mean(1)
        worlds = torch.tensor([float(self.evaluations.scores + self.evaluations.slopes)])
        columns = [phases.gap, phases.positive, info.acceptance, info.moved, pairs, worlds]
        gap, score, acceptance, moved, swapped, worlds, growth, shares = self.ranks.average(
            [*columns, followed.growth, followed.shares]
        )
        if moves:
            self.chains.learn(growth, shares, float(acceptance[-1]))
        if self.config.optimiser.trust:
            self.pace = next_pace(self.pace, shares, self.config.optimiser.trust)
        return Metrics(
            step=self.step_number,
            learning_rate=rate,
            gap=tuple(gap.tolist()),
            score=tuple(score.tolist()),
            gradient=tuple(norms.tolist()),
            acceptance=tuple(acceptance.tolist()),
            moved=tuple(moved.tolist()),
            swaps=tuple(swapped.tolist()),
            evaluations=round(float(worlds) * self.ranks.count),
            log_z=tuple(self.chains.log_z.tolist()),
            moves=moves,
            effective_share=self.chains.effective_share,
            pace=tuple(self.pace.tolist()),
        )

    # All of a run as named tensors and plain values.

    def tree(self) -> dict[str, Any]:
        """The whole state of the run on this process and, gathered, the chains of all."""
        own = {
            **self.chains.tree(),
            "data_rng": self.data_rng.get_state(),
            "epoch": self.epoch,
        }
        parts = self.ranks.gather(own)
        return {
            "step": self.step_number,
            "slowed": self.slowed,
            "pace": self.pace,
            "potential": dict(self.potential.state_dict()),
            "average": None if self.average is None else dict(self.average.state_dict()),
            "optimiser": self.optimiser.state_dict(),
            "ranks": parts,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        """Go on from a tree; on another number of processes the chains are dealt out anew."""
        self.step_number, self.slowed = tree["step"], tree["slowed"]
        self.pace = tree["pace"].clone()
        self.potential.load_state_dict(tree["potential"])
        if self.average is not None and tree["average"] is not None:
            self.average.load_state_dict(tree["average"])
        self.optimiser.load_state_dict(deepcopy(tree["optimiser"]))  # torch would share it
        parts = tree["ranks"]
        if len(parts) == self.ranks.count:
            own = parts[self.ranks.rank]
            self.chains.restore(own)
            self.epoch = own["epoch"]
            self.data_rng.set_state(own["data_rng"])
            return
        first, count = self.ranks.slice(self.config.chains.replicas)
        self.chains.restore_share(parts, first, count, self.potential)
        self.epoch = None
        self._seed_generators(self.chains.rng, salt=1 + self.step_number)


@torch.no_grad()
def _refuse_forbidden(
    potential: BasePotential, method: Method, worlds: Integer[Tensor, "worlds groups"]
) -> None:
    """A hard formula cannot be trained under if corrupted data violate it: their likelihood is zero."""
    rng = Generator().manual_seed(0)
    values = method.corrupt(potential.space, worlds[:200], rng)
    broken = torch.nonzero(potential.violations_of(values) > 0)
    if not len(broken):
        return
    level, chain = broken[0].tolist()
    names = potential.forbidden_by(level, values[level, chain])
    told = f" ({names[0]})" if names else ""
    raise InputError(
        f"a hard formula{told} forbids data that are corrupted at the rate "
        f"{method.noise.rates[level]}, so they have no likelihood. Give the formula a weight for "
        "training; hard formulas can be added when sampling."
    )
