"""Chains that a run keeps in its model, and samplings that start from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nmln.errors import InputError, InterruptedRunError
from nmln.model import Model
from nmln.runs import sample as sampling
from nmln.runs import stream
from nmln.runs import train as training
from tests.runs.runs import equal, settings, weights, whole_run

pytestmark = pytest.mark.usefixtures("unchecked")

LONG: dict[str, Any] = {
    "training__steps": 10, "chains__sweeps": 30, "chains__moves": 1,
    "training__checkpoint_seconds": 99.0,
}  # fmt: skip


class Listener(training.Silent):
    """Keeps the notes of a run, and calls for a stop at the first one about the mixing, if asked to."""

    def __init__(self, stop: bool = False) -> None:
        self.notes: list[str] = []
        self.stop = stop

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def stopped(self) -> bool:
        return self.stop and any(note.startswith("mixing") for note in self.notes)


def test_a_run_stopped_while_its_chains_are_mixed_keeps_the_same_chains(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = whole_run(people, **LONG)
    assert Model.load(whole / "model").replicas is not None
    listener = Listener(stop=True)

    @contextmanager
    def interruption(*_: object) -> Iterator[Any]:
        yield lambda: listener.stopped

    part = people.parent / "part"
    with monkeypatch.context() as patched:
        patched.setattr(training, "interruption", interruption)
        with pytest.raises(InterruptedRunError, match="All 10 steps are kept"):
            training.run(training.begin(part, settings(people, **LONG)), listener)
    assert not (part / "model").exists()
    again = Listener()
    training.run(training.resume(part), again)
    assert equal(weights(whole), weights(part))
    assert any("16 chains are kept" in note for note in again.notes)


def test_a_short_run_keeps_none(people: Path) -> None:
    assert Model.load(whole_run(people, training__steps=2) / "model").replicas is None


@pytest.fixture
def run(people: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose model has chains; the page about a sampling is left out."""
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    folder = whole_run(people, training__steps=1)
    model = Model.load(folder / "model")
    model.mixed(7, 20).save(folder / "model")
    return folder


def begin(run: Path, name: str, **options: Any) -> stream.SamplingJob:
    opened = sampling.open_run(run)
    given = {one: options.pop(one) for one in ("formulas",) if one in options}
    return sampling.begin(opened, opened.conditions(**given), 60, run.parent / name, **options)


def test_blocks_start_from_different_chains_of_the_model_in_any_order(run: Path) -> None:
    job = begin(run, "one", chains=6, block=2)
    (values,) = job.model.replicas.values  # pyright: ignore[reportOptionalMemberAccess]
    found = torch.cat([job.settings.replicas_of(block, values.shape[1]) for block in job.blocks])
    assert len(set(found.tolist())) == 6
    assert job.settings.burn_in < 300
    assert job.about["start"] == "chains of the model"
    for block in reversed(job.blocks):
        stream.work(job, [block])
    stream.finish(job)
    sampling.run(run, 60, run.parent / "other", chains=6, block=2)
    one, other = (run.parent / name for name in ("one.db", "other.db"))
    assert one.read_text() == other.read_text()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"burn_in": 4}, "noise: a burn-in is given"),
        ({"start": "noise"}, "noise: asked for"),
        ({"formulas": ("1.5 smokes(x)",)}, "noise: formulas are given"),
    ],
)
def test_other_samplings_burn_in_from_noise(run: Path, options: dict[str, Any], why: str) -> None:
    job = begin(run, "one", **options)
    assert job.about["start"] == why
    assert not job.settings.start
    assert job.settings.burn_in == options.get("burn_in", 300)
    assert (job.settings.chains, job.settings.thin) == (60, 4)


def test_a_sampling_is_not_continued_from_other_chains(run: Path) -> None:
    job = begin(run, "one")
    model = Model.load(run / "model")
    assert stream.attend(job.place, model).settings == job.settings
    for other in (model.mixed(7, 21, seed=9), replace(model, replicas=None)):
        with pytest.raises(InputError, match="the model has changed"):
            stream.attend(job.place, other)
