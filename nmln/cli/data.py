"""`nmln data`: inspect data files, and list and download sets of molecules."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Output, Seed, examples, one_thread, warn
from nmln.cli.processes import check_processes, cores
from nmln.errors import InputError, InterruptedRunError
from nmln.extras import require

if TYPE_CHECKING:
    from nmln.dropped import Dropped
    from nmln.experiments.corruption import CorruptionOutcome
    from nmln.molecules.downloads import Fetched, Selected
    from nmln.molecules.smiles_files import Watch

_SHOWN = 200  # predicates in a table; drawing more takes minutes
data = typer.Typer(help="Inspect data files, and download public data sets.", no_args_is_help=True)


@contextmanager
def _stopping(shown: str) -> Iterator[None]:
    """Report an interruption by Ctrl-C in one line, with what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError(shown) from None


@data.command(
    epilog=examples(
        "nmln data info smokers.mln smokers.db",
        "nmln data info train.tsv test.tsv",
        "nmln data info folder-of-graphs",
        "nmln data info molecules.smi.gz",
        "nmln data info",
    )
)
@_stopping("stopped.")
def info(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A .mln file and .db files, or .tsv files of triples, or .graphml files, or a folder "
            "of .db or .graphml files, or molecules: a .smi or .csv file (also with .gz), or a named "
            "set such as pubchem-9. Without files, lists the named sets.",
        ),
    ] = None,
) -> None:
    """Show what data files contain and how large their space of worlds is."""
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
    largest, worlds = found.largest, len(found.parsed)
    table = Table("predicate", "groups")
    table.add_column("true atoms" + (" (least to most)" if worlds > 1 else ""), justify="right")
    for block in largest.blocks[:_SHOWN]:
        one = block.attribute
        true, groups = _between(found.true_atoms(one)), _between(found.groups(one))
        table.add_row(escape(one.declaration()), groups, true)
    typer.echo(f"{'at most ' if len(found.parsed.buckets) > 1 else ''}{largest.measure}")
    Console(highlight=False).print(table)
    if len(largest.blocks) > _SHOWN:
        typer.echo(f"… and {len(largest.blocks) - _SHOWN:,} more predicates.")
    sorts = ", ".join(f"{sort} {_between(found.constants(sort))}" for sort in largest.domain)
    formulas = len(found.parsed.formulas)
    typer.echo(f"worlds: {worlds:,}   formulas: {formulas:,}   constants: {sorts or 'none'}")
    if found.worlds_by_size:
        typer.echo(found.worlds_by_size)
    for note in found.parsed.notes:
        typer.echo(f"note: {note}")
    return None


def _between(counts: list[int]) -> str:
    least, most = min(counts, default=None), max(counts, default=None)
    if least is None or least == most:
        return "" if least is None else f"{least:,}"
    return f"{least:,} to {most:,}"


@data.command("list", epilog=examples("nmln data list"))
def list_sets() -> None:
    """List the named sets of molecules and their sources."""
    require("nmln data list", "pooch")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from nmln.molecules.datasets import DIRECTORY, known
    from nmln.molecules.downloads import cache_folder

    table = Table("set", "source", "description")
    alike = groupby(known(), lambda one: (one.name.rsplit("-", 1)[0], one.place, one.note))
    for (_, place, note), sets in alike:
        table.add_row(escape(", ".join(one.name for one in sets)), escape(place), escape(note))
    Console(highlight=False).print(table)
    if (named := os.environ.get(DIRECTORY)) and not Path(named).is_dir():
        warn(
            f"{DIRECTORY} must name a directory, but {named} is not one: no sets are read from it."
        )
    typer.echo(f"cache: {cache_folder()}")
    typer.echo(
        f"SIZE is any number of heavy atoms. Set {DIRECTORY} to a directory with sets of your own."
    )


@data.command(
    epilog=examples(
        "nmln data fetch qm9 --size 9",
        "nmln data fetch chembl-10",
        "nmln data fetch moses --url https://mirror.example.org/dataset_v1.csv",
    )
)
@_stopping("stopped. The downloaded part is kept; run the same command to continue.")
def fetch(
    name: Annotated[
        str, typer.Argument(help="qm9, zinc250k, moses or chembl; qm9-9 is qm9 with --size 9.")
    ],
    size: Annotated[
        int | None, typer.Option(min=1, help="Select molecules with exactly this many heavy atoms.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Another address of the same file.")] = None,
    sha256: Annotated[str | None, typer.Option(help="Required SHA-256 of the file.")] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Processes that filter; 0 uses one per core.")
    ] = 0,
) -> None:
    """Download a public set of molecules, and select those of one size.

    Kept are neutral, single-fragment molecules of C, N, O, F, P, S, Cl and I (no Br), without isotope
    labels or radicals. An interrupted download is continued.
    """
    require("nmln data fetch", "rdkit", "pooch", "requests")
    from nmln.molecules import downloads

    one_thread()
    if named := re.fullmatch(r"(.+)-([1-9]\d{,8})", name):
        name, own = named[1], int(named[2])
        if size not in (None, own):
            raise InputError(
                f"{name}-{own} and --size {size} contradict each other. Give one size."
            )
        size = own
    check_processes(processes)
    source = downloads.source_named(name)
    typer.echo(f"{source.title}; licence: {source.licence}")
    with _bar(f"fetching {source.file}") as watch:
        fetched = downloads.fetch(source, url, sha256, watch)
    _tell_fetched(fetched)
    if size is None:
        typer.echo(
            f"Use molecules of one size by the name {source.name}-SIZE, for example nmln train "
            f"{source.name}-9. To list the sizes: nmln data info {source.name}"
        )
        return
    shown = f"stopped. {source.file} is kept; run the same command to filter it."
    with _stopping(shown), _bar(f"filtering {source.file}") as watch:
        selected = downloads.select(source, size, processes or cores(), watch)
    if selected is not None:
        _tell_selected(f"{source.name}-{size}", selected)


def _tell_fetched(fetched: "Fetched") -> None:
    megabytes = fetched.path.stat().st_size / 1e6
    how = "in the cache" if fetched.seconds is None else f"downloaded in {fetched.seconds:.0f} s"
    hashed = "as expected" if fetched.known else "recorded now and checked from now on"
    typer.echo(f"{fetched.path}: {megabytes:.1f} MB, {how}\nsha256 {fetched.sha256}, {hashed}")


def _tell_selected(name: str, selected: "Selected") -> None:
    from nmln.molecules.datasets import DIRECTORY, known

    if selected.seconds is None or selected.lines is None:
        typer.echo(f"{name}: {selected.molecules:,} molecules, selected earlier: {selected.path}")
    else:
        typer.echo(
            f"{name}: {selected.molecules:,} molecules out of {selected.lines:,} lines in "
            f"{selected.seconds:.0f} s: {selected.path}"
        )
        _show_dropped(selected.dropped)
    if any(one.name == name and one.place == DIRECTORY for one in known()):
        typer.echo(f"The directory {DIRECTORY} has a set of the same name, which is used instead.")
    typer.echo(f"To train on them: nmln train {name}")


@contextmanager
def _bar(what: str) -> "Iterator[Watch]":
    """A progress bar in bytes, if stderr is a terminal; it disappears at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),  # file names may contain brackets
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
        raise InputError("a file of molecules must be given alone, without other files.")
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
            f"One model learns all common sizes: nmln train {paths[0]}, or only some: --nodes {common}, "
            "--sizes, --max-size",
        )


def _show_dropped(dropped: "tuple[Dropped, ...]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if not dropped:
        return
    table = Table("reason dropped")
    table.add_column("lines", justify="right")
    table.add_column("first", justify="right")
    table.add_column("example")
    for drop in dropped:
        example = escape(drop.example)
        table.add_row(escape(drop.reason), f"{drop.count:,}", f"line {drop.line:,}", example)
    Console(highlight=False).print(table)


@data.command(
    epilog=examples("nmln data corrupt", "nmln data corrupt --rates 0.2,0.05,0.01 --seed 7")
)
def corrupt(
    output: Output = Path("runs/corruption"),
    rates: Annotated[
        str, typer.Option(help="Corruption rates, noisiest first, separated by commas.")
    ] = "0.1,0.01,0.005,0.0025,0.001",
    copies: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Number of corrupted copies per level.")
    ] = 10_000,
    seed: Seed = 0,
) -> None:
    """Show what corruption does to the built-in friends-and-smokers world.

    Corrupts the world at each level of a ladder and compares the changes with their exact expectation.
    Writes levels.csv, summary.json and corrupted.db.
    """
    from nmln.experiments import corruption

    one_thread()
    _show_corruption(corruption.run(output, _parse_rates(rates), copies, seed))


def _parse_rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--rates must be numbers separated by commas, got {text!r}. Write, for example, "
            "--rates 0.1,0.01,0.001."
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
        "changed: groups per copy; whole: copies without a change; swaps: worst-case bound with the "
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
