"""`nmln run`: train on molecules, generate new ones and write a report."""

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

from nmln.cli.common import (
    Device,
    From,
    MaxSize,
    Size,
    Sizes,
    one_thread,
    seed_option,
    settings_in,
    sizes_in,
    spinner,
)
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
        str, typer.Option(help="A named set of molecules, or a .smi or .csv file.")
    ] = "pubchem-10",
    size: Size = None,
    sizes: Sizes = None,
    max_size: MaxSize = None,
    start: From = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Minutes of training. Generating takes about a third as long again, or longer if "
            "10,000 samples per level need it.",
            show_default="7",
        ),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Samples drawn at each noise level, invalid ones included. By default chosen to fit "
            "the time, from 10,000 to 200,000.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="runs/main-NAME")
    ] = None,
    seed: Annotated[
        int,
        seed_option(
            "Random seed. Runs limited by time differ; for an exact repeat add --set training.steps=N, "
            "--num-samples and the same --processes."
        ),
    ] = 0,
    processes: Annotated[
        int, typer.Option(min=0, help="Number of processes; 0 uses one per core.")
    ] = 0,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a training setting: NAME=VALUE. May be repeated."),
    ] = None,
    device: Device = "auto",
    chains: Annotated[int, typer.Option(min=1, hidden=True)] = 100,
    burn_in: Annotated[int, typer.Option(min=0, hidden=True)] = 300,
) -> None:
    """Train on molecules, generate new ones and write a report on their quality.

    Trains on four fifths of the molecules, samples every noise level, compares the samples with the
    held-out fifth and writes report.html. If it is interrupted, the same command continues.
    """
    require("nmln run", "rdkit", "pooch", "matplotlib")
    one_thread()
    from nmln.devices import processes_of
    from nmln.runs import pipeline

    began, changes = time.monotonic(), settings_in(change or [])
    if device != "auto":
        changes["training.device"] = device
    settings = pipeline.JobSettings(
        data, size, minutes, num_samples, seed, changes, chains, burn_in,
        sizes_in(sizes), max_size, start,
    )  # fmt: skip
    folder = output or Path("runs") / _name(data, settings)
    command = shlex.join(["nmln", *sys.argv[1:]])
    check_processes(processes)
    with _kept(command), stoppable(command):
        count = processes or processes_of(settings.config().training.device) or cores()
        outcome = pipeline.run(folder, settings, count, _performer(command))
    _show(outcome, time.monotonic() - began)


def _performer(command: str) -> "Performer":
    """Performs stages in several processes and shows their progress."""
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
                    "device": None,
                }
                perform("resume", count, folder, again)
            else:
                config = job.config(count, job.begun())
                start_training(folder, config, count, source=source, start=job.start)

        def draw(self, job: "SamplingJob", folder: Path, count: int) -> None:
            draw(job, folder, count, self.command)

        @contextmanager
        def showing(self) -> Iterator["Say"]:
            with spinner() as say:
                yield say

    performer = Shown()
    performer.command = command
    return performer


def _name(data: str, settings: "JobSettings") -> str:
    """The default name of a job's folder, from the name of its data and their sizes."""
    name = re.sub(r"\.(gz|smi|smiles|txt|csv|tsv)", "", Path(data).name) or "job"
    if settings.sizes is not None:
        return f"main-{name}-{settings.sizes[0]}-to-{settings.sizes[-1]}"
    if settings.max_size is not None:
        return f"main-{name}-to-{settings.max_size}"
    return f"main-{name}" if settings.size is None else f"main-{name}-{settings.size}"


@contextmanager
def _kept(command: str) -> Iterator[None]:
    """Make the message of an interruption name the command that continues the whole job."""
    try:
        yield
    except InterruptedRunError as error:
        raise InterruptedRunError(error.message, command) from None
    except KeyboardInterrupt:
        raise InterruptedRunError("stopped. Finished stages are kept.", command) from None
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
    for size, (found, known) in outcome.by_size.items():
        valid = (
            f"{_percent(found.valid.value)} of {found.samples.attempts:,} valid, " if known else ""
        )
        typer.echo(
            f"size {size}: {valid}{_percent(found.coverage_test.value)} of the test set covered"
        )
    spent = ", ".join(f"{name} {_clock(one)}" for name, one in outcome.seconds.items())
    typer.echo(f"Time: {_clock(seconds)} now; {spent}.")
    typer.echo(f"Report: {outcome.report}")


def _table(outcome: "JobOutcome") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    rank = outcome.levels[-1].rank
    table = Table(
        caption=escape(
            "last row: the target; [95 % interval over chains]; unique, in train: share of the valid "
            f"samples; recall: test molecules among the {rank:,} most frequent; covered: share of the "
            "test set"
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
    """A share in percent; undefined if nothing is valid."""
    return "none" if isnan(share) else f"{share:.0%}"


def _with_interval(found: "Estimate", scale: float, form: str) -> str:
    """A number with its interval, if that is known."""
    value, *ends = (form.format(scale * number) for number in found)
    percent = "%" if scale == 100 else ""
    known = found.low == found.low
    return f"{value}{percent} [{', '.join(ends)}]" if known else f"{value}{percent}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
