"""The persistent chains of the negative phase, which follow a model that changes."""

from math import ceil, log
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int64, Integer
from torch import Generator, Tensor

from nmln.adaptation import start_tuning, tune, with_sizes
from nmln.config import ChainConfig
from nmln.exchange import start_walkers
from nmln.kernels.registry import kernel_named
from nmln.noise import uniform
from nmln.partition.annealing import AnnealingPath, anneal, equal_steps
from nmln.potentials.base import BasePotential
from nmln.potentials.counted import Counted
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.total import TotalPotential, base_of
from nmln.sampler import advance, start
from nmln.training.method import Method
from nmln.types import Evaluations, Info, State, SwapInfo, Tuning, Values

_LEAST_GAIN = 0.05  # step sizes keep following a target that changes
_MOST_MOVES = 4  # times the configured number, where they follow the acceptance
_LEAST_SHARE = 0.7  # of the chains that must still count when they are resampled
_DRAWS = 1000  # worlds that the first log Z is estimated from
_LEAST_DRAWS = 0.1  # of the worlds that chains start from must count
_EVEN = 0.5  # share of draws that count, below which they are annealed to the local part
_ANNEALED, _STEPS, _STEP_MOVES = 200, 50, 2  # chains, steps, and moves in each


class Followed(NamedTuple):
    """Statistics of the chains after an update."""

    info: Info
    swaps: tuple[SwapInfo, ...]
    growth: Float64[Tensor, " trained"]  # of Z in the update, as a factor
    shares: Float64[Tensor, " trained"]  # of the chains that count after the update


class Chains:
    """Replicas of all levels that are kept from step to step.

    Every update of the parameters makes them lag a little. The differences of their scores show by how
    much: they give the growth of log Z and, if configured, the chains to keep (Jarzynski's equality).
    """

    def __init__(
        self,
        potential: BasePotential,
        method: Method,
        config: ChainConfig,
        worlds: Integer[Tensor, "worlds groups"],
        replicas: int,
        rng: Generator,
    ) -> None:
        self.method, self.config, self.rng = method, config, rng
        self.space, self.worlds = potential.space, worlds
        self.frequencies = method.shares(potential)
        self.kernel = kernel_named(config.kernel, self.space)
        draws, log_weights = initial_draws(potential, max(_DRAWS, replicas))
        self.log_z = log_weights.logsumexp(1) - log(log_weights.shape[1])
        self.values = self._first_worlds(replicas, draws, log_weights)
        self.walkers = start_walkers(self.values)
        self.effective_share = 1.0  # of the chains, after the last update; the least of all levels
        self.acceptance = 1.0  # at the target, a running mean
        self.evaluations = Evaluations()
        self.tuning: Tuning = start_tuning(self.kernel, method.chain_levels)
        self.rescore(potential)

    def _first_worlds(
        self,
        replicas: int,
        draws: Integer[Tensor, "trained draws groups"],
        log_weights: Float64[Tensor, "trained draws"],
    ) -> Values:
        levels = self.method.chain_levels
        if self.config.start == "noise":
            return uniform(self.space, levels, replicas, self.rng)
        if self.config.start == "model" and self.method.temperatures is None:
            shares = tempered_weights(log_weights, _LEAST_DRAWS).to(self.worlds.device)
            chosen = torch.multinomial(shares, replicas, replacement=True, generator=self.rng)
            return torch.stack([draws[level, row] for level, row in enumerate(chosen.cpu())]).to(
                self.worlds.device
            )
        chosen = self._chosen(replicas)
        return self.method.starts(self.space, self.worlds[chosen], self.rng, self.frequencies)

    def _chosen(self, count: int) -> Int64[Tensor, " count"]:
        """Numbers of data, drawn with replacement."""
        return torch.randint(
            len(self.worlds), (count,), generator=self.rng, device=self.worlds.device
        )

    @torch.no_grad()
    def rescore(self, potential: BasePotential) -> None:
        """Score the worlds under these parameters: the next update is measured from here."""
        self.scores = self.method.sampled(potential).score(self.values)

    @property
    def moves(self) -> int:
        """How many moves the next sweep takes: more where few are accepted, if configured."""
        least = self.config.moves
        if not self.config.changes:
            return least
        wanted = ceil(self.config.changes / max(self.acceptance, 1e-3))
        return min(max(least, wanted), _MOST_MOVES * least)

    @torch.no_grad()
    def follow(self, potential: BasePotential, step: int) -> Followed:
        """Some sweeps under new parameters."""
        counted = Counted(self.method.sampled(potential), self.evaluations)
        kernel = with_sizes(self.kernel, self.tuning)
        state = start(counted, kernel, self.values, self.rng)
        gained = (state.scores - self.scores).double().cpu()
        growth = gained[-self.method.trained_levels :].exp().mean(1)
        shares = effective_share(gained.softmax(1))
        if self.config.weighted:
            state = self._resampled(state, tempered_weights(gained))
        if self.config.renewal:
            state = kernel.init(counted, self._renewed(state.values))
        info, swaps = None, ()
        for sweep in range(self.config.sweeps):
            number = step * self.config.sweeps + sweep
            parities = (0, 1) if self.config.phases == "both" else (number % 2,)
            state, self.walkers, info, swaps = advance(
                counted, kernel, state, self.walkers, self.rng, self.moves, parities
            )
            self.tuning = tune(kernel, self.tuning, info, _LEAST_GAIN)
        assert info is not None
        self.values, self.scores = state.values, state.scores
        self.evaluations = counted.evaluations
        return Followed(info, swaps, growth, shares[-self.method.trained_levels :])

    def wait(self, potential: BasePotential) -> Followed:
        """Leave the chains where they are, while they are not used; log Z is not followed."""
        self.rescore(potential)
        none = self.scores.new_zeros(self.method.chain_levels)
        ones = torch.ones(self.method.trained_levels, dtype=torch.float64)
        return Followed(Info(none, none), (), ones, ones)

    def learn(
        self,
        growth: Float64[Tensor, " trained"],
        shares: Float64[Tensor, " trained"],
        acceptance: float,
    ) -> None:
        """Take over the averages over all processes."""
        self.log_z = self.log_z + growth.log()
        self.effective_share = float(shares.min())
        self.acceptance += 0.1 * (acceptance - self.acceptance)

    def _resampled(self, state: State, weights: Float64[Tensor, "levels replicas"]) -> State:
        """Resample the chains of every level by the weights that the update gave them.

        The factor by which a chain's probability has grown is its weight: then the chains are those of
        the new model, however far they lag behind (Jarzynski's equality). Systematic resampling: each
        is copied in proportion to its weight, up to one, so that small updates replace few. Levels are
        drawn separately, because it does not matter which chains form a replica. After an update so
        large that few chains would be left, they are drawn by a root of the weights.
        """
        levels, replicas = weights.shape
        device = state.values.device
        offsets = torch.rand(
            levels, 1, generator=self.rng, dtype=torch.float64, device=device
        ).cpu()
        points = (offsets + torch.arange(replicas)) / replicas
        chosen = torch.searchsorted(weights.cumsum(1), points).clamp(max=replicas - 1).to(device)
        rows = torch.arange(levels, device=device)[:, None]
        self.walkers = self.walkers[rows, chosen]
        slopes = None if state.slopes is None else state.slopes[rows, chosen]
        return State(state.values[rows, chosen], state.scores[rows, chosen], slopes)

    def _renewed(self, values: Values) -> Values:
        """The chains, a few of the noisiest of them restarted from corrupted data.

        What is drawn there is distributed as the data that the noisiest level is fitted to, and reaches
        the other levels only through exact swaps.
        """
        uniform = torch.rand(
            values.shape[1], generator=self.rng, dtype=torch.float64, device=values.device
        )
        renewed = uniform < self.config.renewal
        chosen = self._chosen(int(renewed.sum()))
        values = values.clone()
        fresh = self.method.starts(self.space, self.worlds[chosen], self.rng, self.frequencies)
        values[0, renewed] = fresh[0]
        return values

    # All of it as named tensors and plain values.

    def tree(self) -> dict[str, Any]:
        return {
            "values": self.values,
            "walkers": self.walkers,
            "scores": self.scores,
            "log_z": self.log_z,
            "acceptance": self.acceptance,
            "effective_share": self.effective_share,
            "chain_rng": self.rng.get_state(),
            "tuning": {"log_sizes": self.tuning.log_sizes, "seen": self.tuning.seen},
            "evaluations": list(self.evaluations),
        }

    def restore(self, part: dict[str, Any]) -> None:
        """Continue from the tree of one process; the caller restores the random numbers."""
        self._restore_common(part)
        for name in ("values", "walkers", "scores"):
            setattr(self, name, part[name].to(self.worlds.device))
        self.effective_share = float(part["effective_share"])

    def restore_share(
        self, parts: list[dict[str, Any]], first: int, count: int, potential: BasePotential
    ) -> None:
        """Continue with some of the replicas of other processes."""
        self._restore_common(parts[0])
        for name in ("values", "walkers"):
            whole = torch.cat([part[name] for part in parts], dim=1)
            setattr(self, name, whole.narrow(1, first, count).clone().to(self.worlds.device))
        self.rescore(potential)

    def _restore_common(self, part: dict[str, Any]) -> None:
        self.log_z, self.acceptance = part["log_z"], float(part["acceptance"])
        self.tuning = Tuning(**part["tuning"])
        scores, slopes, seconds = part["evaluations"]
        self.evaluations = Evaluations(int(scores), int(slopes), float(seconds))


def effective_share(weights: Float64[Tensor, "levels replicas"]) -> Float64[Tensor, " levels"]:
    """How many of the chains count, by weights that sum to one: Kish's effective size over all."""
    return 1 / weights.square().sum(1) / weights.shape[1]


def tempered_weights(
    gained: Float64[Tensor, "levels replicas"], least: float = _LEAST_SHARE
) -> Float64[Tensor, "levels replicas"]:
    """Jarzynski's weights, or such a root of them that enough chains still count, level by level."""
    exponents = torch.ones(len(gained), 1, dtype=torch.float64)
    weights = gained.softmax(1)
    while bool((few := effective_share(weights) < least).any()):
        exponents[few] /= 2
        weights = (exponents * gained).softmax(1)
    return weights


@torch.no_grad()
def initial_draws(
    potential: BasePotential, count: int
) -> tuple[Values, Float64[Tensor, "levels chains"]]:
    """Worlds of the base term, or uniform ones, with the logarithms of their importance weights.

    Before the first update a network adds little to its base, so that the weights are nearly equal:
    their mean is Z. A local part adds much: then fewer draws are annealed to it first. The draws have
    a generator of their own, to be the same on every process.
    """
    parts = list(potential.parts) if isinstance(potential, TotalPotential) else []
    base = base_of(potential)
    if base is None:
        table = torch.zeros(potential.levels, potential.space.entries, dtype=potential.dtype)
        base = IndependentPotential(potential.space, table)
    rng = Generator().manual_seed(0)
    draws = base.draw(count, rng)  # on the CPU, whatever the device
    weights = (potential.score(draws) - base.score(draws)).double() + base.log_z[:, None]
    local = [part for part in parts if isinstance(part, LocalPotential)]
    if not local or float(effective_share(weights.softmax(1)).min()) > _EVEN:
        return draws, weights
    cheap = TotalPotential([base, *local])
    kernel = kernel_named("balanced", potential.space)
    state = kernel.init(cheap, draws[:, :_ANNEALED])
    path, steps = AnnealingPath(cheap, base), equal_steps(_STEPS)
    gained, state = anneal(path, kernel, state, steps, rng, moves=_STEP_MOVES, tick=lambda: None)
    more = (potential.score(state.values) - cheap.score(state.values)).double()
    return state.values, gained + more + base.log_z[:, None]
