"""The command line. Nothing heavy is imported before a verb needs it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln import __version__
from nmln.files import InputError

if TYPE_CHECKING:
    from nmln.experiments.intervals import Interval
    from nmln.workflow import Outcome

app = typer.Typer(
    help="Neural Markov Logic Networks with parallel noising.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Look at data files.", no_args_is_help=True)
app.add_typer(data, name="data")
reproduce = typer.Typer(
    help="Run the paper's experiments again and draw their figures.", no_args_is_help=True
)
app.add_typer(reproduce, name="reproduce")


def main() -> None:
    """Run the command line; a user's mistake ends in one line, not in a traceback."""
    warnings.showwarning = _warn
    try:
        app(prog_name="nmln")
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}.")
    except MemoryError:
        _fail("this does not fit into the memory of the machine. Ask for less at a time.")
    except KeyboardInterrupt:
        _fail("interrupted.", code=130)


def _fail(message: str, code: int = 2) -> None:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
    raise SystemExit(code)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is a sentence for the user, not a line of our code."""
    typer.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
    typer.echo(str(message), err=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nmln {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Neural Markov Logic Networks with parallel noising.

    Worlds are sets of true ground atoms; text files hold them one literal a line.
    """


@app.command(
    epilog="Examples:  nmln run  |  nmln run --rates 0.2,0.05,0.01 --seed 7 --output runs/mine"
)
def run(
    output: Annotated[Path, typer.Option(help="Where the results go.")] = Path("runs/smokers"),
    rates: Annotated[
        str, typer.Option(help="Corruption rates, noisiest first, separated by commas.")
    ] = "0.1,0.01,0.005,0.0025,0.001",
    copies: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Corrupted copies at every level.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Repeats a run exactly.")] = 0,
) -> None:
    """Run the main job on the built-in data.

    Reads a friends-and-smokers world, corrupts it at every level of a ladder, and compares what
    happened with the exact expectation. Writes levels.csv, summary.json and corrupted.db.
    """
    from nmln import workflow

    _one_thread()
    _show_outcome(workflow.run(output, _parse_rates(rates), copies, seed))


def _parse_rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--rates {text!r} is not a list of numbers. Separate them by commas: 0.1,0.01,0.001"
        ) from None


def _show_outcome(outcome: "Outcome") -> None:
    from rich.columns import Columns
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    from nmln.worlds import to_text, true_atoms

    console = Console(highlight=False)
    space = outcome.space
    console.print(f"[bold]Friends and smokers[/]: {space.measure}\n")
    original = set(true_atoms(space, outcome.world))
    panels = [Panel(to_text(space, outcome.world), title="the world")]
    for level, world in zip(outcome.levels, outcome.example, strict=True):
        now = set(true_atoms(space, world))
        lines = [f"[green]+ {atom}[/]" for atom in sorted(now - original)]
        lines += [f"[red]- {atom}[/]" for atom in sorted(original - now)]
        panels.append(
            Panel("\n".join(lines) or "[dim]no change[/]", title=f"one copy at {level.rate:g}")
        )
    console.print(Columns(panels))

    table = Table(title="\nWhat corruption does", title_justify="left", caption_justify="left")
    for name in ("level", "rate", "changed", "exact", "whole", "exact", "swaps ≥", "score"):
        table.add_column(name, justify="right")
    table.caption = (
        "changed: groups a copy; whole: copies without a change; swaps: worst-case bound with the "
        "next level; score: mean over the copies of the sum of weight times true groundings"
    )
    for number, level in enumerate(outcome.levels):
        bound = "" if level.swap_bound is None else f"{level.swap_bound:.0%}"
        table.add_row(
            str(number), f"{level.rate:g}",
            f"{level.changed:.3f}", f"{level.changed_expected:.3f}",
            f"{level.untouched:.1%}", f"{level.untouched_expected:.1%}", bound,
            f"{level.score:.2f}",
        )  # fmt: skip
    console.print(table)
    typer.echo("\nWritten: " + ", ".join(map(str, outcome.written)))


@data.command(
    epilog="Examples:  nmln data info smokers.mln smokers.db  |  nmln data info train.tsv test.tsv"
)
def info(
    paths: Annotated[
        list[Path], typer.Argument(help="A .mln file and .db files, or .tsv triples.")
    ],
) -> None:
    """Say what is in data files, and how large their space of worlds is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln import workflow

    _one_thread()
    found = workflow.inspect(paths)
    space, worlds = found.space, len(found.worlds)
    table = Table("predicate", "groups")
    table.add_column("true atoms" + (" (least to most)" if worlds > 1 else ""), justify="right")
    for block in space.blocks:
        true = found.true_atoms(block.attribute)
        shown = f"{min(true):,}" if true and min(true) == max(true) else ""
        shown = shown or (f"{min(true):,} to {max(true):,}" if true else "")
        table.add_row(escape(block.attribute.declaration()), f"{block.count:,}", shown)
    typer.echo(str(space.measure))
    Console(highlight=False).print(table)
    sorts = ", ".join(f"{sort} {len(names):,}" for sort, names in space.domain.items())
    typer.echo(f"worlds: {worlds:,}   formulas: {found.formulas:,}   constants: {sorts or 'none'}")


Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Repeats a run exactly.")]
Seeds = Annotated[int, typer.Option(min=2, max=10_000, help="Independent repetitions.")]
Output = Annotated[Path, typer.Option(help="Where the results go.")]


@reproduce.command(
    "toy-tracking",
    epilog="Examples:  nmln reproduce toy-tracking  |  "
    "nmln reproduce toy-tracking --times 12 --sweeps 5 --output runs/quick",
)
def toy_tracking(
    output: Output = Path("runs/toy-tracking"),
    seed: Seed = 0,
    seeds: Seeds = 20,
    times: Annotated[int, typer.Option(min=3, help="How often the target changes.")] = 60,
    sweeps: Annotated[int, typer.Option(min=1, help="Sweeps at every time.")] = 20,
) -> None:
    """Parallel noising and tempering follow a two-well target whose barrier grows.

    Compares the magnetisation of the cold chains with the exact one, for several final barriers. Takes
    about a minute. Writes results.json, curves.csv, figure.png and figure.svg.
    """
    from rich.console import Console
    from rich.table import Table

    from nmln.experiments import toy_tracking as experiment

    _one_thread()
    settings = experiment.Settings(times=times, sweeps=sweeps, seeds=seeds, seed=seed)
    with _progress("toy tracking", settings.ticks) as tick:
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
    epilog="Examples:  nmln reproduce two-peaks  |  nmln reproduce two-peaks --sweeps 200 --seeds 5",
)
def two_peaks(
    output: Output = Path("runs/two-peaks"),
    seed: Seed = 0,
    seeds: Seeds = 20,
    sweeps: Annotated[int, typer.Option(min=1, help="Sweeps of every chain.")] = 4000,
) -> None:
    """One chain and parallel tempering sample a density with two peaks.

    Compares their histograms with the density and counts how often they cross over. Takes about half a
    minute. Writes results.json, figure.png and figure.svg.
    """
    from rich.console import Console
    from rich.table import Table

    from nmln.experiments import two_peaks as experiment

    _one_thread()
    settings = experiment.Settings(sweeps=sweeps, seeds=seeds, seed=seed)
    with _progress("two peaks", settings.ticks) as tick:
        outcome = experiment.run(settings, output, tick)
    table = Table("method", title="Two peaks (mean and 95 % interval over seeds)")
    for name in ("total variation", "crossings"):
        table.add_column(name, justify="right")
    for method, one in outcome.sampled.items():
        crossings = _show(one.crossings, ",.0f")
        table.add_row(experiment.NAMES[method], _show(one.distance), crossings)
    Console(highlight=False).print(table)
    _close(outcome.seconds, outcome.written)


def _show(interval: "Interval", form: str = ".3f") -> str:
    return f"{interval.value:{form}} ({interval.low:{form}}, {interval.high:{form}})"


def _close(seconds: float, written: tuple[Path, ...]) -> None:
    typer.echo(f"{seconds:.0f} seconds. Written: " + ", ".join(map(str, written)))


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar while a terminal watches, and nothing left of it afterwards."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _one_thread() -> None:
    """One compute thread a process: a second one costs more than it gives on a loaded machine."""
    import torch

    torch.set_num_threads(1)
