from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from nmln.evaluation import Scores, evaluate
from nmln.report.recall import paint_recall, write_recall

TRAIN, TEST = [f"a{n}" for n in range(30)], [f"b{n}" for n in range(10)]
GOOD = evaluate([*TRAIN, *TEST * 2, *(f"c{n}" for n in range(40))], TRAIN, TEST)
COPY = evaluate(TRAIN * 3, TRAIN, TEST)


def test_each_panel_has_a_line_for_every_file_that_ends_where_its_curve_does() -> None:
    figure = Figure()
    paint_recall(figure, [("good", GOOD), ("copy", COPY)], 40)
    for axes, curves in zip(
        figure.axes,
        [(GOOD.test, COPY.test), (GOOD.new, COPY.new), (GOOD.train, COPY.train)],
        strict=True,
    ):
        drawn = {str(line.get_label()): line for line in axes.get_lines()}
        for name, curve in zip(("good", "copy"), curves, strict=True):
            across, up = map(np.asarray, drawn[name].get_data())
            assert up[-1] == curve.found[-1]
            assert list(up) == pytest.approx([curve.at(t) for t in across])
            assert set(curve.ranks[1:]) <= set(across)
        assert {"all that can be found", "drawing from training and test set"} <= set(drawn)


def test_many_files_with_any_names_stay_apart_and_repeat_byte_for_byte(tmp_path: Path) -> None:
    names = [f"${n}_{{x}}$ <&>" for n in range(9)]
    found = [(name, GOOD if n % 2 else COPY) for n, name in enumerate(names)]
    figure = Figure()
    paint_recall(figure, found, 40)
    lines = [line for line in figure.axes[0].get_lines() if str(line.get_label()).startswith("\\$")]
    assert len({(line.get_color(), str(line.get_linestyle())) for line in lines}) == 9
    one, other = (write_recall(tmp_path / stem, found, 40) for stem in ("one", "other"))
    for first, second in zip(one, other, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_samples_without_a_valid_one_can_be_drawn(tmp_path: Path) -> None:
    picture, _ = write_recall(tmp_path / "none", [("none", evaluate([None], TRAIN, TEST))], 40)
    assert picture.stat().st_size > 0


def test_a_ranking_by_probability_is_a_second_line_in_the_same_colour() -> None:
    strings = [*TRAIN, *TEST, "c0", "c1"]
    logs = Scores({string: -float(place) for place, string in enumerate(reversed(strings))})
    both = evaluate(strings, TRAIN, TEST, log_probabilities=logs)
    figure = Figure()
    paint_recall(figure, [("ours", both), ("copy", COPY)], 40)
    ranking = both.by_probability
    assert ranking is not None
    for axes, curve in zip(figure.axes, (ranking.test, ranking.new, ranking.train), strict=True):
        drawn = {str(line.get_label()): line for line in axes.get_lines()}
        count, probable = drawn["ours, by count"], drawn["ours, by probability"]
        across, up = map(np.asarray, probable.get_data())
        assert list(up) == pytest.approx([curve.at(t) for t in across])
        assert count.get_color() == probable.get_color() != drawn["copy"].get_color()
        assert count.get_linestyle() != probable.get_linestyle()
        assert axes.get_xlabel() == "first t different molecules"
        assert "copy, by probability" not in drawn
