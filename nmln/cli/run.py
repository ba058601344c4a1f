"""`nmln run`: the main job on the built-in data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Seed, one_thread
from nmln.files import InputError

if TYPE_CHECKING:
    from nmln.workflow import Outcome


def run(
    output: Annotated[Path, typer.Option(help="Where the results go.")] = Path("runs/smokers"),
    rates: Annotated[
        str, typer.Option(help="Corruption rates, noisiest first, separated by commas.")
    ] = "0.1,0.01,0.005,0.0025,0.001",
    copies: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Corrupted copies at every level.")
    ] = 10_000,
    seed: Seed = 0,
) -> None:
    """Run the main job on the built-in data.

    Reads a friends-and-smokers world, corrupts it at every level of a ladder, and compares what
    happened with the exact expectation. Writes levels.csv, summary.json and corrupted.db.
    """
    from nmln import workflow

    one_thread()
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
