"""`nmln learn`: learn the weights of formulas, and networks if a configuration names one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import (
    Overwrite,
    Seed,
    bar,
    changed_options,
    check_output,
    one_thread,
    refuse_unused,
    warn,
)
from nmln.cli.train import train
from nmln.errors import InputError

if TYPE_CHECKING:
    from nmln.training.weights import Learned

_WEIGHTS = {  # used without a network only
    "prior": "--prior",
    "exact": "--exact/--sample",
    "updates": "--updates",
    "chains": "--chains",
    "overwrite": "--overwrite",
}


def learn(
    model: Annotated[
        Path, typer.Option("-i", "--input", help="A .mln file with predicates and formulas.")
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            "-t",
            "--train",
            help="A .db file; a line '---' separates independent worlds; unlisted atoms are false. May "
            "be repeated: every file has constants of its own, unless they are declared.",
        ),
    ],
    domains: Annotated[
        str | None,
        typer.Option(
            help="Constants of worlds that the .mln file does not declare: 'common' to all worlds of a "
            "file, or of 'each' world those that it names.",
            show_default="common",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The .mln file to write, by default NAME-learned.mln; with a network, the folder of "
            "the run.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings; the network that it names is trained too."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: NAME=VALUE. May be repeated."),
    ] = None,
    prior: Annotated[
        float, typer.Option(help="Standard deviation of the Gaussian prior on each weight.")
    ] = 10.0,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--sample",
            help="Enumerate all worlds, or run chains. By default worlds are enumerated if there are "
            "at most 2^20.",
        ),
    ] = None,
    updates: Annotated[
        int,
        typer.Option(
            min=2, help="Number of weight updates (an upper limit if worlds are enumerated)."
        ),
    ] = 150,
    chains: Annotated[int, typer.Option(min=2, help="Number of independent chains.")] = 100,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Learn the weights of formulas by maximum likelihood, with a Gaussian prior.

    Starts from the weights in the file; hard formulas are left unchanged. Atoms that the data do not
    list are false. Writes a .mln file in which formula templates are expanded. With --config or --set,
    a network is trained together with the formulas, as nmln train does.
    """
    given = changed_options(learn, locals())
    if config is not None or change:
        reason = "has no effect with --config or --set, which train a network. Leave it out."
        refuse_unused(given, _WEIGHTS, reason)
        if len(data) > 1:
            raise InputError(
                f"a network is trained on one file or folder, but {len(data)} are given. Put the files "
                "into a folder: nmln train FOLDER --domains each --language FILE.mln",
                token="--train",
                kind="unsupported",
            )
        train(
            str(data[0]),
            output=output,
            config=config,
            language=model,
            domains=domains,
            seed=seed,
            change=change or [],
        )
        return
    one_thread()
    from nmln.runs import learn as learning
    from nmln.training.weights import Recipe

    program, target = learning.read_program(model), learning.target_of(model, output)
    check_output(target, overwrite, [model, *data])
    job = learning.begin(program, data, target, domains, model)
    typer.echo(str(job), err=True)
    for note in job.worlds.notes:
        typer.echo(f"note: {note}", err=True)
    recipe = Recipe(prior=prior, updates=updates, chains=chains)
    with bar("learning") as show:
        found = learning.run(job, recipe, seed=seed, exactly=exact, progress=show)
    _tell(found)
    typer.echo(f"Written: {job.target}")


def _tell(found: "Learned") -> None:
    for formula, weight, error in zip(found.formulas, found.weights, found.errors, strict=False):
        typer.echo(f"{weight:9.4f} +- {error:.4f}  {formula.formula}")
    how = "all worlds enumerated" if found.exact else "model expectations from chains"
    shown = (
        ""
        if found.log_likelihood is None
        else f", log-likelihood {found.log_likelihood:.4f} per world"
    )
    typer.echo(f"{found.updates} updates, {how}{shown}.")
    for warning in found.warnings:
        warn(warning)
