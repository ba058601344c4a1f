"""`nmln learn`: the weights of formulas from data, and networks where a configuration names one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Overwrite, Seed, bar, check_output, one_thread, warn
from nmln.cli.train import train

if TYPE_CHECKING:
    from nmln.training.weights import Learned


def learn(
    model: Annotated[
        Path, typer.Option("-i", "--input", help="A .mln file: predicates and formulas.")
    ],
    data: Annotated[
        Path, typer.Option("-t", "--train", help="A .db file; --- separates independent worlds.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A .mln file; with a network, the folder of the run."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; a network that it names is trained too.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting, as model.potential=fragment; may be repeated."),
    ] = None,
    prior: Annotated[
        float, typer.Option(help="Standard deviation of the Gaussian prior on a weight.")
    ] = 10.0,
    exact: Annotated[
        bool | None,
        typer.Option("--exact/--sample", help="Enumerate, or run chains; else what is quicker."),
    ] = None,
    updates: Annotated[int, typer.Option(min=2, help="Updates of the weights.")] = 150,
    chains: Annotated[int, typer.Option(min=2, help="Independent replicas.")] = 100,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Learn the weights of formulas by likelihood.

    Learning starts from the weights in the file; hard formulas stay as they are. What the data do not
    list is false. Writes the formulas with their weights, templates written out. With --config or --set
    the potential that is named there is trained beside the formulas, as `nmln train` does.
    """
    if config is not None or change:
        train(
            str(data), output=output, config=config, language=model, seed=seed, change=change or []
        )
        return
    one_thread()
    from nmln.runs import learn as learning
    from nmln.training.weights import Recipe

    program, target = learning.read_program(model), learning.target_of(model, output)
    check_output(target, overwrite, [model, data])
    job = learning.begin(program, data, target)
    typer.echo(f"{len(job.worlds):,} worlds; {job.space.measure}", err=True)
    recipe = Recipe(prior=prior, updates=updates, chains=chains)
    with bar("learning") as show:
        found = learning.run(job, recipe, seed=seed, exactly=exact, progress=show)
    _tell(found)
    typer.echo(f"Written: {job.target}")


def _tell(found: "Learned") -> None:
    for formula, weight, error in zip(found.formulas, found.weights, found.errors, strict=False):
        typer.echo(f"{weight:9.4f} +- {error:.4f}  {formula.formula}")
    how = "every world enumerated" if found.exact else "the model sampled by chains"
    told = (
        ""
        if found.log_likelihood is None
        else f", log-likelihood {found.log_likelihood:.4f} per world"
    )
    typer.echo(f"{found.updates} updates, {how}{told}.")
    for warning in found.warnings:
        warn(warning)
