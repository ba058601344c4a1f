"""Interrupted sampling that was damaged or changed is named in one line, and never counted as good."""

import gzip
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmln import checkpoint
from nmln.model import load_run
from nmln.runs import stream
from nmln.runs import workspace as working
from nmln.runs.specification import SamplingSettings
from tests.runs.sampling_runs import TINY, begin, files, finished, leave, listing, make_run, run

__all__ = ["run"]  # a fixture


def change(path: Path, **changes: Any) -> None:
    """Change settings in a file, its digest as it was."""
    content = json.loads(path.read_text())
    content["settings"] |= changes
    path.write_text(json.dumps({**content}))


def resign(path: Path, **changes: Any) -> None:
    """Change settings and make the digest fit."""
    change(path, **changes)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "digest": working._digest(content)}))


def edit(path: Path, **changes: Any) -> None:
    """Change other entries of the file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without(path: Path, name: str) -> None:
    content = json.loads(path.read_text())
    del content["settings"][name]
    path.write_text(json.dumps(content))


def rewrite(rows: Path, edit: Callable[[bytes], bytes]) -> None:
    """Other rows, with a checkpoint that knows their size."""
    packed = gzip.compress(edit(gzip.decompress(rows.read_bytes())), 9, mtime=0)
    rows.write_bytes(packed)
    resave(rows.parent, lambda tree: tree.update(offset=len(packed)))


def resave(block: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest checkpoint of a block, with all its hashes."""
    kept = checkpoint.load(block)
    edit(kept.content["tree"])
    checkpoint.save(block, kept.step, kept.tensors, kept.content)


def swap_rows(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join([lines[1], lines[0], *lines[2:]])


def flip(path: Path, at: int = -20) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def flip_checkpoints(block: Path) -> None:
    for path in block.rglob("tensors.safetensors"):
        flip(path)


def other_checkpoints(work: Path) -> None:
    """Those of another block in the place of its own."""
    shutil.rmtree(work / "block-1" / "checkpoints")
    shutil.copytree(work / "block-0" / "checkpoints", work / "block-1" / "checkpoints")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


SMALL = {**TINY, "count": 8, "chains": 4, "burn_in": 1}  # 2 blocks, 3 sweeps
SETTINGS, ROWS = "settings.json", "block-1/rows.csv.gz"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no JSON": (lambda w: (w / SETTINGS).write_text("{"), "is not readable as JSON"),
    "an empty file": (lambda w: (w / SETTINGS).write_text(""), "is not readable as JSON"),
    "a list": (lambda w: (w / SETTINGS).write_text("[]"), "it must hold an object"),
    "binary": (lambda w: (w / SETTINGS).write_bytes(b"\xff\0"), "is not readable as JSON"),
    "no settings": (lambda w: edit(w / SETTINGS, settings=3), "there are no settings"),
    "a missing setting": (lambda w: without(w / SETTINGS, "burn_in"), "burn_in is missing"),
    "an unknown setting": (lambda w: change(w / SETTINGS, x=1), "x is not a setting"),
    "text for a number": (lambda w: change(w / SETTINGS, samples="9"), "must be of type int"),
    "a flag for a number": (lambda w: change(w / SETTINGS, seed=True), "must be of type int"),
    "a fraction": (lambda w: change(w / SETTINGS, thin=1.5), "must be of type int"),
    "null": (lambda w: change(w / SETTINGS, kernel=None), "must be of type str"),
    "formulas as text": (lambda w: change(w / SETTINGS, formulas="x"), "must be of type list"),
    "fewer samples": (lambda w: change(w / SETTINGS, samples=7), "it has changed since"),
    "another seed": (lambda w: change(w / SETTINGS, seed=1), "it has changed since"),
    "a negative number": (lambda w: resign(w / SETTINGS, burn_in=-1), "must be at least 0"),
    "no chains": (lambda w: resign(w / SETTINGS, chains=0), "must be at least 1"),
    "more chains": (lambda w: resign(w / SETTINGS, chains=99), "do not fit together"),
    "another number of blocks": (lambda w: resign(w / SETTINGS, parts=3), "do not fit together"),
    "worlds of another kind": (lambda w: resign(w / SETTINGS, kind="db"), "its kind is db"),
    "evidence of another size": (lambda w: resign(w / SETTINGS, allowed="00"), "not fit this model"),
    "evidence without digits": (lambda w: resign(w / SETTINGS, allowed="xy"), "hexadecimal"),
    "an unknown formula": (lambda w: resign(w / SETTINGS, formulas=["1 f(x)"]), "unknown predicate"),
    "an unknown kernel": (lambda w: resign(w / SETTINGS, kernel="gibs"), "no kernel 'gibs'"),
    "a changed model": (lambda w: resign(w / SETTINGS, model="0"), "the model has changed"),
    "settings signed anew": (lambda w: resign(w / SETTINGS, samples=7), "of another sampling"),
    "a newer format": (lambda w: edit(w / SETTINGS, format=3), "format 3 by nmln"),
    "no format": (lambda w: edit(w / SETTINGS, format="2"), "format is unknown"),
    "no story": (lambda w: edit(w / SETTINGS, about=[]), "about must be"),
    "another part": (lambda w: edit(w / SETTINGS, part=[1, 2]), "it describes another part"),
    "odd sources": (lambda w: edit(w / SETTINGS, **{"from": 3}), "from must be a list"),
    "an odd wish": (lambda w: edit(w / SETTINGS, overwrite=1), "overwrite must be true or false"),
    "no marker": (lambda w: (w / SETTINGS).unlink(), "it is missing"),
    "no rows": (lambda w: (w / ROWS).unlink(), "it is missing"),
    "short rows": (lambda w: (w / ROWS).write_bytes((w / ROWS).read_bytes()[:-3]), "bytes instead"),
    "long rows": (lambda w: lengthen(w / ROWS), "bytes instead"),
    "a flipped bit in rows": (lambda w: flip(w / ROWS), "has changed"),
    "rows in another order": (lambda w: rewrite(w / ROWS, swap_rows), "row 1 is not that of"),
    "a row more": (lambda w: rewrite(w / ROWS, lambda text: text + b"9,1,valid,C\n"), "more rows"),
    "a row less": (
        lambda w: rewrite(w / ROWS, lambda t: b"".join(t.splitlines(True)[:-1])),
        "is not that of",
    ),
    "an unknown status": (
        lambda w: rewrite(w / ROWS, lambda t: re.sub(rb",[a-z]+,[^,\n]*\n", b",good,C\n", t)),
        "no known status",
    ),
    "a flipped bit in the only checkpoint": (
        lambda w: flip_checkpoints(w / "block-1"),
        "no checkpoint can be used",
    ),
    "checkpoints of another block": (other_checkpoints, "of another sampling"),
    "a checkpoint of another type": (
        lambda w: resave(w / "block-1", lambda t: t.update(offset="3")),
        "offset must be",
    ),
    "a checkpoint without an entry": (
        lambda w: resave(w / "block-1", lambda t: t.pop("recorder")),
        "is missing",
    ),
    "a checkpoint of nothing": (
        lambda w: resave(w / "block-1", lambda t: t.update(snapshot=[1])),
        "does not belong",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and with samples of it that only have to be put together."""
    folder = tmp_path_factory.mktemp("drawn")
    stream.work(begin(make_run(folder / "run"), "out", **SMALL))
    return folder


@pytest.mark.filterwarnings("ignore::nmln.checkpoint.CheckpointWarning")
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_in_one_line(
    drawn: Path,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the command replaces
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    run, out = tmp_path / "run", tmp_path / "out"
    damage, told = DAMAGE[kind]
    damage(out / ".nmln-sampling")
    before = listing(out)
    assert leave(monkeypatch, run, "--output", out, "--resume", "--processes", 1) == 2
    said = capsys.readouterr()
    (line,) = [one for one in said.err.splitlines() if one.startswith("error: ")]
    assert told in line
    assert "Traceback" not in said.err
    assert said.out == ""
    after = {name: one for name, one in listing(out).items() if "/writing/" not in name}
    assert after == before
    if kind in ("no JSON", "settings signed anew", "long rows", "a checkpoint of nothing"):
        words = ("--output", out, "--num-samples", 3, "--burn-in", 1, "--processes", 1)
        assert leave(monkeypatch, run, *words, "--overwrite") == 0


def test_a_damaged_newest_checkpoint_is_made_again(run: Path) -> None:
    whole = finished(run, "whole", **TINY)
    job = begin(run, "out", **TINY)
    stream.work(job, save_every=0.0)
    steps = sorted(job.block(1).glob("checkpoints/step-*"))
    assert len(steps) == 2
    flip(steps[-1] / "tensors.safetensors")
    with pytest.warns(checkpoint.CheckpointWarning, match="going back"):
        stream.work(stream.resume(job.folder, load_run(run)))
    stream.finish(job)
    assert files(job.folder) == files(whole)


def test_settings_come_back_from_their_file(run: Path) -> None:
    job = begin(run, "out", **TINY, formulas=["1.5 atom(x, O)"], scaffold="CO*")
    assert stream.resume(job.folder, job.model).settings == job.settings
    assert isinstance(job.settings, SamplingSettings)
    content = json.loads((job.work / SETTINGS).read_text())
    assert content["format"] == working.FORMAT
