"""`nmln run`: the main job, from a file of molecules to a report."""

import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Seed, one_thread, settings_in, spinner
from nmln.cli.processes import check_processes, cores, stoppable
from nmln.cli.stages import perform
from nmln.errors import InterruptedRunError
from nmln.extras import require

if TYPE_CHECKING:
    from rich.table import Table

    from nmln.evaluation import Estimate
    from nmln.runs.data import Source
    from nmln.runs.pipeline import JobOutcome, JobSettings, Performer, Say
    from nmln.runs.stream import SamplingJob


def run(
    data: Annotated[
        str, typer.Option(help="A set of molecules by its name, or a .smi or .csv file.")
    ] = "pubchem-10",
    size: Annotated[
        int | None,
        typer.Option(
            "--size", "--nodes", min=1, help="Heavy atoms, where there are several sizes."
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Of training, 7 by default; generating takes a third of it."),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Attempts at each level; by default as many as fit into the time."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The folder of the results; by default runs/main-NAME.")
    ] = None,
    seed: Seed = 0,
    processes: Annotated[int, typer.Option(min=0, help="0: one for each core.")] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Any setting of the training, as chains.moves=5; may be repeated."
        ),
    ] = None,
    chains: Annotated[int, typer.Option(min=1, hidden=True)] = 100,
    burn_in: Annotated[int, typer.Option(min=0, hidden=True)] = 300,
) -> None:
    """Run the main job: learn from molecules, generate new ones, and tell how good they are.

    Trains on four fifths of the molecules, samples every noise level, compares with the fifth that was
    kept apart, and writes report.html. Stopped at any time, the same command goes on where it stopped.
    """
    require("nmln run", "rdkit", "pooch", "matplotlib")
    one_thread()
    from nmln.runs import pipeline

    began = time.monotonic()
    settings = pipeline.JobSettings(
        data, size, minutes, num_samples, seed, settings_in(change or []), chains, burn_in
    )
    folder = output or Path("runs") / _name(data, size)
    command = shlex.join(["nmln", *sys.argv[1:]])
    check_processes(processes)
    with _kept(command), stoppable(command):
        outcome = pipeline.run(folder, settings, processes or cores(), _performer(command))
    _show(outcome, time.monotonic() - began)


def _performer(command: str) -> "Performer":
    """Stages on the command line: in several processes, with a line for each and a display."""
    from nmln.cli.sample import draw
    from nmln.cli.train import start_training
    from nmln.runs import pipeline
    from nmln.runs.folder import RunFolder

    class Shown(pipeline.Performer):
        def on_stage(self, number: int, text: str) -> None:
            typer.secho(f"[{number}/{pipeline.STAGES}] ", fg="blue", bold=True, nl=False, err=True)
            typer.echo(text, err=True)

        def on_note(self, text: str) -> None:
            typer.echo(f"      {text}", err=True)

        def train(
            self, folder: Path, job: "JobSettings", source: "Source | None", count: int
        ) -> None:
            if RunFolder(folder).is_run:
                again = {
                    "folder": str(folder),
                    "data": None,
                    "language": None,
                    "tensorboard": False,
                }
                perform("resume", count, folder, again)
            else:
                start_training(folder, job.config(count), count, source=source)

        def draw(self, job: "SamplingJob", folder: Path, count: int) -> None:
            draw(job, folder, count, self.command)

        @contextmanager
        def showing(self) -> Iterator["Say"]:
            with spinner() as say:
                yield say

    performer = Shown()
    performer.command = command
    return performer


def _name(data: str, size: int | None) -> str:
    """The folder of a job, by its data."""
    name = re.sub(r"\.(gz|smi|smiles|txt|csv|tsv)", "", Path(data).name) or "job"
    return f"main-{name}" if size is None else f"main-{name}-{size}"


@contextmanager
def _kept(command: str) -> Iterator[None]:
    """When the job is stopped, the message names the command that continues all of it."""
    try:
        yield
    except InterruptedRunError as error:
        raise InterruptedRunError(error.message, command) from None
    except KeyboardInterrupt:
        raise InterruptedRunError("stopped. What is finished is kept.", command) from None
    except (typer.Exit, SystemExit) as left:
        code = left.exit_code if isinstance(left, typer.Exit) else left.code
        if code not in (0, 2):
            typer.echo(f"Or continue the whole job with: {command}", err=True)
        raise


def _show(outcome: "JobOutcome", seconds: float) -> None:
    from rich.console import Console

    for text in outcome.findings:
        typer.secho("note: ", fg="yellow", nl=False, err=True)
        typer.echo(text, err=True)
    Console(highlight=False).print(_table(outcome))
    spent = ", ".join(f"{name} {_clock(one)}" for name, one in outcome.seconds.items())
    typer.echo(f"{_clock(seconds)} now; {spent}.")
    typer.echo(f"Report: {outcome.report}")


def _table(outcome: "JobOutcome") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    rank = outcome.levels[-1].rank
    table = Table(
        caption=escape(
            "last: the target; [95 % interval over chains]; unique, in train: of the valid; recall: "
            f"test molecules among the {rank:,} most frequent; covered: of the test set"
        ),
        caption_justify="left",
    )
    for name in ("level", "valid", "unique", "in train", f"recall@{rank:,}", "covered"):
        table.add_column(name, justify="right")
    for one in outcome.levels:
        table.add_row(
            escape(one.name),
            escape(_with_interval(one.valid, 100, "{:.1f}")),
            _percent(one.found.unique.value),
            _percent(one.known_train.value),
            escape(_with_interval(one.recall, 1, "{:.0f}")),
            f"{one.found.coverage_test.value:.0%}",
            style="bold" if one is outcome.levels[-1] else None,
        )
    return table


def _percent(share: float) -> str:
    """A share, which nothing has where nothing is valid."""
    return "none" if isnan(share) else f"{share:.0%}"


def _with_interval(found: "Estimate", scale: float, form: str) -> str:
    """A number and its interval, which may be unknown."""
    value, *ends = (form.format(scale * number) for number in found)
    percent = "%" if scale == 100 else ""
    known = found.low == found.low
    return f"{value}{percent} [{', '.join(ends)}]" if known else f"{value}{percent}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
