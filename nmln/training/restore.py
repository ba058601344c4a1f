"""Continue a run from a checkpoint; nothing in it is trusted unchecked."""

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

    Hashes show that a file is the one that was written, not that it was written by this run: a content
    that does not fit the trainer's own parts is an error that names the first difference.
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
        # The last good state is tried too: a failure when it is needed would come too late.
        for state in (guard.good, tree):
            trainer.restore(deepcopy(state))
            _check(trainer.tree(), fresh, "")
            _check_optimiser(trainer)
        return float(kept.content["seconds"])
    except InputError as error:
        raise InputError(
            _told(error.message), str(kept.path), token=error.token, kind="conflict"
        ) from None
    except KeyError as error:
        raise InputError(
            _told(f"{error} is missing"), str(kept.path), token=str(error.args[0]), kind="conflict"
        ) from None
    except checkpoint.FOREIGN as error:
        raise InputError(_told(str(error)), str(kept.path), kind="conflict") from None


def _told(reason: str) -> str:
    first = " ".join(reason.split()).rstrip(".")[:300]
    return (
        f"this checkpoint does not fit the run ({first}). It is from another run, or from a version "
        "of nmln with other contents. Remove it to continue from an earlier one."
    )


def _check(found: Any, own: Any, place: str) -> None:
    """Compare restored values with those of a new run: types and shapes where both have a value."""
    if own is None:
        return
    if isinstance(own, Tensor):
        if not isinstance(found, Tensor):
            raise TypeError(f"{place} is not a tensor")
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
    """Compare the optimiser's state with its parameters, because a new optimiser has no state."""
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
