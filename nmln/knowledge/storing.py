"""A trained knowledge base in one directory: potential, names and triples, to ask it later."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmln import checkpoint
from nmln.files import InputError, plain
from nmln.formats.triples import ENTITY
from nmln.knowledge.data import SPLITS, KnowledgeBase, Triples
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.language import Language, predicate
from nmln.potentials.base import refuse_complex
from nmln.space import Space

_KIND = "knowledge base"


@dataclass(frozen=True)
class TrainedBase:
    """A potential and the triples that it was trained on and is to be judged by."""

    base: KnowledgeBase
    potential: KnowledgePotential
    settings: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write it as safely as a checkpoint: named tensors and JSON."""
        content = {
            "kind": _KIND,
            **described(self.base),
            "shape": asdict(self.potential.shape),
            "settings": plain(dict(self.settings)),
        }
        tensors = {f"triples/{split}": getattr(self.base, split) for split in SPLITS}
        state = self.potential.state_dict()
        tensors |= {f"potential/{name}": tensor for name, tensor in state.items()}
        checkpoint.save_model(path, tensors, content)

    @staticmethod
    def load(path: str | Path) -> "TrainedBase":
        """The inverse of `save`; the files are checked and cannot run anything."""
        tensors, content = checkpoint.load_model(path)
        if content.get("kind") != _KIND:
            raise InputError(
                "this model is not one of a knowledge base. Name a folder that nmln kb train has made.",
                str(path),
            )
        prefix = "potential/"
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        refuse_complex(state, str(path))
        try:
            base = base_of(content, {split: tensors[f"triples/{split}"] for split in SPLITS})
            shape = Shape(**content["shape"])
            if max(asdict(shape).values()) > sum(tensor.numel() for tensor in state.values()):
                raise ValueError("its sizes are not those of its tensors")
            potential = KnowledgePotential(base.space, shape)
            potential.to(next(iter(state.values())).dtype).load_state_dict(state)
            return TrainedBase(base, potential, dict(content["settings"]))
        except (*checkpoint.FOREIGN, StopIteration) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            first = " ".join(reason.split()).rstrip(".")[:300]
            raise InputError(
                f"this model does not fit together ({first}). Fetch another copy, or train again.",
                str(path),
            ) from None


def described(base: KnowledgeBase) -> dict[str, Any]:
    """All of a knowledge base but its triples, for JSON."""
    return {
        "name": base.name,
        "source": base.source,
        "constants": list(base.constants),
        "relations": list(base.relations),
        "notes": list(base.notes),
    }


def base_of(content: Mapping[str, Any], triples: Mapping[str, Triples]) -> KnowledgeBase:
    """The knowledge base that was `described`, with the triples of every split."""
    _check_names(content)
    most = torch.tensor([len(content["constants"]), len(content["relations"])])[[0, 1, 0]]
    for split in SPLITS:
        rows = triples[split]
        if rows.dtype != torch.int64 or rows.ndim != 2 or rows.shape[1] != 3:
            raise ValueError(f"triples of {split} are rows of three whole numbers")
        if bool(((rows < 0) | (rows >= most)).any()):
            raise ValueError(f"a triple of {split} names what is not there")
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
            raise TypeError(f"{name} is a list of names")
    for name in ("name", "source"):
        if not isinstance(content[name], str):
            raise TypeError(f"{name} is a name")
