"""Where tensors live: the devices that a user can name, and generators of random numbers on them.

A model lives on one device, with its parameters and tables. Worlds and random numbers live together, on
that device where it has double precision, and else on the CPU (`of_worlds`). Saved files hold tensors of
the CPU only.
"""

import os
from typing import Literal, TypeVar

import torch
from jaxtyping import UInt8
from torch import Generator, Tensor, nn

from nmln.errors import InputError

Name = Literal["auto", "cpu", "cuda", "mps"]
"""What `--device` and `training.device` take."""

CPU = torch.device("cpu")


def chosen(name: str) -> str:
    """The device that a name stands for: `auto` is a CUDA device if there is one, and else the CPU.

    A device that this machine or this PyTorch does not have is refused. Metal (`mps`) is taken only by
    name.
    """
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if name not in there:
        raise InputError(
            f"--device must be one of auto, {', '.join(there)}, got {name!r}.",
            token=name,
            kind="unknown",
        )
    if not there[name]:
        known = "CUDA" if name == "cuda" else "Metal (mps)"
        raise InputError(
            f"--device {name}: this PyTorch sees no {known} device. Take --device cpu.",
            token=name,
            kind="unsupported",
        )
    return name


def device_of(name: str) -> torch.device:
    """The device of this process: of several CUDA devices, processes take one after the other."""
    found = chosen(name)
    if found != "cuda":
        return torch.device(found)
    rank = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    return torch.device("cuda", int(rank) % torch.cuda.device_count())


def processes_of(name: str) -> int | None:
    """How many processes make full use of a device: one per CUDA device or Metal; None: one per core."""
    found = chosen(name)
    return None if found == "cpu" else max(1, torch.cuda.device_count() if found == "cuda" else 1)


def has_double(device: torch.device) -> bool:
    """Whether a device computes in double precision: all but Metal do."""
    return device.type != "mps"


def of_worlds(device: torch.device) -> torch.device:
    """Where the worlds that a model on this device scores live, with their random numbers.

    Moves are drawn and accepted in double precision, which Metal does not have.
    """
    return device if has_double(device) else CPU


_CUDA_STATE = 16  # bytes of the state of a generator on CUDA

Moved = TypeVar("Moved", bound=nn.Module)


def move(module: Moved, device: torch.device) -> Moved:
    """Move a module; refuses one with tensors of double precision where the device has none."""
    tensors = [*module.parameters(), *module.buffers()]
    if not has_double(device) and any(one.dtype == torch.float64 for one in tensors):
        raise InputError(
            f"--device {device.type}: this model has terms in double precision, such as formulas or "
            "virtual evidence, which that device does not have. Take --device cpu.",
            kind="unsupported",
        )
    return module.to(device)


def generator(device: torch.device, seed: int = 0) -> Generator:
    """A seeded generator of the worlds of a model on this device.

    One kind of device gives the same numbers for the same seed, different kinds give different ones.
    """
    return Generator(of_worlds(device)).manual_seed(seed)


def continues(rng: Generator, state: UInt8[Tensor, " bytes"]) -> bool:
    """Whether a generator can continue from a state: not from that of another kind of device."""
    sizes = len(torch.Generator().get_state()), _CUDA_STATE
    if len(state) not in sizes:
        raise ValueError(
            f"an RNG state must have {sizes[0]:,} bytes (CPU) or {sizes[1]} (CUDA), got {len(state):,}"
        )
    return len(rng.get_state()) == len(state)
