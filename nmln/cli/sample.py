"""`nmln sample`: draw molecules or other worlds from a trained model."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import Device, Seed, changed_options, one_thread, progress, sizes_in
from nmln.cli.processes import check_processes, cores, start_processes, stoppable
from nmln.errors import InputError
from nmln.extras import require

if TYPE_CHECKING:
    from nmln.runs.sample import OpenedRun
    from nmln.runs.stream import Generated, SamplingJob
    from nmln.runs.workspace import Part


def sample(
    run: Annotated[
        Path | None, typer.Argument(help="The folder of a training run (or use --pretrained).")
    ] = None,
    num_samples: Annotated[
        int, typer.Option(min=1, help="Number of samples to draw, invalid molecules included.")
    ] = 1000,
    minutes: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="M",
            help="End after M minutes of processor time and keep what was drawn: equally many samples "
            "of every chain (only molecules of one size).",
            show_default="no limit",
        ),
    ] = 0.0,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Molecules: the output folder. Other worlds: the output file, without its extension.",
            show_default="RUN/samples",
        ),
    ] = None,
    all_levels: Annotated[
        bool,
        typer.Option(
            help="Keep the samples of every noise level, not only of the target (molecules only).",
            show_default=False,
        ),
    ] = False,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Draw only samples of this size, such as the number of heavy atoms. A size that was "
            "not in the data is an extrapolation, and is marked so.",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Draw samples of these sizes, such as 8-12 or 9,10,15, by their shares in the data.",
            show_default="all sizes of the data",
        ),
    ] = None,
    scaffold: Annotated[
        str | None,
        typer.Option(
            help="SMILES of a substructure in every molecule; write * where further atoms may be "
            "attached. Without *, they may be attached anywhere."
        ),
    ] = None,
    formula: Annotated[
        list[str] | None,
        typer.Option(
            help="Add a formula, with a weight ('1.5 ...') or hard ('... .'). May be repeated."
        ),
    ] = None,
    formula_file: Annotated[
        list[Path] | None, typer.Option(help="Add the formulas of a .mln file. May be repeated.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(help="A .db file with the known atoms; the others are sampled.")
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of independent chains.",
            show_default="100; for fewer than 1,000 samples from chains of the model one for ten",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            help="Where chains start: 'noise', 'model' (chains that come with it), or 'auto': those of "
            "the model unless there are none, conditions are given or --burn-in is."
        ),
    ] = "auto",
    burn_in: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Sweeps before the first sample.",
            show_default="300 from noise, fewer from chains of the model",
        ),
    ] = None,
    thin: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Keep one sample every THIN sweeps.",
            show_default="4; for fewer than 1,000 samples from chains of the model 2",
        ),
    ] = None,
    moves: Annotated[
        int,
        typer.Option(
            min=0,
            help="Kernel moves per sweep, before levels exchange worlds; 0 uses the model's setting.",
        ),
    ] = 0,
    kernel: Annotated[
        str, typer.Option(metavar="NAME", help="Kernel to use instead of the model's own.")
    ] = "",
    sharpen: Annotated[
        float,
        typer.Option(
            metavar="B",
            help="Multiply the model's scores at the target by B: above 1, samples are more often valid "
            "and less varied. Formulas are not multiplied.",
        ),
    ] = 1.0,
    seed: Seed = 0,
    block_size: Annotated[
        int,
        typer.Option(
            min=1, help="Chains simulated together in one process; small blocks are slower."
        ),
    ] = 50,
    processes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of processes; 0 uses one per core for molecules and one process for other "
            "worlds.",
        ),
    ] = 0,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Draw only part K of N, for example on another machine; join the parts later with "
            "--join.",
        ),
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="Merge all parts into one result.")] = False,
    parts_in: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="With --join: a folder that holds parts. May be repeated.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            help="Continue an interrupted sampling with its recorded settings.", show_default=False
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            help="Replace existing samples when the new ones are complete.", show_default=False
        ),
    ] = False,
    pretrained: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Sample from a model that comes with nmln, pubchem-10, instead of a run. It is "
            "copied to runs/pretrained-NAME.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Sample worlds from the target level of a trained model.

    For molecules, samples.csv.gz has one row per sample, counts.csv the count of each valid molecule,
    and sampling.json the settings and diagnostics. Other worlds are written in the format of the
    training data. Ctrl-C keeps what was drawn; the same command, or --resume, continues. Results do not
    depend on the number of processes or parts.
    """
    given = changed_options(sample, locals())
    one_thread()
    from nmln.runs import sample as sampling
    from nmln.runs import stream
    from nmln.runs.parts import read_part

    opened = sampling.open_run(_folder(run, pretrained))
    settings = {
        "chains": chains, "burn_in": burn_in, "thin": thin, "moves": moves, "kernel": kernel,
        "seed": seed, "all_levels": all_levels, "block": block_size, "device": device,
        "sharpen": sharpen, "start": start, "minutes": minutes,
    }  # fmt: skip
    if resume and given - {"run", "pretrained", "output", "part", "processes", "resume"}:
        raise InputError(
            "--resume continues a sampling with its recorded settings. The only other options allowed "
            "are --output, --part and --processes.",
            kind="conflict",
        )
    chosen_sizes = sizes_in(sizes)
    if parts_in and not join:
        raise InputError("--from is used only with --join. Give --join too.", kind="conflict")
    if join:
        if given - {"run", "pretrained", "output", "join", "parts_in", "overwrite", "processes"}:
            raise InputError(
                "--join merges parts with their recorded settings. The only other options allowed are "
                "--from, --output and --overwrite.",
                kind="conflict",
            )
        _join(opened, output, parts_in or [], overwrite)
        return
    chosen = None if part is None else read_part(part)
    check_processes(processes)
    processes = processes or _processes(opened.kind, device)

    def begin(about: dict[str, Any]) -> "SamplingJob":
        if resume:
            return stream.resume(sampling.place_of(opened, output, chosen), opened.model)
        conditions = opened.conditions(
            evidence=evidence,
            scaffold=scaffold,
            formulas=tuple(formula or ()),
            formula_files=tuple(formula_file or ()),
            size=size,
            sizes=chosen_sizes,
        )
        return sampling.begin(
            opened, conditions, num_samples, output,
            part=chosen, overwrite=overwrite, about=about, **settings,
        )  # fmt: skip

    _draw(opened, begin, output, chosen, processes)


def _processes(kind: str, device: str) -> int:
    """One process per core for molecules and one for other worlds; on a GPU one for each."""
    from nmln.devices import processes_of

    return processes_of(device) or (cores() if kind == "molecules" else 1)


def _folder(run: Path | None, name: str | None) -> Path:
    if (run is None) == (name is None):
        raise InputError(
            "name one model to sample from: either the folder of a run, or a model that comes with nmln "
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
    """Draw the samples of the job that `begin` starts or resumes, in one or several processes."""
    from nmln.runs import sample as sampling
    from nmln.runs import stream

    place, again = sampling.place_of(opened, output, part), _again(opened, output, part)
    with stream.only_sampler(place):
        job = begin({"command": _command(), "resume": again})
        if done := sum(map(job.sweeps_done, job.blocks)):
            done /= sum(map(job.settings.sweeps_of, job.blocks))
            typer.echo(f"continuing: {done:.0%} of the sweeps are done", err=True)
        count = min(processes, len(job.blocks))
        with stoppable(again):
            draw(job, opened.folder, count, again)
            if part is None:
                _tell_found(stream.finish(job, count))
                return
    typer.echo(
        f"part {part.number} of {part.total} is done: {len(job.blocks)} of {job.settings.parts} blocks, "
        f"in {place.work}. When all parts are done, join them with: {_joining(opened, output)}"
    )


def draw(job: "SamplingJob", run: Path, processes: int, again: str) -> None:
    """Draw the unfinished blocks of a sampling, in this process or in several."""
    left = any(map(job.sweeps_left, job.blocks))
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
    """The stage of one of several processes: draws every WORLD_SIZE-th block of a sampling."""
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
    left = sum(map(job.sweeps_left, blocks))
    with progress("sampling", left) as tick:
        stream.work(job, blocks, tick)


def _tell_found(found: "Generated") -> None:
    if "levels" in found.summary:
        _tell_molecules(found)
        return
    _tell(found.summary["findings"])
    _tell_sizes(found)
    written = ", ".join(map(str, found.written))
    typer.echo(f"{found.summary['attempts']:,} worlds. Written: {written}")


def _tell_molecules(found: "Generated") -> None:
    summary = found.summary
    _tell(summary["findings"])
    target = summary["levels"][-1]
    _tell_sizes(found)
    typer.echo(
        f"{summary['attempts']:,} attempts, {found.valid:.1%} valid, {target['unique']:,} different "
        f"molecules; {summary['samples_per_second']:,.0f} samples per second, "
        f"{summary['moves_per_sample']} moves each. Written: "
        + ", ".join(map(str, found.written[:3]))
    )


def _tell_sizes(found: "Generated") -> None:
    """One line per size, if they were drawn or chosen."""
    for one in found.summary.get("sizes", ()):
        attempts, valid = one["attempts"], ""
        if attempts and "levels" in one:
            target = one["levels"][-1]
            valid = f", {target['valid'] / attempts:.1%} valid, {target['unique']:,} different molecules"
        mark = " (extrapolation: not a size of the data)" if one["extrapolation"] else ""
        typer.echo(f"size {one['size']}: {attempts:,} samples{valid}{mark}")


def _tell(findings: list[str]) -> None:
    for text in findings:
        typer.secho("note: ", fg="yellow", nl=False, err=True)
        typer.echo(text, err=True)
