"""Settings of all tests of devices."""

import pytest
import torch

from nmln import devices


@pytest.fixture(autouse=True)
def _the_same_arithmetic_on_both_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel works on the processor alone, and rounds the last digits otherwise."""
    monkeypatch.setenv("NMLN_COMPILED", "0")


@pytest.fixture(autouse=True)
def _the_pretended_device_has_generators_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their states are eight bytes longer than those of the processor."""
    monkeypatch.setattr(devices, "_CUDA_STATE", len(torch.Generator().get_state()) + 8)
