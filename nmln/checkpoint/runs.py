"""The checkpoints of a run, of which the last few are kept, and finished models."""

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nmln.checkpoint.directory import (
    CONTENT,
    MANIFEST,
    TENSORS,
    VERSION,
    DamagedError,
    check,
    hidden,
    parse,
    prepare,
    read,
    write,
    writing,
)
from nmln.errors import InputError

_STEPS = "step-[0-9]{9,}"


HEAD, SPLIT, MODEL = "config.json", "split.json", "model"
"""The parts of a run beside its checkpoints: what it is, which data are held out, the finished model."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was skipped and an older one was taken."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step`, all hashes verified, on the CPU.

    `version` is that of the package that wrote it; `skipped` has the reason why each newer checkpoint
    was skipped.
    """

    step: int
    tensors: dict[str, Tensor]
    content: dict[str, Any]
    path: Path
    version: str
    skipped: list[str]


def save(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    content: Mapping[str, Any],
    *,
    keep: int = 3,
    version: str = VERSION,
) -> Path:
    """Add a checkpoint to a run folder, in place of one of the same step, and return its directory.

    When this returns, the checkpoint is on disk. If it is killed, the earlier checkpoints remain, with
    or without the new one. Of the new one and the sound ones of earlier steps the last `keep` remain;
    later steps stay, see `discard_after`. Leftovers of dead writers are removed.

    Tensors come back with the same bits, dtype and shape, each with memory of its own.
    """
    if step < 0 or keep < 1:
        raise InputError(
            f"step must be 0 or more and keep must be 1 or more, got {step} and {keep}."
        )
    payload = prepare(tensors, content)
    _directories(folder)  # refuses a link before anything is written
    target = Path(folder) / "checkpoints" / f"step-{step:09d}"
    with writing(target.parent, _STEPS):
        write(target, payload, step, version)
        found = _directories(folder)
        sound = [at for at in sorted(found) if at < step and _is_sound(found[at], at)]
        if len(kept := [*sound, step][-keep:]) == keep:
            _remove(found[at] for at in found if at < kept[0])
    return target


def discard_after(folder: str | Path, step: int) -> None:
    """Remove the checkpoints of later steps, so that a run can continue from this one."""
    if any(at > step for at in _directories(folder)):
        with writing(Path(folder) / "checkpoints", _STEPS):
            _remove(path for at, path in _directories(folder).items() if at > step)


def load(folder: str | Path, step: int | None = None) -> Checkpoint:
    """The newest checkpoint whose hashes verify, or the one of `step` and no other.

    Damaged ones are skipped with a `CheckpointWarning`; one of a newer format is an error.
    """
    found = _directories(folder)
    if not found:
        raise InputError(
            "there is no checkpoint here. Train first (nmln train), or name the folder of a run: the "
            "one that holds checkpoints/.",
            str(folder),
            kind="missing",
        )
    if step is not None and step not in found:
        raise InputError(
            f"there is no checkpoint of step {step}, only of {', '.join(map(str, sorted(found)))}. "
            "Name one of these, or none for the newest.",
            str(folder),
            token=str(step),
            kind="missing",
        )
    skipped: list[str] = []
    for at in sorted(found, reverse=True) if step is None else [step]:
        try:
            saved = read(found[at], at)
        except DamagedError as error:
            skipped.append(f"{error}.")
            continue
        if skipped:
            message = f"going back to the checkpoint of step {at}: {' '.join(skipped)}"
            warnings.warn(message, CheckpointWarning, stacklevel=2)
        return Checkpoint(at, saved.tensors, saved.content, found[at], saved.version, skipped)
    if _directories(folder) != found:  # a writer has changed the folder meanwhile
        return load(folder, step)
    raise InputError(
        f"no checkpoint can be used: {' '.join(skipped)} Restore the folder "
        "from a copy, or train again.",
        str(folder),
        kind="damaged",
    )


def latest_step(folder: str | Path) -> int | None:
    """The newest step with a sound manifest and files of the right size; hashes are left to `load`."""
    found = _directories(folder)
    for at in sorted(found, reverse=True):
        with suppress(DamagedError):
            check(found[at], at)
            return at
    return None


def saved_steps(folder: str | Path) -> list[int]:
    """The steps that have a checkpoint, whole or damaged."""
    return sorted(_directories(folder))


def read_json(path: str | Path) -> dict[str, Any]:
    """The content of another JSON file of a run folder, read as carefully as a checkpoint."""
    try:
        return parse(Path(path))
    except DamagedError as error:
        raise InputError(f"{error}. Restore it from a copy.", kind=error.kind) from None


def save_model(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    content: Mapping[str, Any],
    *,
    version: str = VERSION,
) -> None:
    """Write one directory that holds a finished model, as safely as a checkpoint.

    An earlier model of this name is replaced; a directory that holds other files is refused.
    """
    payload = prepare(tensors, content)
    target = Path(os.path.abspath(path))
    with writing(target.parent, re.escape(target.name)):
        others = {entry.name for entry in target.iterdir()} if target.is_dir() else set()
        if others := sorted(others - {TENSORS, CONTENT, MANIFEST}):
            raise InputError(
                f"only a saved model may be replaced, but {others[0]} here is not a part of one. "
                "Name a new directory.",
                str(path),
                token=others[0],
                kind="exists",
            )
        write(target, payload, None, version)


def is_model(path: str | Path) -> bool:
    """Whether `load_model` finds a saved model, or one checkpoint, under this path."""
    target = Path(os.path.abspath(path))
    return any(os.path.lexists(one / MANIFEST) for one in (target, hidden(target, "replaced")))


def load_model(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The verified tensors and content of a saved model, or of one checkpoint's directory."""
    target = Path(os.path.abspath(path))
    if not os.path.lexists(target):
        target = hidden(
            target, "replaced"
        )  # left by a writer that died while it replaced the model
        if not os.path.lexists(target):
            raise InputError("there is no such model. Check the path.", str(path), kind="missing")
    try:
        saved = read(target)
    except DamagedError as error:
        raise InputError(
            f"{error}. Save the model again or fetch another copy.", kind=error.kind
        ) from None
    return saved.tensors, saved.content


def _directories(folder: str | Path) -> dict[int, Path]:
    """The directory of the checkpoint of each step, whole or damaged."""
    parent = Path(folder) / "checkpoints"
    if parent.is_symlink():
        raise InputError(
            "links within a run folder are not followed. Link the run folder as a whole.",
            str(parent),
            kind="unsupported",
        )
    found: dict[int, Path] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in sorted(parent.iterdir(), reverse=True):  # step-… comes before .step-….replaced
            if re.fullmatch(rf"{_STEPS}|\.{_STEPS}\.replaced", entry.name):
                found.setdefault(int(re.sub(r"\D", "", entry.name)), entry)
    return found


def _is_sound(directory: Path, step: int) -> bool:
    with suppress(DamagedError, InputError):
        check(directory, step)
        return True
    return False


def _remove(directories: Iterable[Path]) -> None:
    """Hide directories, each atomically; hidden ones are deleted when the writing ends."""
    for directory in directories:
        os.rename(directory, hidden(directory, "partial"))
