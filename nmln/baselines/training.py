"""The training of a baseline: updates that can be counted, timed, kept and resumed bit for bit."""

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch

from nmln.baselines.base import Budget, Generator, seeded
from nmln.dropped import Dropped
from nmln.errors import InputError

_TIMED = 5  # updates of the timing


class BaselineTraining:
    """A baseline, its optimiser, and how far it has come.

    `updates` is the number of updates in all; an update is a batch of an epoch, whose order depends only
    on the seed and the number of the epoch. `memory` belongs to the baseline.
    """

    def __init__(self, baseline: Generator, seed: int, dropped: tuple[Dropped, ...]) -> None:
        self.baseline, self.seed, self.dropped = baseline, seed, dropped
        self.optimiser = baseline.optimiser()
        self.memory: dict[str, Any] = {}
        self.update = self.updates = 0
        self.losses = 0.0  # summed over the epoch
        self.seconds = 0.0  # of processor time
        self.stopped = False

    @staticmethod
    def start(
        baseline: Generator, train: Sequence[str], budget: Budget, seed: int
    ) -> "BaselineTraining":
        """A new training; minutes become a number of updates by a timing that leaves no trace."""
        with seeded(seed, "build", 0):
            dropped = baseline.build(train)
        if not baseline.size:
            raise InputError(
                f"none of {len(train)} molecules can be learned by {baseline.name}. Give others.",
                kind="empty",
            )
        made = BaselineTraining(baseline, seed, dropped)
        schedule = baseline.epochs * made.per_epoch
        if budget.minutes is not None:
            made.updates = min(schedule, made._fitting(budget.minutes))
        else:
            made.updates = budget.updates or schedule
        return made

    @property
    def per_epoch(self) -> int:
        """The number of updates of an epoch."""
        return -(-self.baseline.size // self.baseline.settings.batch)

    @property
    def done(self) -> bool:
        return self.stopped or self.update >= self.updates

    def step(self) -> float:
        """One update; returns its loss."""
        began = time.process_time()
        epoch, place = divmod(self.update, self.per_epoch)
        with seeded(self.seed, "epoch", epoch):
            order = torch.randperm(self.baseline.size)
        size = self.baseline.settings.batch
        chosen = order[place * size : (place + 1) * size]
        self.baseline.updates = self.updates
        self.baseline.network.train()
        with seeded(self.seed, "update", self.update):
            self.optimiser.zero_grad()
            loss = self.baseline.loss(chosen, self.update)
            loss.backward()
            self.optimiser.step()
        value = float(loss.detach())
        if value != value or abs(value) == float("inf"):
            raise InputError(
                f"the loss of update {self.update + 1} is {value}. Train with a smaller learning rate.",
            )
        self.losses += value
        self.update += 1
        if place + 1 == self.per_epoch:
            mean, self.losses = self.losses / self.per_epoch, 0.0
            with seeded(self.seed, "epoch end", epoch):
                self.stopped = self.baseline.end_epoch(epoch, mean, self.optimiser, self.memory)
        self.seconds += time.process_time() - began
        return value

    def finish(self) -> None:
        """After the last update."""
        self.baseline.finish(self.memory)
        self.baseline.network.eval()

    def tree(self) -> dict[str, Any]:
        """All that is needed to continue: tensors and plain values."""
        return {
            "network": dict(self.baseline.network.state_dict()),
            "optimiser": self.optimiser.state_dict(),
            "memory": self.memory,
            "update": self.update,
            "updates": self.updates,
            "losses": self.losses,
            "seconds": self.seconds,
            "stopped": self.stopped,
        }

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Continue from what `tree` gave."""
        self.baseline.network.load_state_dict(tree["network"])
        self.optimiser.load_state_dict(tree["optimiser"])
        self.memory = dict(tree["memory"])
        self.update, self.updates = tree["update"], tree["updates"]
        self.losses, self.seconds = tree["losses"], tree["seconds"]
        self.stopped = tree["stopped"]

    def _fitting(self, minutes: float) -> int:
        before, self.updates = deepcopy(self.tree()), 2 + _TIMED
        self.step()  # the first one warms up
        began = time.process_time()
        for _ in range(_TIMED):
            self.step()
        each = (time.process_time() - began) / _TIMED
        self.optimiser = self.baseline.optimiser()
        self.restore(before)
        return max(1, round(60 * minutes / each))
