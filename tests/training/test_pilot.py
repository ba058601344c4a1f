"""A budget in minutes as steps and sweeps."""

from itertools import count
from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmln.config import configure, override
from nmln.errors import InputError
from nmln.model import Model
from nmln.training import Trainer, pilot
from nmln.training.pilot import MOST_SWEEPS, planned
from tests.model.test_domains import buckets

SETTINGS: dict[str, dict[str, Any]] = {
    "ladder": {"rates": [0.2, 0.05]},
    "model": {"layers": 1, "hidden": 4},
    "chains": {"replicas": 12, "sweeps": 2, "moves": 1},
    "training": {"batch": 12, "steps": 3},
}


def trainer(passes: float = 0.0) -> Trainer:
    settings = {**SETTINGS, "training": {**SETTINGS["training"], "passes": passes}}
    data = buckets()
    model = Model.build(data, config=configure(settings))
    return Trainer(model.potential, data, model.config)


def equal_trees(one: Any, other: Any) -> bool:
    """Whether all tensors and values of two trees are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(
            one.nan_to_num(), other.nan_to_num()
        )  # sizes that a kernel does not have
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal_trees(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal_trees, one, other))
    return one == other


def untimed(run: Trainer) -> dict[str, Any]:
    """The whole state of a run but the seconds that it took."""
    tree = run.tree()
    for block in tree["ranks"]:
        for domain in block["domains"]:
            domain["evaluations"] = domain["evaluations"][:2]
    return tree


def costing(monkeypatch: pytest.MonkeyPatch, fixed: float, sweep: float) -> None:
    """Steps that take a fixed time, and more for every sweep."""
    monkeypatch.setattr(pilot, "_seconds", lambda _, config: fixed + sweep * config.chains.sweeps)


def test_as_many_steps_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    costing(monkeypatch, 1.0, 0.5)
    config = planned(4.0, trainer())
    assert (config.training.steps, config.training.minutes, config.chains.sweeps) == (120, None, 2)


@pytest.mark.parametrize(
    ("minutes", "steps", "sweeps"),
    [(1.0, 30, 2), (2.5, 75, 2), (4.0, 80, 4), (60.0, 80, MOST_SWEEPS)],
)
def test_time_beyond_the_passes_goes_to_sweeps(
    monkeypatch: pytest.MonkeyPatch, minutes: float, steps: int, sweeps: int
) -> None:
    costing(monkeypatch, 1.0, 0.5)
    worlds = sum(len(bucket.worlds) for bucket in buckets())
    run = trainer(passes=80 * 12 / worlds)
    config = planned(minutes, run)
    assert (config.training.steps, config.chains.sweeps) == (steps, sweeps)
    if steps == 80:
        assert steps == ceil(run.config.training.passes * worlds / 12)


def test_a_pilot_leaves_no_trace() -> None:
    run, other = trainer(passes=2.0), trainer(passes=2.0)
    config = planned(1.0, run)
    assert config.chains.sweeps > 2
    assert run.config == other.config
    for one in (run, other):
        one.step()
    assert run.blocks[0].parts[0].chains.config == other.config.chains
    assert equal_trees(untimed(run), untimed(other))


def test_the_chains_take_the_sweeps_of_the_plan() -> None:
    run, other = trainer(), trainer()
    more = planned(1.0, trainer(passes=2.0))
    run.configure(more)
    run.step()
    other.step()
    assert run.evaluations.scores > other.evaluations.scores
    assert torch.equal(*(one.blocks[0].parts[0].domain.worlds for one in (run, other)))


def test_passes_are_not_negative() -> None:
    with pytest.raises(InputError, match=r"training\.passes must not be negative"):
        trainer(passes=-1.0)


def test_minutes_of_the_processor_do_not_depend_on_other_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(**vars(pilot.time))
    wall, processor = count(), count()
    clock.perf_counter = lambda: 6.0 * next(wall)  # the machine is busy
    clock.process_time = lambda: 2.0 * next(processor)
    monkeypatch.setattr(pilot, "time", clock)
    run = trainer()
    steps = {}
    for name in ("wall", "processor"):
        run.configure(override(run.config, {"training.clock": name}))
        steps[name] = planned(1.0, run).training.steps
    assert steps == {"wall": 10, "processor": 30}


def test_the_clock_is_recorded_only_where_it_is_named() -> None:
    assert "clock" not in configure(SETTINGS).to_dict()["training"]
    named = override(configure(SETTINGS), {"training.clock": "processor"})
    assert named.to_dict()["training"]["clock"] == "processor"
