"""`nmln likelihood`: how probable held-out worlds are."""

from pathlib import Path
from typing import Annotated

import typer

from nmln.cli.common import Seed, one_thread, progress


def likelihood(
    run: Annotated[Path, typer.Argument(help="The folder of a run of training.")],
    chains: Annotated[int, typer.Option(min=2, help="Annealed chains.")] = 100,
    steps: Annotated[int, typer.Option(min=1, help="Steps from uniform to the model.")] = 1000,
    seed: Seed = 0,
) -> None:
    """Estimate the log-likelihood of a run's training and test worlds.

    By annealed importance sampling from the uniform distribution; writes likelihood.json. log Z comes
    out low on average: if few chains count, take more steps.
    """
    one_thread()
    from nmln.workflow import likelihood as job

    with progress("annealing", steps) as tick:
        found = job.run(run, chains=chains, steps=steps, seed=seed, progress=lambda *_: tick())
    test = "" if found.test is None else f", test {found.test:.2f}"
    typer.echo(
        f"nats a world: train {found.train:.2f}{test} (log Z {found.log_z:.2f} +- "
        f"{found.log_z_error:.2f}, {found.effective_size:.0f} of {chains} chains count)"
    )
    typer.echo(f"Written: {run / 'likelihood.json'}")
