"""`nmln sample`: molecules or other worlds from a trained model."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmln.cli.common import Seed, one_thread, progress
from nmln.cli.processes import alone, cores, start_processes, stoppable
from nmln.files import InputError, only_one

if TYPE_CHECKING:
    from nmln.workflow.generation import Generated, Job
    from nmln.workflow.sampling import Run, Wish


def sample(
    run: Annotated[
        Path | None, typer.Argument(help="The folder of a run of training, or --pretrained.")
    ] = None,
    num_samples: Annotated[int, typer.Option(min=1, help="How many attempts.")] = 1000,
    output: Annotated[
        Path | None,
        typer.Option(
            help="A folder for molecules, else a name without an ending; else RUN/samples."
        ),
    ] = None,
    all_levels: Annotated[bool, typer.Option(help="Rows and counts of every level.")] = False,
    scaffold: Annotated[
        str | None, typer.Option(help="SMILES that every molecule contains; * marks open atoms.")
    ] = None,
    formula: Annotated[
        list[str] | None, typer.Option(help="A weighted or hard formula; may be repeated.")
    ] = None,
    formula_file: Annotated[
        list[Path] | None, typer.Option(help="A .mln file with formulas; may be repeated.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(help="A .db file with what is known; the rest is sampled.")
    ] = None,
    chains: Annotated[int, typer.Option(min=1, help="Independent replicas.")] = 100,
    burn_in: Annotated[int, typer.Option(min=0, help="Sweeps before the first sample.")] = 300,
    thin: Annotated[int, typer.Option(min=1, help="Sweeps from one sample to the next.")] = 4,
    moves: Annotated[
        int,
        typer.Option(min=0, help="Moves of a sweep, after which chains swap; 0: as set up."),
    ] = 0,
    kernel: Annotated[
        str, typer.Option(metavar="NAME", help="Another kernel than the model is set up with.")
    ] = "",
    seed: Seed = 0,
    processes: Annotated[int, typer.Option(min=0, help="For molecules; 0: one for each core.")] = 0,
    resume: Annotated[bool, typer.Option(help="Go on with what was begun, as it was.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Begin anew where samples are already.")] = False,
    pretrained: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A model that comes with nmln, in place of a run: pubchem-10."
        ),
    ] = None,
) -> None:
    """Sample worlds from the target level of a trained model.

    Molecules: samples.csv.gz has a row for every attempt, counts.csv how often each valid molecule came,
    sampling.json the rest. Ctrl-C keeps what was reached; --resume, or the same command again, goes on.
    Other worlds are written in the format that the model was trained on.
    """
    one_thread()
    from nmln.workflow import sampling

    opened = sampling.open_run(_folder(run, pretrained))
    wish = sampling.Wish(
        num_samples, chains, burn_in, thin, moves, kernel, seed, all_levels,
        evidence, scaffold, tuple(formula or ()), tuple(formula_file or ()),
    )  # fmt: skip
    if resume and (overwrite or wish != sampling.Wish(1000)):
        raise InputError(
            "--resume goes on with sampling as it was begun. Give nothing else with it than --output "
            "and --processes."
        )
    if opened.kind != "molecules" and (resume or overwrite or processes):
        raise InputError(
            f"--resume, --overwrite and --processes are for molecules, but {opened.name} learned from "
            "other worlds. Leave them out."
        )
    if opened.kind != "molecules":
        _other_worlds(opened, wish, output)
        return
    _molecules(opened, None if resume else wish, output, processes or cores(), overwrite)


def _folder(run: Path | None, name: str | None) -> Path:
    if (run is None) == (name is None):
        raise InputError(
            "say what to sample from: either the folder of a run, or a model that comes with nmln "
            "(--pretrained pubchem-10)."
        )
    if run is not None:
        return run
    from nmln.pretrained import unpack

    return unpack(name or "")


def _other_worlds(opened: "Run", wish: "Wish", output: Path | None) -> None:
    from nmln.workflow import sampling

    with progress("sampling", wish.sweeps) as tick:
        outcome = sampling.sample_worlds(opened, wish, output, lambda done, whole: tick())
    _tell(outcome.findings)
    typer.echo(f"{outcome.count:,} worlds. Written: " + ", ".join(map(str, outcome.written)))


def _molecules(
    opened: "Run", wish: "Wish | None", output: Path | None, processes: int, overwrite: bool
) -> None:
    from nmln.workflow import generation, sampling

    folder, again = output or sampling.samples_folder(opened), _again(opened, output)
    if not alone():  # one of several, started below
        job = generation.resume(folder, opened.model)
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _work(job, list(range(rank, job.settings.parts, count)), shown=rank == 0)
        return
    if wish is None:
        job = generation.resume(folder, opened.model)
    else:
        about = {
            "command": shlex.join(["nmln", *sys.argv[1:]]),
            "resume": again,
        }
        job = sampling.begin_molecules(
            opened, wish, output, parts=processes, overwrite=overwrite, about=about
        )
    done = min(job.sweeps_done(part) for part in range(job.settings.parts))
    if done:
        typer.echo(f"going on after sweep {done} of {job.settings.sweeps}", err=True)
    count = min(processes, job.settings.parts)
    with stoppable(again):
        with only_one(job.lock, "sampling"):
            if count > 1:
                start_processes(count, folder, again=again, rendezvous=False)
            else:
                _work(job, list(range(job.settings.parts)), shown=True)
        found = generation.finish(job, count)
    _tell_molecules(found)


def _again(opened: "Run", output: Path | None) -> str:
    words = ["nmln", "sample", str(opened.folder), "--resume"]
    return shlex.join([*words, "--output", str(output)] if output else words)


def _work(job: "Job", parts: list[int], shown: bool) -> None:
    from nmln.workflow import generation

    left = sum(job.settings.sweeps - job.sweeps_done(part) for part in parts)
    if not shown:
        generation.work(job, parts)
        return
    with progress("sampling", left) as tick:
        generation.work(job, parts, tick)


def _tell_molecules(found: "Generated") -> None:
    summary = found.summary
    _tell(summary["findings"])
    target = summary["levels"][-1]
    typer.echo(
        f"{summary['attempts']:,} attempts, {found.valid:.1%} valid, {target['unique']:,} different "
        f"molecules; {summary['samples_per_second']:,.0f} samples a second, "
        f"{summary['moves_per_sample']} moves each. Written: "
        + ", ".join(map(str, found.written[:3]))
    )


def _tell(findings: list[str]) -> None:
    for text in findings:
        typer.secho("note: ", fg="yellow", nl=False, err=True)
        typer.echo(text, err=True)
