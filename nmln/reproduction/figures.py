"""The figures, drawn from their numbers alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmln.evaluation import wilson
from nmln.report.figures import draw, level_colours, literal
from nmln.report.recall import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Mapping[str, Any]
"""The content of a result file."""

SIZE = (9.6, 5.2)
_LINES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_SHADE = 0.13
_LEFT, _RIGHT = "test molecules among the t most frequent", "t most frequent different molecules"


def painter(numbers: Numbers, by_probability: bool = False) -> Callable[["Figure"], None]:
    """What draws a figure; with `by_probability` the second figure of recall curves."""
    if numbers["layout"] == "recall":
        return lambda figure: _paint_recall(figure, numbers, by_probability)
    paint = {"levels": _paint_levels, "compute": _paint_compute}[numbers["layout"]]
    return lambda figure: paint(figure, numbers)


def draw_all(numbers: Numbers, folder: Path) -> list[Path]:
    """Draw the figures of a result as PNG and SVG; nothing where no cell is done."""
    if not numbers["rows"]:
        return []
    stem = folder / numbers["figure"]
    written = list(draw(stem, painter(numbers), SIZE))
    if has_ranking(numbers):
        second = stem.with_name(f"{stem.name}-by-probability")
        written += draw(second, painter(numbers, by_probability=True), SIZE)
    return written


def has_ranking(numbers: Numbers) -> bool:
    """Whether a second figure ranks by probability."""
    return numbers["layout"] == "recall" and any(row["by_probability"] for row in numbers["rows"])


def label(row: Numbers) -> str:
    """A row in a legend: its method and seed, with its CPU minutes of training and sampling."""
    training, sampling = (row["minutes"][name] for name in ("training", "sampling"))
    seed = f", seed {row['seed']}" if row["seed"] else ""
    return f"{row['title']}{seed}: {training:.1f} + {sampling:.1f} min"


def _title(numbers: Numbers) -> str:
    return (
        f"{numbers['title']}: {numbers['samples']:,} samples each, test set of {numbers['test']:,}, "
        f"budget {numbers['budget']['name']}"
    )


def _paint_recall(figure: "Figure", numbers: Numbers, by_probability: bool) -> None:
    """One curve per cell with its interval over the test set; seeds of a method share a colour."""
    axes: Axes = figure.subplots()
    methods = list(dict.fromkeys(row["method"] for row in numbers["rows"]))
    for row in numbers["rows"]:
        number = methods.index(row["method"])
        second = by_probability and row["by_probability"] is not None
        ranking = row["by_probability"] if second else row["recall"]
        name = label(row)
        if by_probability:
            name += ", by probability" if second else ", by count"
        _line(axes, ranking["points"], numbers["test"], number, name, shaded=not row["seed"])
    ranked = "first t of the ranking" if by_probability else _RIGHT
    found = "test molecules among the first t" if by_probability else _LEFT
    _finish(axes, figure, _title(numbers), ranked, found)


def _line(
    axes: "Axes",
    points: Sequence[Sequence[float]],
    size: int,
    number: int,
    name: str,
    colour: Any = None,
    shaded: bool = True,
) -> None:
    across = [max(1, rank) for rank, _ in points]
    middle = [found for _, found in points]
    colour = colour if colour is not None else COLOURS[number % len(COLOURS)]
    dashes = _LINES[number // len(COLOURS) % len(_LINES)]
    shown = literal(name)
    width = 1.5 if shaded else 0.8
    axes.plot(across, middle, color=colour, linestyle=dashes, label=shown, linewidth=width)
    axes.plot(across[-1:], middle[-1:], "o", color=colour, markersize=3)
    if shaded:
        ends = [[size * end for end in wilson(found, size)] for found in middle]
        low, high = zip(*ends, strict=True)
        axes.fill_between(across, low, high, color=colour, alpha=_SHADE, linewidth=0)


def _finish(axes: "Axes", figure: "Figure", title: str, across: str, up: str) -> None:
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set(xlabel=across, ylabel=up, title=title)
    _plain_ticks(axes)
    _legend(axes, figure)


def _legend(axes: "Axes", figure: "Figure") -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > 70 else 2
    where = "outside lower left"
    figure.legend(handles, labels, loc=where, ncols=columns, fontsize=7)


def _plain_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _paint_levels(figure: "Figure", numbers: Numbers) -> None:
    """Validity against the rate, and one recall curve per level."""
    rows = numbers["rows"]
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    places = range(len(rows))
    values, low, high = (
        [100 * row["valid"][end] for row in rows] for end in ("value", "low", "high")
    )
    colours = level_colours(len(rows))
    left.plot(places, values, color="#777777", linewidth=1)
    for place in places:
        left.plot([place, place], [low[place], high[place]], color=colours[place], linewidth=3)
        left.plot([place], [values[place]], "o", color=colours[place])
    left.set_xticks(list(places), [f"{row['rate']:.3g}" for row in rows], rotation=45)
    left.set_ylim(0, 100)
    left.set(xlabel="corruption rate of the level", ylabel="valid samples, %", title="Validity")
    for place, row in enumerate(rows):
        name = f"rate {row['rate']:.3g}"
        _line(right, row["recall"]["points"], numbers["test"], 0, name, colours[place])
    training, sampling = (rows[0]["minutes"][name] for name in ("training", "sampling"))
    title = f"Recall; {training:.1f} + {sampling:.1f} CPU min"
    figure.suptitle(literal(_title(numbers)), fontsize=9, x=0.01, ha="left")
    _finish(right, figure, title, _RIGHT, _LEFT)


def _paint_compute(figure: "Figure", numbers: Numbers) -> None:
    """Validity in training, and validity and recall of samples, against energy evaluations."""
    panels = figure.subplots(1, 3)
    for number, row in enumerate(numbers["rows"]):
        colour, shown = COLOURS[number % len(COLOURS)], literal(label(row))
        if row["training"]:
            until, valid = zip(*row["training"], strict=True)
            panels[0].plot(until, [100 * one for one in valid], color=colour, label=shown)
        until = [one["evaluations"] for one in row["sampling"]]
        for axes, name, factor in (
            (panels[1], "valid", 100),
            (panels[2], "covered", numbers["test"]),
        ):
            middle, low, high = (
                [factor * one[name][end] for one in row["sampling"]]
                for end in ("value", "low", "high")
            )
            axes.plot(until, middle, color=colour, marker=".", label=shown)
            axes.fill_between(until, low, high, color=colour, alpha=_SHADE, linewidth=0)
    words = (
        ("Chains in training", "valid at the target, %"),
        ("Samples", "valid, %"),
        ("Samples", "test molecules generated"),
    )
    for axes, (title, up) in zip(panels, words, strict=True):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set(title=title, ylabel=up, xlabel="energy evaluations")
    figure.suptitle(literal(_title(numbers)), fontsize=9, x=0.01, ha="left")
    _legend(panels[1], figure)
