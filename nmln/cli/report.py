"""`nmln report`: a page about a run of training."""

from pathlib import Path
from typing import Annotated

import typer

from nmln.cli.common import one_thread
from nmln.extras import require


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run of training.")],
) -> None:
    """Write a page about a run: what its curves say, the curves, and its settings.

    Made from the files of the run alone, during training or after it: report.html, training.png,
    training.svg and training.csv, all in its folder.
    """
    require("nmln report", "matplotlib")
    one_thread()
    from nmln.runs import pipeline
    from nmln.runs.pages import write_report

    if pipeline.read_settings(run) is not None and pipeline.sampled(run):
        outcome = pipeline.conclude(run)  # its page has more to show than the training
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
