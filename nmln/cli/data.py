"""`nmln data`: what is in data files, which sets of molecules there are, and fetching them."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Output, Seed, one_thread, warn
from nmln.cli.processes import check_processes, cores
from nmln.errors import InputError, InterruptedRunError
from nmln.extras import require

if TYPE_CHECKING:
    from nmln.dropped import Dropped
    from nmln.experiments.corruption import CorruptionOutcome
    from nmln.molecules.downloads import Fetched, Selected
    from nmln.molecules.smiles_files import Watch

_SHOWN = 200  # predicates of a table; drawing more takes minutes
data = typer.Typer(help="Look at data files, and fetch public sets.", no_args_is_help=True)


@contextmanager
def _stopping(told: str) -> Iterator[None]:
    """Whoever presses Ctrl-C is told, in one line, that it worked and what is left."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError(told) from None


@data.command(
    epilog="Examples:  nmln data info smokers.mln smokers.db  |  nmln data info train.tsv test.tsv  |  "
    "nmln data info molecules.smi.gz  |  nmln data info"
)
@_stopping("stopped.")
def info(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A .mln file and .db files, or .tsv triples, or molecules: .smi or .csv (or either "
            "with .gz), or the name of a set such as pubchem-9. Nothing: the names of all sets.",
        ),
    ] = None,
) -> None:
    """Say what is in data files, and how large their space of worlds is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln.molecules.datasets import is_source
    from nmln.runs.data import inspect

    if not paths:
        return list_sets()
    one_thread()
    if any(map(is_source, paths)):
        return _show_molecules(paths)
    found = inspect(paths)
    space, worlds = found.space, len(found.worlds)
    table = Table("predicate", "groups")
    table.add_column("true atoms" + (" (least to most)" if worlds > 1 else ""), justify="right")
    for block in space.blocks[:_SHOWN]:
        true = found.true_atoms(block.attribute)
        shown = f"{min(true):,}" if true and min(true) == max(true) else ""
        shown = shown or (f"{min(true):,} to {max(true):,}" if true else "")
        table.add_row(escape(block.attribute.declaration()), f"{block.count:,}", shown)
    typer.echo(str(space.measure))
    Console(highlight=False).print(table)
    if len(space.blocks) > _SHOWN:
        typer.echo(f"… and {len(space.blocks) - _SHOWN:,} more predicates.")
    sorts = ", ".join(f"{sort} {len(names):,}" for sort, names in space.domain.items())
    typer.echo(f"worlds: {worlds:,}   formulas: {found.formulas:,}   constants: {sorts or 'none'}")
    return None


@data.command("list", epilog="Example:  nmln data list")
def list_sets() -> None:
    """List the sets of molecules that have names, and where they come from."""
    require("nmln data list", "pooch")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln.molecules.datasets import DIRECTORY, known
    from nmln.molecules.downloads import cache_folder

    table = Table("set", "from", "what it is")
    alike = groupby(known(), lambda one: (one.name.rsplit("-", 1)[0], one.place, one.note))
    for (_, place, note), sets in alike:
        table.add_row(escape(", ".join(one.name for one in sets)), escape(place), escape(note))
    Console(highlight=False).print(table)
    if (named := os.environ.get(DIRECTORY)) and not Path(named).is_dir():
        warn(
            f"{DIRECTORY} names {named}, but there is no such directory: no sets are taken from it."
        )
    typer.echo(f"cache: {cache_folder()}")
    typer.echo(f"A directory of sets of your own can be named by {DIRECTORY}. SIZE is any number of "
               "heavy atoms.")  # fmt: skip


@data.command(
    epilog="Examples:  nmln data fetch qm9 --size 9  |  nmln data fetch chembl-10  |  "
    "nmln data fetch moses --url https://mirror.example.org/dataset_v1.csv"
)
@_stopping("stopped. What came is kept: the same command goes on.")
def fetch(
    name: Annotated[
        str, typer.Argument(help="qm9, zinc250k, moses or chembl; qm9-9 names a size.")
    ],
    size: Annotated[
        int | None, typer.Option(min=1, help="Keep the molecules of so many heavy atoms.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Another address of the same file.")] = None,
    sha256: Annotated[str | None, typer.Option(help="The hash that the file must have.")] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="How many processes filter; 0: one for each core.")
    ] = 0,
) -> None:
    """Fetch a public set of molecules into the cache, and keep those of one size as a set.

    A download that was cut off goes on where it stopped. What is kept: neutral molecules of one
    fragment, of C, N, O, F, P, S, Cl and I, without isotope labels or radicals.
    """
    require("nmln data fetch", "rdkit", "pooch", "requests")
    from nmln.molecules import downloads

    one_thread()
    if named := re.fullmatch(r"(.+)-([1-9]\d{,8})", name):
        name, own = named[1], int(named[2])
        if size not in (None, own):
            raise InputError(f"{name}-{own} and --size {size} are two sizes. Give one of them.")
        size = own
    check_processes(processes)
    source = downloads.source_named(name)
    typer.echo(f"{source.title}; licence: {source.licence}")
    with _bar(f"fetching {source.file}") as watch:
        fetched = downloads.fetch(source, url, sha256, watch)
    _tell_fetched(fetched)
    if size is None:
        typer.echo(
            f"Sets of it: {source.name}-SIZE with any number of heavy atoms, such as "
            f"nmln train {source.name}-9; which sizes it has: nmln data info {source.name}"
        )
        return
    told = f"stopped. {source.file} is kept: the same command filters it again."
    with _stopping(told), _bar(f"filtering {source.file}") as watch:
        selected = downloads.select(source, size, processes or cores(), watch)
    if selected is not None:
        _tell_selected(f"{source.name}-{size}", selected)


def _tell_fetched(fetched: "Fetched") -> None:
    megabytes = fetched.path.stat().st_size / 1e6
    how = "was there already" if fetched.seconds is None else f"came in {fetched.seconds:.0f} s"
    hashed = "as expected" if fetched.known else "recorded now, and checked from now on"
    typer.echo(f"{fetched.path}: {megabytes:.1f} MB, {how}\nsha256 {fetched.sha256}, {hashed}")


def _tell_selected(name: str, selected: "Selected") -> None:
    from nmln.molecules.datasets import DIRECTORY, known

    if selected.seconds is None or selected.lines is None:
        typer.echo(f"{name}: {selected.molecules:,} molecules, filtered before: {selected.path}")
    else:
        typer.echo(
            f"{name}: {selected.molecules:,} molecules out of {selected.lines:,} lines in "
            f"{selected.seconds:.0f} s: {selected.path}"
        )
        _show_dropped(selected.dropped)
    if any(one.name == name and one.place == DIRECTORY for one in known()):
        typer.echo(
            f"The directory that {DIRECTORY} names has a set of this name, which goes first."
        )
    typer.echo(f"Learn from them: nmln train {name}")


@contextmanager
def _bar(what: str) -> "Iterator[Watch]":
    """A bar of bytes while a terminal watches, and nothing left of it afterwards."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),  # names of files
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show_molecules(paths: list[Path]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln.molecules.datasets import describe

    if len(paths) > 1:
        raise InputError("molecules carry their own language. Give one file of them, alone.")
    with _bar(f"reading {paths[0].name}") as watch:
        found = describe(paths[0], cores(), watch)
    console = Console(highlight=False)
    typer.echo(f"lines: {found.lines:,}   different molecules: {sum(found.sizes.values()):,}")
    for heading, counts in (("heavy atoms", found.sizes), ("molecules with", found.atoms)):
        table = Table(heading)
        table.add_column("molecules", justify="right")
        for name, count in counts.items():
            table.add_row(escape(str(name)), f"{count:,}")
        console.print(table)
    _show_dropped(found.dropped)
    if len(found.sizes) > 1:
        common = max(found.sizes, key=found.sizes.__getitem__)
        typer.echo(
            f"A model is over one size. Choose it: nmln train {paths[0]} --nodes {common}",
        )


def _show_dropped(dropped: "tuple[Dropped, ...]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if not dropped:
        return
    table = Table("dropped because")
    table.add_column("lines", justify="right")
    table.add_column("first", justify="right")
    table.add_column("there")
    for drop in dropped:
        example = escape(drop.example)
        table.add_row(escape(drop.reason), f"{drop.count:,}", f"line {drop.line:,}", example)
    Console(highlight=False).print(table)


@data.command(
    epilog="Examples:  nmln data corrupt  |  nmln data corrupt --rates 0.2,0.05,0.01 --seed 7"
)
def corrupt(
    output: Output = Path("runs/smokers"),
    rates: Annotated[
        str, typer.Option(help="Corruption rates, noisiest first, separated by commas.")
    ] = "0.1,0.01,0.005,0.0025,0.001",
    copies: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Corrupted copies at every level.")
    ] = 10_000,
    seed: Seed = 0,
) -> None:
    """Show what corruption does to the built-in friends-and-smokers world.

    Corrupts it at every level of a ladder, and compares what happened with the exact expectation. Writes
    levels.csv, summary.json and corrupted.db.
    """
    from nmln.experiments import corruption

    one_thread()
    _show_corruption(corruption.run(output, _parse_rates(rates), copies, seed))


def _parse_rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--rates {text!r} is not a list of numbers. Separate them by commas: 0.1,0.01,0.001"
        ) from None


def _show_corruption(outcome: "CorruptionOutcome") -> None:
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
