"""The results of the boards of n queens: numbers with intervals, curves, and pictures.

The runs themselves are in `n_queens_runs`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor

from nmln.experiments.intervals import Interval, bootstrap, mean
from nmln.experiments.n_queens_runs import (
    CROSSED,
    MEASURES,
    METHODS,
    QueensRun,
    QueensSettings,
    comparisons,
    measure,
    play_all,
    searches,
)
from nmln.experiments.queens import attacked, board_space, boards_of, solved_boards
from nmln.files import write_json, write_lines
from nmln.ladders import Ladder
from nmln.report.figures import COLOURS, curve, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"noising": "PN", "tempering": "PT", CROSSED: "PN's target network, tempered"}
SHOWN_COLOURS = {**COLOURS, CROSSED: "#56B4E9"}
ATTACKED = "#CC2222"
KERNEL_NAMES = {"gibbs": "Gibbs", "gradients": "Gibbs with gradients"}


@dataclass(frozen=True)
class Compared:
    """Both methods with one kernel; numbers are of the late samples, with intervals over the runs."""

    kernel: str
    runs: dict[str, tuple[QueensRun, ...]]  # by method, one of each seed
    late: dict[str, dict[str, Interval]]  # by what generated and what was measured
    difference: dict[str, Interval]  # noising less tempering, of runs with the same seed

    def about_n(self, n: int) -> bool:
        """Whether both methods put n queens on a board, to within half a queen."""
        return all(abs(self.late[method]["queens"].value - n) <= 0.5 for method in METHODS)

    def decided_by(self, n: int) -> str:
        """Attacks, unless the numbers of queens differ too much to compare them."""
        return "attacks" if self.about_n(n) else "solved"

    def ahead(self, n: int) -> str:
        """The method that the interval of the difference shows to be better, or `neither`."""
        what = self.decided_by(n)
        difference = self.difference[what]
        if difference.low <= 0 <= difference.high:
            return "neither"
        return METHODS[int((difference.value < 0) != (what == "attacks"))]


class QueensOutcome(NamedTuple):
    """The results and the files that were written."""

    compared: tuple[Compared, ...]  # one for each kernel
    searched: tuple[QueensRun, ...]  # for learning rates
    seconds: float
    written: tuple[Path, ...]


def run(
    settings: QueensSettings,
    output: Path,
    tick: Callable[[], None] = lambda: None,
    processes: int = 1,
    command: str = "nmln reproduce n-queens",
) -> QueensOutcome:
    """Train and generate, then write results.json, curves.csv, the figure and the boards.

    Every finished run is kept in output/runs and is not repeated with the same settings.
    """
    began = perf_counter()
    compared, searched = gather(settings, output / "runs", tick, processes)
    seconds = perf_counter() - began
    results = _results(settings, compared, searched, command, seconds)
    write_json(output / "results.json", results, indent=1)
    write_lines(output / "curves.csv", _table(settings, compared))
    rows = len(compared)
    curves = draw(
        output / "figure",
        lambda figure: _paint(figure, settings, compared),
        size=(7.2, 0.3 + 2.2 * rows),
    )
    boards = draw(
        output / "boards",
        lambda figure: _paint_boards(figure, settings, compared),
        size=(7.2, 3.4 * rows),
    )
    written = (output / "results.json", output / "curves.csv", *curves, *boards)
    return QueensOutcome(compared, searched, seconds, written)


def gather(
    settings: QueensSettings,
    folder: Path,
    tick: Callable[[], None] = lambda: None,
    processes: int = 1,
) -> tuple[tuple[Compared, ...], tuple[QueensRun, ...]]:
    """Both methods with every kernel, and the search for learning rates; runs are kept in the folder."""
    searched = play_all(settings, searches(settings), folder, tick, processes)
    runs = play_all(settings, comparisons(settings, searched), folder, tick, processes)
    return tuple(compare(settings, kernel, runs) for kernel in settings.kernels), tuple(searched)


def compare(settings: QueensSettings, kernel: str, runs: list[QueensRun]) -> Compared:
    """The runs of one kernel, with intervals."""
    by_method = {
        str(method): tuple(
            run for run in runs if (run.task.kernel, run.task.method) == (kernel, method)
        )
        for method in METHODS
    }

    def numbers(name: str, what: str) -> Tensor:
        source = "noising" if name == CROSSED else name
        found = [run.generated[name].late(settings, what) for run in by_method[source]]
        return torch.tensor(found, dtype=torch.float64)

    def interval(found: Tensor) -> Interval:
        return bootstrap(found, mean, Generator().manual_seed(settings.seed))

    return Compared(
        kernel,
        by_method,
        {name: {what: interval(numbers(name, what)) for what in MEASURES} for name in NAMES},
        {
            what: interval(numbers("noising", what) - numbers("tempering", what))
            for what in MEASURES
        },
    )


# Files.


def _results(
    settings: QueensSettings,
    compared: tuple[Compared, ...],
    searched: tuple[QueensRun, ...],
    command: str,
    seconds: float,
) -> dict[str, Any]:
    played = [run for one in compared for runs in one.runs.values() for run in runs]
    return {
        "experiment": "n-queens",
        "command": command,
        "seed": settings.seed,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(map(_cpu_seconds, [*played, *searched])), 1),
        "settings": asdict(settings),
        "data": corrupted_data(settings),
        "kernels": {one.kernel: _kernel_results(settings, one) for one in compared},
        "search": [
            {
                **run.task._asdict(),
                "diverged": run.diverged,
                **{what: round(run.own.late(settings, what), 4) for what in MEASURES},
            }
            for run in searched
        ],
        "curves": {
            one.kernel: {
                NAMES[name]: _thinned(columns) for name, columns in _curves(settings, one).items()
            }
            for one in compared
        },
    }


def _cpu_seconds(run: QueensRun) -> float:
    return run.cpu_seconds + sum(one.cpu_seconds for one in run.generated.values())


def corrupted_data(settings: QueensSettings) -> dict[str, list[float]]:
    """The measures of a perfect model's samples at each corruption rate, by corrupting solutions."""
    space, rng = board_space(settings.n), Generator().manual_seed(settings.seed)
    worlds = solved_boards(space, settings.most_solutions, rng)
    chosen = worlds[torch.randint(len(worlds), (4000,), generator=rng)]
    levels = Ladder(settings.rates).corrupt(space, chosen, rng)
    found = torch.stack([measure(boards_of(space, level)) for level in levels])
    return {
        what: [round(x, 3) for x in row]
        for what, row in zip(MEASURES, found.T.tolist(), strict=True)
    }


def _kernel_results(settings: QueensSettings, one: Compared) -> dict[str, Any]:
    return {
        "ahead": one.ahead(settings.n),
        "decided_by": one.decided_by(settings.n),
        "difference": {what: found._asdict() for what, found in one.difference.items()},
        **{
            NAMES[name]: {
                **{what: found._asdict() for what, found in one.late[name].items()},
                **_means(one, name),
            }
            for name in NAMES
        },
    }


def _means(one: Compared, name: str) -> dict[str, Any]:
    """Further statistics, as means over the runs."""
    runs = one.runs["noising" if name == CROSSED else name]
    generated = [run.generated[name] for run in runs]

    def average(numbers: list[list[float]]) -> list[float]:
        return [round(x, 4) for x in torch.tensor(numbers).double().mean(0).tolist()]

    found: dict[str, Any] = {
        "levels": {what: average([g.levels[what] for g in generated]) for what in MEASURES},
        "swap_probabilities": average([g.swaps for g in generated]),
        "distinct_solutions": [g.distinct for g in generated],
        "generation_evaluations": generated[0].evaluations,
        "generation_cpu_seconds": round(sum(g.cpu_seconds for g in generated) / len(runs), 1),
    }
    if name == CROSSED:
        return found
    return {
        **found,
        "learning_rate": runs[0].task.learning_rate,
        "diverged": sum(run.diverged for run in runs),
        "returns": [run.returns for run in runs],
        "gap_at_the_end": [round(run.gap, 2) for run in runs],
        "training_evaluations": [run.evaluations for run in runs],
        "training_cpu_seconds": round(sum(run.cpu_seconds for run in runs) / len(runs), 1),
    }


def _curves(settings: QueensSettings, one: Compared) -> dict[str, dict[str, list[Interval]]]:
    """Every measure after every sweep, as intervals over the runs; the random boards first."""
    found: dict[str, dict[str, list[Interval]]] = {}
    for name in NAMES:
        runs = one.runs["noising" if name == CROSSED else name]
        found[name] = {}
        for what in MEASURES:
            curves = torch.tensor([run.generated[name].curves[what] for run in runs]).double()
            rng = Generator().manual_seed(settings.seed)
            found[name][what] = [bootstrap(at, mean, rng, draws=400) for at in curves.T]
    return found


def _shown_samples(count: int) -> list[int]:
    """Samples at about equal steps of a logarithmic axis, the first and the last among them."""
    wanted = torch.logspace(0, torch.tensor(float(count)).log10().item(), 60)
    return sorted({int(number) for number in wanted.round().clamp(1, count)})


def _thinned(columns: dict[str, list[Interval]]) -> dict[str, Sequence[float]]:
    samples = [0, *_shown_samples(len(columns["attacks"]) - 1)]
    return {
        "sample": samples,
        **{what: [round(one[i].value, 4) for i in samples] for what, one in columns.items()},
    }


def _table(settings: QueensSettings, compared: tuple[Compared, ...]) -> Iterator[str]:
    parts = ("", "_low", "_high")
    yield ",".join(["kernel", "method", "sample", *(w + p for w in MEASURES for p in parts)])
    for one in compared:
        for name, columns in _curves(settings, one).items():
            for sample, row in enumerate(zip(*columns.values(), strict=True)):
                numbers = (f"{x:.5g}" for interval in row for x in interval)
                yield ",".join([one.kernel, name, str(sample), *numbers])


# Figures.


def _paint(figure: "Figure", settings: QueensSettings, compared: tuple[Compared, ...]) -> None:
    """One row for each kernel: attacks, queens and the share solved against the samples."""
    panels = figure.subplots(len(compared), 3, squeeze=False, sharex=True, sharey="col")
    samples = _shown_samples(settings.sweeps)
    titles = {"attacks": "attacking pairs", "queens": "queens on a board", "solved": "share solved"}
    for row, (axes, one) in enumerate(zip(panels, compared, strict=True)):
        curves = _curves(settings, one)
        for column, (panel, what) in enumerate(zip(axes, MEASURES, strict=True)):
            for name in (CROSSED, "tempering", "noising"):
                value, low, high = zip(*(curves[name][what][i] for i in samples), strict=True)
                colour = SHOWN_COLOURS[name]
                if name == CROSSED:
                    panel.plot(samples, value, "--", color=colour, linewidth=1.0, label=NAMES[name])
                else:
                    curve(panel, samples, value, low, high, colour, NAMES[name])
            panel.set_xscale("log")
            ticks = [10**power for power in range(6) if 10**power <= settings.sweeps]
            panel.set_xticks(ticks, map(str, ticks))
            if what == "attacks":
                panel.set_yscale("symlog", linthresh=1)
                panel.set_yticks((0, 1, 10, 100), ("0", "1", "10", "100"))
                panel.set_ylim(0, None)
                panel.set_ylabel(KERNEL_NAMES.get(one.kernel, one.kernel))
            elif what == "queens":
                panel.axhline(settings.n, color=COLOURS["exact"], linewidth=0.8, linestyle=":")
            else:
                panel.set_ylim(-0.02, 1.02)
            if row == 0:
                panel.set_title(f"({'abc'[column]}) {titles[what]}")
            if row == len(compared) - 1:
                panel.set_xlabel("samples of every chain")
    lines, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines[::-1], labels[::-1], loc="outside upper center", ncols=3)


def _paint_boards(
    figure: "Figure", settings: QueensSettings, compared: tuple[Compared, ...]
) -> None:
    """The last boards of the first run: for each kernel and method a panel, the target on top."""
    panels = figure.subplots(len(compared), 2, squeeze=False)
    for row, one in zip(panels, compared, strict=True):
        for panel, method in zip(row, reversed(METHODS), strict=True):
            _paint_levels(panel, settings, one, method)


def _paint_levels(panel: "Axes", settings: QueensSettings, one: Compared, method: str) -> None:
    """Boards side by side, a row for each level; queens that attack each other are red."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    final = one.runs[method][0].own.final[::-1]
    boards = torch.zeros(len(final), len(final[0]), settings.n**2, dtype=torch.int64)
    for row, level in enumerate(final):
        for column, squares in enumerate(level):
            boards[row, column, squares] = 1
    boards = boards.unflatten(2, (settings.n, settings.n))
    step = settings.n + 1  # one empty square between two boards
    corners = [(c * step, r * step) for r in range(len(final)) for c in range(len(final[0]))]
    frames = [Rectangle(corner, settings.n, settings.n) for corner in corners]
    panel.add_collection(PatchCollection(frames, facecolor="none", edgecolor="#888888", lw=0.6))
    hit = attacked(boards)
    for chosen, colour in ((hit, ATTACKED), (boards.bool() & ~hit, COLOURS["exact"])):
        row, column, down, across = chosen.nonzero().double().T
        panel.scatter(
            (column * step + across + 0.5).tolist(), (row * step + down + 0.5).tolist(),
            s=60 / settings.n, color=colour, linewidths=0,
        )  # fmt: skip
    right, bottom = len(final[0]) * step, len(final) * step
    down, across = torch.meshgrid(torch.arange(bottom), torch.arange(right), indexing="ij")
    dark = (
        (down % step + across % step)
        % 2
        * (down % step < settings.n)
        * (across % step < settings.n)
    )
    panel.imshow(dark.numpy(), extent=(0, right, bottom, 0), cmap="Greys", vmin=0, vmax=9)
    _label_levels(panel, settings, one, method)
    panel.set(xlim=(-0.45 * step, right + 0.45 * step), ylim=(bottom, -0.5))
    panel.set_title(f"{NAMES[method]}, {KERNEL_NAMES.get(one.kernel, one.kernel)}")
    panel.axis("off")


def _label_levels(panel: "Axes", settings: QueensSettings, one: Compared, method: str) -> None:
    step = settings.n + 1
    symbol = "T" if method == "tempering" else r"$\nu$"
    ladder = settings.temperatures if method == "tempering" else settings.rates
    levels = _means(one, method)["levels"]
    right = len(one.runs[method][0].own.final[0]) * step
    for row, level in enumerate(reversed(range(len(ladder)))):
        middle = row * step + settings.n / 2
        panel.text(-0.5, middle, f"{symbol} = {ladder[level]:.3g}", ha="right", va="center")
        panel.text(
            right - 0.5, middle,
            f"{levels['attacks'][level]:.1f} attacks\n{levels['queens'][level]:.1f} queens\n"
            f"{levels['solved'][level]:.0%} solved",
            ha="left", va="center", fontsize=7,
        )  # fmt: skip
