"""One run of training: its parts, one step, and the state that is needed to continue."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Float64, Integer
from torch import Tensor

from nmln.buckets import Bucket, shares_of
from nmln.config import Config
from nmln.devices import generator, of_worlds
from nmln.distributed import Ranks
from nmln.errors import InputError
from nmln.potentials.base import BasePotential, ScoreError, refuse_complex
from nmln.training.blocks import (
    BlockPlace,
    DomainBlock,
    Learned,
    ReplicaBlock,
    put_gradient,
    take_gradient,
)
from nmln.training.chains import Followed
from nmln.training.method import Method
from nmln.training.objective import Phases, accumulate_gradient, accumulate_local_gradient
from nmln.training.optimiser import (
    clip_by_level,
    draw_together,
    follow,
    learning_rate,
    make_optimiser,
    next_pace,
    paced,
)
from nmln.training.sizes import dealt, step_memory
from nmln.types import Evaluations, Values

Part = TypeVar("Part")


@dataclass(frozen=True)
class Metrics:
    """Metrics of one step; lists run from the noisiest level to the target.

    Of several domains they are means by the shares of the domains in the data, unless it says otherwise.
    """

    step: int
    learning_rate: float
    gap: tuple[float, ...]  # mean score of the data less that of the chains
    score: tuple[float, ...]  # of the data
    gradient: tuple[float, ...]  # norm, before clipping
    acceptance: tuple[float, ...]
    moved: tuple[float, ...]
    swaps: tuple[float, ...]  # mean probability for each pair
    evaluations: int  # worlds scored so far, with and without slopes
    log_z: tuple[float, ...] = ()  # as the chains have followed it; of several domains the mean
    moves: int = 0  # in each sweep of this step; of several domains the mean
    effective_share: float = 1.0  # of the chains, by their weights after the update; the least
    pace: tuple[float, ...] = ()  # of each level, as a share of the learning rate


class Trainer:
    """Everything that changes in a run, and the step that changes it.

    A step moves the parameters along the gradient between corrupted data and the persistent chains, then
    lets the chains follow for some sweeps. `tree` is all that is needed to continue bit for bit.

    Replicas and minibatch are dealt into `training.blocks` fixed blocks, at least one per process. The
    same blocks give the same run, bit for bit, on any number of processes.
    """

    def __init__(
        self,
        potential: BasePotential,
        worlds: Integer[Tensor, "worlds groups"] | Sequence[Bucket],
        config: Config,
        ranks: Ranks | None = None,
    ) -> None:
        """`worlds` are those of the potential's space, or buckets of worlds of several domains."""
        self.config, self.ranks = config, ranks or Ranks()
        buckets = [Bucket(potential.space, worlds)] if isinstance(worlds, Tensor) else list(worlds)
        self.space = potential.space
        self.method = Method.of(config.ladder)
        if not buckets or not all(len(bucket.worlds) for bucket in buckets):
            raise InputError("there are no worlds to train on. Give at least one.", kind="empty")
        count = max(config.training.blocks, self.ranks.count)
        if count > min(config.chains.replicas, config.training.batch):
            raise InputError(
                f"{config.chains.replicas} replicas and a batch of {config.training.batch} cannot be "
                f"dealt into {count} blocks: each needs at least one. Take fewer processes or blocks.",
                kind="conflict",
            )
        if config.chains.renewal and config.ladder.method != "noising":
            raise InputError(
                "chains are renewed from corrupted data at the noisiest level, which only noising fits "
                "to them. Set chains.renewal to 0.",
                token="chains.renewal",
                kind="conflict",
            )
        if potential.levels != self.method.trained_levels:
            raise InputError(
                f"this ladder trains {self.method.trained_levels} levels, but the potential has "
                f"{potential.levels}. Build it with levels={self.method.trained_levels}.",
                kind="conflict",
            )
        self.potential = potential
        self.domains = self._learned(buckets, count)
        for domain in self.domains:
            _refuse_forbidden(domain.potential, self.method, domain.worlds)
        self.average = deepcopy(potential) if config.optimiser.average else None
        self.optimiser = make_optimiser(potential.parameters(), config.optimiser, potential.levels)
        self.step_number, self.slowed = 0, 1.0
        self.reseeded = False  # whether it continues with the random numbers of another device
        self.swaps: list[tuple[float, ...]] = []  # of the last step, by domain
        self.pace = torch.ones(potential.levels, dtype=torch.float64)
        first, own = self.ranks.slice(count)
        self.block_count = count
        self.blocks = [
            ReplicaBlock(BlockPlace(number, count), self.domains, self.method, config)
            for number in range(first, first + own)
        ]

    def configure(self, config: Config) -> None:
        """Take over another number of steps, or of sweeps in each."""
        self.config = config
        for block in self.blocks:
            for part in block.parts:
                part.chains.config = config.chains

    def _learned(self, buckets: Sequence[Bucket], blocks: int) -> list[Learned]:
        """The domains, with their part of the replicas and of every minibatch."""
        parts = dealt(buckets, self.config, blocks)
        step_memory(parts, self.config)
        each = zip(buckets, shares_of(buckets), parts, strict=True)
        return [
            Learned(
                number,
                self.potential.on(bucket.space),
                bucket.worlds.to(of_worlds(self.potential.device)),
                share,
                part.replicas,
                part.batch,
            )
            for number, (bucket, share, part) in enumerate(each)
        ]

    @property
    def values(self) -> Values:
        """The worlds of the chains of this process on the first domain."""
        return torch.cat([block.chains.values for block in self.blocks], dim=1)

    @property
    def evaluations(self) -> Evaluations:
        """The evaluations of the chains of this process."""
        counted = [part.chains.evaluations for block in self.blocks for part in block.parts]
        return Evaluations(*(sum(numbers) for numbers in zip(*counted, strict=True)))

    @property
    def log_z(self) -> Float64[Tensor, " levels"]:
        """log Z of every trained level, as the chains have followed it; the mean of the domains."""
        return self._mean([part.chains.log_z for part in self.blocks[0].parts])

    def _mean(self, each: Sequence[Float64[Tensor, " numbers"]]) -> Float64[Tensor, " numbers"]:
        """The mean over the domains by their shares."""
        if len(each) == 1:
            return each[0]
        weights = each[0].new_tensor([domain.share for domain in self.domains])
        return weights @ torch.stack(list(each))

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
        chains = [part.chains for part in self.blocks[0].parts]
        mean = self._mean([torch.tensor([one.moves], dtype=torch.float64) for one in chains])
        moves = 0 if self.warming else round(float(mean))
        followed = self._shared(self._follow)
        self.step_number += 1
        return self._metrics(rate, phases, norms, followed, moves)

    def _update(self, rate: float) -> tuple[list[list[Phases]], Float[Tensor, " levels"]]:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=False)
        phases, gradients = self._shared(self._accumulate)
        if gradients:
            mean = self.ranks.average_gradients(torch.stack(gradients), self.block_count)
            put_gradient(self.potential.parameters(), mean)
        norms = clip_by_level(
            self.potential.parameters(), self.potential.levels, self.config.optimiser.clip
        )
        with paced(self.potential.parameters(), self.pace):
            self.optimiser.step()
            if smooth := self.config.optimiser.smooth:
                draw_together(self.potential.parameters(), self.potential.levels, rate * smooth)
        return phases, norms

    def _accumulate(self) -> tuple[list[list[Phases]], list[Tensor]]:
        """Both phases of every block, and its gradient; a single block's stays in the parameters."""
        phases, gradients = [], []
        for block in self.blocks:
            phases.append([self._accumulate_part(part) for part in block.parts])
            if self.block_count > 1:
                gradients.append(take_gradient(self.potential.parameters()))
        return phases, gradients

    def _accumulate_part(self, part: DomainBlock) -> Phases:
        minibatch, domain = part.minibatch(self.step_number), part.domain
        if self.warming:
            return accumulate_local_gradient(
                domain.potential, minibatch, part.data_rng, domain.share
            )
        return accumulate_gradient(
            domain.potential,
            minibatch,
            self.method.negative(part.chains.values),
            penalty=self.config.optimiser.energy_penalty,
            spread=self.config.optimiser.spread,
            share=domain.share,
        )

    def _follow(self) -> list[list[Followed]]:
        return [
            [
                part.chains.wait(part.domain.potential)
                if self.warming
                else part.chains.follow(part.domain.potential, self.step_number)
                for part in block.parts
            ]
            for block in self.blocks
        ]

    def _shared(self, work: Callable[[], Part]) -> Part:
        """Do a part of a step, and fail on all processes when a score fails on one.

        Otherwise the other processes would wait for ever for an average.
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

    @torch.no_grad()
    def log_likelihood(
        self, worlds: Integer[Tensor, "worlds groups"], domain: int = 0
    ) -> Float64[Tensor, " levels"]:
        """The mean log-probability of worlds at every trained level, by the log Z that was followed.

        Of several domains, `domain` is the number of that of the worlds, which is taken as given.
        """
        potential = self.domains[domain].potential
        scores = potential.score(worlds.expand(potential.levels, -1, -1))
        return scores.double().mean(1).cpu() - self.blocks[0].parts[domain].chains.log_z

    def _metrics(
        self,
        rate: float,
        phases: list[list[Phases]],
        norms: Float[Tensor, " levels"],
        followed: list[list[Followed]],
        moves: int,
    ) -> Metrics:
        pairs = self.method.chain_levels - 1
        columns = [
            [
                [one.gap, one.positive, *_moved(pairs, other)]
                for one, other in zip(*both, strict=True)
            ]
            for both in zip(phases, followed, strict=True)
        ]
        sizes = [column.numel() for column in columns[0][0]]
        rows = torch.stack(
            [torch.cat([c.double().cpu() for part in row for c in part]) for row in columns]
        )
        means = self.ranks.average(rows, self.block_count).split(sum(sizes))
        for number, mean in enumerate(means if moves else ()):
            *_, acceptance, _, _, growth, shares = mean.split(sizes)
            for block in self.blocks:
                block.parts[number].chains.learn(growth, shares, float(acceptance[-1]))
        self.swaps = [tuple(mean.split(sizes)[4].tolist()) for mean in means]
        overall = self._mean(means)
        gap, score, acceptance, moved, swapped, _, shares = overall.split(sizes)
        evaluated = self.ranks.total(self.evaluations.scores + self.evaluations.slopes)
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
            evaluations=evaluated,
            log_z=tuple(self.log_z.tolist()),
            moves=moves,
            effective_share=min(part.chains.effective_share for part in self.blocks[0].parts),
            pace=tuple(self.pace.tolist()),
        )

    # All of a run as named tensors and plain values.

    def tree(self) -> dict[str, Any]:
        """The whole state of the run on this process and, gathered, the chains of all."""
        parts = [
            part
            for one in self.ranks.gather({"blocks": [block.tree() for block in self.blocks]})
            for part in one["blocks"]
        ]
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
        """Continue from a tree; a run that was dealt into other blocks is dealt out again."""
        refuse_complex(tree["potential"])
        self.step_number, self.slowed = tree["step"], tree["slowed"]
        self.pace = tree["pace"].clone()
        self.potential.load_state_dict(tree["potential"])
        if self.average is not None and tree["average"] is not None:
            self.average.load_state_dict(tree["average"])
        self.optimiser.load_state_dict(deepcopy(tree["optimiser"]))  # torch would share it
        parts = tree["ranks"]
        for block in self.blocks:
            if len(parts) == self.block_count:
                kept = block.restore(parts[block.place.number], self.step_number)
                self.reseeded = self.reseeded or not kept
            else:
                block.restore_share(parts, self.step_number)


def _moved(pairs: int, followed: Followed) -> list[Tensor]:
    """Statistics of the chains of a block, level by level and pair by pair."""
    swaps = torch.full((pairs,), float("nan"))
    for swap in followed.swaps:
        if swap.pairs:
            swaps[list(swap.pairs)] = swap.probabilities.float().mean(1).cpu()
    info = followed.info
    return [info.acceptance, info.moved, swaps, followed.growth, followed.shares]


@torch.no_grad()
def _refuse_forbidden(
    potential: BasePotential, method: Method, worlds: Integer[Tensor, "worlds groups"]
) -> None:
    """A hard formula cannot be trained under if corrupted data violate it: their likelihood is zero."""
    rng = generator(potential.device)
    shares = method.shares(potential)
    values = method.corrupt(potential.space, worlds[:200], rng, shares)
    broken = torch.nonzero(potential.violations_of(values) > 0)
    if not len(broken):
        return
    level, chain = broken[0].tolist()
    names = potential.forbidden_by(level, values[level, chain])
    shown = f" ({names[0]})" if names else ""
    raise InputError(
        f"a hard formula{shown} forbids data that are corrupted at the rate "
        f"{method.noise.rates[level]}, so they have no likelihood. Give the formula a weight for "
        "training; hard formulas can be added when sampling.",
        kind="conflict",
    )
