"""Run folders received from others: nothing in them is executed or believed unchecked."""

import json
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nmln import __version__, checkpoint
from nmln.model import load_run
from nmln.runs import train as training
from tests.checkpoint.test_directory import Bomb, forge

STEP = Path("checkpoints/step-000000002")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A run with one checkpoint and no model, so that everything depends on the checkpoint."""
    target = tmp_path / "theirs"
    shutil.copytree(finished, target)
    shutil.rmtree(target / "model")
    for path in (target / "checkpoints").iterdir():
        if path.name != STEP.name:
            shutil.rmtree(path)
    return target


def change_tensor(path: Path, pattern: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = load_file(path / "tensors.safetensors")
    names = [name for name in tensors if re.search(pattern, name)]
    assert names, list(tensors)
    tensors[names[0]] = change(tensors[names[0]]).contiguous()
    save_file(tensors, path / "tensors.safetensors")
    forge(path)


def change_content(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((path / "content.json").read_text())
    change(content)
    (path / "content.json").write_text(json.dumps(content))
    forge(path)


def write_header(path: Path, header: dict[str, Any]) -> None:
    """A tensor file that promises more than it holds."""
    text = json.dumps(header).encode()
    (path / "tensors.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 64)
    forge(path)


def list_file(name: str) -> Callable[[Path], object]:
    return lambda path: forge(path, lambda m: m["files"].update({name: {"sha256": "", "bytes": 0}}))


HUGE = {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
WRAPPED = {"w": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 64]}}
SHORT = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 64]}}

UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pickle": (
        lambda p: (
            (p / "tensors.safetensors").write_bytes(pickle.dumps(Bomb(p / "ran"))),
            forge(p),
        ),
        "is not readable as safetensors",
    ),
    "a path upwards": (list_file("../../../config.json"), "and no other file"),
    "an absolute path": (list_file("/etc/hostname"), "and no other file"),
    "a huge size": (lambda p: write_header(p, HUGE), "is not readable as safetensors"),
    "a size that wraps": (lambda p: write_header(p, WRAPPED), "is not readable as safetensors"),
    "a size too small": (lambda p: write_header(p, SHORT), "is not readable as safetensors"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_checkpoint_is_refused_by_every_command(
    folder: Path, cli: Callable[..., Any], name: str
) -> None:
    change, message = UNREADABLE[name]
    change(folder / STEP)
    for arguments in (("train", "--resume", folder), ("sample", folder, "--num-samples", 4)):
        done = cli(*arguments)
        assert done.code == 2
        assert len(done.lines) == 1
        assert done.lines[0].startswith(f"error: {folder}: no checkpoint can be used: ")
        assert message in done.lines[0]
    assert not (folder / STEP / "ran").exists()


MISFITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights of another shape": (
        lambda p: change_tensor(p, "^potential/.*weight", lambda w: w[..., :-1]),
        "size mismatch",
    ),
    "chains of another type": (
        lambda p: change_tensor(p, "^ranks/0/.*values", torch.Tensor.double),
        "values is float64",
    ),
    "chains of other worlds": (
        lambda p: change_tensor(p, "^ranks/0/.*values", lambda v: v[..., :-1]),
        "values is ",
    ),
    "an optimiser of other weights": (
        lambda p: change_tensor(p, "^optimiser/state/.*own_mean", lambda m: m.flatten()[:-1]),
        "own_mean is float32",
    ),
    "a generator that is none": (
        lambda p: change_tensor(p, "^ranks/0/data_rng", lambda state: state[:7]),
        "RNG state",
    ),
    "a good state with chains of another type": (
        lambda p: change_tensor(p, "^guard/good/ranks/0/.*values", torch.Tensor.double),
        "values is float64",
    ),
    "a good state of another shape": (
        lambda p: change_tensor(p, "^guard/good/potential/.*weight", lambda w: w[..., :-1]),
        "size mismatch",
    ),
    "no chains": (lambda p: change_content(p, lambda c: c["tree"]["tree"].pop("ranks")), "'ranks'"),
    "no rank": (lambda p: change_content(p, lambda c: c["tree"]["tree"].update(ranks=[])), "fit"),
    "another step": (lambda p: change_content(p, lambda c: c["tree"]["tree"].update(step=9)), "9"),
    "a text for a step": (
        lambda p: change_content(p, lambda c: c["tree"]["tree"].update(step="2")),
        "it says step '2'",
    ),
    "a text for a rate": (
        lambda p: change_content(p, lambda c: c["tree"]["tree"].update(slowed="1")),
        "slowed is str instead of float",
    ),
    "no tree": (lambda p: change_content(p, lambda c: c.pop("tree")), "'tree' is missing"),
    "a list for a tree": (lambda p: change_content(p, lambda c: c.update(tree=[1])), "fit"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_the_run_is_refused(
    folder: Path, cli: Callable[..., Any], name: str
) -> None:
    change, message = MISFITS[name]
    change(folder / STEP)
    done = cli("train", "--resume", folder)
    assert done.code == 2
    assert len(done.lines) == 1
    assert done.lines[0].startswith(f"error: {folder / STEP}: this checkpoint does not fit the run")
    assert message in done.lines[0]


def test_chains_outside_their_categories_are_named(folder: Path, cli: Callable[..., Any]) -> None:
    change_tensor(folder / STEP, "^ranks/0/.*values", lambda values: torch.full_like(values, 99))
    done = cli("train", "--resume", folder)
    assert done.code == 2
    assert "has the categories 0 to 1, but is 99 at" in done.lines[-1]


def test_a_checkpoint_without_a_guard_still_loads(folder: Path) -> None:
    change_content(folder / STEP, lambda content: content["tree"]["tree"].pop("guard"))
    job = training.resume(folder)
    assert job.trainer.step_number == 2
    assert job.guard.reasons == []
    assert job.guard.good["step"] == 2


NEWER: dict[str, Callable[[Path], object]] = {
    "a checkpoint": lambda f: forge(f / STEP, lambda m: m.update(format=2, nmln="9.1")),
    "a configuration": lambda f: change_head(f, format=2, nmln="9.1"),
    "a configuration with new words": lambda f: change_head(f, nmln="9.1", config={"oracle": {}}),
}


def change_head(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    head = json.loads(path.read_text())
    path.write_text(json.dumps({**head, **changes}))


@pytest.mark.parametrize("what", NEWER)
def test_what_a_newer_version_wrote_is_refused_with_both_versions(
    folder: Path, cli: Callable[..., Any], what: str
) -> None:
    NEWER[what](folder)
    for arguments in (("train", "--resume", folder), ("sample", folder, "--num-samples", 4)):
        done = cli(*arguments)
        assert done.code == 2
        assert len(done.lines) == 1
        assert done.lines[0].startswith(f"error: {folder}")
        assert "9.1" in done.lines[0]
        assert __version__ in done.lines[0]


def test_a_model_of_a_newer_version_is_refused_with_both_versions(
    finished: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    forge(tmp_path / "run" / "model", lambda manifest: manifest.update(format=7, nmln="9.1"))
    done = cli("sample", tmp_path / "run", "--num-samples", 4)
    assert done.code == 2
    assert done.lines == [
        f"error: {tmp_path / 'run' / 'model'}: this was written in format 7 by nmln '9.1', but nmln "
        f"{__version__} reads formats up to 1. Upgrade nmln, or move this directory away."
    ]


MISCOUNTED = {"reason": "duplicate", "count": "many", "line": 1, "example": "C"}
HEADS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no JSON": (lambda p: p.write_text("{"), "is not readable as JSON"),
    "a list": (lambda p: p.write_text("[]"), "must hold an object"),
    "an empty object": (lambda p: p.write_text("{}"), "this does not describe a run ('kind')"),
    "too deep": (lambda p: p.write_text('{"a":' * 100_000), "is nested too deeply"),
    "a link": (lambda p: (p.rename(p.with_name("x")), p.symlink_to("x")), "links within a run"),
    "a pipe": (lambda p: (p.unlink(), os.mkfifo(p)), "this is not a regular file"),
    "another kind": (lambda p: change_head(p.parent, kind="../x"), "this does not describe a run"),
    "another program": (lambda p: change_head(p.parent, program=["x"]), "does not describe a run"),
    "a table that is none": (lambda p: change_head(p.parent, config=[]), "not describe a run"),
    "lines left out": (lambda p: change_head(p.parent, dropped=[{"a": 1}]), "not describe a run"),
    "their number": (lambda p: change_head(p.parent, dropped=[MISCOUNTED]), "dropped lines"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_none_is_refused(folder: Path, cli: Callable[..., Any], name: str) -> None:
    change, message = HEADS[name]
    change(folder / "config.json")
    done = cli("train", "--resume", folder)
    assert done.code == 2
    assert len(done.lines) == 1
    assert done.lines[0].startswith(f"error: {folder / 'config.json'}")
    assert message in done.lines[0]


def test_the_untouched_folder_works(folder: Path, cli: Callable[..., Any]) -> None:
    assert load_run(folder).space.groups > 0
    assert cli("train", "--resume", folder).code == 0
    assert checkpoint.latest_step(folder) == 3
