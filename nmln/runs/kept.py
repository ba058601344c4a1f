"""Parsed data in a file: worlds that were read once, for later commands and for other processes.

The file is safetensors: the worlds, their names and their split as tensors, and one entry of metadata
with everything else as JSON. It may be received from elsewhere, so all of it is checked, and a file that
cannot be used is the same as none.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from nmln.buckets import Bucket, domain_in_json, space_in_json
from nmln.dropped import Dropped
from nmln.errors import InputError
from nmln.files import open_regular, write_atomically
from nmln.formats.mln import parse_mln
from nmln.formats.registry import Kind
from nmln.memory import machine_memory
from nmln.runs.data import Source
from nmln.space import Space

_FORMAT = 1
_SEVERAL = 2  # the format of worlds of several domains
_ENTRY = "nmln"  # of the metadata
_TENSORS = {"names", "train", "test"}
_SHARE = 8  # of the machine's memory that a file may have as its size: one part in so many
_DAMAGE = (
    InputError, OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError,
    ArithmeticError, RuntimeError, MemoryError,
)  # fmt: skip
"""What reading a file of any content may raise; RecursionError is a RuntimeError."""


def keep_source(path: Path, source: Source) -> None:
    """Write parsed data to a file, atomically; the same data give the same bytes."""
    several = len(source.buckets) > 1
    tensors = {
        "names": _to_bytes(json.dumps(source.names)),
        "train": source.train.contiguous(),
        "test": source.test.contiguous(),
    }
    if several:
        tensors["homes"] = source.homes.contiguous()
    for name, bucket in zip(_worlds(len(source.buckets)), source.buckets, strict=True):
        tensors[name] = bucket.worlds.detach().cpu().contiguous()
    content = {
        "format": _SEVERAL if several else _FORMAT,
        "kind": source.kind,
        "program": source.program,
        "dropped": [asdict(one) for one in source.dropped],
        "origin": source.origin,
    }
    if source.notes:
        content["notes"] = list(source.notes)
    if several:
        content["domains"] = [domain_in_json(space) for space in source.spaces]
    content["digest"] = _digest(content, tensors)
    # One entry only: the order of several in the file would not always be the same.
    written = save(tensors, {_ENTRY: json.dumps(content)})
    write_atomically(path, lambda temporary: _write(temporary, written))


def kept_source(path: Path, program: str | None = None) -> Source | None:
    """The data that `keep_source` has written, or None if the file is missing or not as it was.

    With `program`, only data of this language, domain and formulas are given. Links are not followed.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > machine_memory() // _SHARE:
                return None
            written = file.read()
        content = _content(written)
        if content["format"] not in (_FORMAT, _SEVERAL) or program not in (
            None,
            content["program"],
        ):
            return None
        tensors = load(written)
        if content.pop("digest") != _digest(content, tensors):
            return None
        return _source(content, tensors)
    except _DAMAGE:
        return None


def _content(written: bytes) -> dict[str, Any]:
    """The metadata of a file; its header starts with its own length."""
    length = int.from_bytes(written[:8], "little")
    header = json.loads(written[8 : 8 + length])
    return json.loads(header["__metadata__"][_ENTRY])


def _source(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Source:
    """The parsed data of a file whose digest is right; raises one of `_DAMAGE` if they do not fit."""
    train, test = tensors["train"], tensors["test"]
    names = json.loads(tensors["names"].numpy().tobytes())
    dropped = tuple(Dropped(**one) for one in content["dropped"])
    for one in dropped:
        _require(
            type(one.count) is int and type(one.line) is int
            and type(one.reason) is str and type(one.example) is str
        )  # fmt: skip
    notes = content.get("notes", [])
    _require(isinstance(notes, list) and all(type(note) is str for note in notes))
    _require(content["kind"] in get_args(Kind))
    _require(content["origin"] is None or isinstance(content["origin"], dict))
    _require(isinstance(names, list) and all(type(name) is str for name in names))
    program = parse_mln(content["program"])
    spaces = [Space(program.language, program.domain)]
    if content["format"] == _SEVERAL:
        _require(isinstance(content["domains"], list) and len(content["domains"]) > 1)
        first, *others = (space_in_json(program.language, one) for one in content["domains"])
        _require(first == spaces[0])
        spaces += others
    buckets = _buckets(spaces, tensors)
    count = sum(len(bucket.worlds) for bucket in buckets)
    homes = tensors.get("homes", torch.zeros(count, dtype=torch.int64))
    for part in (train, test, homes):
        _require(part.dtype == torch.int64 and part.dim() == 1)
    _require(len(names) in (0, count))
    _require(bool((homes >= 0).all() and (homes < len(buckets)).all()))
    _require(homes.bincount().tolist() == [len(bucket.worlds) for bucket in buckets])
    _require(torch.equal(torch.cat([train, test]).sort().values, torch.arange(count)))
    return Source(
        buckets, homes, content["kind"], train, test, program.formulas, tuple(names), dropped,
        content["origin"], tuple(notes),
    )  # fmt: skip


def _buckets(spaces: Sequence[Space], tensors: Mapping[str, Tensor]) -> tuple[Bucket, ...]:
    """The worlds of every domain, checked against it."""
    names = _worlds(len(spaces))
    more = {"homes"} if len(spaces) > 1 else set()
    _require(tensors.keys() == {*_TENSORS, *names, *more})
    for name, space in zip(names, spaces, strict=True):
        worlds = tensors[name]
        _require(worlds.dtype == space.dtype and worlds.shape == (len(worlds), space.groups))
        _require(len(worlds) > 0 and bool((worlds >= 0).all() and (worlds < space.sizes).all()))
    return tuple(Bucket(space, tensors[name]) for name, space in zip(names, spaces, strict=True))


def _worlds(domains: int) -> list[str]:
    """The names of the tensors with the worlds."""
    return ["worlds"] if domains == 1 else [f"worlds-{number}" for number in range(domains)]


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("the data in this file do not fit together")


def _digest(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A hash of everything in a file, by which damage is noticed."""
    found = sha256(json.dumps(content, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).numpy().data)
    return found.hexdigest()


def _to_bytes(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).copy())


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
