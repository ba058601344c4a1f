"""Training a knowledge-base potential, with early stopping on the validation triples."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from nmln.files import InputError
from nmln.knowledge.best import Best
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.objectives import Chains, Conditionals, Objective
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import Quality
from nmln.potentials.base import refuse_complex

OBJECTIVES = ("conditional", "likelihood")
_FASTEST = 1e6  # a step size: nothing is learned long before


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
        for name in ("penalty", "calibration", "decay"):
            if not 0 <= getattr(self, name) < inf:
                raise InputError(
                    f"{name} must be a finite number that is not negative, but is "
                    f"{getattr(self, name)}."
                )
        if self.negatives < 0:
            raise InputError(f"negatives must not be negative, but is {self.negatives}.")
        if self.rate > _FASTEST:
            raise InputError(f"rate must be at most {_FASTEST:g}, but is {self.rate}.")
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


class DivergedError(InputError):
    """The loss has run away: the same settings would end there again."""


class Training:
    """A training of a potential, in place, that can be kept after any step and gone on with.

    `seconds` is the time used so far, earlier parts of the run included.
    """

    def __init__(
        self, potential: KnowledgePotential, base: KnowledgeBase, settings: Settings
    ) -> None:
        self.potential, self.base, self.settings = potential, base, settings
        self.rng = Generator().manual_seed(settings.seed)
        self.objective = _objective(potential, base, settings, self.rng)
        self.optimiser = torch.optim.AdamW(
            potential.parameters(), lr=settings.rate, weight_decay=settings.decay
        )
        self.best = Best(potential, base, settings.average)
        self.losses: list[Tensor] = []  # of the epoch that is under way
        self.history: list[Progress] = []
        self.seconds = 0.0
        self.ended = False

    @property
    def steps_taken(self) -> int:
        return len(self.history) * self.objective.steps + len(self.losses)

    def steps(self) -> Iterator[Progress | None]:
        """Take one step after the other to the end; the last one of an epoch tells what it came to."""
        begun = time.perf_counter() - self.seconds
        while not self.ended:
            loss = self.objective.loss(len(self.losses))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.best.follow(self.potential)
            self.losses.append(loss.detach())
            told = None
            if len(self.losses) == self.objective.steps:
                told = self._end_epoch(begun)
            self.seconds = time.perf_counter() - begun
            yield told

    def _end_epoch(self, begun: float) -> Progress:
        settings, epoch = self.settings, len(self.history) + 1
        mean = float(torch.stack(self.losses).mean())
        if mean != mean:
            raise DivergedError(
                f"the loss is no number after epoch {epoch}. Take a smaller --rate or --penalty."
            )
        late = time.perf_counter() - begun > settings.minutes * 60
        last = late or epoch == settings.epochs
        mrr = self.best.check(epoch) if last or epoch % settings.check_every == 0 else None
        best = None if self.best.quality is None else self.best.quality.mrr
        told = Progress(epoch, mean, mrr, best, time.perf_counter() - begun)
        self.history.append(told)
        self.losses = []
        self.ended = last or self.best.stale(epoch, settings.patience * settings.check_every)
        return told

    def result(self) -> Result:
        """Give the potential the best parameters, and tell what was found. Nothing can go on then."""
        self.best.put_back(self.potential)
        found, epochs = self.best, len(self.history)
        return Result(
            found.epoch, epochs, self.seconds, not self.ended, found.quality, self.history
        )

    def tree(self) -> dict[str, Any]:
        """All that the training needs to go on bit for bit, beside its base, shape and settings."""
        return {
            "potential": dict(self.potential.state_dict()),
            "optimiser": self.optimiser.state_dict()["state"],
            "best": self.best.tree(),
            "objective": self.objective.tree(),
            "rng": self.rng.get_state(),
            "losses": torch.stack(self.losses) if self.losses else None,
            "history": [tuple(step) for step in self.history],
            "seconds": self.seconds,
            "ended": self.ended,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        """Go on from a tree; one that does not fit ends in a `ValueError`, a `KeyError` or the like."""
        refuse_complex(tree["potential"])
        self.best.restore(tree["best"])
        self.potential.load_state_dict(tree["potential"])
        self._restore_optimiser(tree["optimiser"])
        self.objective.restore(tree["objective"])
        self.rng.set_state(tree["rng"])
        self.losses = [] if tree["losses"] is None else list(tree["losses"])
        if len(self.losses) >= self.objective.steps:
            raise ValueError(f"an epoch has {self.objective.steps} steps, not {len(self.losses)}")
        self.history = [Progress(*step) for step in tree["history"]]
        self.seconds, self.ended = float(tree["seconds"]), bool(tree["ended"])

    def _restore_optimiser(self, memory: dict[int, dict[str, Tensor]]) -> None:
        """Only what it remembers is taken over: its settings are those of the run."""
        parameters = list(self.potential.parameters())
        for number, kept in memory.items():
            shape = parameters[number].shape
            expected = {"step": torch.Size(), "exp_avg": shape, "exp_avg_sq": shape}
            if {name: tensor.shape for name, tensor in kept.items()} != expected:
                raise ValueError(f"the optimiser remembers something else of parameter {number}")
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": memory})


def _objective(
    potential: KnowledgePotential, base: KnowledgeBase, settings: Settings, rng: Generator
) -> Objective:
    bits = potential.bits(base.world(base.train))
    if settings.objective == "likelihood":
        return Chains(potential, bits, rng, settings.chains, settings.sweeps)
    return Conditionals(
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
    training = Training(potential, base, settings or Settings())
    try:
        for told in training.steps():
            if told is not None:
                watch(told)
    except KeyboardInterrupt:
        training.ended = False  # it may have come while the watcher looked at the last epoch
    return training.result()
