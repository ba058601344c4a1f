import numpy as np
import pytest
from matplotlib.figure import Figure

from nmln.report.curves import Levels, Line, Panel, paint_panel, panels_of
from nmln.report.history import Curve, History

NOISING = Levels(("0.1", "0.01", "0.001"), ("0.1", "0.01", "0.001"), "corruption rate")
TEMPERING = Levels(("0",), ("T = 2", "T = 1"), "level")


def curve(name: str, numbers: list | np.ndarray) -> Curve:
    found = np.array(numbers, dtype=float)
    listed = found.ndim == 2
    at = np.arange(len(found))
    return Curve(name, at, at + 1, found if listed else found[:, None], listed)


def history(*curves: Curve) -> History:
    return History(np.arange(len(curves[0].steps)) + 1, {one.name: one for one in curves})


def test_levels_are_called_by_their_rates_and_pairs_by_both() -> None:
    three, two = [[1.0, 2, 3]] * 4, [[1.0, 2]] * 4
    assert NOISING.names(curve("gap", three)) == ["0.1", "0.01", "0.001"]
    assert NOISING.names(curve("swaps", two)) == ["0.1 | 0.01", "0.01 | 0.001"]
    assert NOISING.names(curve("odd", [[1.0] * 7])) == list("0123456")
    assert TEMPERING.names(curve("gap", [[1.0]])) == ["0"]
    assert TEMPERING.names(curve("swaps", [[1.0]])) == ["T = 2 | T = 1"]
    assert TEMPERING.names(curve("acceptance", two)) == ["T = 2", "T = 1"]


def test_a_metric_without_a_name_of_ours_has_a_panel_too() -> None:
    told = history(
        curve("seconds", [1.0, 2]),
        curve("brand_new", [[1.0, 2, 3], [2, 3, 4]]),
        curve("another", [1.0, 2]),
        curve("gap", [[1.0, 2, 3], [2, 3, 4]]),
    )
    panels = panels_of(told, NOISING)
    assert [panel.title for panel in panels] == [
        "Gap between data and chains, in nats",
        "Brand new",
        "Another",
    ]
    assert [line.label for line in panels[1].lines] == ["0.1", "0.01", "0.001"]


def test_shares_of_worlds_are_drawn_together() -> None:
    (panel,) = panels_of(history(curve("valid", [0.1, 0.2]), curve("known", [0.0, 0.1])), NOISING)
    assert [line.label for line in panel.lines] == ["valid", "known"]


@pytest.mark.parametrize(("numbers", "count"), [([1.0, 1.0, 1.0], 0), ([1.0, 0.9, 1.0], 1)])
def test_the_share_of_chains_is_drawn_only_if_it_varies(numbers: list[float], count: int) -> None:
    assert len(panels_of(history(curve("effective_share", numbers)), NOISING)) == count


def drawn(panel: Panel) -> list:
    axes = Figure().add_subplot()
    paint_panel(axes, panel)
    return axes.get_lines()


def test_a_long_noisy_curve_is_drawn_twice_with_few_points() -> None:
    numbers = np.random.default_rng(0).normal(size=100_000)
    raw, mean = drawn(Panel("a", (Line("0.1", np.arange(100_000), numbers),)))
    assert len(raw.get_xdata()) < 400
    assert len(mean.get_xdata()) < 400
    assert raw.get_alpha() < 0.5
    assert np.ptp(raw.get_ydata()) > 6
    assert np.ptp(mean.get_ydata()) < 0.5, "smooth"


@pytest.mark.parametrize("length", [60, 5000])
def test_what_is_not_a_number_leaves_a_gap(length: int) -> None:
    numbers = np.arange(length, dtype=float)
    numbers[length // 3 : length // 2] = np.nan
    for line in drawn(Panel("a", (Line("x", np.arange(length), numbers),))):
        found = np.asarray(line.get_ydata())
        assert np.isnan(found).any()
        inner = np.isnan(found[1:-1]).sum()
        assert inner == np.isnan(found).sum(), "a gap, not an end"


def test_dollars_and_odd_signs_in_names_are_shown_as_they_are() -> None:
    figure = Figure()
    paint_panel(
        figure.add_subplot(), Panel("$x", (Line("$\\frac$ <b>", np.arange(3), np.arange(3.0)),))
    )
    figure.draw_without_rendering()
