"""One directory of tensors and JSON: written atomically, verified when it is read."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nmln.errors import InputError, Kind
from nmln.trees import RESERVED

if sys.platform != "win32":
    import fcntl

FORMAT = 1
# By name, because the package names all of its modules and this one must not depend on them.
VERSION: str = import_module("nmln").__version__
TENSORS, CONTENT, MANIFEST = "tensors.safetensors", "content.json", "manifest.json"
_MOST_BYTES = {CONTENT: 2**26, MANIFEST: 2**16}
_PATIENCE = 60.0  # seconds that a writer waits for another one
_DTYPES = (
    "bool, uint8, int8, int16, int32, int64, uint16, uint32, uint64, "
    "float16, bfloat16, float32, float64, complex64"
)


class DamagedError(Exception):
    """A saved directory cannot be used; the message is a clause that starts with the path."""

    def __init__(self, message: str, kind: Kind = "damaged") -> None:
        super().__init__(message)
        self.kind: Kind = kind


class Payload(NamedTuple):
    """Content to be written, in the form of the files."""

    tensors: dict[str, Tensor]
    content: bytes


class Saved(NamedTuple):
    """Content that was read, all hashes verified, on the CPU, and the package version that wrote it."""

    tensors: dict[str, Tensor]
    content: dict[str, Any]
    version: str


def prepare(tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> Payload:
    """Check everything that can be checked before the disk is touched.

    Tensors that share memory, are not contiguous or live on another device are copied, no others.
    """
    return Payload(_independent(tensors), _to_json(content))


def hidden(target: Path, kind: str) -> Path:
    """A hidden path beside `target` for temporary states.

    `partial`: being written or removed, and worthless once its writer has died. `replaced`: kept until
    its successor is in place, and valid as long as there is none.
    """
    return target.with_name(f".{target.name}.{kind}")


@contextmanager
def writing(parent: Path, names: str) -> Iterator[None]:
    """Be the only writer in a directory, and remove what dead writers of `names` left.

    The lock is on the directory itself and the system releases it when its holder dies, so every hidden
    entry found here belongs to a dead writer. Failures of the disk become errors that say what to do.
    """
    try:
        if not parent.is_dir():
            parent.mkdir(parents=True, exist_ok=True)
            _synchronise(parent.parent)
        with _locked(parent):
            _tidy(parent, names)
            try:
                yield
                _synchronise(parent)
            finally:
                with suppress(OSError):  # the next writer tries again
                    _tidy(parent, names)
    except OSError as error:
        message = f"{explain(error, _visible(error))} What was saved here before is untouched."
        raise InputError(message, str(parent), kind="system") from error


def write(target: Path, payload: Payload, step: int | None, version: str) -> None:
    """Write a directory beside `target` and put it in its place; to be called while `writing`."""
    if os.path.lexists(target) and not stat.S_ISDIR(target.lstat().st_mode):
        raise InputError(
            "a directory must be here, but there is a file or link. Move it away.",
            str(target),
            kind="exists",
        )
    partial = hidden(target, "partial")
    partial.mkdir()
    (partial / CONTENT).write_bytes(payload.content)
    try:
        save_file(payload.tensors, partial / TENSORS)
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number, words = (int(found[1]), os.strerror(int(found[1]))) if found else (0, str(error))
        raise OSError(number, words, str(target / TENSORS)) from error
    shutil.copymode(partial / CONTENT, partial / TENSORS)  # safetensors lets only the owner read
    files = {name: _stamp(partial / name, flush=True) for name in (TENSORS, CONTENT)}
    manifest = {"format": FORMAT, "nmln": version, "step": step, "files": files}
    text = json.dumps({**manifest, "digest": _digest(manifest)}, indent=2)
    (partial / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    _stamp(partial / MANIFEST, flush=True)
    _synchronise(partial)
    if target.exists():
        os.rename(target, hidden(target, "replaced"))
    os.rename(partial, target)
    _synchronise(target.parent)  # before anything older is removed


def check(directory: Path, step: int | None = None) -> dict[str, Any]:
    """The manifest of a directory, after a cheap check of the manifest and of the file sizes.

    Raises a `DamagedError` if the check fails, and an `InputError` if a newer format wrote it. With
    `step`, the manifest must be of that step.
    """
    if not stat.S_ISDIR(_status(directory).st_mode):
        raise DamagedError(f"{directory} is a link or a file, not a directory")
    path = directory / MANIFEST
    manifest = parse(path)
    with _reading(path):
        _check_version(directory, manifest)
        if manifest.get("digest") != _digest(manifest):
            raise DamagedError(f"{path} has changed since it was written")
        if step is not None and manifest.get("step") != step:
            raise DamagedError(f"{path} is not of step {step}")
        files = manifest.get("files")
        if not isinstance(files, dict) or files.keys() != {TENSORS, CONTENT}:
            raise DamagedError(f"{path} must list {TENSORS} and {CONTENT} and no other file")
        for name, stamp in files.items():
            size, expected = _regular_size(directory / name), stamp["bytes"]
            if size != expected:
                raise DamagedError(f"{directory / name} has {size} bytes instead of {expected}")
    return manifest


def read(directory: Path, step: int | None = None) -> Saved:
    """Everything in a directory, after `check` and the verification of all hashes."""
    manifest = check(directory, step)
    for name, stamp in manifest["files"].items():
        with _reading(directory / name):
            if _stamp(directory / name) != stamp:
                raise DamagedError(f"{directory / name} has changed since it was written")
    content = parse(directory / CONTENT)
    with _reading(directory / TENSORS):
        mapped = load_file(directory / TENSORS)
        # The file is only mapped into memory: without copies, changing it would change the tensors.
        tensors = {name: mapped[name].clone() for name in mapped}
    return Saved(tensors, content, str(manifest.get("nmln")))


def _check_version(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse newer formats. They may differ in all but this: the manifest's `format` is an integer."""
    written, version = manifest.get("format"), str(manifest.get("nmln"))
    if not isinstance(written, int) or written < 1:
        raise DamagedError(f"{directory / MANIFEST} does not state its format")
    if written > FORMAT:
        raise InputError(
            f"this was written in format {written} by nmln {version[:40]!r}, but nmln {VERSION} "
            f"reads formats up to {FORMAT}. Upgrade nmln, or move this directory away.",
            str(directory),
            kind="version",
        )


def _independent(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as the file format needs them: on the CPU, contiguous, without shared memory."""
    ready: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        if name == RESERVED or re.search("[\ud800-\udfff]", name):
            raise InputError(f"{name!r} cannot be the name of a tensor. Rename it.", token=name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != torch.strided or tensor.is_meta or dtype not in _DTYPES.split(", "):
            raise InputError(
                f"only dense tensors of {_DTYPES} can be saved, but {name} is "
                f"{dtype}, {tensor.layout} on {tensor.device}. Convert it with to() or to_dense().",
                token=name,
            )
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        ready[name] = tensor
    return ready


def _to_json(content: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        if json.loads(text) != content:
            raise ValueError("in JSON keys are strings and tuples become lists")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"content must come back from JSON unchanged, but: {error}. Make the content with flatten."
        ) from error
    if len(text) > _MOST_BYTES[CONTENT]:
        raise InputError(
            f"content must take at most {_MOST_BYTES[CONTENT]} bytes as JSON, got {len(text)}. Move "
            "long lists of numbers into tensors.",
            kind="size",
        )
    return text.encode("ascii")


def _tidy(parent: Path, names: str) -> None:
    for entry in list(parent.iterdir()):
        if not (found := re.fullmatch(rf"\.({names})\.(partial|replaced)", entry.name)):
            continue
        if found[2] == "replaced" and not os.path.lexists(parent / found[1]):
            os.rename(entry, parent / found[1])
        else:
            shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    if (
        sys.platform == "win32"
    ):  # has no such lock: the user must take care of one writer per folder
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"another process has been saving here for {_PATIENCE:.0f} s. Stop it, or give "
                        "each run a folder of its own.",
                        str(directory),
                        kind="busy",
                    ) from None
                time.sleep(0.02)
            except OSError:  # some network file systems cannot lock a directory
                break
        yield
    finally:
        os.close(handle)


def _synchronise(directory: Path) -> None:
    """Flush the names in a directory to disk."""
    if sys.platform != "win32":  # which cannot open directories
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _visible(error: OSError) -> Path | None:
    """The path that an error names, under its final name."""
    if not isinstance(error.filename, str):
        return None
    parts = [
        re.sub(r"^\.(.+)\.(partial|replaced)$", r"\1", part) for part in Path(error.filename).parts
    ]
    return Path(*parts)


def explain(error: OSError, path: Path | None = None) -> str:
    """What is wrong with the disk and what to do; `path` replaces a temporary file in the error."""
    place = path or error.filename or "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full. Free some space or name a folder on another disk."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{place} may not be written ({error.strerror}). Name a folder that you can write to."
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        blocked = error.filename or place
        return f"{blocked} is a file where a directory must be. Move it or name another folder."
    return f"{place} could not be written: {error.strerror or error}. Try another folder."


def _stamp(path: Path, flush: bool = False) -> dict[str, str | int]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if flush:
            os.fsync(file.fileno())
        return {"sha256": digest, "bytes": file.tell()}


def _digest(manifest: Mapping[str, Any]) -> str:
    """The hash of the manifest's own fields, so that a flipped bit in them is detected too."""
    fields = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn every failure to read this file into a `DamagedError`."""
    try:
        yield
    except (DamagedError, InputError):
        raise
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing", kind="missing") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from error
    except RecursionError:
        raise DamagedError(f"{path} is nested too deeply") from None
    except (
        SafetensorError,
        ValueError,
        TypeError,
        KeyError,
        RuntimeError,
        AttributeError,
    ) as error:
        kind = "safetensors" if path.name == TENSORS else "JSON"
        raise DamagedError(f"{path} is not readable as {kind} ({str(error)[:200]})") from error


def _status(path: Path) -> os.stat_result:
    with _reading(path):
        return path.lstat()
    raise AssertionError  # not reached: `_reading` suppresses no error


def _regular_size(path: Path) -> int:
    """The size of a regular file; refuses links, which lead elsewhere, and pipes, which block."""
    status = _status(path)
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path} is a link or a device, not a regular file")
    return status.st_size


def parse(path: Path) -> dict[str, Any]:
    """The object in a JSON file, which must be a regular file that fits into memory."""
    most = _MOST_BYTES.get(path.name, _MOST_BYTES[CONTENT])
    if (size := _regular_size(path)) > most:
        raise DamagedError(f"{path} has {size} bytes, more than the {most} allowed")
    with _reading(path):
        content = json.loads(path.read_bytes(), parse_constant=_refuse)
        if not isinstance(content, dict):
            raise ValueError("it must hold an object")
        return content
    raise AssertionError  # not reached: `_reading` suppresses no error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")
