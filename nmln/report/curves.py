"""The curves of a training run against its steps: the choice of panels, and the drawing of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from nmln.report.figures import level_colours, literal
from nmln.report.history import Curve, History, extremes, smooth, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COUNTERS = ("seconds", "evaluations")  # they only grow: facts, not curves
_MOST_RAW, _MOST_SMOOTH = 300, 200  # points of a line; more would not be seen
_WINDOWS = 40  # a running mean is over one part in this many
_LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Levels:
    """The names of the levels that are trained, and of those that chains run at.

    For corruption rates also the predicted swap probabilities of neighbours, the number of groups that
    they hold for, and whether that is the largest of several numbers.
    """

    trained: tuple[str, ...]
    chains: tuple[str, ...]
    kind: str = "rate"
    predicted: tuple[float, ...] = ()
    groups: int = 0
    several: bool = False

    def names(self, curve: Curve) -> list[str]:
        """The names of the numbers of a list: levels, or pairs of neighbours; numbered if unknown."""
        pairs = [f"{one} | {other}" for one, other in pairwise(self.chains)]
        if curve.name == "swaps" and curve.width == len(pairs):
            return pairs
        for names in (self.chains, self.trained, pairs):
            if curve.width == len(names):
                return list(names)
        return [str(number) for number in range(curve.width)]


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    label: str
    steps: np.ndarray
    numbers: Float[np.ndarray, " points"]


@dataclass(frozen=True)
class Panel:
    """Lines that are drawn into one pair of axes."""

    title: str
    lines: tuple[Line, ...]
    heading: str = ""  # of the legend
    scale: str = "linear"
    share: bool = False  # numbers from 0 to 1
    zero: bool = False  # numbers that should end there
    ordered: bool = False  # lines are levels: their colours form a scale


_TITLES = {
    "gap": "Gap between data and chains, in nats",
    "gradient": "Norm of the gradient",
    "acceptance": "Acceptance of moves",
    "moved": "Share of moves that changed the world",
    "swaps": "Mean probability of a swap",
    "score": "Score of the data",
    "held_out": "Log-likelihood of held-out worlds, in nats",
    "log_z": "log Z",
    "moves": "Moves per sweep",
    "learning_rate": "Learning rate",
    "effective_share": "Share of chains that count, by their weights",
}
OF_WORLDS = ("valid", "known", "unique", "novel", "normalised")
"""Shares of the worlds at the target that training or another part of the program may report."""

_SIZED = {
    "valid": "Valid worlds at the target",
    "known": "Known worlds at the target",
    "swaps": "Least probability of a swap",
    "log_z": "log Z of the target",
}
_FIRST = ("gap", "gradient", "acceptance", "moved", "swaps")
_LAST = ("score", "learning_rate", "effective_share")


def panels_of(history: History, levels: Levels) -> list[Panel]:
    """One panel per metric, known or not; shares of the worlds at the target are in one panel."""
    drawn = {
        name: curve
        for name, curve in history.curves.items()
        if name not in _COUNTERS and np.isfinite(curve.numbers).any() and not is_constant(curve)
    }
    shares = [name for name in drawn if name in OF_WORLDS and not drawn[name].listed]
    panels = [_panel(drawn[name], levels) for name in _FIRST if name in drawn]
    if shares:
        lines = tuple(_lines(drawn[name], [_words(name)])[0] for name in shares)
        panels.append(Panel("Worlds at the target", lines, "share that is", share=True))
    panels += _by_size(history)
    others = [name for name in drawn if name not in (*_FIRST, *shares, *_LAST)]
    return panels + [_panel(drawn[name], levels) for name in (*others, *_LAST) if name in drawn]


def _by_size(history: History) -> list[Panel]:
    """One panel per metric with a line per size; of several numbers, such as swaps, the least."""
    return [
        Panel(
            f"{_SIZED.get(metric, _TITLES.get(metric, _words(metric).capitalize()))}, by size",
            tuple(
                Line(size, one.steps, np.fmin.reduce(one.numbers, axis=1))
                for size, one in sizes.items()
            ),
            "size",
            share=metric in (*OF_WORLDS, "swaps"),
            ordered=True,
        )
        for metric, sizes in history.by_size.items()
        if any(np.isfinite(one.numbers).any() for one in sizes.values())
    ]


def is_constant(curve: Curve) -> bool:
    """Whether a curve is constant: then it is listed as a fact and not drawn."""
    known = curve.name in (*_FIRST, *OF_WORLDS, "learning_rate")
    return not known and len(curve.numbers) > 1 and bool((curve.numbers == curve.numbers[0]).all())


def _panel(curve: Curve, levels: Levels) -> Panel:
    title = _TITLES.get(curve.name, _words(curve.name).capitalize())
    if not curve.listed:
        return Panel(title, _lines(curve, [""]))
    positive = curve.numbers[np.isfinite(curve.numbers)]
    return Panel(
        title,
        _lines(curve, levels.names(curve)),
        levels.kind,
        scale="log" if curve.name == "gradient" and (positive > 0).all() else "linear",
        share=curve.name in ("acceptance", "moved", "swaps"),
        zero=curve.name == "gap",
        ordered=True,
    )


def _lines(curve: Curve, labels: Sequence[str]) -> tuple[Line, ...]:
    columns = zip(labels, curve.numbers.T, strict=True)
    return tuple(Line(label, curve.steps, numbers) for label, numbers in columns)


def _words(name: str) -> str:
    return name.replace("_", " ")


def paint_panel(axes: "Axes", panel: Panel) -> None:
    """Draw the lines: the running mean on top of the recorded numbers, which are faint if noisy."""
    colours = level_colours(len(panel.lines)) if panel.ordered else _apart(len(panel.lines))
    smoothed = []
    for number, (line, colour) in enumerate(zip(panel.lines, colours, strict=True)):
        style = "-" if panel.ordered else _LINES[number % len(_LINES)]
        window = len(line.numbers) // _WINDOWS
        label = literal(line.label)
        if window < 2:
            few = len(line.numbers) <= 30
            smoothed.append(line.numbers)
            shown = extremes(line.numbers, _MOST_RAW)
            axes.plot(
                line.steps[shown], line.numbers[shown], style, color=colour, label=label,
                marker="o" if few else "", markersize=3,
            )  # fmt: skip
            continue
        means = smooth(line.numbers, window)
        smoothed.append(means)
        shown = extremes(line.numbers, _MOST_RAW)
        faint = 0.25 if len(shown) == len(line.numbers) else 0.12  # extremes alone fill the axes
        axes.plot(line.steps[shown], line.numbers[shown], color=colour, alpha=faint, linewidth=0.5)
        shown = np.union1d(spread(len(means), _MOST_SMOOTH), _beside_gaps(means))
        axes.plot(line.steps[shown], means[shown], style, color=colour, label=label)
    if panel.zero:
        axes.axhline(0, color="#888888", linewidth=0.7, zorder=1)
    _mark(axes, panel.scale)
    if (limits := _limits(panel, smoothed)) is not None:
        axes.set_ylim(*limits)
    axes.set_title(literal(panel.title))
    axes.set_xlabel("step")
    if any(line.label for line in panel.lines):
        _legend(axes, panel)


def _mark(axes: "Axes", scale: str) -> None:
    """Set ticks that are easy to read, few enough for a small plot."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_yscale(scale)
    if scale == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))


def _beside_gaps(numbers: Float[np.ndarray, " points"]) -> np.ndarray:
    """The first and last places of gaps that are long enough to be seen."""
    missing = np.concatenate([[False], ~np.isfinite(numbers), [False]])
    edges = np.flatnonzero(np.diff(missing.astype(int)))
    begins, ends = edges[::2], edges[1::2]
    long = ends - begins > len(numbers) // (2 * _MOST_SMOOTH)
    places = np.concatenate([begins[long] - 1, begins[long], ends[long] - 1, ends[long]])
    return places[(places >= 0) & (places < len(numbers))]


def _limits(panel: Panel, smoothed: list[np.ndarray]) -> tuple[float, float] | None:
    """The limits of the axis: all means, and all but the most extreme of the recorded numbers."""
    finite = np.concatenate([line.numbers for line in panel.lines])
    finite = finite[np.isfinite(finite)]
    means = np.concatenate(smoothed)
    means = means[np.isfinite(means)]
    low = min(np.quantile(finite, 0.005), means.min())
    high = max(np.quantile(finite, 0.995), means.max())
    if panel.share:
        return 0.0, min(1.02, max(1.1 * high, 0.01))
    if not low < high:
        return None
    if panel.scale == "log":
        return low / 1.15, high * 1.15
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _legend(axes: "Axes", panel: Panel) -> None:
    """Put the legend below the axes, where it hides nothing, in as many columns as fit."""
    longest = max(len(line.label) for line in panel.lines)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.2),
        borderaxespad=0.2,
        ncols=max(1, min(len(panel.lines), 50 // (longest + 5))),
        handlelength=1.2,
        handletextpad=0.5,
        columnspacing=1.2,
        title=literal(panel.heading),
        title_fontsize=8,
        alignment="left",
    )


def _apart(count: int) -> list[str]:
    kinds = ("#0072B2", "#D55E00", "#7A7A7A", "#009E73", "#CC79A7")
    return [kinds[number % len(kinds)] for number in range(count)]


def paint_all(panels: Sequence[Panel], across: int = 3) -> Callable[["Figure"], None]:
    """All panels in one figure."""

    def paint(figure: "Figure") -> None:
        rows = -(-len(panels) // across)
        for number, panel in enumerate(panels, 1):
            paint_panel(figure.add_subplot(rows, across, number), panel)

    return paint
