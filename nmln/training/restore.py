"""From what a checkpoint holds to a run that goes on: nothing in it is believed unchecked."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from nmln import checkpoint
from nmln.errors import InputError
from nmln.training import Trainer
from nmln.training.loop import Guard
from nmln.training.optimiser import MEMORY, CommonAdam


def restore(kept: checkpoint.Checkpoint, trainer: Trainer, guard: Guard) -> float:
    """Bring a new trainer and its guard to where a checkpoint was made; the seconds used so far.

    Hashes show that a file is the one that was written, not that it was written by this run: whatever
    does not fit the trainer's own parts is an error that names the first difference.
    """
    fresh = trainer.tree()
    try:
        tree = checkpoint.unflatten(kept.tensors, kept.content["tree"])
        if tree["step"] != kept.step:
            raise ValueError(f"it says step {tree['step']!r}")
        if "guard" in tree:  # checkpoints of earlier versions have none
            guard.restore(tree["guard"])
        else:
            guard.good = tree
        # The way back is tried too: when it is needed, it is too late to find it blocked.
        for state in (guard.good, tree):
            trainer.restore(deepcopy(state))
            _check(trainer.tree(), fresh, "")
            _check_optimiser(trainer)
        return float(kept.content["seconds"])
    except InputError as error:
        raise InputError(_told(error.message), str(kept.path)) from None
    except KeyError as error:
        raise InputError(_told(f"{error} is missing"), str(kept.path)) from None
    except checkpoint.FOREIGN as error:
        raise InputError(_told(str(error)), str(kept.path)) from None


def _told(reason: str) -> str:
    first = " ".join(reason.split()).rstrip(".")[:300]
    return (
        f"this checkpoint does not fit the run ({first}). It is not one of this run, or of a version "
        "of nmln that keeps other things. Remove it to go on from an earlier one."
    )


def _check(found: Any, own: Any, place: str) -> None:
    """Compare what was restored with a new run's: kinds, types and shapes where both have something."""
    if own is None:
        return
    if isinstance(own, Tensor):
        if not isinstance(found, Tensor):
            raise TypeError(f"{place} is no tensor")
        if (found.dtype, found.shape) != (own.dtype, own.shape):
            raise TypeError(f"{place} is {_kind(found)} instead of {_kind(own)}")
    elif isinstance(own, dict):
        for key in own.keys() & found.keys():
            _check(found[key], own[key], f"{place}/{key}".lstrip("/"))
    elif isinstance(own, list | tuple):
        if len(found) != len(own):
            raise ValueError(f"{place} has {len(found)} entries instead of {len(own)}")
        for index, (one, other) in enumerate(zip(found, own, strict=True)):
            _check(one, other, f"{place}/{index}")
    elif type(found) is not type(own) and not {type(found), type(own)} <= {int, float}:
        raise TypeError(f"{place} is {type(found).__name__} instead of {type(own).__name__}")


def _check_optimiser(trainer: Trainer) -> None:
    """A new optimiser remembers nothing, so that what it remembers is held against its parameters."""
    common = isinstance(trainer.optimiser, CommonAdam)
    for parameter, memory in trainer.optimiser.state.items():
        for name, value in memory.items():
            shape = parameter.shape[1:] if name.startswith("common_") else parameter.shape
            known = name in MEMORY or not common
            fits = value.shape in (torch.Size(), shape) and value.is_floating_point()
            if not fits or not known:
                raise TypeError(f"optimiser/{name} is {_kind(value)}, for {_kind(parameter)}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
