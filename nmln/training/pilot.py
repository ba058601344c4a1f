"""A budget in minutes as a number of steps, so that schedules depend on the step only."""

import time
from copy import deepcopy
from statistics import median

from nmln.training.trainer import Trainer

_STEPS = 12  # that are timed


def steps_in(minutes: float, trainer: Trainer) -> int:
    """How many steps fit into a time, by a pilot that leaves no trace in the run."""
    before = deepcopy(trainer.tree())
    # Steps of a warm start cost less, and there are few.
    trainer.step_number = max(trainer.step_number, trainer.config.training.warm_start)
    trainer.step()
    times = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - start)
    trainer.restore(before)
    # The median, because a short load from other programs must not distort the estimate.
    each = trainer.ranks.total(round(1e9 * median(times))) / trainer.ranks.count / 1e9
    return max(1, round(60 * minutes / each))
