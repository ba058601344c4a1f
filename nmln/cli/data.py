"""`nmln data`: what is in data files."""

from pathlib import Path
from typing import Annotated

import typer

from nmln.cli.common import one_thread
from nmln.files import InputError

data = typer.Typer(help="Look at data files.", no_args_is_help=True)


@data.command(
    epilog="Examples:  nmln data info smokers.mln smokers.db  |  nmln data info train.tsv test.tsv  |  "
    "nmln data info molecules.smi.gz"
)
def info(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="A .mln file and .db files, or .tsv triples, or molecules: .smi or .csv (or either "
            "with .gz), or the name of a set such as pubchem-9."
        ),
    ],
) -> None:
    """Say what is in data files, and how large their space of worlds is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln import workflow
    from nmln.molecules.datasets import is_source

    one_thread()
    if any(map(is_source, paths)):
        return _show_molecules(paths)
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
    return None


def _show_molecules(paths: list[Path]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln.molecules.datasets import describe

    if len(paths) > 1:
        raise InputError("molecules carry their own language. Give one file of them, alone.")
    found = describe(paths[0])
    console = Console(highlight=False)
    typer.echo(f"lines: {found.lines:,}   different molecules: {sum(found.sizes.values()):,}")
    for heading, counts in (("heavy atoms", found.sizes), ("molecules with", found.atoms)):
        table = Table(heading)
        table.add_column("molecules", justify="right")
        for name, count in counts.items():
            table.add_row(str(name), f"{count:,}")
        console.print(table)
    if found.dropped:
        dropped = Table("dropped because", "lines", "first", "there")
        for drop in found.dropped:
            example = escape(drop.example)
            dropped.add_row(drop.reason, f"{drop.count:,}", f"line {drop.line:,}", example)
        console.print(dropped)
