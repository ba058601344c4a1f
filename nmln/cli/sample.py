"""`nmln sample`: molecules or other worlds from a trained model."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import Seed, changed_options, one_thread, progress
from nmln.cli.processes import check_processes, cores, start_processes, stoppable
from nmln.errors import InputError
from nmln.extras import require

if TYPE_CHECKING:
    from nmln.runs.sample import OpenedRun
    from nmln.runs.stream import Generated, SamplingJob
    from nmln.runs.workspace import Part


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
    block_size: Annotated[
        int,
        typer.Option(min=1, help="Replicas that a process draws together; few are slower."),
    ] = 50,
    processes: Annotated[
        int, typer.Option(min=0, help="0: one for each core, or one for what is not molecules.")
    ] = 0,
    part: Annotated[
        str | None,
        typer.Option(metavar="K/N", help="Draw only the K-th of N shares, to be joined later."),
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="Put all parts together.")] = False,
    parts_in: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="DIR", help="With --join: where parts are; may be repeated."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue with what was begun, as it was.")] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Replace samples, once the new ones are complete.")
    ] = False,
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
    Other worlds are written in the format that the model was trained on. What comes out does not depend
    on the number of processes, nor on whether it is drawn in parts.
    """
    given = changed_options(sample, locals())
    one_thread()
    from nmln.runs import sample as sampling
    from nmln.runs import stream
    from nmln.runs.parts import read_part

    opened = sampling.open_run(_folder(run, pretrained))
    settings = {
        "chains": chains, "burn_in": burn_in, "thin": thin, "moves": moves, "kernel": kernel,
        "seed": seed, "all_levels": all_levels, "block": block_size,
    }  # fmt: skip
    if resume and given - {"run", "pretrained", "output", "part", "processes", "resume"}:
        raise InputError(
            "--resume continues a sampling as it was started. Give nothing else with it than --output, "
            "--part and --processes.",
            kind="conflict",
        )
    if parts_in and not join:
        raise InputError("--from names the parts to be joined. Give --join too.", kind="conflict")
    if join:
        if given - {"run", "pretrained", "output", "join", "parts_in", "overwrite", "processes"}:
            raise InputError(
                "--join puts together what was drawn. Give nothing else with it than --from, --output "
                "and --overwrite.",
                kind="conflict",
            )
        _join(opened, output, parts_in or [], overwrite)
        return
    chosen = None if part is None else read_part(part)
    check_processes(processes)
    processes = processes or (cores() if opened.kind == "molecules" else 1)

    def begin(about: dict[str, Any]) -> "SamplingJob":
        if resume:
            return stream.resume(sampling.place_of(opened, output, chosen), opened.model)
        conditions = opened.conditions(
            evidence=evidence,
            scaffold=scaffold,
            formulas=tuple(formula or ()),
            formula_files=tuple(formula_file or ()),
        )
        return sampling.begin(
            opened, conditions, num_samples, output,
            part=chosen, overwrite=overwrite, about=about, **settings,
        )  # fmt: skip

    _draw(opened, begin, output, chosen, processes)


def _folder(run: Path | None, name: str | None) -> Path:
    if (run is None) == (name is None):
        raise InputError(
            "say what to sample from: either the folder of a run, or a model that comes with nmln "
            "(--pretrained pubchem-10)."
        )
    if run is not None:
        return run
    require("nmln sample --pretrained", "rdkit", "pooch")
    from nmln.model.pretrained import unpack

    return unpack(name or "")


def _draw(
    opened: "OpenedRun",
    begin: "Callable[[dict[str, Any]], SamplingJob]",
    output: Path | None,
    part: "Part | None",
    processes: int,
) -> None:
    """Draw what `begin` starts or resumes, in this process or several."""
    from nmln.runs import sample as sampling
    from nmln.runs import stream

    place, again = sampling.place_of(opened, output, part), _again(opened, output, part)
    with stream.only_sampler(place):
        job = begin({"command": _command(), "resume": again})
        if (left := job.left) < job.settings.sweeps:
            done = 1 - left / job.settings.sweeps
            typer.echo(f"continuing: {done:.0%} of the sweeps are done", err=True)
        count = min(processes, len(job.blocks))
        with stoppable(again):
            draw(job, opened.folder, count, again)
            if part is None:
                _tell_found(stream.finish(job, count))
                return
    typer.echo(
        f"part {part.number} of {part.total} is done: {len(job.blocks)} of {job.settings.parts} blocks, "
        f"in {place.work}. When all parts are, join them with: {_joining(opened, output)}"
    )


def draw(job: "SamplingJob", run: Path, processes: int, again: str) -> None:
    """Draw the blocks of a sampling that are not done, in several processes if there are as many."""
    left = any(job.sweeps_done(block) < job.settings.sweeps for block in job.blocks)
    if processes > 1 and left and not job.joins:
        part = job.place.part
        settings = {
            "run": str(run),
            "output": str(job.place.output),
            "part": None if part is None else [part.number, part.total],
        }
        start_processes(processes, job.folder, "sample", settings, again, rendezvous=False)
    else:
        _work(job, list(job.blocks), shown=True)


def draw_blocks(run: str, output: str, part: list[int] | None) -> None:
    """The stage of one of several processes: every so many-th block of a sampling is drawn here."""
    from nmln.runs import sample as sampling
    from nmln.runs import stream
    from nmln.runs.workspace import Part

    opened = sampling.open_run(Path(run))
    chosen = None if part is None else Part(*part)
    job = stream.attend(sampling.place_of(opened, Path(output), chosen), opened.model)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _work(job, list(job.blocks[rank::count]), shown=rank == 0)


def _join(opened: "OpenedRun", output: Path | None, folders: list[Path], overwrite: bool) -> None:
    from nmln.runs import parts as joining
    from nmln.runs import sample as sampling
    from nmln.runs import stream

    again = _joining(opened, output, folders)
    place = sampling.place_of(opened, output)
    with stoppable(again), stream.only_sampler(place):
        about = {"command": _command(), "resume": again}
        job = joining.join(place, opened.model, folders, about, overwrite=overwrite)
        found = stream.finish(job, len({folder.parent for folder in job.folders}))
    _tell_found(found)


def _command() -> str:
    return shlex.join(["nmln", *sys.argv[1:]])


def _again(opened: "OpenedRun", output: Path | None, part: "Part | None") -> str:
    words = ["nmln", "sample", str(opened.folder), "--resume"]
    words += ["--output", str(output)] if output else []
    words += ["--part", f"{part.number}/{part.total}"] if part else []
    return shlex.join(words)


def _joining(opened: "OpenedRun", output: Path | None, folders: Sequence[Path] = ()) -> str:
    words = ["nmln", "sample", str(opened.folder), "--join"]
    words += ["--output", str(output)] if output else []
    for folder in folders:
        words += ["--from", str(folder)]
    return shlex.join(words)


def _work(job: "SamplingJob", blocks: list[int], shown: bool) -> None:
    from nmln.runs import stream

    if not shown:
        stream.work(job, blocks)
        return
    left = sum(job.settings.sweeps - job.sweeps_done(block) for block in blocks)
    with progress("sampling", left) as tick:
        stream.work(job, blocks, tick)


def _tell_found(found: "Generated") -> None:
    if "levels" in found.summary:
        _tell_molecules(found)
        return
    _tell(found.summary["findings"])
    written = ", ".join(map(str, found.written))
    typer.echo(f"{found.summary['attempts']:,} worlds. Written: {written}")


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
