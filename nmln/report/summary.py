"""One page that shows how well a run mixes: sentences first, then numbers, then plots."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from nmln.diagnostics import Diagnostics
from nmln.files import write_json
from nmln.report import page, plots
from nmln.report.figures import draw, literal
from nmln.report.page import Html, Section, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3  # plots per row of a figure

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


def write_summary(
    path: str | Path, found: Diagnostics | Mapping[str, Diagnostics], title: str = "Sampler"
) -> list[Path]:
    """Write the page to `path`, and its numbers as JSON and all plots as PNG and SVG beside it.

    Of several sizes, each with its diagnostics, the page has all sections of each; the figure has one
    plot per size, of its swaps or, with one level, of its scores.
    """
    path = Path(path)
    numbers = path.with_suffix(".json")
    if isinstance(found, Diagnostics):
        content, sections, height = found.to_dict(), summary_sections(found), 9.5
        paint = partial(_paint, found=found)
    else:
        content = {"sizes": {size: one.to_dict() for size, one in found.items()}}
        sections = [
            replace(section, title=f"Size {size}: {section.title}")
            for size, one in found.items()
            for section in summary_sections(one)
        ]
        height = 3.2 * -(-len(found) // _ACROSS)
        paint = partial(_paint_sizes, found=found)
    write_json(numbers, content)
    figures = draw(path.with_suffix(""), paint, (11, height))
    write_page(path, title, sections)
    return [path, numbers, *figures]


def _paint_sizes(figure: "Figure", found: Mapping[str, Diagnostics]) -> None:
    grid = figure.add_gridspec(-(-len(found) // _ACROSS), _ACROSS)
    for index, (size, one) in enumerate(found.items()):
        axes = figure.add_subplot(grid[index // _ACROSS, index % _ACROSS])
        (plots.plot_swaps if one.levels > 1 else plots.plot_scores)(axes, one)
        axes.set_title(f"size {literal(size)}: {axes.get_title()}")


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
    rows = -(-len(chosen) // _ACROSS)
    grid = figure.add_gridspec(rows, _ACROSS)
    for index, plot in enumerate(chosen):
        # The last plot of a ladder shows time and takes what is left of its row.
        wide = plot is plots.plot_journeys
        row, column = divmod(index, _ACROSS)
        place = grid[row, column:] if wide else grid[row, column]
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
