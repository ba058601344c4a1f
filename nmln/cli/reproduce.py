"""`nmln reproduce`: the paper's experiments."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Output, Seed, Seeds, examples, one_thread, progress
from nmln.cli.processes import check_processes, cores
from nmln.errors import InputError
from nmln.extras import require

if TYPE_CHECKING:
    from nmln.experiments.intervals import Interval

reproduce = typer.Typer(
    help="Repeat the paper's experiments and draw their figures.", no_args_is_help=True
)


@reproduce.command(
    epilog=examples("nmln reproduce exactness", "nmln reproduce exactness --tables 100"),
)
def exactness(
    output: Output = Path("runs/exactness"),
    seed: Seed = 0,
    tables: Annotated[int, typer.Option(min=1, help="Number of tables of random scores.")] = 20,
) -> None:
    """Check by enumeration that moves and swaps are exact, and that swap acceptance is the overlap.

    On a small space with random scores; a broken twin of every step must fail the same check. Takes
    some seconds. Writes results.json.
    """
    from rich.console import Console
    from rich.table import Table

    from nmln.experiments import exactness as experiment

    one_thread()
    settings = experiment.ExactnessSettings(tables=tables, seed=seed)
    with progress("exactness", settings.ticks) as tick:
        outcome = experiment.run(settings, output, tick)
    table = Table(
        "one step from the exact distribution",
        title="Largest change of a probability",
        caption=f"Mean swap probability and overlap of the levels: at most {outcome.overlap_error:.1e} "
        f"apart; swaps that were made: at most {outcome.counted_error:.1f} standard errors.",
        caption_justify="left",
    )
    for name in ("sampler", "broken twin"):
        table.add_column(name, justify="right")
    for one in outcome.checks:
        table.add_row(one.what, f"{one.change:.1e}", f"{one.change_of_broken_twin:.1e}")
    Console(highlight=False).print(table)
    _close(outcome.seconds, outcome.written)


@reproduce.command(
    "toy-tracking",
    epilog=examples(
        "nmln reproduce toy-tracking",
        "nmln reproduce toy-tracking --times 12 --sweeps 5 --output runs/quick",
    ),
)
def toy_tracking(
    output: Output = Path("runs/toy-tracking"),
    seed: Seed = 0,
    seeds: Seeds = 20,
    times: Annotated[int, typer.Option(min=3, help="Number of times the target changes.")] = 60,
    sweeps: Annotated[int, typer.Option(min=1, help="Sweeps after each change.")] = 20,
) -> None:
    """Compare parallel noising with tempering on a two-well target whose barrier grows.

    Measures the distance of the cold chains' magnetisation from the exact one, for several final
    barriers. Takes about a minute. Writes results.json, curves.csv, figure.png and figure.svg.
    """
    require("nmln reproduce toy-tracking", "matplotlib")
    from rich.console import Console
    from rich.table import Table

    from nmln.experiments import toy_tracking as experiment

    one_thread()
    settings = experiment.TrackingSettings(times=times, sweeps=sweeps, seeds=seeds, seed=seed)
    with progress("toy tracking", settings.ticks) as tick:
        outcome = experiment.run(settings, output, tick)
    main = outcome.comparisons[-1]
    as_good = [f"{one.last_beta:g}" for one in outcome.comparisons if one.tempering_as_good]
    table = Table(
        "final beta",
        title="Tracking error in the last third (95 % interval over seeds)",
        caption=f"In the first third at {main.last_beta:g}: PT {_show(main.first['tempering'])}, PN "
        f"{_show(main.first['noising'])}. The seeds do not show PN ahead at: "
        f"{', '.join(as_good) or 'none'}.",
        caption_justify="left",
    )
    for name in ("PT", "PN", "PN / PT"):
        table.add_column(name, justify="right")
    for one in outcome.comparisons:
        pair = (_show(one.last["tempering"]), _show(one.last["noising"]))
        table.add_row(f"{one.last_beta:g}", *pair, _show(one.ratio, ".2f"))
    Console(highlight=False).print(table)
    _close(outcome.seconds, outcome.written)


@reproduce.command(
    "two-peaks",
    epilog=examples("nmln reproduce two-peaks", "nmln reproduce two-peaks --sweeps 200 --seeds 5"),
)
def two_peaks(
    output: Output = Path("runs/two-peaks"),
    seed: Seed = 0,
    seeds: Seeds = 20,
    sweeps: Annotated[int, typer.Option(min=1, help="Sweeps per chain.")] = 4000,
) -> None:
    """Compare a single chain with parallel tempering on a density with two peaks.

    Compares their histograms with the density and counts the crossings between the peaks. Takes about
    half a minute. Writes results.json, figure.png and figure.svg.
    """
    require("nmln reproduce two-peaks", "matplotlib")
    from rich.console import Console
    from rich.table import Table

    from nmln.experiments import two_peaks as experiment

    one_thread()
    settings = experiment.TwoPeaksSettings(sweeps=sweeps, seeds=seeds, seed=seed)
    with progress("two peaks", settings.ticks) as tick:
        outcome = experiment.run(settings, output, tick)
    table = Table("method", title="Two peaks (mean and 95 % interval over seeds)")
    for name in ("total variation", "crossings"):
        table.add_column(name, justify="right")
    for method, one in outcome.sampled.items():
        crossings = _show(one.crossings, ",.0f")
        table.add_row(experiment.NAMES[method], _show(one.distance), crossings)
    Console(highlight=False).print(table)
    _close(outcome.seconds, outcome.written)


@reproduce.command(
    epilog=examples("nmln reproduce matching", "nmln reproduce matching --nodes 6 --runs 3"),
)
def matching(
    output: Output = Path("runs/matching"),
    seed: Seed = 0,
    runs: Annotated[
        int, typer.Option(min=2, help="Independent repetitions, each with its own training.")
    ] = 5,
    nodes: Annotated[int, typer.Option(min=2, help="Number of nodes; must be even.")] = 8,
    evaluations: Annotated[
        int, typer.Option(min=1000, help="World evaluations per training run.")
    ] = 3_000_000,
) -> None:
    """Compare parallel noising with Gibbs training on perfect matchings.

    Both learn from clean data that every node has exactly one partner, with equal numbers of world
    evaluations and after the same search for a learning rate. Takes some minutes. Writes results.json.
    """
    from rich.console import Console
    from rich.table import Table

    from nmln.experiments import matching as experiment

    one_thread()
    settings = experiment.MatchingSettings(
        nodes=nodes, evaluations=evaluations, runs=runs, seed=seed
    )
    with progress("matching", settings.ticks) as tick:
        outcome = experiment.run(settings, output, tick)
    table = Table("method", title="Samples that are matchings (mean and 95 % interval over runs)")
    for name in ("share", "chains that changed", "learning rate"):
        table.add_column(name, justify="right")
    for method, interval in outcome.satisfied.items():
        rate, changed = f"{outcome.learning_rates[method]:g}", _show(outcome.changed[method])
        table.add_row(experiment.METHODS[method], _show(interval), changed, rate)
    table.add_row("difference", _show(outcome.difference), "", "")
    Console(highlight=False).print(table)
    _close(outcome.seconds, outcome.written)


@reproduce.command(
    "n-queens",
    epilog=examples(
        "nmln reproduce n-queens --budget quick",
        "nmln reproduce n-queens --n 5 --runs 2 --steps 100 --kernel gibbs",
    ),
)
def n_queens(
    output: Output = Path("runs/n-queens"),
    budget: Annotated[str, typer.Option(help="quick (minutes) or full (hours).")] = "quick",
    n: Annotated[int, typer.Option(min=4, help="Number of rows and columns of the board.")] = 8,
    runs: Annotated[
        int | None,
        typer.Option(min=2, max=1000, help="Independent repetitions, each with its own training."),
    ] = None,
    seed: Seed = 0,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="gibbs or gradients. May be repeated; by default both."),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(help="Corruption rates, noisiest first, for example 0.2,0.1,0"),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.")] = None,
    sweeps: Annotated[
        int | None, typer.Option(min=1, help="Sweeps per chain when sampling.")
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            help="Search for a learning rate first, as --budget full does.", show_default=False
        ),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=0, help="Number of parallel runs; 0 uses one per core.")
    ] = 0,
) -> None:
    """Compare noising with tempering on n-queens boards, learned as images.

    Counts attacking pairs of queens, queens per board and solved boards. Takes about ten minutes on two
    cores with --budget quick. Finished runs are kept; the same command continues. Writes results.json
    and curves.csv, and the figures figure and boards as PNG and SVG.
    """
    require("nmln reproduce n-queens", "matplotlib")
    from rich.console import Console
    from rich.table import Table

    from nmln.experiments import n_queens as experiment
    from nmln.experiments.n_queens_runs import GRID, QueensSettings

    one_thread()
    settings = QueensSettings.of(
        budget,
        n=n,
        runs=runs,
        seed=seed,
        kernels=tuple(kernel) if kernel else None,
        rates=None if rates is None else _numbers(rates),
        steps=steps,
        sweeps=sweeps,
        learning_rates=GRID if search else None,
    )
    given = {"runs": runs, "rates": rates, "steps": steps, "sweeps": sweeps}
    command = " ".join(
        [
            f"nmln reproduce n-queens --budget {budget} --n {n}",
            *(f"--{name} {value}" for name, value in given.items() if value is not None),
            *(f"--kernel {name}" for name in kernel or ()),
            *(["--search"] if search else []),
            f"--seed {seed}",
        ]
    )
    check_processes(processes)
    with progress("n queens", settings.ticks) as tick:
        outcome = experiment.run(settings, output, tick, processes or cores(), command)
    for one in outcome.compared:
        table = Table(
            "",
            title=f"{experiment.KERNEL_NAMES.get(one.kernel, one.kernel)}: the last quarter of the "
            "samples (mean and 95 % interval over runs)",
            caption=f"Ahead by {one.decided_by(n)}: "
            f"{experiment.NAMES.get(one.ahead(n), one.ahead(n))}.",
            caption_justify="left",
        )
        for name in ("attacks", "queens", "solved"):
            table.add_column(name, justify="right")
        for name, found in one.late.items():
            table.add_row(experiment.NAMES[name], *map(_show, found.values()))
        table.add_row("PN - PT", *map(_show, one.difference.values()))
        Console(highlight=False).print(table)
    _close(outcome.seconds, outcome.written)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--rates must be numbers separated by commas, got {text!r}. Write, for example, "
            "--rates 0.2,0.1,0."
        ) from None


def _show(interval: "Interval", form: str = ".3f") -> str:
    return f"{interval.value:{form}} ({interval.low:{form}}, {interval.high:{form}})"


def _close(seconds: float, written: tuple[Path, ...]) -> None:
    typer.echo(f"{seconds:.0f} seconds. Written: " + ", ".join(map(str, written)))
