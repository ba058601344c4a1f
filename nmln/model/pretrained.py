"""Trained models that come with the package: finished runs without their checkpoints."""

import os
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

from nmln.checkpoint import HEAD, MODEL, SPLIT, load_model, save_model
from nmln.errors import InputError
from nmln.model.replicas import parameters_in

CARD = "card.md"
_PARTS = (HEAD, SPLIT, MODEL)


def names() -> list[str]:
    """The names of the models in this installation."""
    shipped = _shipped()
    return sorted(one.name for one in shipped.iterdir() if one.is_dir()) if shipped.exists() else []


def folder_of(name: str) -> Path:
    """The folder of a model in the package; refuses an unknown name."""
    if name not in names():
        known = ", ".join(names()) or "none in this installation"
        raise InputError(
            f"there is no trained model {name!r}. Available: {known}.", token=name, kind="unknown"
        )
    return _shipped() / name


def unpack(name: str, parent: Path = Path("runs")) -> Path:
    """A run folder with this model, which every command accepts; created if it is missing."""
    source, target = folder_of(name), parent / f"pretrained-{name}"
    if (target / HEAD).exists():
        if _manifest(target) != _manifest(source) and not _completed(source, target):
            raise InputError(
                f"this folder must hold the model {name!r} of this installation, but holds another "
                "model. Move it away.",
                str(target),
                kind="exists",
            )
        return target
    if target.exists() and any(target.iterdir()):
        raise InputError(
            f"this folder must be empty or hold the model {name!r}, but holds other files. Move them "
            "away.",
            str(target),
            kind="exists",
        )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{target.name}.") as room:
            copy = Path(room) / "copy"
            copy.mkdir()
            for part in (*_PARTS, CARD):
                if (source / part).is_dir():
                    shutil.copytree(source / part, copy / part)
                elif (source / part).exists():
                    shutil.copyfile(source / part, copy / part)
            os.replace(copy, target)  # complete, or not at all
    except OSError as error:
        if (target / HEAD).exists():  # another process was faster
            return unpack(name, parent)
        raise InputError(
            f"the model cannot be written here ({error.strerror}). Choose another working directory.",
            str(target),
            kind="system",
        ) from None
    return target


def pack(run: Path, target: Path) -> None:
    """Copy what a finished run needs to be sampled from, and nothing else."""
    if not (run / MODEL).is_dir():
        raise InputError(
            "this run is not finished: it has no model yet. Continue it (nmln train --resume).",
            str(run),
            kind="missing",
        )
    target.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        if (run / part).is_dir():
            shutil.copytree(run / part, target / part, dirs_exist_ok=True)
        else:
            shutil.copyfile(run / part, target / part)


def _shipped() -> Path:
    return Path(str(files("nmln"))) / "data" / "pretrained"


def _manifest(folder: Path) -> bytes | None:
    manifest = folder / MODEL / "manifest.json"
    return manifest.read_bytes() if manifest.exists() else None


def _completed(source: Path, target: Path) -> bool:
    """Give a copy of an earlier version, without replicas, those of the package; False for others.

    The parameters and the description must be the same, so that what was drawn from the copy stays what
    the model gives.
    """
    try:
        (tensors, content), (known, told) = (load_model(one / MODEL) for one in (source, target))
    except InputError:
        return False
    if "replicas" in told or "replicas" not in content:
        return False
    own = parameters_in(tensors)
    same = {name: value for name, value in content.items() if name != "replicas"} == told
    same = same and own.keys() == known.keys()
    if not same or not all(own[name].equal(known[name]) for name in own):
        return False
    save_model(target / MODEL, tensors, content)
    return True
