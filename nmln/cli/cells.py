"""The work on cells for the command line: chosen, listed, run in child processes, drawn."""

import ctypes
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from typing import TYPE_CHECKING

import typer

from nmln.cli.common import fail, one_thread
from nmln.errors import InputError, InterruptedRunError
from nmln.extras import require
from nmln.signals import raising

if TYPE_CHECKING:
    from nmln.reproduction.cells import Job
    from nmln.reproduction.grid import Figure
    from nmln.reproduction.work import Grid

_CHILD = "from nmln.cli.cells import child; child()"
_DEATH = 1  # PR_SET_PDEATHSIG of Linux


def perform(
    verb: str,
    made: "Grid",
    figures: Sequence["Figure"],
    cells: str | None,
    listed: bool,
    yes: bool,
    experiments: bool = False,
) -> None:
    """Work on the cells of some figures, then draw them."""
    from nmln.reproduction.cells import Cell
    from nmln.reproduction.grid import jobs_of
    from nmln.reproduction.work import check

    jobs = _chosen(jobs_of(figures, experiments), cells)
    if listed:
        for job in jobs:
            if made.state(job) != "done":
                typer.echo(_command(verb, "--cells", job.name))
        return
    strings = any(isinstance(job, Cell) and job.method.kind == "strings" for job in jobs)
    extras = ("rdkit", "pooch", "matplotlib", *(("selfies",) if strings else ()))
    require(f"nmln reproduce {verb}", *extras)
    one_thread()
    for job in jobs:
        check(made, job)
    failed, busy = _work(made, jobs, _command(verb), yes)
    if cells is None:
        _finish(made, figures)
    for name in busy:
        typer.echo(f"{name}: another process works on it", err=True)
    if failed:
        fail("; ".join(failed))


def _chosen(jobs: "list[Job]", cells: str | None) -> "list[Job]":
    if cells is None:
        return jobs
    patterns = [one.strip() for one in cells.split(",")]
    for pattern in patterns:
        if not any(fnmatch(job.name, pattern) for job in jobs):
            raise InputError(
                f"--cells must name cells of this command, but {pattern!r} is none. --list shows them, "
                f"for example {jobs[0].name}.",
                token=pattern,
                kind="unknown",
            )
    return [job for job in jobs if any(fnmatch(job.name, pattern) for pattern in patterns)]


def _work(
    made: "Grid", jobs: "Sequence[Job]", again: str, yes: bool
) -> tuple[list[str], list[str]]:
    """Bring cells to their end; the errors of those that failed, and those that others work on."""
    from nmln.reproduction.work import CellFailedError, start_as, work_on

    left = made.expected(jobs)
    whole = in_words(sum(left.values()))
    done = len(jobs) - len(left)
    typer.echo(
        f"{len(jobs)} cells, {done} done; the others take about {whole} of one processor core",
        err=True,
    )
    if left and made.budget.full and not yes:
        _ask(whole)
    start = partial(start_as, [sys.executable, "-c", _CHILD, str(os.getpid())])
    failed, busy = list[str](), list[str]()
    try:
        with raising():
            for place, job in enumerate(jobs, 1):
                if made.state(job) == "done":
                    continue
                minutes = left.get(job.name, 0.0)
                typer.echo(f"[{place}/{len(jobs)}] {job.name}, about {minutes:.0f} min", err=True)
                try:
                    if not work_on(made, job, start):
                        busy.append(job.name)
                except CellFailedError as error:
                    typer.secho("failed: ", fg="red", nl=False, err=True)
                    typer.echo(str(error), err=True)
                    failed.append(str(error))
    except InterruptedRunError as error:
        raise InterruptedRunError(error.message, again) from None
    except KeyboardInterrupt:
        raise InterruptedRunError("stopped between two cells.", again) from None
    return failed, busy


def in_words(minutes: float) -> str:
    """A time that is only an estimate."""
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:,.1f} hours"


def _ask(whole: str) -> None:
    """Ask before days of computing."""
    question = f"This takes about {whole} of one processor core. Start?"
    if sys.stdin.isatty():
        typer.confirm(question, abort=True)
        return
    raise InputError(
        f"this takes about {whole} of one processor core. Give --yes to start it.",
        token="--yes",
        kind="missing",
    )


def _finish(made: "Grid", figures: "Sequence[Figure]") -> None:
    """Condense and draw the figures, and write the page."""
    from nmln.reproduction.figures import draw_all
    from nmln.reproduction.pages import write_html
    from nmln.reproduction.results import condense

    written = []
    for figure in figures:
        numbers = condense(made, figure)
        written += draw_all(numbers, made.figures)
        if numbers["missing"]:
            typer.echo(f"{figure.name}: {len(numbers['missing'])} cells are missing", err=True)
    page = write_html(made.folder)
    typer.echo(
        f"{len(written)} pictures in {made.figures}, numbers in {made.results}. Page: {page}"
    )


def _command(verb: str, *more: str) -> str:
    """This command without `--cells` and `--list`, and with other words instead."""
    words, given = [], iter(sys.argv[sys.argv.index(verb) + 1 :] if verb in sys.argv else [])
    for word in given:
        if word == "--cells":
            next(given, None)
        elif word != "--list" and not word.startswith("--cells="):
            words.append(word)
    return shlex.join(["nmln", "reproduce", verb, *words, *more])


def child() -> None:
    """Run a command of a cell; it is asked to end when the process that started it is gone."""
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(130)
    from nmln.cli import main

    main()
