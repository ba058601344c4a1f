"""Runs to sample from that take no training, and what sampling them has written."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nmln.cli import main
from nmln.config import configure
from nmln.formats.mln import parse_mln
from nmln.model import Model
from nmln.molecules import datasets
from nmln.runs import sample as sampling
from nmln.runs import sample_rows, stream
from nmln.runs.stream import SamplingJob
from nmln.space import Space

SMILES = ["CCOCC", "CCNCC", "CC(C)CO", "C1CC1CO", "CC(=O)CO", "OCCCN", "C#CCCO", "COCOC"]


CONDITIONS = ("evidence", "scaffold", "formulas", "formula_files")


def make_run(folder: Path, seed: int = 0, smiles: list[str] = SMILES) -> Path:
    """The folder of a run whose model has learned nothing but marginals."""
    folder.mkdir(parents=True)
    path = folder / "molecules.smi"
    path.write_text("\n".join(smiles))
    found = datasets.load(path)
    config = configure(
        {
            "ladder": {"rates": [0.2, 0.02]},
            "model": {"layers": 1, "hidden": 4, "seed": seed},
            "sampling": {"kernel": "gradients", "moves": 2},
        }
    )
    model = Model.build(found.space, found.worlds, config)
    model.save(folder / "model")
    content = {**model.describe(), "kind": "molecules"}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run; its figures are left out, because each takes seconds to draw."""
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    return make_run(tmp_path / "run")


def begin(run: Path, name: str, **wishes: Any) -> SamplingJob:
    options = {"count": 105, "chains": 10, "burn_in": 3, "thin": 2, **wishes}  # 25 sweeps
    given = {one: options.pop(one) for one in CONDITIONS if one in options}
    opened = sampling.open_run(run)
    return sampling.begin(opened, opened.conditions(**given), output=run.parent / name, **options)


def finished(run: Path, name: str, **wishes: Any) -> Path:
    job = begin(run, name, **wishes)
    stream.work(job)
    stream.finish(job)
    return job.folder


def read(folder: Path) -> list[tuple[int, int, str, str]]:
    return list(sample_rows.read_rows(folder / "samples.csv.gz"))


def files(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on when a run was stopped."""
    names = ["samples.csv.gz", *(path.name for path in folder.glob("counts*.csv"))]
    return {name: (folder / name).read_bytes() for name in sorted(names)}


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sampling.json").read_text())


TINY = {"count": 14, "chains": 6, "burn_in": 2, "thin": 1, "block": 2}  # 3 blocks, 5 sweeps


def make_world_run(folder: Path, kind: str = "db") -> Path:
    """The folder of a run over people, or over graphs, whose model has learned nothing."""
    text = "person = {Anna, Bob, Cleo}\nsmokes(person)\nfriends(person, person)"
    if kind == "graphs":
        text = "node = {0, 1, 2}\nedge(node, node)"
    program = parse_mln(text)
    space = Space(program.language, program.domain)
    changes = {
        "ladder": {"rates": [0.2, 0.02]},
        "model": {"layers": 1, "hidden": 4},
        "sampling": {"moves": 2},
    }
    model = Model.build(space, space.enumerate()[:20], configure(changes))
    folder.mkdir(parents=True)
    model.save(folder / "model")
    (folder / "config.json").write_text(json.dumps({**model.describe(), "kind": kind}))
    return folder


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    """How a command ends in this process."""
    monkeypatch.setattr(sys, "argv", ["nmln", "sample", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


def listing(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, whatever it is."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
