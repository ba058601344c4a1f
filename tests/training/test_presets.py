"""Every preset of the older models, of the paper and of molecules makes some steps on molecules."""

import math

import pytest

from nmln.config import configure, override
from nmln.model import Model
from nmln.molecules.chemistry import encode_all, space_for
from nmln.training import Metrics, Trainer, train
from tests.runs.main_jobs import MOLECULES

SMALL = {"training.steps": 3, "training.batch": 4}


@pytest.mark.parametrize("name", ["s1", "s2", "s3", "s4", "s5", "star", "paper", "molecules"])
def test_a_preset_trains_some_steps(name: str, unchecked: None) -> None:
    config = override(configure({}, preset=name), SMALL)
    if config.model.layers == 10:  # its size is tested elsewhere, and takes seconds
        config = override(config, {"model.hidden": 8})
    config = override(config, {"chains.replicas": min(8, config.chains.replicas)})
    space = space_for(("C", "N", "O"), 4)
    worlds = encode_all(space, MOLECULES).worlds
    model = Model.build(space, worlds, config, ())
    trainer = Trainer(model.potential, worlds, model.config)
    events = [event for event in train(trainer) if isinstance(event, Metrics)]
    assert [event.step for event in events] == [1, 2, 3]
    assert all(math.isfinite(gap) for event in events for gap in event.gap)
    assert len(events[-1].gap) == len(model.config.ladder.rates)
