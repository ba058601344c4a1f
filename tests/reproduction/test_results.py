"""Condensed results: cut to the smallest number of samples, with one split, levels, evaluations."""

import json
from pathlib import Path

import pytest

from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.reproduction.budgets import BUDGETS
from nmln.reproduction.cells import Cell
from nmln.reproduction.datasets import DataSet, by_key
from nmln.reproduction.figures import draw_all
from nmln.reproduction.grid import Figure
from nmln.reproduction.methods import method
from nmln.reproduction.results import condense
from nmln.reproduction.work import Grid
from nmln.runs import data as sources
from tests.reproduction.made import fill
from tests.runs.main_jobs import MOLECULES

QUICK = BUDGETS["quick"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "mine.smi"
    path.write_text("\n".join(MOLECULES) + "\n")
    return path


def cell(data: Path, name: str, seed: int = 0) -> Cell:
    return Cell(DataSet(str(data), "Mine", 4), method(name), seed)


def held_out(data: Path) -> list[str]:
    source = sources.load(DataConfig(str(data)))
    return [source.names[place] for place in source.test.tolist()]


def test_rows_are_cut_to_the_smallest_number_of_samples(data: Path, tmp_path: Path) -> None:
    grid, test = Grid(tmp_path / "grid", QUICK), held_out(data)
    ours, other, last = (cell(data, name) for name in ("ours", "rnn-char", "svae"))
    fill(grid, ours, data, [test[0], None, *test[1:4], *test[1:]])
    fill(grid, other, data, [None, test[0], test[0], None])
    figure = Figure("recall-mine-4-strings", "Mine", "recall", (ours, other, last))
    found = condense(grid, figure)
    assert found == json.loads((grid.results / "recall-mine-4-strings.json").read_text())
    assert (found["samples"], found["test"]) == (4, len(test))
    assert found["missing"] == ["mine-4/svae"]
    first, second = found["rows"]
    assert [first["covered"]["count"], second["covered"]["count"]] == [3, 1]
    assert [first["valid"]["value"], second["valid"]["value"]] == [0.75, 0.5]
    assert [first["drawn"], second["drawn"]] == [4 + len(test), 4]
    assert first["minutes"] == {"training": 1.0, "sampling": 1.0}
    assert (first["updates"], first["evaluations"]) == (3, {"training": 300, "sampling": 1000})
    assert second["evaluations"] is None
    assert second["recall"]["points"][-1] == [1, 1.0]


def test_different_splits_are_refused(data: Path, tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid", QUICK)
    cells = (cell(data, "ours"), cell(data, "svae"))
    fill(grid, cells[0], data, ["CCCC"])
    fill(grid, cells[1], data, ["CCCC"], split_seed=1)
    with pytest.raises(InputError) as refused:
        condense(grid, Figure("any", "Any", "recall", cells))
    assert refused.value.kind == "conflict"


def test_levels_and_evaluations(data: Path, tmp_path: Path) -> None:
    grid, test = Grid(tmp_path / "grid", QUICK), held_out(data)
    own = Cell(by_key("chembl-10"), method("star"))
    fill(grid, own, data, {0: [None] * 4, 1: [test[0], None, test[1], test[1]]})
    levels = condense(grid, Figure("levels", "Levels", "levels", (own,)))
    assert [row["valid"]["value"] for row in levels["rows"]] == [0.0, 0.75]
    assert [row["rate"] for row in levels["rows"]] == [0.1, 0.01]
    compute = condense(grid, Figure("compute", "Compute", "compute", (own,)))
    [row] = compute["rows"]
    assert row["training"] == [[100, 0.1], [200, 0.2], [300, pytest.approx(0.3)]]
    assert [one["samples"] for one in row["sampling"]] == [4]
    assert row["sampling"][0]["evaluations"] == 1000  # all sweeps: 10 of the burn-in, 2 draws
    assert row["sampling"][0]["covered"]["count"] == 2


def test_a_figure_without_finished_cells_has_no_rows_and_no_picture(tmp_path: Path) -> None:
    grid, own = Grid(tmp_path, QUICK), Cell(by_key("chembl-10"), method("star"))
    found = condense(grid, Figure("levels", "Levels", "levels", (own,)))
    assert (found["rows"], found["missing"]) == ([], ["chembl-10/star"])
    assert draw_all(found, tmp_path) == []
