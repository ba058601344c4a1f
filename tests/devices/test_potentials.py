"""Every potential scores on its own device, and worlds of another one; a table left behind is caught."""

import pytest
import torch
from torch import Tensor

from nmln.potentials.base import BasePotential
from nmln.potentials.function import OneHotPotential
from nmln.types import Values
from tests.devices.elsewhere import DEVICE, WrongDeviceError, elsewhere
from tests.potentials.test_contract import BOARD, CASES, CHAINS, Case, build
from tests.strategies import random_worlds


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def worlds_of(case: Case, potential: BasePotential) -> Values:
    levels = potential.levels
    return random_worlds(case.space, levels * CHAINS, 3).view(levels, CHAINS, -1)


def everything(potential: BasePotential, values: Values) -> list[Tensor]:
    """Whatever a kernel may ask a potential for."""
    levels, groups = potential.levels, potential.space.groups
    chosen = torch.arange(levels * CHAINS, device=values.device).view(levels, CHAINS) % groups
    some = torch.arange(min(2, groups), device=values.device)
    found = [
        potential.score(values),
        *potential.score_and_slopes(values),
        potential.score_alternatives(values, chosen),
        potential.score_changes(values, some),
        potential.violations_of(values),
        potential.at_levels([-1]).score(values[-1:]),
    ]
    return [one.detach() for one in found]


def test_potentials_give_the_same_on_another_device(case: Case) -> None:
    here = build(case)
    values = worlds_of(case, here)
    expected = everything(here, values)
    with elsewhere():
        there = build(case).to(DEVICE)
        found = everything(there, values.to(DEVICE))
        assert all(one.device == DEVICE for one in found)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one.cpu(), other)


def test_gradients_are_on_the_device_of_their_parameters(case: Case) -> None:
    with elsewhere():
        potential = build(case).to(DEVICE)
        scores = potential.score(worlds_of(case, potential).to(DEVICE))
        if not scores.requires_grad:
            return
        scores.sum().backward()
        gradients = [one.grad for one in potential.parameters() if one.grad is not None]
        assert gradients
        assert all(one.device == DEVICE for one in gradients)


@pytest.mark.slow
def test_worlds_of_the_cpu_are_scored_elsewhere_and_answered_on_the_cpu(case: Case) -> None:
    here = build(case)
    values = worlds_of(case, here)
    with elsewhere():
        there = build(case).to(DEVICE)
        for one, other in zip(
            there.score_and_slopes(values), here.score_and_slopes(values), strict=True
        ):
            assert one.device.type == "cpu"
            assert torch.equal(one, other)


class LeftBehind(OneHotPotential):
    """A potential with a table that does not follow it to a device."""

    def __init__(self) -> None:
        table = torch.arange(BOARD.entries)
        super().__init__(BOARD, lambda onehot: (onehot * table).sum(-1), levels=2)
        self.precision = self.precision.double()


def test_a_table_that_stays_on_the_cpu_is_caught() -> None:
    values = random_worlds(BOARD, 2 * CHAINS, 3).view(2, CHAINS, -1)
    LeftBehind().score(values)
    with elsewhere(), pytest.raises(WrongDeviceError, match="is on the CPU"):
        LeftBehind().to(DEVICE).score(values.to(DEVICE))


def test_a_generator_of_another_device_is_caught() -> None:
    with elsewhere(), pytest.raises(WrongDeviceError, match="the generator is on cpu"):
        torch.rand(3, generator=torch.Generator(), device=DEVICE)
