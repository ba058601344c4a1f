"""Cells as users run them: killed, interrupted, resumed, merged, listed; each command is a real one."""

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nmln.cli import app
from nmln.errors import InputError
from nmln.reproduction.budgets import BUDGETS, budget
from nmln.reproduction.cells import Cell
from nmln.reproduction.datasets import DataSet
from nmln.reproduction.methods import method
from nmln.reproduction.status import part_of, parts_of
from nmln.reproduction.work import CellFailedError, Grid, start_as, work_on
from tests.baselines import fake
from tests.runs.main_jobs import MOLECULES

ROOT = Path(__file__).parents[2]
NAME = "mine-4/fake"
SMALL = ["--sizes", "4", "--minutes", "0.5", "--num-samples", "50", "--cells", NAME]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grid") / "mine.smi"
    path.write_text("\n".join(MOLECULES) + "\n")
    return path


def command(data: Path, output: Path, *more: str) -> list[str]:
    words = ["reproduce", "recall", "--data", str(data), *SMALL, "--output", str(output), *more]
    return [sys.executable, "-m", "tests.reproduction.working", *words]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def place(output: Path) -> Path:
    return output / "quick" / "cells" / NAME


def times(output: Path) -> dict[str, Any]:
    return json.loads((place(output) / "times.json").read_text())


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    """A cell that was not interrupted."""
    output = data.parent / "whole"
    subprocess.run(command(data, output), env=environment(), check=True, capture_output=True)
    return output


def drawn(output: Path) -> bytes:
    return gzip.decompress((place(output) / "run" / "samples" / "samples.csv.gz").read_bytes())


def test_a_cell_has_its_config_log_samples_evaluation_and_times(whole: Path) -> None:
    found = times(whole)
    assert list(found) == ["training", "sampling", "evaluation"]
    assert all(one["done"] and one["cpu_seconds"] > 0 for one in found.values())
    cell = json.loads((place(whole) / "cell.json").read_text())
    assert (cell["cell"], cell["budget"]["samples"]) == (NAME, 50)
    assert "$ nmln baseline train fake" in (place(whole) / "log.txt").read_text()
    assert len(drawn(whole).splitlines()) == 51
    assert (place(whole) / "run" / "evaluation" / "evaluation.json").exists()


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def working_in(folder: Path) -> list[str]:
    """The processes of Linux with a folder among their words."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if os.fsencode(folder) in one.read_bytes():
                found.append(one.parent.name)
    return found


def started(data: Path, output: Path) -> "subprocess.Popen[bytes]":
    """A grid whose training is slow, stopped by the test after some updates."""
    slow = environment(**{fake.SLOW: "0.2"})
    process = subprocess.Popen(command(data, output), env=slow, stderr=subprocess.PIPE)
    metrics = place(output) / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 2)
    return process


def test_a_killed_grid_leaves_no_process_and_continues_with_the_same_samples(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    output, metrics = tmp_path / "grid", place(tmp_path / "grid") / "run" / "metrics.jsonl"
    with started(data, output) as process:
        assert sys.platform != "linux" or len(working_in(output)) > 1
        process.kill()
        process.wait()
    if sys.platform == "linux":
        until(lambda: not working_in(output))
    before = len(metrics.read_text().splitlines())
    assert times(output)["training"]["done"] is False
    subprocess.run(command(data, output), env=environment(), check=True, capture_output=True)
    assert "$ nmln baseline train --resume" in (place(output) / "log.txt").read_text()
    assert len(metrics.read_text().splitlines()) > before
    assert drawn(output) == drawn(whole)


def test_a_signal_ends_with_the_command_that_continues(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    output = tmp_path / "grid"
    with started(data, output) as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 130
    assert b"nmln reproduce recall --data" in said
    cost = times(output)["training"]["cpu_seconds"]
    assert cost > 0
    assert times(output)["training"]["failed"] is False
    subprocess.run(command(data, output), env=environment(), check=True, capture_output=True)
    assert times(output)["training"]["cpu_seconds"] > cost, "the cost of both parts is kept"
    assert drawn(output) == drawn(whole)


def cell_of(data: Path, name: str = "fake") -> Cell:
    fake.register()
    return Cell(DataSet(str(data), "mine", 4), method(name))


def never(words: Any, log: Any) -> Any:
    pytest.fail(f"{words} was run again")


def test_folders_of_two_machines_can_be_merged(data: Path, whole: Path, tmp_path: Path) -> None:
    merged = Grid(tmp_path / "merged", budget("quick", 0.5, 50))
    cell = cell_of(data)
    assert merged.state(cell) == "new"
    shutil.copytree(place(whole), merged.place(cell))
    assert merged.state(cell) == "done"
    assert work_on(merged, cell, never)
    assert merged.expected([cell]) == {}


def test_a_cell_of_other_settings_is_refused(data: Path, whole: Path) -> None:
    with pytest.raises(InputError) as refused:
        work_on(Grid(whole, budget("quick", 0.5, 51)), cell_of(data), never)
    assert refused.value.kind == "conflict"
    other = [word if word != "50" else "51" for word in command(data, whole)]
    found = subprocess.run(other, env=environment(), capture_output=True, text=True, check=False)
    assert (found.returncode, "other settings" in found.stderr) == (2, True)
    moved = cell_of(data.parent / "elsewhere" / data.name)
    assert work_on(Grid(whole, budget("quick", 0.5, 50)), moved, never)


def test_a_cell_that_another_process_works_on_is_left_to_it(data: Path, tmp_path: Path) -> None:
    grid, cell = Grid(tmp_path, BUDGETS["quick"]), cell_of(data)

    def start(words: Any, log: Any) -> Any:
        assert work_on(grid, cell, never) is False
        return start_as([sys.executable, "-c", ""], (), log)

    assert work_on(grid, cell, start)


def test_a_failed_cell_is_reported_and_tried_again(data: Path, tmp_path: Path) -> None:
    grid, cell = Grid(tmp_path, BUDGETS["quick"]), cell_of(data)
    program = [sys.executable, "-c", "print('error: too hot'); raise SystemExit(2)"]
    with pytest.raises(CellFailedError, match="ended with 2: too hot"):
        work_on(grid, cell, lambda words, log: start_as(program, words, log))
    assert grid.state(cell) == "failed"
    assert part_of(grid, "any", [cell]).failed == (NAME,)
    assert work_on(grid, cell, lambda words, log: start_as([sys.executable, "-c", ""], (), log))
    assert grid.state(cell) == "done"


def test_status_counts_cells_and_expects_what_was_measured(data: Path, tmp_path: Path) -> None:
    grid = Grid(tmp_path, BUDGETS["quick"])
    cells = [Cell(one.data, one.method, seed) for one in [cell_of(data)] for seed in range(3)]
    grid.place(cells[0]).mkdir(parents=True)
    steps = {
        name: {"cpu_seconds": 120.0, "done": True}
        for name in ("training", "sampling", "evaluation")
    }
    (grid.place(cells[0]) / "times.json").write_text(json.dumps(steps))
    grid.place(cells[1]).mkdir(parents=True)
    begun = {"training": {"cpu_seconds": 60.0, "done": False}}
    (grid.place(cells[1]) / "times.json").write_text(json.dumps(begun))
    assert [grid.state(cell) for cell in cells] == ["done", "begun", "new"]
    assert grid.expected(cells) == {"mine-4/fake-seed-1": 5.0, "mine-4/fake-seed-2": 6.0}
    found = part_of(grid, "any", cells)
    assert (found.cells, found.done, found.begun, found.spent, found.left) == (3, 1, 1, 7.0, 11.0)
    everything = parts_of(grid)[-1]
    assert (everything.command, everything.done) == ("all", 0)


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words], catch_exceptions=True)


def test_list_prints_one_command_per_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["levels", "--budget", "hour", "--output", str(tmp_path), "--list"]
    monkeypatch.setattr(sys, "argv", ["nmln", "reproduce", *words])
    lines = invoke(*words).stdout.splitlines()
    start = f"nmln reproduce levels --budget hour --output {tmp_path} --cells"
    assert lines == [f"{start} chembl-10/star", f"{start} chembl-10/ours"]
    words = ["all", "--output", str(tmp_path), "--cells", "experiments/*", "--list"]
    monkeypatch.setattr(sys, "argv", ["nmln", "reproduce", *words])
    lines = invoke(*words).stdout.splitlines()
    assert len(lines) == 5
    assert lines[0] == f"nmln reproduce all --output {tmp_path} --cells experiments/exactness"


def test_wrong_cells_and_full_size_without_yes_are_refused(tmp_path: Path) -> None:
    unknown = invoke("levels", "--cells", "chembl-11/*", "--output", str(tmp_path))
    assert isinstance(unknown.exception, InputError)
    assert unknown.exception.token == "chembl-11/*"
    full = invoke("levels", "--budget", "paper", "--output", str(tmp_path))
    assert isinstance(full.exception, InputError)
    assert full.exception.token == "--yes"
    assert not (tmp_path / "paper").exists()
    assert isinstance(invoke("status", "--output", str(tmp_path)).exception, InputError)


def test_status_shows_every_command(whole: Path) -> None:
    found = invoke("status", "--output", str(whole))
    assert found.exit_code == 0
    for name in ("ablations", "levels", "compute", "recall", "all"):
        assert name in found.stdout
