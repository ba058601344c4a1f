"""Training on a device: both phases, the optimiser, the average, and checkpoints."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nmln import devices
from nmln.config import Config, configure
from nmln.model import Model
from nmln.training import Trainer, optimiser
from tests.devices.elsewhere import DEVICE, SeededGenerator, elsewhere
from tests.potentials.test_contract import FORMULAS, MOLECULES
from tests.strategies import random_worlds

WORLDS = random_worlds(MOLECULES, 30, 1)
SMALL: dict[str, Any] = {
    "ladder": {"rates": (0.1, 0.01)},
    "model": {"layers": 1, "hidden": 4, "pieces": True},
    "chains": {"replicas": 6, "sweeps": 2, "moves": 2},
    "training": {"steps": 4, "batch": 5},
}


@pytest.fixture(autouse=True)
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "Generator", SeededGenerator)


def config(**changes: dict[str, Any]) -> Config:
    return configure(
        {name: {**SMALL.get(name, {}), **changes.get(name, {})} for name in {**SMALL, **changes}}
    )


def trainer(settings: Config, device: torch.device | None = None) -> Trainer:
    model = Model.build(MOLECULES, WORLDS, settings, FORMULAS if settings.chains.weighted else ())
    return Trainer(model.to(device or torch.device("cpu")).potential, WORLDS, settings)


def state(one: Trainer) -> list[Tensor]:
    kept = [*one.potential.parameters(), *([] if one.average is None else one.average.parameters())]
    return [tensor.detach().cpu().double() for tensor in (*kept, one.values)]


VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "as it is": {},
    "two blocks": {"training": {"blocks": 2}},
    "weighted": {"chains": {"weighted": True, "renewal": 0.3, "changes": 2.0}},
    "from noise": {"chains": {"start": "noise", "kernel": "langevin"}},
    "from the model": {"chains": {"start": "model", "kernel": "path"}},
    "warm start": {"training": {"warm_start": 2, "corruption": "epoch"}},
    "tempering": {"ladder": {"method": "tempering"}},
    "noise by marginals": {"ladder": {"noise": "marginals"}, "model": {"local": True}},
    "plain": {"optimiser": {"method": "sgd", "common": 0.0, "average": 0.0, "energy_penalty": 0.1}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_is_the_same_on_a_device(name: str) -> None:
    settings = config(**VARIANTS[name])
    here = trainer(settings)
    measured = [here.step() for _ in range(3)]
    with elsewhere():
        there = trainer(settings, DEVICE)
        found = [there.step() for _ in range(3)]
        assert there.values.device == DEVICE
        assert all(one.device == DEVICE for one in there.potential.parameters())
        for one, other in zip(state(there), state(here), strict=True):
            assert torch.allclose(one, other, atol=1e-6)
    assert found[-1].evaluations == measured[-1].evaluations
    assert found[-1].gap == pytest.approx(measured[-1].gap, abs=1e-4)


@pytest.mark.parametrize("name", ["as it is", "two blocks", "weighted", "noise by marginals"])
def test_a_step_needs_no_double_precision_on_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_double", lambda device: device.type == "cpu")
    monkeypatch.setattr(optimiser, "has_double", devices.has_double)
    settings = config(**VARIANTS[name])
    here = trainer(settings)
    here.step()
    with elsewhere(double=False):
        there = trainer(settings, DEVICE)
        there.step()
        assert there.values.device.type == "cpu"
        for one, other in zip(state(there), state(here), strict=True):
            assert torch.allclose(one, other, atol=1e-6)


def test_a_run_continues_on_its_own_device_as_if_it_had_not_stopped() -> None:
    with elsewhere():
        whole, first = trainer(config(), DEVICE), trainer(config(), DEVICE)
        for _ in range(2):
            whole.step()
            first.step()
        second = trainer(config(), DEVICE)
        second.restore(saved(first))
        whole.step()
        second.step()
        for one, other in zip(state(whole), state(second), strict=True):
            assert torch.equal(one, other)


def test_a_run_continues_on_another_device_with_other_random_numbers() -> None:
    with elsewhere():
        first = trainer(config(), DEVICE)
        first.step()
        kept = saved(first)
        worlds = first.values.cpu()
    second = trainer(config())
    second.restore(kept)
    assert torch.equal(second.values, worlds)
    assert second.step().step == 2


def saved(one: Trainer) -> dict[str, Any]:
    """The tree of a run as a checkpoint has it: on the CPU."""

    def move(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.detach().cpu().clone()
        if isinstance(part, dict):
            return {name: move(inner) for name, inner in part.items()}
        return [move(inner) for inner in part] if isinstance(part, list) else part

    return move(one.tree())
