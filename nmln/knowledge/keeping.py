"""A training under way, kept in the folder of its run and brought back to go on bit for bit.

A checkpoint holds all of it, the triples too: what becomes of the files that they were read from does
not matter to a run that has begun.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.files import InputError
from nmln.knowledge.data import SPLITS
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.knowledge.storing import base_of, described
from nmln.knowledge.training import Settings, Training

_KIND = "training of a knowledge base"
_KEPT = 2  # so that there is another one if the disk spoils the newest


def keep(training: Training, folder: Path) -> None:
    """Add a checkpoint of the whole training to the folder of its run."""
    tree = {
        "base": described(training.base),
        "triples": {split: getattr(training.base, split) for split in SPLITS},
        "shape": asdict(training.potential.shape),
        "settings": asdict(training.settings),
        "training": training.tree(),
    }
    tensors, content = checkpoint.flatten(tree)
    whole = {"kind": _KIND, **content}
    checkpoint.save(folder, training.steps_taken, tensors, whole, keep=_KEPT)


def bring_back(folder: Path) -> Training:
    """The training as its newest sound checkpoint has it; what is damaged or foreign is refused."""
    found = checkpoint.load(folder)
    if found.content.get("kind") != _KIND:
        raise InputError(
            "these checkpoints are not of nmln kb train. Name a folder that it has made.",
            str(folder),
        )
    try:
        return _training(checkpoint.unflatten(found.tensors, found.content), found.step)
    except checkpoint.FOREIGN as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        first = " ".join(reason.split()).rstrip(".")[:300]
        raise InputError(
            f"this checkpoint does not fit together ({first}). Perhaps another version of nmln wrote "
            "it: go on with that one, or begin anew.",
            str(found.path),
        ) from None


def _training(tree: dict[str, Any], step: int) -> Training:
    base = base_of(tree["base"], tree["triples"])
    potential = KnowledgePotential(base.space, Shape(**tree["shape"]))
    kept = tree["training"]["potential"]
    potential.to(next(iter(kept.values())).dtype)
    training = Training(potential, base, Settings(**tree["settings"]))
    training.restore(tree["training"])
    if training.steps_taken != step:
        raise ValueError(f"it says step {training.steps_taken}")
    return training
