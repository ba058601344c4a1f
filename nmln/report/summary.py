"""One page that says how well a run mixes: sentences first, then numbers, then plots."""

import json
from collections.abc import Callable, Sequence
from html import escape
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from nmln.diagnostics import Diagnostics
from nmln.files import plain, write_lines
from nmln.report import plots
from nmln.report.figures import draw, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plot = Callable[["Axes", Diagnostics], None]

LADDER: tuple[Plot, ...] = (plots.plot_swaps, plots.plot_barrier, plots.plot_round_trips)
"""What only a ladder of several levels has."""

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
    write_lines(numbers, [json.dumps(plain(found.to_dict()), indent=2)])
    figures = draw(path.with_suffix(""), lambda figure: _paint(figure, found), (11, 9.5))
    write_lines(path, [summary_page(found, title, inline(figures[1]))])
    return [path, numbers, *figures]


def summary_page(found: Diagnostics, title: str, figure: str) -> str:
    """The page as one self-contained HTML text, around the plots as SVG."""
    complaints = found.findings()
    verdict = (
        "<ul class='bad'>" + "".join(f"<li>{escape(text)}</li>" for text in complaints) + "</ul>"
        if complaints
        else "<p class='good'>Nothing to complain about: chains mix and walkers travel.</p>"
    )
    return _PAGE.format(
        title=escape(title),
        verdict=verdict,
        facts=_facts(found),
        levels=_level_table(found),
        mixing=_mixing_table(found),
        figure=figure,
    )


def _paint(figure: "Figure", found: Diagnostics) -> None:
    chosen: list[Plot] = list(ALWAYS)
    if found.levels > 1:
        chosen = [*LADDER, *ALWAYS, plots.plot_journeys]
    rows = -(-len(chosen) // 3)
    grid = figure.add_gridspec(rows, 3)
    for index, plot in enumerate(chosen):
        # The last plot of a ladder shows time and takes what is left of its row.
        wide = plot is plots.plot_journeys
        place = grid[index // 3, index % 3 :] if wide else grid[index // 3, index % 3]
        plot(figure.add_subplot(place), found)


def _facts(found: Diagnostics) -> str:
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
    return _rows([f"<th>{name}</th><td>{value}</td>" for name, value in facts])


def _level_table(found: Diagnostics) -> str:
    names = plots.level_names(found)
    head = [
        "level",
        found.ladder or "name",
        *found.acceptance,
        "moved",
        "hops/s",
        "swaps with next",
    ]
    rows = ["".join(f"<th>{escape(name)}</th>" for name in head)]
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
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    return _rows(rows)


def _mixing_table(found: Diagnostics) -> str:
    head = (
        "at the target",
        "mean",
        "ESS",
        "R-hat",
        "sweeps to forget",
        "ESS/s",
        "ESS per 1,000 worlds",
    )
    rows = ["".join(f"<th>{name}</th>" for name in head)]
    for name, levels in found.mixing.items():
        one = levels[-1]
        cells = [
            escape(name),
            f"{one.mean:.4g}",
            "never changes" if isnan(one.ess) else f"{one.ess:,.0f}",
            f"{one.rhat:.3f}",
            f"{one.autocorrelation_time:.1f}",
            f"{one.ess_per_second:,.1f}",
            f"{1000 * one.ess_per_evaluation:.2f}",
        ]
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    return _rows(rows)


def _share(number: float) -> str:
    return "none" if isnan(number) else f"{number:.0%}"


def _rows(rows: Sequence[str]) -> str:
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem }}
h1 {{ font-size: 1.6rem }} h2 {{ font-size: 1.15rem; margin-top: 2rem }}
table {{ border-collapse: collapse; margin: 0.5rem 0 }}
td, th {{ padding: 0.2rem 0.9rem 0.2rem 0; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }}
.bad {{ background: #fdf1e7; border-left: 4px solid #d55e00; padding: 0.7rem 1rem 0.7rem 2rem }}
.good {{ background: #eaf4fa; border-left: 4px solid #0072b2; padding: 0.7rem 1rem }}
svg {{ width: 100%; height: auto }}
</style>
</head>
<body>
<h1>{title}</h1>
{verdict}
<h2>The run</h2>
{facts}
<h2>Levels, from the noisiest to the target</h2>
{levels}
<h2>Mixing</h2>
{mixing}
<h2>Plots</h2>
{figure}
</body>
</html>
"""
