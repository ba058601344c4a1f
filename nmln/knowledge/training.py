"""Training a knowledge-base potential, with early stopping on the validation triples."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from nmln.files import InputError
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.objectives import Chains, conditional_losses
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import Quality, rank
from nmln.knowledge.scoring import scorer

OBJECTIVES = ("conditional", "likelihood")


@dataclass(frozen=True)
class Settings:
    """How to train; `defaults.recommended` chooses some of it by the data.

    `hide`, `dropout`, `calibration`, `penalty` and `negatives` (0: all) belong to the conditional
    objective, `chains` and `sweeps` to the likelihood. `patience` is how many checks may pass without a
    better one. With `average`, what is judged and kept is a running mean of the parameters, each step
    weighing 1 - average.
    """

    objective: str = "conditional"
    epochs: int = 300
    minutes: float = inf
    batch: int = 256
    rate: float = 0.015
    decay: float = 0.0
    average: float = 0.98
    hide: float = 0.2
    dropout: float = 0.4
    calibration: float = 1.0
    penalty: float = 0.01
    negatives: int = 0
    chains: int = 1
    sweeps: int = 1
    check_every: int = 5
    patience: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(
                f"the objective is conditional or likelihood, but here it is {self.objective!r}."
            )
        for name in ("hide", "dropout", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} is a share from 0 to below 1, but is {getattr(self, name)}."
                )
        for name in ("epochs", "batch", "chains", "sweeps", "check_every", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, but is {getattr(self, name)}.")
        if not self.rate > 0 or not self.minutes > 0:
            raise InputError(
                f"rate and minutes must be positive, but are {self.rate} and {self.minutes}."
            )


class Progress(NamedTuple):
    """What a watcher is told after an epoch; `mrr` is that of validation, where it was asked."""

    epoch: int
    loss: float
    mrr: float | None
    best: float | None
    seconds: float


@dataclass(frozen=True)
class Result:
    """What training found; the potential holds the parameters of `epoch`."""

    epoch: int
    epochs: int
    seconds: float
    interrupted: bool
    valid: Quality | None
    history: list[Progress] = field(repr=False)


def train(
    potential: KnowledgePotential,
    base: KnowledgeBase,
    settings: Settings | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Train in place, and leave the parameters that ranked the validation triples best.

    Without validation triples those of the last epoch stay. Ends after `epochs`, `minutes`, or
    when nothing gets better; Ctrl-C ends it too, with the best that was reached.
    """
    settings = settings or Settings()
    rng = Generator().manual_seed(settings.seed)
    losses = _losses(potential, base, settings, rng)
    optimiser = torch.optim.AdamW(
        potential.parameters(), lr=settings.rate, weight_decay=settings.decay
    )
    kept = _Best(potential, base, settings)
    history: list[Progress] = []
    begun = time.perf_counter()
    interrupted = False
    try:
        for epoch in range(1, settings.epochs + 1):
            seen = []
            for loss in losses():
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                kept.follow(potential)
                seen.append(loss.detach())
            mean = float(torch.stack(seen).mean())
            if mean != mean:
                raise InputError(
                    f"the loss is no number after epoch {epoch}. Take a smaller --rate."
                )
            late = time.perf_counter() - begun > settings.minutes * 60
            last = late or epoch == settings.epochs
            mrr = kept.check(epoch) if last or epoch % settings.check_every == 0 else None
            taken = time.perf_counter() - begun
            best = None if kept.quality is None else kept.quality.mrr
            history.append(Progress(epoch, mean, mrr, best, taken))
            watch(history[-1])
            if last or kept.stale(epoch):
                break
    except KeyboardInterrupt:
        interrupted = True
    kept.put_back(potential)
    taken = time.perf_counter() - begun
    return Result(kept.epoch, len(history), taken, interrupted, kept.quality, history)


def _losses(
    potential: KnowledgePotential, base: KnowledgeBase, settings: Settings, rng: Generator
) -> Callable[[], Iterator[Tensor]]:
    """The losses of an epoch by the chosen objective."""
    bits = potential.bits(base.world(base.train))
    if settings.objective == "likelihood":
        chains = Chains(bits, settings.chains, rng)
        return lambda: chains.losses(potential, sweeps=settings.sweeps)
    return lambda: conditional_losses(
        potential,
        bits,
        rng,
        batch=settings.batch,
        hide=settings.hide,
        dropout=settings.dropout,
        calibration=settings.calibration,
        penalty=settings.penalty,
        negatives=settings.negatives,
    )


class _Best:
    """The parameters that ranked the validation triples best so far."""

    def __init__(
        self, potential: KnowledgePotential, base: KnowledgeBase, settings: Settings
    ) -> None:
        self.base, self.settings = base, settings
        self.judged = potential
        if settings.average:
            self.judged = KnowledgePotential(potential.space, potential.shape).to(potential.dtype)
            self.judged.load_state_dict(potential.state_dict())
        self.steps = 0
        self.epoch = 0
        self.quality: Quality | None = None
        self.state: dict[str, Any] = {}

    @torch.no_grad()
    def follow(self, potential: KnowledgePotential) -> None:
        if self.judged is potential:
            return
        self.steps += 1
        forget = 1 - min(self.settings.average, self.steps / (self.steps + 10))
        for mean, now in zip(self.judged.parameters(), potential.parameters(), strict=True):
            mean.lerp_(now, forget)

    @torch.no_grad()
    def check(self, epoch: int) -> float | None:
        """The validation MRR; without validation triples every check is the best one."""
        if not len(self.base.valid):
            self.epoch, self.state = epoch, _copy(self.judged)
            return None
        found = rank(scorer(self.judged, self.base), self.base.valid, self.base.known).both
        if self.quality is None or found.mrr > self.quality.mrr:
            self.epoch, self.quality, self.state = epoch, found, _copy(self.judged)
        return found.mrr

    def stale(self, epoch: int) -> bool:
        waited = epoch - self.epoch >= self.settings.patience * self.settings.check_every
        return len(self.base.valid) > 0 and waited

    def put_back(self, potential: KnowledgePotential) -> None:
        potential.load_state_dict(self.state or self.judged.state_dict())


def _copy(potential: KnowledgePotential) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in potential.state_dict().items()}
