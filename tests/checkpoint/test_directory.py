"""Damaged and hostile directories, and disks that fail."""

import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmln.checkpoint import CheckpointWarning, latest_step, load, load_model, save, save_model
from nmln.checkpoint import directory as directory_module
from nmln.checkpoint.directory import CONTENT, MANIFEST, TENSORS
from nmln.errors import InputError

WEIGHTS = {"weights": torch.arange(6.0)}


def two_steps(folder: Path) -> Path:
    """A run with the steps 1 and 2; the directory of the second."""
    save(folder, 1, WEIGHTS, {"step": 1})
    return save(folder, 2, WEIGHTS, {"step": 2})


def forge(path: Path, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> None:
    """Make the manifest fit the files, as an attacker would, after `change`."""
    manifest = json.loads((path / MANIFEST).read_text())
    for name in (TENSORS, CONTENT):
        data = (path / name).read_bytes()
        manifest["files"][name] = {"sha256": sha256(data).hexdigest(), "bytes": len(data)}
    del manifest["digest"]
    change(manifest)
    manifest["digest"] = sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps(manifest))


def replace(path: Path, name: str, data: bytes) -> None:
    (path / name).write_bytes(data)
    forge(path)


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda p: os.truncate(p / TENSORS, 50), f"{TENSORS} has 50 bytes instead of"),
    "flipped tensors": (lambda p: flip(p / TENSORS, -3, 4), f"{TENSORS} has changed"),
    "flipped content": (lambda p: flip(p / CONTENT, 3, 0), f"{CONTENT} has changed"),
    "no tensors": (lambda p: (p / TENSORS).unlink(), f"{TENSORS} is missing"),
    "no content": (lambda p: (p / CONTENT).unlink(), f"{CONTENT} is missing"),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    "empty manifest": (
        lambda p: (p / MANIFEST).write_text(""),
        f"{MANIFEST} is not readable as JSON",
    ),
    "list": (lambda p: (p / MANIFEST).write_text("[]"), "must hold an object"),
    "bad UTF-8": (lambda p: (p / MANIFEST).write_bytes(b"\xff\xfe{"), "not readable as JSON"),
    "huge manifest": (lambda p: (p / MANIFEST).write_bytes(b" " * 70_000), "more than the 65536"),
    "deep manifest": (lambda p: (p / MANIFEST).write_text("[" * 60_000), "nested too deeply"),
    "copied": (lambda p: forge(p, lambda m: m.update(step=7)), "is not of step 2"),
    "no format": (lambda p: forge(p, lambda m: m.pop("format")), "state its format"),
    "no files": (lambda p: forge(p, lambda m: m.pop("files")), "must list tensors.safetensors"),
    "odd stamp": (lambda p: forge(p, lambda m: m["files"].update({CONTENT: 5})), "not readable"),
    "outside": (lambda p: forge(p, lambda m: m["files"].update({"../x": {}})), "and no other file"),
    "pickle": (lambda p: replace(p, TENSORS, pickle.dumps(Bomb(p / "ran"))), "as safetensors"),
    "header": (lambda p: replace(p, TENSORS, b"\xff" * 7 + b"\x7f{}"), "as safetensors"),
    "empty tensors": (lambda p: replace(p, TENSORS, b""), "as safetensors"),
    "deep content": (lambda p: replace(p, CONTENT, b'{"a":' * 100_000), "nested too deeply"),
    "NaN": (lambda p: replace(p, CONTENT, b'{"a": NaN}'), "NaN is not valid JSON"),
    "digits": (lambda p: replace(p, CONTENT, b'{"a": ' + b"9" * 9999 + b"}"), "as JSON"),
    "linked file": (lambda p: link(p / TENSORS), "is a link or a device"),
    "linked directory": (lambda p: link(p), "is a link or a file"),
    "pipe": (lambda p: ((p / CONTENT).unlink(), os.mkfifo(p / CONTENT)), "is a link or a device"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    path = two_steps(tmp_path)
    damage(path)
    with pytest.warns(CheckpointWarning, match="going back to the checkpoint of step 1"):
        found = load(tmp_path)
    assert (found.step, found.content) == (1, {"step": 1})
    assert len(found.skipped) == 1
    assert message in found.skipped[0]
    assert str(path) in found.skipped[0]
    assert not (path / "ran").exists()
    with pytest.raises(InputError, match="no checkpoint can be used"):
        load(tmp_path, step=2)


def test_the_hostile_pickle_would_have_worked(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


def test_a_model_says_the_same_and_does_not_go_back(tmp_path: Path) -> None:
    save_model(tmp_path / "model", WEIGHTS, {})
    (tmp_path / "model" / CONTENT).unlink()
    with pytest.raises(InputError, match=r"content.json is missing. Save the model again"):
        load_model(tmp_path / "model")
    with pytest.raises(InputError, match="there is no such model"):
        load_model(tmp_path / "other")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save(folder, 1, {"a": torch.arange(3.0), "b": torch.ones(2, dtype=torch.bool)}, {"x": [1, "y"]})
    return folder


@given(st.sampled_from([TENSORS, CONTENT, MANIFEST]), st.data())
def test_every_flipped_bit_is_noticed(run: Path, name: str, data: st.DataObject) -> None:
    path = run / "checkpoints" / "step-000000001" / name
    before = path.read_bytes()
    try:
        flip(path, data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7)))
        with pytest.raises(InputError, match=r"no checkpoint can be used|Upgrade nmln"):
            load(run)
    finally:
        path.write_bytes(before)
    assert load(run).content == {"x": [1, "y"]}


@given(st.integers(0, 120), st.binary(max_size=12))
def test_tensor_files_of_any_bytes_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, patch: bytes
) -> None:
    path = save(tmp_path_factory.mktemp("run"), 1, WEIGHTS, {})
    data = (path / TENSORS).read_bytes()
    replace(path, TENSORS, data[:position] + patch + data[position + len(patch) :])
    with suppress(InputError):
        load_model(path)


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = two_steps(tmp_path)
    forge(path, lambda manifest: manifest.update(format=2, nmln="9.1"))
    for read in (load, latest_step):
        with pytest.raises(
            InputError, match=r"format 2 by nmln '9.1', but .* up to 1. Upgrade nmln"
        ):
            read(tmp_path)
    assert load(tmp_path, step=1).step == 1
    save(tmp_path, 3, WEIGHTS, {})
    assert load(tmp_path).step == 3


def unchanged(folder: Path) -> bool:
    """Steps 1 and 2 are there, whole, and nothing else."""
    names = {entry.name for entry in (folder / "checkpoints").iterdir()}
    return names == {"step-000000001", "step-000000002"} and load(folder).content == {"step": 2}


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("step", [2, 3])
def test_a_full_disk_leaves_the_old_checkpoints_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, step: int
) -> None:
    two_steps(tmp_path)
    calls = []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == moment + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InputError, match=r"the disk is full. Free some space .* before is untouched"
    ):
        save(tmp_path, step, WEIGHTS, {"step": 2}, keep=5)
    if moment < 4:  # later the new one is in place already
        assert unchanged(tmp_path)
    assert load(tmp_path).content == {"step": 2}
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_failing_rename_brings_the_replaced_checkpoint_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_steps(tmp_path)
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if str(source).endswith(".partial"):
            raise PermissionError(errno.EACCES, "Permission denied", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(InputError, match="may not be written"):
        save(tmp_path, 2, WEIGHTS, {"step": "new"})
    assert unchanged(tmp_path)


def test_a_file_that_cannot_grow_is_reported(tmp_path: Path) -> None:
    two_steps(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(InputError, match=r"tensors.safetensors could not be written: File too"):
            save(tmp_path, 3, {"big": torch.zeros(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert unchanged(tmp_path)


def test_a_disk_that_is_really_full_is_reported(tmp_path: Path) -> None:
    code = """if True:
        import sys, torch
        from nmln.checkpoint import load, save
        folder = sys.argv[1]
        save(folder, 1, {"w": torch.ones(1000)}, {})
        try:
            save(folder, 2, {"w": torch.ones(100_000)}, {})
        except ValueError as error:
            print(error, load(folder).step)
    """
    mount = 'mount -t tmpfs -o size=128k none "$0" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, str(tmp_path), sys.executable, "-c", code]
    if not shutil.which("unshare") or subprocess.run([*command[:5], tmp_path, "true"]).returncode:
        pytest.skip("a small disk can be mounted only by root on Linux")
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True, check=True)
    assert "the disk is full" in done.stdout
    assert done.stdout.strip().endswith("1")


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_steps(tmp_path)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        InputError, match=r"may not be written \(Read-only file system\). Name a fol"
    ):
        save(tmp_path, 3, WEIGHTS, {})
    assert unchanged(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    two_steps(tmp_path)
    (tmp_path / "checkpoints").chmod(0o500)
    with pytest.raises(InputError, match="may not be written"):
        save(tmp_path, 3, WEIGHTS, {})
    (tmp_path / "checkpoints").chmod(0o700)
    assert unchanged(tmp_path)


def test_a_file_in_the_way_is_named_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for folder in (file, file / "below"):
        with pytest.raises(InputError, match=r"is a file where a directory must be. Move it"):
            save(folder, 1, WEIGHTS, {})
    with pytest.raises(InputError, match="file or link"):
        save_model(file, WEIGHTS, {})
    with pytest.raises(InputError, match="there is no checkpoint here"):
        load(file)
    with pytest.raises(InputError, match="is a link or a file, not a directory"):
        load_model(file)
    assert file.read_text() == "precious"


def test_links_are_not_written_through(tmp_path: Path) -> None:
    two_steps(tmp_path / "real")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "real" / "checkpoints")
    for act in (load, latest_step, lambda folder: save(folder, 9, WEIGHTS, {})):
        with pytest.raises(InputError, match="Link the run folder as a whole"):
            act(tmp_path / "run")
    (tmp_path / "model").symlink_to(tmp_path / "real" / "checkpoints" / "step-000000001")
    with pytest.raises(InputError, match="file or link"):
        save_model(tmp_path / "model", WEIGHTS, {})
    (tmp_path / "whole").symlink_to(tmp_path / "real")
    assert load(tmp_path / "whole").step == 2
    assert unchanged(tmp_path / "real")


def test_a_second_writer_waits_and_then_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_steps(tmp_path)
    monkeypatch.setattr(directory_module, "_PATIENCE", 0.1)
    with directory_module.writing(tmp_path / "checkpoints", "x"):  # noqa: SIM117
        with pytest.raises(InputError, match="another process has been saving here"):
            save(tmp_path, 3, WEIGHTS, {})
    save(tmp_path, 3, WEIGHTS, {})


@pytest.mark.parametrize(
    ("tensors", "content", "message"),
    [
        ({"__metadata__": torch.ones(1)}, {}, "cannot be the name of a tensor"),
        ({"\ud800": torch.ones(1)}, {}, "cannot be the name of a tensor"),
        ({"a": torch.ones(1, dtype=torch.complex128)}, {}, "but a is complex128"),
        ({"a": torch.eye(2).to_sparse()}, {}, r"but a is float32, torch.sparse_coo on cpu"),
        ({"a": torch.ones(1, device="meta")}, {}, "on meta"),
        ({}, {"a": float("nan")}, "must come back from JSON"),
        ({}, {"a": {1: 2}}, "in JSON keys are strings"),
        ({}, {"a": (1, 2)}, "tuples become lists"),
        ({}, {"a": torch.ones(1)}, "with flatten"),
        ({}, {"a": "x" * 2**26}, "Move long lists"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_the_disk_is_touched(
    tmp_path: Path, tensors: dict[str, torch.Tensor], content: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        save(tmp_path / "run", 1, tensors, content)
    assert not (tmp_path / "run").exists()
