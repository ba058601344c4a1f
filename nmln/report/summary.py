"""One page that shows how well a run mixes: sentences first, then numbers, then plots."""

from collections.abc import Callable
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from nmln.diagnostics import Diagnostics
from nmln.files import write_json
from nmln.report import page, plots
from nmln.report.figures import draw
from nmln.report.page import Html, Section, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plot = Callable[["Axes", Diagnostics], None]

LADDER: tuple[Plot, ...] = (plots.plot_swaps, plots.plot_barrier, plots.plot_round_trips)
"""Plots that only a ladder of several levels has."""

ALWAYS: tuple[Plot, ...] = (
    plots.plot_acceptance,
    plots.plot_autocorrelation,
    plots.plot_scores,
    plots.plot_effective_sizes,
    plots.plot_rhat,
    plots.plot_hops,
)


def write_summary(path: str | Path, found: Diagnostics, title: str = "Sampler") -> list[Path]:
    """Write the page to `path`, and its numbers as JSON and all plots as PNG and SVG beside it."""
    path = Path(path)
    numbers = path.with_suffix(".json")
    write_json(numbers, found.to_dict())
    figures = draw(path.with_suffix(""), lambda figure: _paint(figure, found), (11, 9.5))
    write_page(path, title, summary_sections(found))
    return [path, numbers, *figures]


def summary_sections(found: Diagnostics) -> list[Section]:
    """How well chains mix, as parts of a page."""
    complaints = found.findings()
    verdict = (
        page.bad(complaints)
        if complaints
        else page.good("No problem was found: chains mix and walkers travel.")
    )
    shown = [partial(_draw, plot, found) for plot in _chosen(found)]
    return [
        Section("Findings", verdict),
        Section("The run", _facts(found)),
        Section("Levels, from the noisiest to the target", _level_table(found)),
        Section("Mixing", _mixing_table(found)),
        Section("Plots", page.panels(shown)),
    ]


def _draw(plot: Plot, found: Diagnostics, axes: "Axes") -> None:
    plot(axes, found)


def _chosen(found: Diagnostics) -> list[Plot]:
    return [*LADDER, *ALWAYS, plots.plot_journeys] if found.levels > 1 else list(ALWAYS)


def _paint(figure: "Figure", found: Diagnostics) -> None:
    chosen = _chosen(found)
    rows = -(-len(chosen) // 3)
    grid = figure.add_gridspec(rows, 3)
    for index, plot in enumerate(chosen):
        # The last plot of a ladder shows time and takes what is left of its row.
        wide = plot is plots.plot_journeys
        place = grid[index // 3, index % 3 :] if wide else grid[index // 3, index % 3]
        plot(figure.add_subplot(place), found)


def _facts(found: Diagnostics) -> Html:
    evaluations = found.score_evaluations + found.slope_evaluations
    facts = [
        ("chains", f"{found.chains} replicas of {found.levels} levels"),
        ("sweeps", f"{found.sweeps:,} in {found.seconds:.1f} s"),
        (
            "worlds scored",
            f"{evaluations:,} ({found.slope_evaluations:,} of them with slopes)",
        ),
        ("time outside the potential", f"{found.bookkeeping:.0%}"),
    ]
    if found.levels > 1:
        facts += [
            ("barrier", f"{found.barrier:.2f}: about {found.suggested_levels} levels suit it"),
            (
                "round trips",
                f"{found.round_trips:,.0f}, {_share(found.efficiency)} of what the swaps allow",
            ),
            ("restarts at the target", f"{found.restarts:,}"),
        ]
    return page.facts(facts)


def _level_table(found: Diagnostics) -> Html:
    names = plots.level_names(found)
    head = [
        "level",
        found.ladder or "name",
        *found.acceptance,
        "moved",
        "hops/s",
        "swaps with next",
    ]
    rows = []
    for level in range(found.levels):
        swap = f"{found.swap_probability[level]:.0%}" if level < found.levels - 1 else "target"
        cells = [
            str(level),
            names[level],
            *(_share(rates[level]) for rates in found.acceptance.values()),
            _share(found.moved[level]),
            f"{found.hops_per_second[level]:,.0f}",
            swap,
        ]
        rows.append(cells)
    return page.table(head, rows)


def _mixing_table(found: Diagnostics) -> Html:
    head = (
        "at the target",
        "mean",
        "ESS",
        "R-hat",
        "sweeps to forget",
        "ESS/s",
        "ESS per 1,000 worlds",
    )
    rows = []
    for name, levels in found.mixing.items():
        one = levels[-1]
        cells = [
            name,
            f"{one.mean:.4g}",
            "never changes" if isnan(one.ess) else f"{one.ess:,.0f}",
            f"{one.rhat:.3f}",
            f"{one.autocorrelation_time:.1f}",
            f"{one.ess_per_second:,.1f}",
            f"{1000 * one.ess_per_evaluation:.2f}",
        ]
        rows.append(cells)
    return page.table(head, rows)


def _share(number: float) -> str:
    return "none" if isnan(number) else f"{number:.0%}"
