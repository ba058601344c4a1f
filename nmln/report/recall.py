"""The recall curves of several sets of samples, in one figure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nmln.evaluation import Evaluation, Ranking, RecallCurve
from nmln.report.figures import draw, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222")
"""The palette of Okabe and Ito, safe for colour-blind readers; further curves are dashed."""

BY_COUNT, BY_PROBABILITY = "by count", "by probability"
"""How the curves of both rankings are marked, where there are two."""

_PROBABLE = (0, (3, 1, 1, 1))  # their lines, in the colours of the curves by count
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_GREY = "#777777"


@dataclass(frozen=True)
class _Panel:
    title: str
    curve: Callable[[Evaluation | Ranking], RecallCurve]
    ranked: int  # the number of known molecules that can be in the ranking


def write_recall(
    stem: Path, found: Sequence[tuple[str, Evaluation]], known: int
) -> tuple[Path, Path]:
    """One line for each named evaluation, kept as `stem`.png and `stem`.svg.

    An evaluation with a ranking by probability has a second line.
    `known` is the number of training and test molecules together: a sampler that draws from them at
    random finds each set in proportion, which is the dashed line.
    """
    drawn = len(found) + sum(one.by_probability is not None for _, one in found)
    size = (9.6, 3.3 + 0.17 * (drawn + 1) // 4)
    return draw(stem, lambda figure: paint_recall(figure, found, known), size)


def paint_recall(figure: "Figure", found: Sequence[tuple[str, Evaluation]], known: int) -> None:
    """Fill a figure with three panels: test set, test set without training molecules, training set."""
    test, train = found[0][1].test.size, found[0][1].train.size
    panels = (
        _Panel(f"Test molecules (of {test:,})", lambda one: one.test, known),
        _Panel("The same, training set not ranked", lambda one: one.new, test),
        _Panel(f"Training molecules (of {train:,})", lambda one: one.train, known),
    )
    longest = longest_ranking(one for _, one in found)
    axes: Sequence[Axes] = figure.subplots(1, len(panels))
    for place, (panel, into) in enumerate(zip(panels, axes, strict=True)):
        lines = [(name, panel.curve(one)) for name, one in found]
        probable = {
            name: panel.curve(one.by_probability)
            for name, one in found
            if one.by_probability is not None
        }
        paint_curves(into, lines, panel.ranked, longest, probable=probable)
        into.set_title(panel.title)
        if not place:
            into.set_ylabel("found among them")
    handles, labels = axes[0].get_legend_handles_labels()
    columns = max(1, min(4, len(labels)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns)


def longest_ranking(found: Iterable[Evaluation]) -> int:
    """The last rank on the axis."""
    return max(10, *(one.samples.unique for one in found))


def paint_curves(
    axes: "Axes",
    lines: Sequence[tuple[str, RecallCurve]],
    ranked: int,
    longest: int,
    colours: Sequence[Any] = COLOURS,
    probable: Mapping[str, RecallCurve] | None = None,
) -> None:
    """The named curves of one set, with its size and the curve of uniform draws for comparison.

    `ranked` is the number of known molecules that can be in the ranking. `probable` has the curves of
    rankings by probability, by name: they are drawn in the same colours, with dashes and dots.
    """
    _reference(axes, lines[0][1].size, ranked, longest)
    for number, (name, curve) in enumerate(lines):
        second = None if probable is None else probable.get(name)
        if second is None:
            _line(axes, curve, number, name, colours)
            continue
        _line(axes, curve, number, f"{name}, {BY_COUNT}", colours)
        _line(axes, second, number, f"{name}, {BY_PROBABILITY}", colours, dashes=_PROBABLE)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1, linscale=0.4)  # zero is shown too
    axes.set_xlim(1, longest)
    axes.set_ylim(bottom=0)
    _plain_ticks(axes)
    first = "first t different molecules" if probable else "t most frequent different molecules"
    axes.set_xlabel(first)


def _line(
    axes: "Axes",
    curve: RecallCurve,
    number: int,
    name: str,
    colours: Sequence[Any],
    dashes: Any = None,
) -> None:
    """Exact between the ends of blocks, where it is straight but a logarithmic axis bends it."""
    last = curve.ranks[-1]
    across = np.unique([*np.geomspace(1, max(1, last), 200), *curve.ranks[1:]])
    colour = colours[number % len(colours)]
    if dashes is None:
        dashes = _DASHES[number // len(colours) % len(_DASHES)]
    label = literal(name)
    axes.plot(across, [curve.at(t) for t in across], color=colour, linestyle=dashes, label=label)
    axes.plot([max(1, last)], [curve.found[-1]], "o", color=colour, markersize=3.5, clip_on=False)


def _reference(axes: "Axes", size: int, ranked: int, longest: int) -> None:
    """The size of the set, and the curve of uniform draws from the known molecules."""
    across = np.unique(np.geomspace(1, longest, 400))
    most = np.minimum(across, size)
    axes.plot(across, most, color=_GREY, linewidth=1, linestyle=":", label="all that can be found")
    even = size * np.minimum(across / ranked, 1)
    axes.plot(
        across, even, color=_GREY, linewidth=1, linestyle="--",
        label="drawing from training and test set",
    )  # fmt: skip


def _plain_ticks(axes: "Axes") -> None:
    """Write ticks as 1,000, which is easier to read than a power of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    plain = FuncFormatter(lambda value, _: f"{value:,.0f}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(plain)
        axis.set_minor_formatter(NullFormatter())
