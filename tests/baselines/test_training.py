"""The training of a baseline: timings that leave no trace, and checkpoints in files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nmln import checkpoint
from nmln.baselines.base import Budget, Generator, new
from nmln.baselines.training import BaselineTraining
from tests.baselines.test_digress_network import TINY

pytestmark = pytest.mark.usefixtures("unchecked")
MOLECULES = ("CCO", "CCN", "C=CC", "CC#N", "COC", "CCF", "OCO", "C1CC1", "CNC", "CC=O")
GRAPHS = {**TINY, "layers": 1, "batch": 3, "times": 8, "sampling_steps": 4}
SMALL: dict[str, dict[str, Any]] = {
    "rnn-char": {
        "layers": 2, "units": 6, "embedded": 4, "longest": 12, "batch": 3, "judged": 8, "rate": 0.1,
    },
    "digress-s": GRAPHS,
    "congress-s": GRAPHS,
}  # fmt: skip
PER_EPOCH = 4  # updates: neither a timing nor half a training ends with an epoch


def started(name: str, budget: Budget, **changes: Any) -> BaselineTraining:
    return BaselineTraining.start(new(name, **{**SMALL[name], **changes}), MOLECULES, budget, 3)


def rest(training: BaselineTraining) -> list[float]:
    """The losses of all updates that are left."""
    losses = []
    while not training.done:
        losses.append(training.step())
    return losses


def alike(one: Generator, other: Generator) -> bool:
    """Whether two networks are the same to the bit."""
    first, second = (dict(each.network.state_dict()) for each in (one, other))
    return first.keys() == second.keys() and all(
        torch.equal(first[key], second[key]) for key in first
    )


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two trees of trainings agree to the bit in all but their times."""
    (first, content), (second, others) = (
        checkpoint.flatten({key: part for key, part in tree.items() if key != "seconds"})
        for tree in (one, other)
    )
    return content == others and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", ["rnn-char", "digress-s"])
def test_minutes_train_the_network_of_as_many_updates(name: str) -> None:
    epochs = 3
    timed = started(name, Budget(minutes=60), epochs=epochs)  # more than the schedule needs
    updates = epochs * PER_EPOCH
    assert (timed.update, timed.updates) == (0, updates)
    counted = started(name, Budget(updates=updates), epochs=epochs)
    assert same(timed.tree(), counted.tree())
    assert rest(timed) == rest(counted)
    assert same(timed.tree(), counted.tree())
    timed.finish()
    counted.finish()
    assert alike(timed.baseline, counted.baseline)


def through_files(training: BaselineTraining, folder: Path) -> dict[str, Any]:
    """The tree of a training after it was saved as a checkpoint and read again."""
    checkpoint.save(folder, training.update, *checkpoint.flatten(training.tree()))
    kept = checkpoint.load(folder)
    assert kept.step == training.update
    return checkpoint.unflatten(kept.tensors, kept.content)


@pytest.mark.parametrize("name", ["digress-s", "congress-s"])
def test_a_training_resumed_from_a_checkpoint_ends_as_if_it_were_whole(
    name: str, tmp_path: Path
) -> None:
    budget = Budget(updates=6)
    whole, part = (started(name, budget) for _ in range(2))
    losses = rest(whole)
    for _ in range(3):
        part.step()
    resumed = started(name, budget)
    assert not alike(resumed.baseline, part.baseline)
    resumed.restore(through_files(part, tmp_path))
    assert resumed.update == 3
    assert same(resumed.tree(), part.tree())
    assert rest(resumed) == losses[3:]
    assert same(resumed.tree(), whole.tree())
