"""The command line. Nothing heavy is imported before a verb needs it."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln import __version__
from nmln.files import InputError

if TYPE_CHECKING:
    from nmln.workflow import Outcome

app = typer.Typer(
    help="Neural Markov Logic Networks with parallel noising.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Look at data files.", no_args_is_help=True)
app.add_typer(data, name="data")


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


def _one_thread() -> None:
    """One compute thread a process: a second one costs more than it gives on a loaded machine."""
    import torch

    torch.set_num_threads(1)
