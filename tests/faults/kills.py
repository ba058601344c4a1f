"""Commands that are killed at a random moment and continued: the results must be the same bytes."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.corpus.prepared import Shelf
from tests.corpus.runner import contents
from tests.faults.trials import (
    SECONDS,
    VERBS,
    Reference,
    Trial,
    Verb,
    continue_to_the_end,
    reference,
)
from tests.warm import Warm

_BY_NAME = {verb.name: verb for verb in VERBS}
_LONGER = ("--set", "training.steps=60", "--set", "training.checkpoint_seconds=0.1")
_MANY = ("--num-samples", "1000", "--burn-in", "40")


def _with(name: str, command: tuple[str, ...], processes: int) -> Verb:
    """A command of the fault trials, longer, and in several processes."""
    label = f"{name}, {processes} process{'es' if processes > 1 else ''}"
    return replace(_BY_NAME[name], name=label, command=command)


def _verbs() -> Iterator[tuple[Verb, int]]:
    train, sample, main, kb = (
        _BY_NAME[name].command for name in ("train", "sample molecules", "run", "kb train")
    )
    for count, kills in ((1, 10), (2, 8)):
        words = (*train, *_LONGER, "--processes", str(count))
        yield _with("train", words, count), kills
    for count, kills in ((1, 9), (2, 7)):
        yield _with("sample molecules", (*sample[:-1], str(count), *_MANY), count), kills
    for count, kills in ((1, 5), (2, 4)):
        words = (*main, *_LONGER, "--processes", str(count))
        yield _with("run", words, count), kills
    longer = ("--epochs", "40", "--patience", "40", "--checkpoint-seconds", "0.1")
    yield _with("kb train", (*kb, *longer), 1), 7


KILLS = tuple(_verbs())
"""Commands, and how often each is killed: 50 times in all."""


@dataclass(frozen=True)
class Plan:
    """A command with what it must come to, how long it takes, and the moments to kill it at."""

    expected: Reference
    moments: list[float]


def plan(verb: Verb, kills: int, call: Warm, shelf: Shelf, folder: Path, seed: int = 0) -> Plan:
    """Run a command undisturbed, and draw moments from the time that it takes."""
    expected = reference(verb, call, shelf, folder, cores=2)
    chance = random.Random(f"{seed} {verb.name}")
    return Plan(expected, [chance.uniform(0.01, expected.seconds) for _ in range(kills)])


def kill(one: Plan, number: int, call: Warm, shelf: Shelf, folder: Path) -> Trial:
    """Kill a command at one of the moments, continue it, and compare.

    By turns the process that the user started is killed alone, and with all that it has started.
    """
    verb, moment = one.expected.verb, one.moments[number]
    trial = Trial(verb.name, f"killed after {moment:.2f} of {one.expected.seconds:.2f} s")
    here = folder / "here"
    here.mkdir(parents=True)
    shelf.take(verb.prepared, here)
    before = contents(here)
    options: dict[str, Any] = {"folder": here, "seconds": SECONDS, "cores": 2}
    done = call(*verb.command, **options, kill_after=moment, kill_all=number % 2 == 0)
    trial.said.append(f"[{done.code}] {done.said.strip()[-400:]}")
    trial.tracebacks += "Traceback (most recent" in done.said
    trial.wrong += [f"{done.left_behind} processes left behind"] if done.left_behind else []
    continue_to_the_end(trial, one.expected, call, here, options)
    after = contents(here)
    written = {f"{verb.root}/{name}" for name in one.expected.names - one.expected.untouched}
    own = sorted(before.keys() - written)
    trial.lost += [name for name in own if after.get(name) != before[name]]
    shutil.rmtree(folder)
    return trial
