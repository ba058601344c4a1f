"""What all commands share: options, messages, a bar."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Repeats a run exactly.")]
Seeds = Annotated[int, typer.Option(min=2, max=10_000, help="Independent repetitions.")]
Output = Annotated[Path, typer.Option(help="Where the results go.")]


def fail(message: str, code: int = 2) -> None:
    if os.environ.get("RANK", "0") == "0":  # of several processes one speaks for all
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(message, err=True)
    raise SystemExit(code)


def warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is a sentence for the user, not a line of our code."""
    typer.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
    typer.echo(str(message), err=True)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar while a terminal watches, and nothing left of it afterwards."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def one_thread() -> None:
    """One compute thread a process: a second one costs more than it gives on a loaded machine."""
    import torch

    torch.set_num_threads(1)
