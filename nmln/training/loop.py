"""The loop of training, with a guard that returns to the last good state when a run diverges."""

from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

from nmln.files import InputError
from nmln.potentials.base import ScoreError
from nmln.training.trainer import Metrics, Trainer


class DivergenceError(InputError):
    """Training that went wrong too often; the message says how."""


class Return(NamedTuple):
    """A return to the last good state, and why."""

    at: int  # the step that went wrong
    to: int
    reason: str

    def __str__(self) -> str:
        return f"step {self.at}: {self.reason}; back to step {self.to} with half the learning rate"


def train(trainer: Trainer, *, good_every: int = 200) -> Iterator[Metrics | Return]:
    """Train up to the configured number of steps, giving the metrics of every step.

    Every `good_every` steps a state that looks healthy is kept in memory. When a run diverges it goes
    back there with half the learning rate, gives a `Return` that says why, and after the configured
    number of `retries` ends with a `DivergenceError`.
    """
    steps, retries = trainer.config.training.steps, trainer.config.training.retries
    good, reasons = deepcopy(trainer.tree()), []
    watch = Watch(trainer)
    while trainer.step_number < steps:
        try:
            metrics = trainer.step()
            reason = watch.look(metrics)
        except ScoreError as error:
            metrics, reason = None, f"a score is not a number ({error})"
        if trainer.ranks.agree(reason is not None):
            at = trainer.step_number
            reasons.append(reason or "another process saw it")
            if len(reasons) > retries:
                told = "; ".join(reasons)
                raise DivergenceError(
                    f"training diverged {len(reasons)} times, each time after going back with half the "
                    f"learning rate ({told}). Take a smaller learning rate, more moves a step "
                    "(chains.moves), an energy penalty (optimiser.energy_penalty) or a smaller network."
                )
            slowed = trainer.slowed / 2
            trainer.restore(good)
            trainer.slowed = slowed
            watch = Watch(trainer)
            yield Return(at, trainer.step_number, reasons[-1])
            continue
        assert metrics is not None
        if trainer.step_number % good_every == 0 and watch.healthy:
            good = deepcopy(trainer.tree())
        yield metrics


class Watch:
    """Looks at the metrics for signs of a run that has left the road."""

    def __init__(self, trainer: Trainer) -> None:
        groups = trainer.space.groups
        self.widest_gap = 2.0 * groups  # nats: more than every group of every world being off
        self.frozen, self.apart = 0, 0

    def look(self, metrics: Metrics) -> str | None:
        """The reason to go back, if there is one."""
        numbers = (*metrics.gap, *metrics.gradient, *metrics.score)
        if any(number != number or abs(number) == float("inf") for number in numbers):
            return "a gradient or score is not finite"
        # Where a constraint is deterministic no single move helps, and swaps bring new worlds: chains
        # are frozen only if nothing comes in, and they are not where the data are.
        still = metrics.moved[-1] == 0 and not any(swap > 0.01 for swap in metrics.swaps[-1:])
        self.frozen = self.frozen + 1 if still and abs(metrics.gap[-1]) > 1 else 0
        self.apart = self.apart + 1 if abs(metrics.gap[-1]) > self.widest_gap else 0
        if self.frozen >= 100:
            return "for 100 steps the chains at the target have stood still, away from the data"
        if self.apart >= 20:
            return f"data and chains are {metrics.gap[-1]:.0f} apart at the target"
        return None

    @property
    def healthy(self) -> bool:
        return self.frozen == 0 and self.apart == 0
