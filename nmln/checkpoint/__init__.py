"""Checkpoints and finished models: named tensors and JSON, written atomically, verified when read.

A run folder holds `checkpoints/step-000001200/` and so on, and a finished model is such a directory
under a name of its own. Inside are `tensors.safetensors`, `content.json` and, written last,
`manifest.json` with the size and SHA-256 of the other two. Nothing that is read can run code.
"""

from nmln.checkpoint.directory import FORMAT, VERSION, explain
from nmln.checkpoint.runs import (
    HEAD,
    MODEL,
    SPLIT,
    Checkpoint,
    CheckpointWarning,
    discard_after,
    is_model,
    latest_step,
    load,
    load_model,
    read_json,
    save,
    save_model,
    saved_steps,
)
from nmln.trees import FOREIGN, flatten, unflatten

__all__ = [
    "FOREIGN",
    "FORMAT",
    "HEAD",
    "MODEL",
    "SPLIT",
    "VERSION",
    "Checkpoint",
    "CheckpointWarning",
    "discard_after",
    "explain",
    "flatten",
    "is_model",
    "latest_step",
    "load",
    "load_model",
    "read_json",
    "save",
    "save_model",
    "saved_steps",
    "unflatten",
]
