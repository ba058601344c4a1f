"""Training of a knowledge-base potential, with early stopping on the validation triples."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.objectives import ConditionalObjective, LikelihoodObjective, Objective
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import RankingQuality, rank, scorer
from nmln.knowledge.settings import KnowledgeSettings
from nmln.potentials.base import refuse_complex


class Progress(NamedTuple):
    """One epoch of a training; `mrr` is that of the validation triples, where they were ranked."""

    epoch: int
    loss: float
    mrr: float | None
    best: float | None
    seconds: float


@dataclass(frozen=True)
class Result:
    """The outcome of a training; the potential holds the parameters of `epoch`."""

    epoch: int
    epochs: int
    seconds: float
    interrupted: bool
    valid: RankingQuality | None
    history: list[Progress] = field(repr=False)


class DivergedError(InputError):
    """The loss has diverged; a run with the same settings would diverge again."""


class BestParameters:
    """The parameters that ranked the validation triples best so far.

    With `average`, a running mean of the parameters is ranked instead; a step has weight 1 - average.
    """

    def __init__(self, potential: KnowledgePotential, base: KnowledgeBase, average: float) -> None:
        self.base, self.average = base, average
        self.judged = potential
        if average:
            self.judged = KnowledgePotential(potential.space, potential.shape).to(potential.dtype)
            self.judged.load_state_dict(potential.state_dict())
        self.steps = 0
        self.epoch = 0
        self.quality: RankingQuality | None = None
        self.state: dict[str, Tensor] = {}

    @torch.no_grad()
    def follow(self, potential: KnowledgePotential) -> None:
        """Update the running mean after an optimiser step."""
        if self.judged is potential:
            return
        self.steps += 1
        forget = 1 - min(self.average, self.steps / (self.steps + 10))
        for mean, now in zip(self.judged.parameters(), potential.parameters(), strict=True):
            mean.lerp_(now, forget)

    @torch.no_grad()
    def check(self, epoch: int) -> float | None:
        """Rank the validation triples and keep the parameters if they are the best so far.

        Returns the mean reciprocal rank. Without validation triples it returns None, and the newest
        parameters count as the best.
        """
        if not len(self.base.valid):
            self.epoch, self.state = epoch, _copy(self.judged)
            return None
        found = rank(scorer(self.judged, self.base), self.base.valid, self.base.known).both
        if self.quality is None or found.mrr > self.quality.mrr:
            self.epoch, self.quality, self.state = epoch, found, _copy(self.judged)
        return found.mrr

    def stale(self, epoch: int, patience: int) -> bool:
        """Whether the validation ranking has not improved for `patience` epochs."""
        return len(self.base.valid) > 0 and epoch - self.epoch >= patience

    def copy_to(self, potential: KnowledgePotential) -> None:
        """Load the best parameters into a potential; the current mean if none were kept."""
        potential.load_state_dict(self.state or self.judged.state_dict())

    def tree(self) -> dict[str, Any]:
        """The whole state, for a checkpoint."""
        return {
            "mean": dict(self.judged.state_dict()),
            "steps": self.steps,
            "epoch": self.epoch,
            "quality": None if self.quality is None else asdict(self.quality),
            "state": self.state,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        """Continue from a tree; tensors that do not fit are an error now, not at the end."""
        if tree["state"]:  # loaded only to check its shapes
            self.judged.load_state_dict(tree["state"])
        self.judged.load_state_dict(tree["mean"])
        self.steps, self.epoch = int(tree["steps"]), int(tree["epoch"])
        self.quality = None if tree["quality"] is None else RankingQuality(**tree["quality"])
        self.state = dict(tree["state"])


def _copy(potential: KnowledgePotential) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in potential.state_dict().items()}


class Training:
    """A training of a potential, in place, that can be saved after any step and continued later.

    `seconds` is the time used so far, including the time before the run was resumed.
    """

    def __init__(
        self, potential: KnowledgePotential, base: KnowledgeBase, settings: KnowledgeSettings
    ) -> None:
        self.potential, self.base, self.settings = potential, base, settings
        self.rng = Generator().manual_seed(settings.seed)
        self.objective = _objective(potential, base, settings, self.rng)
        self.optimiser = torch.optim.AdamW(
            potential.parameters(), lr=settings.rate, weight_decay=settings.decay
        )
        self.best = BestParameters(potential, base, settings.average)
        self.losses: list[Tensor] = []  # of the current epoch
        self.history: list[Progress] = []
        self.seconds = 0.0
        self.ended = False

    @property
    def steps_taken(self) -> int:
        """Optimiser steps so far."""
        return len(self.history) * self.objective.steps + len(self.losses)

    def steps(self) -> Iterator[Progress | None]:
        """Take optimiser steps to the end; yields the progress after the last step of an epoch."""
        started = time.perf_counter() - self.seconds
        while not self.ended:
            loss = self.objective.loss(len(self.losses))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.best.follow(self.potential)
            self.losses.append(loss.detach())
            progress = None
            if len(self.losses) == self.objective.steps:
                progress = self._end_epoch(started)
            self.seconds = time.perf_counter() - started
            yield progress

    def _end_epoch(self, started: float) -> Progress:
        settings, epoch = self.settings, len(self.history) + 1
        mean = float(torch.stack(self.losses).mean())
        if mean != mean:
            raise DivergedError(
                f"the loss must stay a number, but is NaN after epoch {epoch}. Use a smaller --rate or "
                "--penalty.",
                kind="numeric",
            )
        late = time.perf_counter() - started > settings.minutes * 60
        last = late or epoch == settings.epochs
        mrr = self.best.check(epoch) if last or epoch % settings.check_every == 0 else None
        best = None if self.best.quality is None else self.best.quality.mrr
        progress = Progress(epoch, mean, mrr, best, time.perf_counter() - started)
        self.history.append(progress)
        self.losses = []
        self.ended = last or self.best.stale(epoch, settings.patience * settings.check_every)
        return progress

    def result(self) -> Result:
        """Load the best parameters into the potential; the training cannot continue after that."""
        self.best.copy_to(self.potential)
        found, epochs = self.best, len(self.history)
        return Result(
            found.epoch, epochs, self.seconds, not self.ended, found.quality, self.history
        )

    def tree(self) -> dict[str, Any]:
        """All that is needed to continue bit for bit, beside the base, the shape and the settings."""
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
        """Continue from a tree; one that does not fit raises one of `checkpoint.FOREIGN`."""
        refuse_complex(tree["potential"])
        self.best.restore(tree["best"])
        self.potential.load_state_dict(tree["potential"])
        self._restore_optimiser(tree["optimiser"])
        self.objective.restore(tree["objective"])
        self.rng.set_state(tree["rng"])
        self.losses = [] if tree["losses"] is None else list(tree["losses"])
        if len(self.losses) >= self.objective.steps:
            raise ValueError(
                f"an epoch must have {self.objective.steps} steps, got {len(self.losses)}"
            )
        self.history = [Progress(*step) for step in tree["history"]]
        self.seconds, self.ended = float(tree["seconds"]), bool(tree["ended"])

    def _restore_optimiser(self, memory: dict[int, dict[str, Tensor]]) -> None:
        """Restore the moments of every parameter; rate and decay come from the settings."""
        parameters = list(self.potential.parameters())
        for number, kept in memory.items():
            shape = parameters[number].shape
            expected = {"step": torch.Size(), "exp_avg": shape, "exp_avg_sq": shape}
            if {name: tensor.shape for name, tensor in kept.items()} != expected:
                raise ValueError(f"the optimiser state of parameter {number} has other shapes")
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": memory})


def _objective(
    potential: KnowledgePotential, base: KnowledgeBase, settings: KnowledgeSettings, rng: Generator
) -> Objective:
    bits = potential.bits(base.world(base.train))
    if settings.objective == "likelihood":
        return LikelihoodObjective(potential, bits, rng, settings.chains, settings.sweeps)
    return ConditionalObjective(
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
    settings: KnowledgeSettings | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Train in place and load the parameters that ranked the validation triples best.

    Without validation triples the parameters of the last epoch are used. Training ends after `epochs`
    or `minutes`, or when the validation ranking no longer improves. Ctrl-C ends it too, with the best
    parameters so far.

    Args:
        potential: is changed in place.
        base: the training and validation triples.
        settings: the defaults of `KnowledgeSettings` if None.
        watch: called with the progress after each epoch.
    """
    training = Training(potential, base, settings or KnowledgeSettings())
    try:
        for progress in training.steps():
            if progress is not None:
                watch(progress)
    except KeyboardInterrupt:
        training.ended = False  # Ctrl-C may arrive while `watch` handles the last epoch
    return training.result()
