"""`nmln infer`: probabilities, the most probable world and likelihoods, given evidence."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import (
    Device,
    Overwrite,
    Seed,
    bar,
    changed_options,
    check_output,
    one_thread,
    refuse_unused,
    warn,
)
from nmln.errors import InputError

if TYPE_CHECKING:
    from nmln.inference import Answers, Best, LogProbabilities, Plan
    from nmln.runs.infer import Posed, Scored

_SHOWN = 40  # answers printed; files contain all
_CHAINS = {  # used by queries only
    "error": "--error",
    "sweeps": "--sweeps",
    "burn_in": "--burn-in",
    "chains": "--chains",
    "kernel": "--kernel",
}


def infer(
    model: Annotated[
        list[Path],
        typer.Option(
            "-i",
            "--input",
            help="A .mln file or the folder of a trained model. May be repeated: formulas of all files "
            "are added; at most one folder.",
        ),
    ],
    query: Annotated[
        str,
        typer.Option(
            "-q",
            "--query",
            help="What to ask, separated by commas: predicates (cancer or friends/2), atoms with "
            "variables (friends(Anna, x)), formulas.",
        ),
    ] = "",
    evidence: Annotated[
        Path | None,
        typer.Option(
            "-e",
            "--evidence",
            help="A .db file with the known atoms. A line '0.8 smokes(Anna)' is virtual evidence: an "
            "observation that is right with probability 0.8.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the answers to this .db, .csv or .json file."),
    ] = None,
    closed: Annotated[
        str,
        typer.Option(
            "-cw",
            "--closed",
            help="Predicates, separated by commas, whose unlisted atoms are false; '*': all that the "
            "query does not ask for.",
        ),
    ] = "",
    opened: Annotated[
        str,
        typer.Option(
            "-ow",
            "--open",
            help="Predicates that --closed '*' leaves open, separated by commas.",
        ),
    ] = "",
    formula: Annotated[
        list[str] | None,
        typer.Option(
            help="Add a formula, with a weight ('1.5 ...') or hard ('... .'). May be repeated."
        ),
    ] = None,
    most_probable: Annotated[
        bool, typer.Option("--map", help="Find the most probable world instead.")
    ] = False,
    likelihood: Annotated[
        Path | None,
        typer.Option(
            help="Report log P in nats of each world in this .db file instead. Without --evidence and "
            "--size a trained model is put on the constants of each world."
        ),
    ] = None,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--sample",
            help="Enumerate all worlds, or run chains. By default worlds are enumerated if there are "
            "at most 2^20 (2^16 for networks).",
        ),
    ] = None,
    error: Annotated[
        float, typer.Option(help="Stop when every standard error of a probability is below this.")
    ] = 0.01,
    sweeps: Annotated[
        int, typer.Option(min=4, help="Stop after this many sweeps at the latest.")
    ] = 20_000,
    burn_in: Annotated[int, typer.Option(min=0, help="Sweeps discarded at the start.")] = 100,
    chains: Annotated[int, typer.Option(min=1, help="Number of independent chains.")] = 40,
    levels: Annotated[
        int,
        typer.Option(
            min=1, help="Number of temperatures of parallel tempering (.mln models only)."
        ),
    ] = 6,
    hottest: Annotated[
        float, typer.Option(help="Highest temperature; the lowest is 1 (.mln models only).")
    ] = 10.0,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of constants, for a trained model of several sizes, or on another one.",
            show_default="those of the evidence",
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            help="Kernel: gibbs, metropolis, balanced, gradients, langevin, path, ...; by default "
            "chosen for the model."
        ),
    ] = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    device: Device = "auto",
) -> None:
    """Compute the probability of atoms and formulas given evidence.

    Small spaces are enumerated, so the answers are exact. Otherwise chains run until the standard
    errors are below --error, with warnings if they have not mixed. An atom that the evidence does not
    list is unknown, unless its predicate is closed.
    """
    given = changed_options(infer, locals())
    one_thread()
    from nmln.inference import Plan
    from nmln.runs import infer as inference

    if not (query.strip() or most_probable or likelihood is not None):
        raise InputError(
            "the query is empty. Name predicates, atoms or formulas, for example "
            "-q 'cancer,friends(Anna, x)', or give --map or --likelihood."
        )
    if sum((bool(query.strip()), most_probable, likelihood is not None)) > 1:
        raise InputError(
            "only one of --query, --map and --likelihood can be given. Ask one thing at a time."
        )
    if not query.strip():
        verb = "--map" if most_probable else "--likelihood"
        refuse_unused(given, _CHAINS, f"has no effect with {verb}. Leave it out.")
    if output is not None:
        check_output(output, overwrite, [*model, evidence, likelihood])
    plan = Plan(chains, burn_in, sweeps, error, kernel=kernel)
    settings: dict[str, Any] = {
        "closed": _names(closed), "opened": _names(opened), "formulas": formula or (),
        "levels": levels, "hottest": hottest, "size": size, "device": device,
    }  # fmt: skip
    if likelihood is not None:
        scored = inference.pose_worlds(model, likelihood, evidence, **settings)
        for one in scored:
            _show(one.posed, chains)
        _likelihood(scored, exact, seed, output)
        return
    posed = inference.pose(model, evidence, query, **settings)
    _show(posed, chains)
    if most_probable:
        _world(posed, exact, seed, output)
    else:
        _answers(posed, query, plan, exact, seed, output)


def _show(posed: "Posed", chains: int) -> None:
    memory = max(1, posed.memory(chains) // 2**20)
    typer.echo(f"{posed} About {memory:,} MiB for the chains.", err=True)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _command() -> str:
    return shlex.join(["nmln", *sys.argv[1:]])


def _answers(
    posed: "Posed", query: str, plan: "Plan", exact: bool | None, seed: int, output: Path | None
) -> None:
    from nmln.devices import generator
    from nmln.runs import infer as inference

    with bar("answering") as tell:
        answers = posed.conditional.marginals(
            query,
            generator(posed.conditional.target.device, seed),
            plan=plan,
            exactly=exact,
            progress=tell,
        )
    _tell(answers)
    if output is not None:
        inference.write_answers(output, answers, _command())
        typer.echo(f"Written: {output}")


def _tell(answers: "Answers") -> None:
    for answer in answers.answers[:_SHOWN]:
        typer.echo(str(answer))
    if len(answers) > _SHOWN:
        typer.echo(f"… and {len(answers) - _SHOWN:,} more; -o FILE writes all of them.")
    typer.echo(answers.method)
    for warning in answers.warnings:
        warn(warning)


def _world(posed: "Posed", exact: bool | None, seed: int, output: Path | None) -> None:
    from nmln.devices import generator
    from nmln.runs import infer as inference
    from nmln.worlds import to_text

    with bar("searching") as tell:
        best: Best = posed.conditional.most_probable(
            generator(posed.conditional.target.device, seed), exactly=exact, progress=tell
        )
    if output is None:
        typer.echo(to_text(posed.space, best.world))
    typer.echo(f"{best.method} Its score is {best.score:.4f}.", err=output is None)
    for warning in best.warnings:
        warn(warning)
    if output is not None:
        inference.write_world(output, posed, best, _command())
        typer.echo(f"Written: {output}")


def _likelihood(scored: "list[Scored]", exact: bool | None, seed: int, output: Path | None) -> None:
    from nmln.buckets import name_of
    from nmln.devices import generator
    from nmln.runs import infer as inference

    found: list[LogProbabilities] = []
    with bar("annealing") as tell:
        for one in scored:
            rng = generator(one.posed.conditional.target.device, seed)
            found.append(
                one.posed.conditional.log_probability(one.worlds, rng, exactly=exact, progress=tell)
            )
    worlds = inference.in_order(scored, found)
    for one in worlds[:_SHOWN]:
        between = "" if one.exact else f", between {one.least:.4f} and {one.most:.4f}"
        given = f" given {one.domain} constants" if len(scored) > 1 else ""
        typer.echo(f"world {one.world}: log P = {one.value:.4f}{between}{given}")
    for some, logs in zip(scored, found, strict=True):
        of = f"{name_of(some.posed.space)} constants: " if len(scored) > 1 else ""
        typer.echo(f"{of}{logs.method}")
        for warning in logs.warnings:
            warn(warning)
    if output is not None:
        inference.write_likelihoods(output, worlds)
        typer.echo(f"Written: {output}")
