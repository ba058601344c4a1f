"""What every model of strings must do: resume bit for bit, and come back from a file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from nmln.baselines import base
from nmln.baselines.base import BASELINES, Budget, Generator, new
from nmln.baselines.strings import StringBaseline
from nmln.baselines.training import BaselineTraining
from nmln.checkpoint import flatten, unflatten

MOLECULES = ("CCO", "CCN", "C=CC", "CC#N", "COC", "CCF", "OCO", "C1CC1", "CNC", "CC=O")
pytestmark = pytest.mark.usefixtures("unchecked")
NAMES = [name for name, one in BASELINES.items() if issubclass(one.family, StringBaseline)]
RECURRENT: dict[str, Any] = {"layers": 2, "units": 6, "embedded": 4, "longest": 12, "batch": 4}
STACKED: dict[str, Any] = {
    "units": 6, "latent": 3, "width": 3, "depth": 4, "longest": 10, "batch": 4, "draws": 2,
}  # fmt: skip
UPDATES = 6  # two epochs


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "at_once", 20)


def tiny(name: str) -> Generator:
    changes = STACKED if name.startswith("svae") else RECURRENT
    if getattr(BASELINES[name].settings, "judged", 0):
        changes = {**changes, "judged": 8}
    return new(name, **changes)


def started(name: str) -> BaselineTraining:
    return BaselineTraining.start(tiny(name), MOLECULES, Budget(updates=UPDATES), seed=3)


def outcome(training: BaselineTraining) -> tuple[dict[str, torch.Tensor], list[str | None]]:
    while not training.done:
        training.step()
    training.finish()
    found = dict(training.baseline.network.state_dict())
    return found, list(training.baseline.generate(25, seed=1))


@pytest.mark.parametrize("name", NAMES)
def test_a_training_killed_at_any_update_ends_as_if_it_were_not(name: str) -> None:
    whole = started(name)
    kept = []
    while not whole.done:
        tensors, content = flatten(whole.tree())
        kept.append(
            (save({key: part.clone() for key, part in tensors.items()}), json.dumps(content))
        )
        whole.step()
    parameters, samples = outcome(whole)
    assert len(kept) == UPDATES
    for packed, text in kept:
        again = started(name)
        again.restore(unflatten(load(packed), json.loads(text)))
        found, written = outcome(again)
        assert all(torch.equal(found[key], part) for key, part in parameters.items())
        assert written == samples


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_baseline_writes_and_scores_as_before(name: str, tmp_path: Path) -> None:
    baseline = tiny(name)
    baseline.fit(MOLECULES, Budget(updates=2))
    baseline.save(tmp_path / "model")
    again = base.load(tmp_path / "model")
    assert list(again.generate(30)) == list(baseline.generate(30))
    assert list(again.generate(7)) == list(again.generate(30))[:7]
    first, second = (one.log_prob(MOLECULES[:4]) for one in (baseline, again))
    assert first is not None
    assert second is not None
    assert torch.equal(first.values, second.values)
    other = again.log_prob(MOLECULES[:4], seed=1)
    assert other is not None
    estimated = name.startswith("svae")  # by random draws; the others sum over the same strings
    assert torch.equal(first.values, other.values) != estimated
    assert not first.exact
    assert bool((first.values < 0).all())
