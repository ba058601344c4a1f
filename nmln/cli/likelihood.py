"""`nmln likelihood`: the log-likelihood of training and held-out data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Data, Device, Seed, bar, one_thread, warn

if TYPE_CHECKING:
    from nmln.partition import LogZBracket
    from nmln.runs.likelihood import Mean


def likelihood(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    chains: Annotated[int, typer.Option(min=2, help="Annealing chains per direction.")] = 100,
    steps: Annotated[int, typer.Option(min=1, help="Annealing steps per direction.")] = 3000,
    sweeps: Annotated[
        int, typer.Option(min=3, help="Sweeps of the chains that link neighbouring levels.")
    ] = 1000,
    seed: Seed = 0,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Estimate the mean log-likelihood, in nats, of a run's training and test data.

    log Z is estimated by annealing from a model of independent groups to the noisiest level and back,
    and by samples that link neighbouring levels. The two directions give a lower and an upper estimate;
    if they are far apart, increase --steps and --sweeps. Of several sizes, log P(world) is log P(size)
    + log P(world | size), and each size has its own log Z. Writes likelihood.json.
    """
    one_thread()
    from nmln.runs import likelihood as job

    with bar("annealing") as tell:
        found = job.run(
            run, chains=chains, steps=steps, sweeps=sweeps, seed=seed, progress=tell, data=data,
            device=device,
        )  # fmt: skip
    _tell("world", found.train_worlds, found.test_worlds)
    if found.train_molecules is not None:
        _tell("molecule", found.train_molecules, found.test_molecules)
    if not found.by_size:
        _tell_log_z(found.partition, chains, sweeps)
    for size, (share, given_size) in found.by_size.items():
        typer.echo(f"size {size}, {share:.1%} of the data; given the size:")
        best = given_size.train_molecules or given_size.train_worlds
        test = given_size.test_molecules or given_size.test_worlds
        _tell("world" if given_size.train_molecules is None else "molecule", best, test)
        _tell_log_z(given_size.partition, chains, sweeps)
    typer.echo(f"Written: {run / 'likelihood.json'}")


def _tell_log_z(part: "LogZBracket", chains: int, sweeps: int) -> None:
    least, most = part.interval
    typer.echo(
        f"log Z: {part.value:.2f} +- {part.error:.2f}, between {least:.2f} and {most:.2f} (from below "
        f"{part.low:.2f} +- {part.low_error:.2f}, from above {part.high:.2f} +- {part.high_error:.2f}; "
        f"effective number of chains: {part.effective_size:.0f} of {chains})"
    )
    if part.missed:
        warn(
            f"the data alone contribute {part.data:.2f} to log Z, more than the chains found: the "
            "chains miss probable worlds. The log-likelihoods above are upper bounds; train with more "
            "moves per step, or for a shorter time."
        )
    elif part.contradictory:
        warn(
            "the lower estimate of log Z must not exceed the upper one, but does: the chains have not "
            f"converged. Use more sweeps, for example --sweeps {3 * sweeps}."
        )


def _tell(what: str, train: "Mean", test: "Mean | None") -> None:
    held_out = "" if test is None else f", test {test.value:.2f} +- {test.error:.2f}"
    typer.echo(
        f"mean log-likelihood, nats per {what}: train {train.value:.2f} +- {train.error:.2f}{held_out}"
    )
