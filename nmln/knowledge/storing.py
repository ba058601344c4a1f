"""A trained knowledge base in one directory: potential, names and triples, to ask it later."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
        base = base_of(content, {split: tensors[f"triples/{split}"] for split in SPLITS})
        potential = KnowledgePotential(base.space, Shape(**content["shape"]))
        prefix = "potential/"
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        refuse_complex(state, str(path))
        potential.to(next(iter(state.values())).dtype).load_state_dict(state)
        return TrainedBase(base, potential, content["settings"])


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
    relations = Language(*(predicate(name, ENTITY, ENTITY) for name in content["relations"]))
    return KnowledgeBase(
        content["name"],
        Space(relations, {ENTITY: content["constants"]}),
        *(triples[split] for split in SPLITS),
        notes=tuple(content["notes"]),
        source=content["source"],
    )
