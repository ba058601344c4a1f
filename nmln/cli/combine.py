"""`nmln combine`: combine several runs into one model."""

from pathlib import Path
from typing import Annotated

import typer

from nmln.cli.common import Data, one_thread, progress


def combine(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs on the same data.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the model.")],
    fit: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of steps that fit one weight per run and level; 0 weights all runs equally.",
        ),
    ] = 0,
    pieces: Annotated[
        bool,
        typer.Option(
            "--pieces",
            help="Also fit a cost per connected component (for molecules: per separate fragment). "
            "Needs --fit.",
        ),
    ] = False,
    data: Data = None,
) -> None:
    """Combine several runs into one model whose score is the mean of theirs.

    Independent runs make different mistakes, and the mean makes each of them improbable. Train the runs
    with the same settings and different seeds; --fit then learns a weight for each. The result is used
    like any run; sampling takes as long as all runs together.
    """
    one_thread()
    from nmln.runs.combine import combine as work

    with progress("fitting", fit) as tick:
        model = work(runs, output, fit, lambda _: tick(), pieces=pieces, data=data)
    typer.echo(f"Written: {output}, the mean of {model.config.model.networks} networks")
