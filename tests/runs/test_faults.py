"""Disks that are full or read-only and checkpoints that are damaged, at the command line."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nmln.files
from nmln import checkpoint
from nmln.files import open_regular
from nmln.runs import metrics as metrics_log
from nmln.runs import train as training
from tests.runs.runs import (
    equal,
    half_written,
    run_here,
    settings,
    weights,
    whole_run,
    write_config,
)

STEP = "checkpoints/step-000000003"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    return lambda *arguments: run_here(monkeypatch, capfd, *arguments)


def begin(cli: Callable[..., Any], people: Path, output: Path, **changes: dict) -> Any:
    return cli(
        "train", people, "--config", write_config(people.parent, **changes), "--output", output
    )


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit-flipped": (lambda p: flip(p / "tensors.safetensors"), "has changed since it was written"),
    "truncated": (lambda p: os.truncate(p / "tensors.safetensors", 99), "has 99 bytes instead of"),
    "emptied": (lambda p: (p / "manifest.json").write_text(""), "is not readable as JSON"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_with_a_warning(
    finished: Path, tmp_path: Path, cli: Callable[..., Any], name: str
) -> None:
    folder, (damage, message) = tmp_path / "run", DAMAGES[name]
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    damage(folder / STEP)
    done = cli("train", "--resume", folder)
    assert done.code == 0, done.said
    warned = [line for line in done.lines if line.startswith("warning: ")]
    assert len(warned) == 1
    assert "going back to the checkpoint of step 2" in warned[0]
    assert str(folder / STEP) in warned[0]
    assert message in warned[0]
    assert "Traceback" not in done.said
    assert equal(weights(folder), weights(finished))


@pytest.mark.parametrize("name", DAMAGES)
def test_if_no_checkpoint_is_good_the_run_does_not_begin_again_in_silence(
    finished: Path, tmp_path: Path, cli: Callable[..., Any], name: str
) -> None:
    folder, (damage, message) = tmp_path / "run", DAMAGES[name]
    shutil.copytree(finished, folder)
    for path in (folder / "checkpoints").iterdir():
        damage(path)
    done = cli("train", "--resume", folder)
    assert done.code == 2
    assert done.lines[-1].startswith(f"error: {folder}: no checkpoint can be used: ")
    assert message in done.lines[-1]
    assert "Restore the folder from a copy, or train again." in done.lines[-1]
    assert len(checkpoint.saved_steps(folder)) == 3


def untouched(folder: Path) -> bool:
    """Something loads, and nothing half-written is left."""
    return checkpoint.load(folder).skipped == [] and not half_written(folder)


def fail_after(steps: int, real: Callable[..., Any], code: int) -> Callable[..., Any]:
    calls = []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > steps:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    return failing


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "the disk is full. Free some space or name a folder on another disk."),
        (errno.EROFS, "(Read-only file system). Name a folder that you can write to."),
        (errno.EIO, "could not be written: Input/output error."),
    ],
)
def test_a_checkpoint_that_cannot_be_written_ends_the_run_in_one_line(
    people: Path,
    cli: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    message: str,
) -> None:
    folder = people.parent / "run"
    reference = whole_run(people, training__steps=5)
    from nmln.checkpoint import directory

    with monkeypatch.context() as patch:
        patch.setattr(directory, "save_file", fail_after(2, directory.save_file, code))
        done = begin(cli, people, folder, training={"steps": 5})
    assert done.code == 2
    assert done.lines[-1].startswith(f"error: {folder / 'checkpoints'}: ")
    assert message in done.lines[-1]
    assert "Traceback" not in done.said
    assert checkpoint.latest_step(folder) == 2
    assert untouched(folder)
    assert cli("train", "--resume", folder).code == 0
    assert equal(weights(folder), weights(reference))


class FullFile(io.FileIO):
    """Takes a few bytes of every text; the rest finds the disk full."""

    def write(self, text: Any) -> int:
        super().write(text[:9])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_metrics_that_cannot_be_written_end_the_run_in_one_line(
    people: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, folder = whole_run(people, training__steps=5), people.parent / "run"

    def opened(path: Path, mode: str = "rb") -> Any:
        lines = path.read_text().count("\n") if path.exists() else 0
        return open_regular(path, mode) if lines < 2 or mode != "ab" else FullFile(path, "a")

    with monkeypatch.context() as patch:
        patch.setattr(metrics_log, "open_regular", opened)
        done = begin(cli, people, folder, training={"steps": 5})
    assert done.code == 2
    assert done.lines[-1].startswith(f"error: {folder / 'metrics.jsonl'}: the disk is full. ")
    assert f"continue with: nmln train --resume {folder}" in done.lines[-1]
    assert (folder / "metrics.jsonl").read_text().splitlines()[-1] == '{"step": '
    assert untouched(folder)
    assert cli("train", "--resume", folder).code == 0
    steps = [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(1, 6))
    assert equal(weights(folder), weights(reference))


def test_metrics_that_cannot_be_cut_leave_the_old_ones(
    finished: Path, tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 4')
    before = (folder / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(nmln.files.os, "fsync", fail_after(0, os.fsync, errno.ENOSPC))
    done = cli("train", "--resume", folder)
    assert done.code == 2
    assert "metrics.jsonl: the disk is full." in done.lines[-1]
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert untouched(folder)


def test_a_folder_that_cannot_be_is_named(people: Path, cli: Callable[..., Any]) -> None:
    (people.parent / "file").write_text("precious")
    for output in ("file", "file/below", "file/far/below"):
        done = begin(cli, people, people.parent / output)
        assert done.code == 2
        assert len(done.lines) == 1
        assert done.lines[0].startswith(f"error: {people.parent / 'file'}")
        assert "is a file where a directory must be. Move it or name another folder." in done.said
    assert (people.parent / "file").read_text() == "precious"


def mounted(folder: Path, options: str, script: str, *arguments: object) -> str:
    """Run a script for the shell where a small disk of its own is mounted on a folder."""
    mount = f'mount -t tmpfs -o {options} none "$0" && '
    command = ["unshare", "-m", "sh", "-c", mount + "true", str(folder)]
    if not shutil.which("unshare") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted only by root on Linux")
    command[4] = mount + script
    done = subprocess.run(
        [*command, sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_disk_that_is_really_full_ends_the_run_in_one_line_and_keeps_it(people: Path) -> None:
    disk, outside = people.parent / "disk", people.parent / "outside"
    disk.mkdir()
    config = write_config(people.parent, training={"steps": 400, "keep": 1000})
    train = '"$1" -m nmln train "$2" --config "$3" --output "$0/run"'
    script = f'{train}; cp -r "$0/run" "$4"; echo left >&2'
    said = mounted(disk, "size=1m", script, people, config, outside).splitlines()
    assert said[-1] == "left"
    assert said[-2].startswith(f"error: {disk / 'run'}")
    assert "the disk is full. Free some space or name a folder on another disk." in said[-2]
    assert untouched(outside)
    reached = checkpoint.load(outside).step
    assert reached > 1
    assert training.resume(outside).trainer.step_number == reached


def test_a_read_only_disk_is_named(people: Path) -> None:
    disk = people.parent / "disk"
    disk.mkdir()
    config = write_config(people.parent)
    script = 'mount -o remount,ro "$0" && "$1" -m nmln train "$2" --config "$3" --output "$0/run"'
    said = mounted(disk, "size=1m", script, people, config).splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"error: {disk / 'run'}")
    assert "(Read-only file system). Name a folder that you can write to." in said[0]


def test_a_full_disk_leaves_no_finished_model_by_halves(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nmln.checkpoint import directory
    from nmln.errors import InputError

    job = training.begin(people.parent / "run", settings(people, training__steps=2))
    monkeypatch.setattr(directory, "save_file", fail_after(2, directory.save_file, errno.ENOSPC))
    with pytest.raises(InputError, match="the disk is full"):
        training.run(job)
    assert not (job.folder / "model").exists()
    assert untouched(job.folder)
    monkeypatch.undo()
    training.run(training.resume(job.folder))
    assert weights(job.folder)
