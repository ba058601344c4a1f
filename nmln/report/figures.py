"""How figures look and how they are kept: one style, and files that repeat byte for byte.

matplotlib is imported only when something is drawn; nothing is shown and no global figure is opened.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmln.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = (7.2, 2.9)
"""Two panels side by side across a page, in inches."""

COLOURS = {
    "exact": "#222222",
    "noising": "#0072B2",
    "tempering": "#D55E00",
    "single": "#7A7A7A",
}
"""What each method is drawn in; they stay apart for colour-blind readers and in grey."""

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
    "svg.hashsalt": "nmln",  # otherwise the names inside an SVG are drawn by chance
    "svg.fonttype": "path",
}


def draw(
    stem: Path, paint: Callable[["Figure"], None], size: tuple[float, float] = WIDE
) -> tuple[Path, Path]:
    """Let `paint` fill a new figure in the common style, and keep it as `stem`.png and `stem`.svg.

    The same picture gives the same bytes: no dates, no random names.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure)
        return _save(figure, stem, "png", "Software"), _save(figure, stem, "svg", "Date", "Creator")


def inline(path: Path) -> str:
    """A figure that was kept as SVG, without the head of its file: to be put into a page."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


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
