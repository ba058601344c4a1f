"""`nmln likelihood`: how probable held-out worlds and molecules are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Data, Seed, bar, one_thread, warn

if TYPE_CHECKING:
    from nmln.runs.likelihood import Mean


def likelihood(
    run: Annotated[Path, typer.Argument(help="The folder of a run of training.")],
    chains: Annotated[int, typer.Option(min=2, help="Annealed chains, each way.")] = 100,
    steps: Annotated[int, typer.Option(min=1, help="Steps of annealing, each way.")] = 3000,
    sweeps: Annotated[
        int, typer.Option(min=3, help="Sweeps of the chains that lead from level to level.")
    ] = 1000,
    seed: Seed = 0,
    data: Data = None,
) -> None:
    """Estimate the log-likelihood of a run's training and test worlds, and molecules.

    log Z comes from chains annealed from independent groups to the noisiest level and back, and from
    worlds recorded at all levels. Where the estimates from below and from above lie far apart, take
    more steps and sweeps. Writes likelihood.json.
    """
    one_thread()
    from nmln.runs import likelihood as job

    with bar("annealing") as tell:
        found = job.run(
            run, chains=chains, steps=steps, sweeps=sweeps, seed=seed, progress=tell, data=data
        )
    _tell("world", found.train_worlds, found.test_worlds)
    if found.train_molecules is not None:
        _tell("molecule", found.train_molecules, found.test_molecules)
    part = found.partition
    least, most = part.interval
    typer.echo(
        f"log Z: {part.value:.2f} +- {part.error:.2f}, between {least:.2f} and {most:.2f} (from below "
        f"{part.low:.2f} +- {part.low_error:.2f}, from above {part.high:.2f} +- {part.high_error:.2f}; "
        f"{part.effective_size:.0f} of {chains} chains count)"
    )
    if part.missed:
        warn(
            f"the data alone add up to a log Z of {part.data:.2f}, more than the chains have found: "
            "they never visit some worlds of much probability. What is told are upper bounds; train "
            "with more moves a step, or for a shorter time."
        )
    elif part.contradictory:
        warn(
            "the estimate from below is above the one from above: the chains have not settled. Take "
            f"more sweeps, such as --sweeps {3 * sweeps}."
        )
    typer.echo(f"Written: {run / 'likelihood.json'}")


def _tell(what: str, train: "Mean", test: "Mean | None") -> None:
    held_out = "" if test is None else f", test {test.value:.2f} +- {test.error:.2f}"
    typer.echo(f"nats a {what}: train {train.value:.2f} +- {train.error:.2f}{held_out}")
