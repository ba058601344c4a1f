"""One run of training: its parts, one step, and all that must be kept to go on."""

from copy import deepcopy
from dataclasses import dataclass
from math import ceil, log
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor

from nmln.adaptation import start_tuning, tune, with_sizes
from nmln.config import Config
from nmln.distributed import Ranks
from nmln.exchange import start_walkers
from nmln.files import InputError
from nmln.kernels.defaults import kernel_named
from nmln.noise import uniform
from nmln.potentials.base import BasePotential
from nmln.potentials.counted import Counted
from nmln.sampler import advance, start
from nmln.training.method import Method
from nmln.training.objective import Phases, accumulate_gradient
from nmln.training.optimiser import clip_by_level, follow, learning_rate, make_optimiser
from nmln.types import Evaluations, Info, Scores, State, SwapInfo, Tuning, Values

_LEAST_GAIN = 0.05  # step sizes keep following a target that changes


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
    effective_share: float = 1.0  # of the chains, by their weights


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
        self.optimiser = make_optimiser(potential.parameters(), config.optimiser)
        self.kernel = kernel_named(config.chains.kernel, self.space)
        self.step_number, self.slowed, self.effective_share = 0, 1.0, 1.0
        self.evaluations = Evaluations()
        self._seed_generators()
        self.values = self._start_chains()
        self.walkers = start_walkers(self.values)
        self.log_weights = torch.zeros(self.values.shape[1], dtype=torch.float64)
        self.scores: Scores | None = None  # of the chains, under the parameters that moved them
        self.tuning: Tuning = start_tuning(self.kernel, self.method.chain_levels)
        self.epoch: Values | None = None

    def _seed_generators(self, salt: int = 0) -> None:
        """Every process draws for itself; a run on other processes starts new streams."""
        mixed = (
            self.config.training.seed
            + 7919 * self.ranks.rank
            + 104729 * self.ranks.count
            + 1299709 * salt
        )
        self.data_rng = Generator().manual_seed(2 * mixed)
        self.chain_rng = Generator().manual_seed(2 * mixed + 1)

    @property
    def replicas(self) -> int:
        """How many of all replicas run in this process."""
        return self.ranks.share(self.config.chains.replicas)

    @property
    def batch(self) -> int:
        return self.ranks.share(self.config.training.batch)

    def _start_chains(self) -> Values:
        levels = self.method.chain_levels
        if self.config.chains.start == "noise":
            return uniform(self.space, levels, self.replicas, self.chain_rng)
        chosen = torch.randint(len(self.worlds), (self.replicas,), generator=self.chain_rng)
        return self.method.starts(self.space, self.worlds[chosen], self.chain_rng)

    def step(self) -> Metrics:
        """One update of the parameters, then sweeps of the chains under the new ones."""
        optimiser = self.config.optimiser
        rate = self.slowed * learning_rate(optimiser, self.step_number, self.config.training.steps)
        phases, norms = self._update(rate)
        if self.average is not None:
            follow(self.average, self.potential, optimiser.average, self.step_number)
        info, swaps = self._advance_chains()
        self.step_number += 1
        return self._metrics(rate, phases, norms, info, swaps)

    def _update(self, rate: float) -> tuple[Phases, Float[Tensor, " levels"]]:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=False)
        phases = accumulate_gradient(
            self.potential,
            self._minibatch(),
            self.method.negative(self.values),
            self._weights(),
            self.config.optimiser.energy_penalty,
        )
        self.ranks.average_gradients(self.potential.parameters())
        norms = clip_by_level(
            self.potential.parameters(), self.potential.levels, self.config.optimiser.clip
        )
        self.optimiser.step()
        return phases, norms

    def _minibatch(self) -> Values:
        """Data corrupted afresh for this step, or taken from copies that serve for an epoch."""
        chosen = torch.randint(len(self.worlds), (self.batch,), generator=self.data_rng)
        if self.config.training.corruption == "step":
            return self.method.corrupt(self.space, self.worlds[chosen], self.data_rng)
        steps = ceil(len(self.worlds) / self.config.training.batch)
        if self.epoch is None or self.step_number % steps == 0:
            self.epoch = self.method.corrupt(self.space, self.worlds, self.data_rng)
        return self.epoch[:, chosen]

    def _weights(self) -> Float[Tensor, "levels chains"] | None:
        if not self.config.chains.weighted:
            return None
        weights = self.log_weights.softmax(0)
        return weights.expand(self.potential.levels, -1)

    def _advance_chains(self) -> tuple[Info, tuple[SwapInfo, ...]]:
        chains = self.config.chains
        counted = Counted(self.method.sampled(self.potential), self.evaluations)
        kernel = with_sizes(self.kernel, self.tuning)
        with torch.no_grad():
            state = start(counted, kernel, self.values, self.chain_rng)
            if chains.weighted:
                state = self._reweighted(state)
            if chains.renewal:
                state = kernel.init(counted, self._renewed(state.values))
            info, swaps = None, ()
            for sweep in range(chains.sweeps):
                number = self.step_number * chains.sweeps + sweep
                parities = (0, 1) if chains.phases == "both" else (number % 2,)
                state, self.walkers, info, swaps = advance(
                    counted, kernel, state, self.walkers, self.chain_rng, chains.moves, parities
                )
                self.tuning = tune(kernel, self.tuning, info, _LEAST_GAIN)
        assert info is not None
        self.values, self.scores = state.values, state.scores
        self.evaluations = counted.evaluations
        return info, swaps

    def _reweighted(self, state: State) -> State:
        """Carry the chains' weights over the update; draw them anew when few are left that count.

        A replica, all of its levels together, gains the new score of its worlds less the old one: then
        weighted means are those of the new distributions, whatever the chains lag behind (Jarzynski's
        equality). Chains that were begun anew count as if they had always been there.
        """
        if self.scores is not None:
            self.log_weights = self.log_weights + (state.scores - self.scores).double().sum(0).cpu()
        weights = self.log_weights.softmax(0)
        self.effective_share = float(1 / weights.square().sum() / len(weights))
        if self.effective_share >= 0.5:
            return state
        # Systematic resampling: every replica comes on in proportion to its weight, up to one.
        points = torch.rand((), generator=self.chain_rng, dtype=torch.float64) + torch.arange(
            len(weights)
        )
        chosen = torch.searchsorted(weights.cumsum(0), points / len(weights)).clamp(
            max=len(weights) - 1
        )
        self.log_weights = torch.zeros_like(self.log_weights)
        self.walkers = self.walkers[:, chosen]
        slopes = None if state.slopes is None else state.slopes[:, chosen]
        return State(state.values[:, chosen], state.scores[:, chosen], slopes)

    def _renewed(self, values: Values) -> Values:
        """The chains, a few of the noisiest of them begun anew from corrupted data.

        What is drawn there is distributed as the data that the noisiest level is fitted to, and reaches
        the other levels only through exact swaps.
        """
        share = self.config.chains.renewal
        renewed = torch.rand(values.shape[1], generator=self.chain_rng) < share
        chosen = torch.randint(len(self.worlds), (int(renewed.sum()),), generator=self.chain_rng)
        values = values.clone()
        fresh = self.method.starts(self.space, self.worlds[chosen], self.chain_rng)
        values[0, renewed] = fresh[0]
        return values

    def _metrics(
        self,
        rate: float,
        phases: Phases,
        norms: Float[Tensor, " levels"],
        info: Info,
        swaps: tuple[SwapInfo, ...],
    ) -> Metrics:
        pairs = torch.full((self.method.chain_levels - 1,), float("nan"))
        for swap in swaps:
            if swap.pairs:
                pairs[list(swap.pairs)] = swap.probabilities.float().mean(1)
        worlds = torch.tensor([float(self.evaluations.scores + self.evaluations.slopes)])
        columns = [phases.gap, phases.positive, info.acceptance, info.moved, pairs, worlds]
        gap, score, acceptance, moved, swapped, worlds = self.ranks.average(columns)
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
            effective_share=self.effective_share,
        )

    # All of a run as named tensors and plain values.

    def tree(self) -> dict[str, Any]:
        """The whole state of the run on this process and, gathered, the chains of all."""
        chains = self.ranks.gather(
            {
                "values": self.values,
                "walkers": self.walkers,
                "log_weights": self.log_weights,
                "scores": self.scores,
                "data_rng": self.data_rng.get_state(),
                "chain_rng": self.chain_rng.get_state(),
                "epoch": self.epoch,
                "tuning": {"log_sizes": self.tuning.log_sizes, "seen": self.tuning.seen},
                "evaluations": list(self.evaluations),
            }
        )
        return {
            "step": self.step_number,
            "slowed": self.slowed,
            "potential": dict(self.potential.state_dict()),
            "average": None if self.average is None else dict(self.average.state_dict()),
            "optimiser": self.optimiser.state_dict(),
            "ranks": chains,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        """Go on from a tree; on another number of processes the chains are dealt out anew."""
        self.step_number, self.slowed = tree["step"], tree["slowed"]
        self.potential.load_state_dict(tree["potential"])
        if self.average is not None and tree["average"] is not None:
            self.average.load_state_dict(tree["average"])
        self.optimiser.load_state_dict(deepcopy(tree["optimiser"]))  # torch would share it
        parts = tree["ranks"]
        own = parts[self.ranks.rank % len(parts)]
        self.tuning = Tuning(**own["tuning"])
        scores, slopes, seconds = own["evaluations"]
        self.evaluations = Evaluations(int(scores), int(slopes), float(seconds))
        if len(parts) == self.ranks.count:
            self.values, self.walkers = own["values"], own["walkers"]
            self.log_weights, self.scores = own["log_weights"], own["scores"]
            self.epoch = own["epoch"]
            self.data_rng.set_state(own["data_rng"])
            self.chain_rng.set_state(own["chain_rng"])
            return
        first, count = self.ranks.slice(self.config.chains.replicas)
        for name, axis in (("values", 1), ("walkers", 1), ("log_weights", 0)):
            pieces = [part[name] for part in parts]
            if name == "log_weights":  # every process had a scale of its own
                pieces = [piece.log_softmax(0) + log(len(piece)) for piece in pieces]
            whole = torch.cat(pieces, dim=axis)
            setattr(self, name, whole.narrow(axis, first, count).clone())
        self.scores = self.epoch = None  # weights start to follow with the next step
        self._seed_generators(salt=1 + self.step_number)


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
