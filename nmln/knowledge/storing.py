"""A trained knowledge base in one directory: potential, names and triples, to ask it later."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.files import InputError, plain
from nmln.formats.triples import ENTITY
from nmln.knowledge.data import SPLITS, KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.language import Language, predicate
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
            "name": self.base.name,
            "source": self.base.source,
            "constants": list(self.base.constants),
            "relations": list(self.base.relations),
            "notes": list(self.base.notes),
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
        relations = Language(*(predicate(r, ENTITY, ENTITY) for r in content["relations"]))
        space = Space(relations, {ENTITY: content["constants"]})
        base = KnowledgeBase(
            content["name"],
            space,
            *(tensors[f"triples/{split}"] for split in SPLITS),
            notes=tuple(content["notes"]),
            source=content["source"],
        )
        potential = KnowledgePotential(space, Shape(**content["shape"]))
        prefix = "potential/"
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        potential.to(next(iter(state.values())).dtype).load_state_dict(state)
        return TrainedBase(base, potential, content["settings"])
