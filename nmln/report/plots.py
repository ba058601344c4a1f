"""One plot for every diagnostic of a run. Each function draws into the given axes."""

from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from nmln.diagnostics import GOOD_RHAT, Diagnostics
from nmln.report.figures import level_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GOOD, _BAD, _GREY = "#0072B2", "#D55E00", "#888888"


def plot_swaps(axes: "Axes", found: Diagnostics) -> None:
    """The mean probability of a swap for every pair of neighbours."""
    pairs = range(len(found.swap_probability))
    colours = [_BAD if chance < 0.1 else _GOOD for chance in found.swap_probability]
    axes.bar(pairs, found.swap_probability, color=colours, width=0.7)
    names = level_names(found)
    axes.set_xticks(pairs, [f"{names[i]} | {names[i + 1]}" for i in pairs], **_slanted(found))
    axes.set_ylim(0, 1)
    axes.set_title("Mean probability of a swap")
    axes.set_xlabel(f"neighbouring {_axis(found)}s")


def plot_barrier(axes: "Axes", found: Diagnostics) -> None:
    """The running sum of the rejections; a straight line means that levels are well placed."""
    running = np.concatenate([[0.0], np.cumsum(found.rejections)])
    axes.plot(range(found.levels), running, marker="o", color=_GOOD)
    axes.plot([0, found.levels - 1], [0, found.barrier], color=_GREY, linestyle=":", linewidth=1)
    _mark_levels(axes, found)
    axes.set_title(f"Barrier: {found.barrier:.2f} in all")
    axes.set_ylim(bottom=0)


def plot_acceptance(axes: "Axes", found: Diagnostics) -> None:
    """The acceptance of every kernel, and the share of moves that changed the world."""
    for kernel, levels in found.acceptance.items():
        axes.plot(range(found.levels), levels, marker="o", label=kernel)
    axes.plot(
        range(found.levels), found.moved, marker=".", color=_GREY, linestyle="--", label="moved"
    )
    _mark_levels(axes, found)
    axes.set_ylim(0, 1.03)
    axes.set_title("Acceptance of moves")
    axes.legend()


def plot_journeys(axes: "Axes", found: Diagnostics) -> None:
    """The levels of the walkers of the first replica; a walker should visit both ends."""
    walkers = found.recording.walkers[-400:]
    where = np.argsort(walkers, axis=1)
    first = len(found.recording.walkers) - len(walkers)
    across = (first + np.arange(len(where))) * found.stride
    for walker, colour in enumerate(level_colours(found.levels)):
        axes.plot(across, where[:, walker], color=colour, linewidth=0.8)
    names = level_names(found)
    axes.set_yticks(range(found.levels), names)
    axes.invert_yaxis()
    axes.set_xlabel("sweep")
    axes.set_ylabel(_axis(found))
    axes.set_title("Walkers of one replica")


def plot_round_trips(axes: "Axes", found: Diagnostics) -> None:
    """Round trips that were made, beside those that the swaps would allow."""
    phases = found.recording.phases * found.chains
    predicted = found.predicted_round_trip_rate * phases
    bars = axes.barh(
        ["predicted", "made", "restarts"],
        [predicted, found.round_trips, found.restarts],
        color=[_GREY, _BAD if found.efficiency < 0.3 else _GOOD, _GOOD],
        height=0.6,
    )
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.margins(x=0.15)
    share = "" if isnan(found.efficiency) else f": {found.efficiency:.0%} of the prediction"
    axes.set_title(f"Round trips{share}")


def plot_autocorrelation(axes: "Axes", found: Diagnostics) -> None:
    """The autocorrelation of the score at every level."""
    names = level_names(found)
    for level, colour in enumerate(level_colours(found.levels)):
        function = found.autocorrelation[level]
        across = np.arange(len(function)) * found.stride
        axes.plot(across, function, color=colour, label=names[level])
    axes.axhline(0, color=_GREY, linewidth=0.7)
    axes.set_xlabel("lag in sweeps")
    axes.set_title("Autocorrelation of the score")
    axes.legend(title=_axis(found), title_fontsize=8, ncols=1 + found.levels // 6)


def plot_scores(axes: "Axes", found: Diagnostics) -> None:
    """The score of a few chains at the target over the run."""
    trace = found.recording.traces["score"][:, -1]
    across = np.arange(len(trace)) * found.stride
    shown = min(6, trace.shape[1])
    for chain, colour in enumerate(level_colours(shown)):
        axes.plot(across, trace[:, chain], color=colour, linewidth=0.7)
    axes.set_xlabel("sweep")
    axes.set_title(f"Score at the target, {shown} of {found.chains} chains")


def plot_effective_sizes(axes: "Axes", found: Diagnostics) -> None:
    """Effective samples per second of every statistic; hollow where the chains have not mixed."""
    for name, levels in found.mixing.items():
        sizes = [one.ess_per_second for one in levels]
        (line,) = axes.plot(range(found.levels), sizes, label=name)
        for level, one in enumerate(levels):
            fill = line.get_color() if one.mixed else "white"
            axes.plot(level, sizes[level], "o", color=line.get_color(), markerfacecolor=fill)
    if any(size > 0 for levels in found.mixing.values() for size in (levels[0].ess,)):
        axes.set_yscale("log")
    _mark_levels(axes, found)
    axes.set_title(f"Effective samples per second (hollow: R-hat ≥ {GOOD_RHAT})")
    axes.legend()


def plot_rhat(axes: "Axes", found: Diagnostics) -> None:
    """R-hat of every statistic at every level, with the bound that it should stay below."""
    for name, levels in found.mixing.items():
        axes.plot(range(found.levels), [one.rhat for one in levels], marker="o", label=name)
    axes.axhline(GOOD_RHAT, color=_BAD, linestyle=":", linewidth=1)
    _mark_levels(axes, found)
    axes.set_title("Rank R-hat")
    axes.legend()


def plot_hops(axes: "Axes", found: Diagnostics) -> None:
    """The number of changes of worlds per second at every level."""
    axes.bar(range(found.levels), found.hops_per_second, color=_GOOD, width=0.7)
    _mark_levels(axes, found)
    axes.set_title("Hops per second")


def level_names(found: Diagnostics) -> list[str]:
    """The names of the levels: their rates or temperatures if these are known."""
    if found.rates is None:
        return [str(level) for level in range(found.levels)]
    return [f"{rate:.3g}" for rate in found.rates]


def _axis(found: Diagnostics) -> str:
    return {"noise": "rate", "temperature": "temperature"}.get(found.ladder, "level")


def _mark_levels(axes: "Axes", found: Diagnostics) -> None:
    axes.set_xticks(range(found.levels), level_names(found), **_slanted(found))
    axes.set_xlabel(_axis(found))


def _slanted(found: Diagnostics) -> dict:
    return {"rotation": 30, "ha": "right"} if found.levels > 6 else {}
