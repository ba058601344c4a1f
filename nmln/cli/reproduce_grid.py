"""The verbs of `nmln reproduce` on molecules: a grid of cells, its figures, and the page of claims."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.cells import perform
from nmln.cli.common import examples, one_thread, sizes_in
from nmln.errors import InputError
from nmln.extras import require

if TYPE_CHECKING:
    from nmln.reproduction.work import Grid

Budgeted = Annotated[
    str,
    typer.Option(
        help="quick (10 CPU minutes each of training and sampling, 20,000 samples), hour (60 and "
        "200,000) or paper (networks of full size and 2,000,000 samples: days)."
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(help="Minutes of training, and of sampling, in place of those of the budget."),
]
Samples = Annotated[
    int | None, typer.Option("--num-samples", help="Most samples, in place of those of the budget.")
]
Updates = Annotated[
    int | None,
    typer.Option(
        help="Updates where numbers of updates are equal, in place of those of the budget."
    ),
]
GridFolder = Annotated[Path, typer.Option("--output", help="Folder of the grid.")]
Cells = Annotated[
    str | None,
    typer.Option(
        help="Only these cells: names or patterns, separated by commas, such as chembl-10/s*. No "
        "figures are drawn."
    ),
]
Listed = Annotated[
    bool,
    typer.Option(
        "--list", help="Print one command per cell that is not done, for a scheduler, and end."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Start at the budget paper without a question.")]
SeedCount = Annotated[
    int,
    typer.Option(min=1, max=100, help="Seeds of s.3, s.4, s.5 and NMLN*; s.1 and s.2 have one."),
]
OUTPUT = Path("runs/reproduction")


def ablations(
    budget: Budgeted = "quick",
    output: GridFolder = OUTPUT,
    seeds: SeedCount = 3,
    minutes: Minutes = None,
    samples: Samples = None,
    updates: Updates = None,
    cells: Cells = None,
    listed: Listed = False,
    yes: Yes = False,
) -> None:
    """Compare s.1 to s.5 with NMLN* on ChEMBL-10, at equal CPU minutes and at equal updates.

    Every cell is trained, sampled and evaluated on one core. Finished cells are kept, and the same
    command continues. Figures and numbers go to OUTPUT/BUDGET, and reproduction.html to OUTPUT.
    """
    from nmln.reproduction import grid as figures

    made = _grid(budget, output, minutes, samples, updates)
    perform("ablations", made, figures.ablations(made.budget, seeds), cells, listed, yes)


def recall(
    data: Annotated[
        str | None,
        typer.Option(
            help="chembl, qm9, moses, zinc250k, or a file of SMILES of your own.",
            show_default="all",
        ),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Heavy atoms, such as 10,15,20.", show_default="all")
    ] = None,
    budget: Budgeted = "quick",
    output: GridFolder = OUTPUT,
    minutes: Minutes = None,
    samples: Samples = None,
    cells: Cells = None,
    listed: Listed = False,
    yes: Yes = False,
) -> None:
    """Compare NMLN* with DiGress and with string models, for every data set and size.

    Recall of the test set against rank, by count and by probability. Finished cells are kept, and the
    same command continues.
    """
    from nmln.reproduction import grid as figures
    from nmln.reproduction.datasets import chosen

    made = _grid(budget, output, minutes, samples)
    sets = chosen(data, sizes_in(sizes))
    perform("recall", made, figures.recall(made.budget, sets), cells, listed, yes)


def levels(
    budget: Budgeted = "quick",
    output: GridFolder = OUTPUT,
    minutes: Minutes = None,
    samples: Samples = None,
    cells: Cells = None,
    listed: Listed = False,
    yes: Yes = False,
) -> None:
    """Measure validity and recall at each level of one NMLN* on ChEMBL-10.

    At the rates of the paper, 0.1, 0.01, 0.005, 0.0025 and 0.001, and at those of the preset molecules.
    """
    from nmln.reproduction import grid as figures

    made = _grid(budget, output, minutes, samples)
    perform("levels", made, figures.levels(made.budget), cells, listed, yes)


def compute(
    budget: Budgeted = "quick",
    output: GridFolder = OUTPUT,
    minutes: Minutes = None,
    samples: Samples = None,
    cells: Cells = None,
    listed: Listed = False,
    yes: Yes = False,
) -> None:
    """Plot recall and validity against energy evaluations, for several ladders and replica counts."""
    from nmln.reproduction import grid as figures

    made = _grid(budget, output, minutes, samples)
    perform("compute", made, figures.compute(made.budget), cells, listed, yes)


def tables(budget: Budgeted = "quick", output: GridFolder = OUTPUT) -> None:
    """Count the molecules of all data sets, beside those of the paper."""
    require("nmln reproduce tables", "rdkit", "pooch", "matplotlib")
    from rich.console import Console
    from rich.table import Table

    from nmln.reproduction.pages import write_html
    from nmln.reproduction.tables import count

    one_thread()
    made = _grid(budget, output)
    table = Table("data set")
    for name in ("paper", "here", "training", "test"):
        table.add_column(name, justify="right")
    for row in count(made):
        numbers = (row[name] for name in ("paper", "molecules", "train", "test"))
        table.add_row(row["title"], *("-" if one is None else f"{one:,}" for one in numbers))
    Console(highlight=False).print(table)
    typer.echo(f"Written: {made.results / 'tables.json'}, {write_html(output)}")


def everything(
    budget: Budgeted = "quick",
    output: GridFolder = OUTPUT,
    seeds: SeedCount = 3,
    minutes: Minutes = None,
    samples: Samples = None,
    updates: Updates = None,
    cells: Cells = None,
    listed: Listed = False,
    yes: Yes = False,
) -> None:
    """Run all experiments of the paper: those without molecules first, then the whole grid.

    At the budget quick about 35 CPU hours. Finished cells are kept, and the same command continues;
    started twice, it works on two cells at a time.
    """
    from nmln.reproduction import grid as figures

    made = _grid(budget, output, minutes, samples, updates)
    wanted = figures.everything(made.budget, seeds)
    perform("all", made, wanted, cells, listed, yes, experiments=True)


def status(
    budget: Annotated[
        str | None, typer.Option(help="quick, hour or paper.", show_default="all that were begun")
    ] = None,
    output: GridFolder = OUTPUT,
) -> None:
    """Show which cells of the grid are done, and how long the rest takes on one core."""
    from rich.console import Console

    from nmln.reproduction.budgets import BUDGETS
    from nmln.reproduction.status import parts_of

    begun = [name for name in BUDGETS if (output / name / "cells").is_dir()]
    names = [budget] if budget else begun
    if not names:
        raise InputError(
            "there is no grid here. Name its folder with --output, or start with: nmln reproduce all",
            str(output),
            kind="missing",
        )
    console = Console(highlight=False)
    for name in names:
        made = _grid(name, output)
        console.print(_table(made, parts_of(made)))


def _table(made: "Grid", parts: Sequence[Any]) -> Any:
    from rich.table import Table

    table = Table(
        "command",
        title=f"{made.home}, budget {made.budget.name}",
        caption="Cells that several commands need are counted in each, and once in all.",
        caption_justify="left",
    )
    for column in ("cells", "done", "begun", "failed", "CPU hours so far", "about left"):
        table.add_column(column, justify="right")
    for one in parts:
        counts = (one.cells, one.done, one.begun, len(one.failed))
        hours = (f"{minutes / 60:.1f}" for minutes in (one.spent, one.left))
        table.add_row(one.command, *map(str, counts), *hours)
    for name in parts[-1].failed:
        table.add_row(f"failed: {name}", *[""] * 6)
    return table


def _grid(
    budget: str,
    output: Path,
    minutes: float | None = None,
    samples: int | None = None,
    updates: int | None = None,
) -> "Grid":
    from nmln.reproduction.budgets import budget as named
    from nmln.reproduction.work import Grid

    return Grid(output, named(budget, minutes, samples, updates))


def add_commands(reproduce: typer.Typer) -> None:
    """Add these verbs to `nmln reproduce`."""
    verbs = (
        ("ablations", ablations, "--budget quick", "--budget hour --list > cells.txt"),
        ("recall", recall, "--data chembl --sizes 10,15,20", "--data mine.smi --sizes 9"),
        ("levels", levels, "--budget quick", "--budget hour"),
        ("compute", compute, "--budget quick", "--cells chembl-10/star"),
        ("tables", tables, "", "--output runs/mine"),
        ("all", everything, "--budget quick", "--cells 'zinc250k-9/*'"),
        ("status", status, "", "--budget hour"),
    )
    for name, verb, *options in verbs:
        shown = (f"nmln reproduce {name} {one}".rstrip() for one in options)
        reproduce.command(name, epilog=examples(*shown))(verb)
