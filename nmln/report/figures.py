"""The style of figures, and their files, which are the same byte for byte for the same content.

Matplotlib (of the extra `report`) is imported only when something is drawn; nothing is shown and no
global figure is opened.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmln.errors import one_line
from nmln.extras import later
from nmln.files import write_atomically

if TYPE_CHECKING:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    matplotlib = later("matplotlib")

WIDE = (7.2, 2.9)
"""Two panels side by side across a page, in inches."""

PANEL = (3.9, 2.7)
"""One of several plots on a page."""

COLOURS = {
    "exact": "#222222",
    "noising": "#0072B2",
    "tempering": "#D55E00",
    "single": "#7A7A7A",
}
"""The colour of each method; colour-blind readers can distinguish them, also in grey."""

STYLE: dict[Any, Any] = {  # the keys are a type of matplotlib's own
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures are the same everywhere
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.constrained_layout.w_pad": 0.07,
    "savefig.dpi": 200,
    "svg.hashsalt": "nmln",  # otherwise the names inside an SVG are random
    "svg.fonttype": "path",
}


def draw(
    stem: Path, paint: Callable[["Figure"], None], size: tuple[float, float] = WIDE
) -> tuple[Path, Path]:
    """Let `paint` fill a new figure in the common style, and keep it as `stem`.png and `stem`.svg.

    The same picture gives the same bytes: no dates, no random names.
    """
    with matplotlib.rc_context(STYLE):
        figure = _blank(size)
        paint(figure)
        return _save(figure, stem, "png", "Software"), _save(figure, stem, "svg", "Date", "Creator")


def panel(paint: Callable[["Axes"], None], size: tuple[float, float] = PANEL) -> str:
    """One plot as SVG for a page, as in `picture`."""
    return picture(lambda figure: paint(figure.add_subplot()), size)


def picture(paint: Callable[["Figure"], None], size: tuple[float, float] = WIDE) -> str:
    """A figure as SVG for a page, on a transparent background; its text stays text."""
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure = _blank(size)
        paint(figure)
        file = StringIO()
        unsaid = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=unsaid, transparent=True)
    return embedded(file.getvalue())


def embedded(svg: str) -> str:
    """A file of SVG as part of a page.

    The names inside are the same in every plot, but a page may hold each only once.
    """
    name = sha256(svg.encode()).hexdigest()[:8]
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>p{name}-", svg[svg.index("<svg") :])


def literal(text: str) -> str:
    """Text that a figure shows as it is: a dollar sign would start a formula.

    Control characters, which no font has, are shown as escapes.
    """
    return one_line(text).replace("$", r"\$")


def level_colours(count: int) -> list[Any]:
    """A colour for every level; the target, which comes last, stands out most."""
    scale = matplotlib.colormaps["viridis"]
    return [scale(0.7 - 0.66 * i / max(1, count - 1)) for i in range(count)]


def _blank(size: tuple[float, float]) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: "Figure", stem: Path, kind: str, *unsaid: str) -> Path:
    path = stem.with_name(f"{stem.name}.{kind}")

    def write(temporary: Path) -> None:
        figure.savefig(temporary, format=kind, metadata=dict.fromkeys(unsaid))

    write_atomically(path, write)
    return path


def curve(
    axes: "Axes",
    across: Sequence[float],
    middle: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    colour: str,
    label: str,
    marker: str = "",
) -> None:
    """A line inside the band of its uncertainty."""
    axes.fill_between(across, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(across, middle, color=colour, label=label, marker=marker)
