"""Knowledge bases on disk: a trained model, and a checkpoint of a training in progress.

Both hold the names and the triples, so they do not depend on the files from which the triples were read.
They consist of named tensors and JSON; loading them runs no code.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmln import checkpoint
from nmln.errors import InputError
from nmln.files import plain
from nmln.formats.triples import ENTITY
from nmln.knowledge.data import SPLITS, KnowledgeBase, Triples
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.knowledge.settings import KnowledgeSettings
from nmln.knowledge.training import Training
from nmln.language import Language, predicate
from nmln.potentials.base import refuse_complex
from nmln.space import Space

_MODEL = "knowledge base"  # the kind of content, as written into the files
_TRAINING = "training of a knowledge base"
_KEPT = 2  # checkpoints on disk: an older one serves if the newest is damaged


@dataclass(frozen=True)
class TrainedBase:
    """A trained potential with its knowledge base and the settings of its training."""

    base: KnowledgeBase
    potential: KnowledgePotential
    settings: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write everything into one directory, atomically."""
        content = {
            "kind": _MODEL,
            **base_to_json(self.base),
            "shape": asdict(self.potential.shape),
            "settings": plain(dict(self.settings)),
        }
        tensors = {f"triples/{split}": getattr(self.base, split) for split in SPLITS}
        state = self.potential.state_dict()
        tensors |= {f"potential/{name}": tensor for name, tensor in state.items()}
        checkpoint.save_model(path, tensors, content)

    @staticmethod
    def load(path: str | Path) -> "TrainedBase":
        """Read what `save` wrote; files that are damaged or of another kind are an error."""
        tensors, content = checkpoint.load_model(path)
        if content.get("kind") != _MODEL:
            raise InputError(
                "the model must be one of a knowledge base, but is not. Name a folder that nmln kb "
                "train has written.",
                str(path),
                kind="unsupported",
            )
        prefix = "potential/"
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        refuse_complex(state, str(path))
        try:
            base = base_from_json(content, {split: tensors[f"triples/{split}"] for split in SPLITS})
            shape = Shape(**content["shape"])
            if max(asdict(shape).values()) > sum(tensor.numel() for tensor in state.values()):
                raise ValueError("its sizes must be those of its tensors")
            potential = KnowledgePotential(base.space, shape)
            potential.to(next(iter(state.values())).dtype).load_state_dict(state)
            return TrainedBase(base, potential, dict(content["settings"]))
        except (*checkpoint.FOREIGN, StopIteration) as error:
            raise InputError(
                f"the parts of this model are inconsistent ({_reason(error)}). Get another copy of it, "
                "or train again.",
                str(path),
                kind="damaged",
            ) from None


def save_training(training: Training, folder: Path) -> None:
    """Add a checkpoint of the whole training to the folder of its run."""
    tree = {
        "base": base_to_json(training.base),
        "triples": {split: getattr(training.base, split) for split in SPLITS},
        "shape": asdict(training.potential.shape),
        "settings": asdict(training.settings),
        "training": training.tree(),
    }
    tensors, content = checkpoint.flatten(tree)
    whole = {"kind": _TRAINING, **content}
    checkpoint.save(folder, training.steps_taken, tensors, whole, keep=_KEPT)


def load_training(folder: Path) -> Training:
    """Restore a training from its newest intact checkpoint, so that it continues bit for bit."""
    found = checkpoint.load(folder)
    if found.content.get("kind") != _TRAINING:
        raise InputError(
            "the checkpoints must be those of nmln kb train, but are not. Name a folder that it has "
            "written.",
            str(folder),
            kind="unsupported",
        )
    try:
        return _training(checkpoint.unflatten(found.tensors, found.content), found.step)
    except checkpoint.FOREIGN as error:
        raise InputError(
            f"the parts of this checkpoint are inconsistent ({_reason(error)}). If another version of "
            "nmln wrote it, resume with that version; otherwise start a new run.",
            str(found.path),
            kind="damaged",
        ) from None


def _training(tree: dict[str, Any], step: int) -> Training:
    base = base_from_json(tree["base"], tree["triples"])
    potential = KnowledgePotential(base.space, Shape(**tree["shape"]))
    kept = tree["training"]["potential"]
    potential.to(next(iter(kept.values())).dtype)
    training = Training(potential, base, KnowledgeSettings(**tree["settings"]))
    training.restore(tree["training"])
    if training.steps_taken != step:
        raise ValueError(f"its step must be {step}, got {training.steps_taken}")
    return training


def _reason(error: Exception) -> str:
    """Why a file could not be used, in one line."""
    reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return " ".join(reason.split()).rstrip(".")[:300]


def base_to_json(base: KnowledgeBase) -> dict[str, Any]:
    """A knowledge base without its triples, as JSON."""
    return {
        "name": base.name,
        "source": base.source,
        "constants": list(base.constants),
        "relations": list(base.relations),
        "notes": list(base.notes),
    }


def base_from_json(content: Mapping[str, Any], triples: Mapping[str, Triples]) -> KnowledgeBase:
    """The inverse of `base_to_json`, with the triples of every split added."""
    _check_names(content)
    most = torch.tensor([len(content["constants"]), len(content["relations"])])[[0, 1, 0]]
    for split in SPLITS:
        rows = triples[split]
        if rows.dtype != torch.int64 or rows.ndim != 2 or rows.shape[1] != 3:
            raise ValueError(f"triples of {split} must be rows of three whole numbers")
        if bool(((rows < 0) | (rows >= most)).any()):
            raise ValueError(f"a triple of {split} has a number without a name")
    relations = Language(*(predicate(name, ENTITY, ENTITY) for name in content["relations"]))
    return KnowledgeBase(
        content["name"],
        Space(relations, {ENTITY: content["constants"]}),
        *(triples[split] for split in SPLITS),
        notes=tuple(content["notes"]),
        source=content["source"],
    )


def _check_names(content: Mapping[str, Any]) -> None:
    for name in ("constants", "relations", "notes"):
        if not isinstance(content[name], list) or not all(
            isinstance(n, str) for n in content[name]
        ):
            raise TypeError(f"{name} must be a list of strings")
    for name in ("name", "source"):
        if not isinstance(content[name], str):
            raise TypeError(f"{name} must be a string")
