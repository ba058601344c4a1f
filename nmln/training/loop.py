"""The loop of training, with a guard that returns to the last good state when a run diverges."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nmln.errors import InputError
from nmln.potentials.base import ScoreError
from nmln.training.trainer import Metrics, Trainer


class DivergenceError(InputError):
    """Training diverged too often; the message says how."""


class Return(NamedTuple):
    """A return to the last good state, and why."""

    at: int  # the step that diverged
    to: int
    reason: str

    def __str__(self) -> str:
        return f"step {self.at}: {self.reason}; back to step {self.to} with half the learning rate"


def train(
    trainer: Trainer, *, good_every: int = 200, guard: "Guard | None" = None
) -> Iterator[Metrics | Return]:
    """Train up to the configured number of steps, giving the metrics of every step.

    Every `good_every` steps a state that looks healthy is kept in memory. A run that diverges
    returns there with half the learning rate and yields a `Return` that says why; after the configured
    number of `retries` it ends with a `DivergenceError`. A caller that saves the run passes its own
    guard and saves it too: then a resumed run returns when and where the uninterrupted one does.
    """
    guard = guard or Guard.of(trainer)
    while trainer.step_number < trainer.config.training.steps:
        try:
            metrics = trainer.step()
            reason = guard.look(metrics)
        except ScoreError as error:
            metrics, reason = None, f"a score is not a number ({error})"
        if trainer.ranks.agree(reason is not None):
            yield guard.go_back(trainer, reason or "another process saw it")
            continue
        assert metrics is not None
        if trainer.step_number % good_every == 0 and guard.healthy:
            guard.good = deepcopy(trainer.tree())
        yield metrics


@dataclass
class Guard:
    """Detects a run that diverges, and returns it to its last good state."""

    good: dict[str, Any]  # the trainer's last state that looked healthy
    widest_gap: float
    reasons: list[str] = field(default_factory=list)  # of all returns so far
    frozen: int = 0  # for how many steps the chains have not moved
    apart: int = 0  # for how many steps data and chains have been far from each other

    @staticmethod
    def of(trainer: Trainer) -> "Guard":
        """A new guard that takes the current state of the trainer as healthy."""
        # In nats: more than every group of every world being off.
        return Guard(
            deepcopy(trainer.tree()),
            2.0 * max(domain.potential.space.groups for domain in trainer.domains),
        )

    def look(self, metrics: Metrics) -> str | None:
        """The reason to return to the last good state, if there is one."""
        numbers = (*metrics.gap, *metrics.gradient, *metrics.score)
        if any(number != number or abs(number) == float("inf") for number in numbers):
            return "a gradient or score is not finite"
        # Under a deterministic constraint no single move is accepted, and new worlds come by swaps:
        # chains are frozen only if no world is swapped in, and if they are away from the data.
        asked = metrics.moves > 0
        still = (
            asked and metrics.moved[-1] == 0 and not any(swap > 0.01 for swap in metrics.swaps[-1:])
        )
        self.frozen = self.frozen + 1 if still and abs(metrics.gap[-1]) > 1 else 0
        self.apart = self.apart + 1 if abs(metrics.gap[-1]) > self.widest_gap else 0
        if self.frozen >= 100:
            return (
                "for 100 steps the chains at the target have not moved, and are away from the data"
            )
        if self.apart >= 20:
            return f"data and chains are {metrics.gap[-1]:.0f} apart at the target"
        return None

    @property
    def healthy(self) -> bool:
        return self.frozen == 0 and self.apart == 0

    def go_back(self, trainer: Trainer, reason: str) -> Return:
        """Put the trainer back to its last good state with half the learning rate, or give up."""
        at, slowed = trainer.step_number, trainer.slowed / 2
        self.reasons.append(reason)
        if len(self.reasons) > trainer.config.training.retries:
            raise DivergenceError(
                f"training diverged {len(self.reasons)} times, each time after a return with half "
                f"the learning rate ({'; '.join(self.reasons)}). Take a smaller learning rate, more "
                "moves per step (chains.moves), an energy penalty (optimiser.energy_penalty) or a "
                "smaller network.",
                kind="numeric",
            )
        trainer.restore(deepcopy(self.good))
        trainer.slowed = slowed
        self.frozen = self.apart = 0
        return Return(at, trainer.step_number, reason)

    # The state that is needed to continue.

    def tree(self) -> dict[str, Any]:
        """The guard as named tensors and plain values."""
        return {
            "good": self.good,
            "reasons": list(self.reasons),
            "frozen": self.frozen,
            "apart": self.apart,
        }

    def restore(self, tree: dict[str, Any]) -> None:
        """Continue from a tree."""
        self.good, self.reasons = tree["good"], list(tree["reasons"])
        self.frozen, self.apart = tree["frozen"], tree["apart"]
