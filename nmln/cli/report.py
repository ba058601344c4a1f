"""`nmln report`: a page about a training run."""

from pathlib import Path
from typing import Annotated

import typer

from nmln.cli.common import one_thread
from nmln.extras import require


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
) -> None:
    """Write report.html about a run: findings, training curves and settings.

    Uses only the files of the run, during training or after it. Also writes training.png, training.svg
    and training.csv, all into the run's folder.
    """
    require("nmln report", "matplotlib")
    one_thread()
    from nmln.runs import pipeline
    from nmln.runs.job import read_settings
    from nmln.runs.pages import write_report

    if read_settings(run) is not None and pipeline.sampled(run):
        outcome = pipeline.conclude(run)  # this page covers training and samples
        typer.echo("Written: " + ", ".join(map(str, outcome.written)))
        return

    made = write_report(run)
    for finding in made.findings:
        if finding.warning:
            typer.secho("note: ", fg="yellow", nl=False, err=True)
            typer.echo(finding.text, err=True)
        else:
            typer.echo(finding.text)
    typer.echo("Written: " + ", ".join(map(str, made.written)))
