"""A budget in minutes as a number of steps, so that schedules depend on the step only."""

import time
from copy import deepcopy
from dataclasses import replace
from math import ceil
from statistics import median

from nmln.config import Config
from nmln.training.trainer import Trainer

MOST_SWEEPS = 8
"""Sweeps per step, beyond which time that is left is not spent."""

_STEPS = 12  # that are timed


def planned(minutes: float, trainer: Trainer) -> Config:
    """The configuration for some minutes of training: how many steps, and how many sweeps in each.

    As many steps as fit, but at most `training.passes` over the data, if that is set: more would learn
    them by heart. Time that is left then goes to more sweeps of the chains. The pilot leaves no trace
    in the run.
    """
    config, seconds = trainer.config, 60 * minutes
    each = _seconds(trainer, config)
    steps = max(1, round(seconds / each))
    most = steps_of_passes(trainer)
    if most is None or steps <= most:
        return _lasting(config, steps, config.chains.sweeps)
    least = config.chains.sweeps
    if least >= MOST_SWEEPS:
        return _lasting(config, most, least)
    # Many sweeps are timed: the difference of two times that are nearly equal would be noise.
    longest = _seconds(trainer, _with_sweeps(config, MOST_SWEEPS))
    added = max((longest - each) / (MOST_SWEEPS - least), 1e-9)
    spare = min((seconds / most - each) / added, MOST_SWEEPS - least)
    return _lasting(config, most, least + int(spare))


def steps_of_passes(trainer: Trainer) -> int | None:
    """The number of steps that `training.passes` allows, None if it is not set."""
    training = trainer.config.training
    if not training.passes:
        return None
    worlds = sum(len(domain.worlds) for domain in trainer.domains)
    return ceil(training.passes * worlds / training.batch)


def _seconds(trainer: Trainer, config: Config) -> float:
    """The time of a step with this configuration, as a mean over the processes."""
    before, own = deepcopy(trainer.tree()), trainer.config
    trainer.configure(config)
    # Steps of a warm start cost less, and there are few.
    trainer.step_number = max(trainer.step_number, config.training.warm_start)
    trainer.step()
    clock = time.process_time if config.training.clock == "processor" else time.perf_counter
    times = []
    for _ in range(_STEPS):
        start = clock()
        trainer.step()
        times.append(clock() - start)
    trainer.restore(before)
    trainer.configure(own)
    # The median, because a short load from other programs must not distort the estimate.
    return trainer.ranks.total(round(1e9 * median(times))) / trainer.ranks.count / 1e9


def _with_sweeps(config: Config, sweeps: int) -> Config:
    return replace(config, chains=replace(config.chains, sweeps=sweeps))


def _lasting(config: Config, steps: int, sweeps: int) -> Config:
    config = _with_sweeps(config, sweeps)
    return replace(config, training=replace(config.training, steps=steps, minutes=None))
