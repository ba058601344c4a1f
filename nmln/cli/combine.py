"""`nmln combine`: several runs as one model."""

from pathlib import Path
from typing import Annotated

import typer

from nmln.cli.common import Data, one_thread, progress


def combine(
    runs: Annotated[list[Path], typer.Argument(help="The folders of runs on the same data.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder for the model.")],
    fit: Annotated[
        int,
        typer.Option(
            min=0,
            help="Steps that fit how much each run counts at each level, and what a further piece of a "
            "world costs where runs count pieces; 0: all runs count alike.",
        ),
    ] = 0,
    pieces: Annotated[
        bool,
        typer.Option(
            "--pieces",
            help="Let --fit also learn what each further piece of a world costs, where the runs do not.",
        ),
    ] = False,
    data: Data = None,
) -> None:
    """Make one model of several runs: its score is the mean of theirs.

    What is wrong in each is wrong in its own way, and improbable for the others. Train them with the
    same settings but another --seed each; --fit then learns the weight of each. The model is sampled,
    evaluated and measured like a run, and costs as much time as all of them together.
    """
    one_thread()
    from nmln.runs.combine import combine as work

    with progress("fitting", fit) as tick:
        model = work(runs, output, fit, lambda _: tick(), pieces=pieces, data=data)
    typer.echo(f"Written: {output}, the mean of {model.config.model.networks} networks")
