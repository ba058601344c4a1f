"""`nmln learn`: the weights of formulas from data, and networks where a configuration names one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Overwrite, Seed, bar, check_output, one_thread, warn
from nmln.cli.train import train
from nmln.errors import InputError

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

    The weights in the file are where it begins; hard formulas stay as they are. What the data do not
    list is false. Writes the formulas with their weights, templates written out. With --config or --set
    the potential that is named there is trained beside the formulas, as `nmln train` does.
    """
    if config is not None or change:
        train(
            str(data), output=output, config=config, language=model, seed=seed, change=change or []
        )
        return
    one_thread()
    from torch import Generator

    from nmln.formats.db import read_db
    from nmln.formats.mln import Program, read_mln, write_mln
    from nmln.training.weights import Recipe, learn_weights

    program = read_mln(model)
    if not program.formulas:
        raise InputError("there is no formula in this file, so no weight to learn.", str(model))
    target = output or model.with_name(f"{model.stem}-learned.mln")
    if target.suffix.lower() != ".mln":
        raise InputError(f"learned formulas are written to a .mln file, but not to {target}.")
    check_output(target, overwrite, [model, data])
    space, worlds = read_db(data, program.language, program.domain)
    typer.echo(f"{len(worlds):,} worlds; {space.measure}", err=True)
    with bar("learning") as tell:
        found = learn_weights(
            space, program.formulas, worlds, Generator().manual_seed(seed),
            Recipe(prior=prior, updates=updates, chains=chains), exactly=exact, progress=tell,
        )  # fmt: skip
    _tell(found)
    write_mln(target, Program(program.language, dict(program.domain), found.formulas))
    typer.echo(f"Written: {target}")


def _tell(found: "Learned") -> None:
    for formula, weight, error in zip(found.formulas, found.weights, found.errors, strict=False):
        typer.echo(f"{weight:9.4f} +- {error:.4f}  {formula.formula}")
    how = "every world enumerated" if found.exact else "the model sampled by chains"
    told = (
        ""
        if found.log_likelihood is None
        else f", log-likelihood {found.log_likelihood:.4f} a world"
    )
    typer.echo(f"{found.updates} updates, {how}{told}.")
    for warning in found.warnings:
        warn(warning)
