import csv
import io
import json
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest

from nmln.errors import InputError
from nmln.report.history import extremes, read_history, smooth, spread, table


def write(folder: Path, *lines: object) -> Path:
    path = folder / "metrics.jsonl"
    told = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(told) + "\n")
    return path


def test_every_number_becomes_a_curve_at_the_steps_that_tell_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"step": 1, "gap": [1.0, 2.0], "word": "no", "flag": True, "table": {}, "none": []},
        {"step": 2, "gap": [3.0, 4.0], "valid": 0.5},
        {"step": 3, "gap": [5.0, 6.0], "valid": 1},
    )
    history = read_history(path)
    assert list(history.curves) == ["gap", "valid"]
    assert history.curves["gap"].numbers.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert history.curves["valid"].steps.tolist() == [2, 3]
    assert history.last("valid") == 1.0
    assert history.last("gap") is None
    assert not history.notes


def test_a_last_line_that_is_cut_off_is_left_out_and_noted(tmp_path: Path) -> None:
    history = read_history(write(tmp_path, {"step": 1, "a": 1.0}, '{"step": 2, "a": 0.'))
    assert history.steps.tolist() == [1]
    assert len(history.notes) == 1


def test_damage_anywhere_else_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, {"step": 1, "a": 1.0}, '{"step": 2, "a": 0.', {"step": 3, "a": 1.0})
    with pytest.raises(InputError, match="not JSON") as caught:
        read_history(path)
    assert caught.value.line == 2


@pytest.mark.parametrize("line", ["[1, 2]", '{"gap": 1}', '{"step": "1"}', '{"step": true}'])
def test_a_line_without_a_step_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="step") as caught:
        read_history(write(tmp_path, {"step": 1}, line))
    assert caught.value.line == 2


def test_lines_of_two_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two runs"):
        read_history(write(tmp_path, {"step": 1, "a": [1.0, 2.0]}, {"step": 2, "a": [1.0]}))


def test_a_file_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no step"):
        read_history(write(tmp_path, ""))


def test_numbers_that_are_not_finite_become_gaps(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"step": 1, "a": [1.0, 2.0], "b": 1.0},
        '{"step": 2, "a": [NaN, Infinity], "b": null}',
        {"step": 3, "a": None, "b": 2.0},
    )
    curves = read_history(path).curves
    assert np.isnan(curves["a"].numbers).tolist() == [[False, False], [True, True], [True, True]]
    assert np.isnan(curves["b"].numbers[:, 0]).tolist() == [False, True, False]


def test_where_a_run_went_back_the_later_lines_count(tmp_path: Path) -> None:
    lines = [{"step": step, "a": float(step)} for step in (1, 2, 3)]
    lines[2]["valid"] = 0.1  # of a step that is not taken again with a look at the worlds
    lines += [{"step": 2, "a": 20.0}, {"step": 3, "a": 30.0}]
    history = read_history(write(tmp_path, *lines))
    assert history.steps.tolist() == [1, 2, 3]
    assert history.curves["a"].numbers[:, 0].tolist() == [1, 20, 30]
    assert "valid" not in history.curves


def test_the_table_holds_every_number_under_its_name(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"step": 1, "gap": [1.5, None]},
        {"step": 2, "gap": [2.5, 3.5], 'odd, "name"': 0.25},
    )
    text = "\n".join(table(read_history(path), {"gap": ["0.1", "0.01"]}))
    head, *rows = csv.reader(io.StringIO(text))
    assert head == ["step", "gap 0.1", "gap 0.01", 'odd, "name"']
    assert rows == [["1", "1.5", "", ""], ["2", "2.5", "3.5", "0.25"]]


def test_smoothing_is_the_mean_of_the_finite_numbers_around() -> None:
    numbers = np.array([1.0, 2.0, nan, 4.0, 5.0, 9.0])
    found = smooth(numbers, 3)
    for at, mean in enumerate(found):
        if at == 2:
            assert isnan(mean)
        else:
            assert mean == pytest.approx(np.nanmean(numbers[max(0, at - 1) : at + 2]))


def test_thinning_keeps_the_one_outlier_among_many() -> None:
    numbers = np.sin(np.arange(100_000) / 1000)
    numbers[77_777] = 50
    numbers[20_000:30_000] = nan
    kept = extremes(numbers, 300)
    assert len(kept) <= 302
    assert {0, 77_777, 99_999} <= set(kept.tolist())
    assert np.isnan(numbers[kept]).any(), "the gap is seen"
    assert (np.diff(kept) > 0).all()
    assert extremes(numbers[:100], 300).tolist() == list(range(100))


def test_spread_places_hold_both_ends() -> None:
    assert spread(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert spread(1001, 11).tolist() == list(range(0, 1001, 100))
