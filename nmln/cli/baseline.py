"""`nmln baseline`: train the models that are compared with, and sample from them."""

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import (
    Data,
    MaxSize,
    Resume,
    RunOutput,
    Seed,
    Size,
    Sizes,
    bar,
    examples,
    one_thread,
    seed_option,
    settings_in,
    sizes_in,
)
from nmln.dropped import dropped_lines
from nmln.errors import InputError
from nmln.extras import require

if TYPE_CHECKING:
    from nmln.runs.baseline import BaselineJob

baseline = typer.Typer(
    help="Train the models that the paper compares with, and sample from them.",
    no_args_is_help=True,
)
Run = Annotated[Path, typer.Argument(help="Folder of a run of nmln baseline train.")]


@baseline.command("list", epilog=examples("nmln baseline list", "nmln baseline list --names"))
def show(
    names: Annotated[
        bool, typer.Option("--names", help="Print only the names, one per line.")
    ] = False,
) -> None:
    """List the baselines."""
    from nmln.baselines.base import BASELINES

    width = max(map(len, BASELINES), default=0)
    for name, one in BASELINES.items():
        typer.echo(name if names else f"{name:{width}}  {one.title}: {one.about}")


@baseline.command(
    epilog=examples(
        "nmln baseline train NAME pubchem-10 --minutes 10 --output runs/theirs",
        "nmln baseline train NAME mine.smi --size 9 --updates 5000 --set batch=64",
        "nmln baseline train --resume runs/theirs",
    )
)
def train(
    name: Annotated[
        str | None, typer.Argument(help="Name of a baseline (nmln baseline list).")
    ] = None,
    source: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="A named set of molecules, or a .smi or .csv file."),
    ] = None,
    output: RunOutput = None,
    resume: Resume = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Most minutes of processor time; a short timing turns them into a number of updates. "
            "By default the schedule of the baseline's settings, which may also end earlier."
        ),
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Number of updates, instead of --minutes.")
    ] = None,
    size: Size = None,
    sizes: Sizes = None,
    max_size: MaxSize = None,
    seed: Annotated[int | None, seed_option("Random seed.", show_default="0")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting of the baseline: NAME=VALUE. May be repeated."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="New location of the run's data, if the file has moved (only with --resume)."
        ),
    ] = None,
) -> None:
    """Train a baseline on the training molecules of a data set, split as nmln train splits them.

    The run folder holds baseline.json (the description), metrics, checkpoints (one per minute) and
    finally the model. Ctrl-C saves a checkpoint; continue with --resume.
    """
    require("nmln baseline train", "rdkit", "pooch")
    one_thread()
    from nmln.runs import baseline as runs

    if resume is not None:
        given = (name, source, output, minutes, updates, size, sizes, max_size, seed, change)
        if any(one is not None and one != [] for one in given):
            raise InputError(
                "--resume continues a run with its recorded settings. The only other option allowed is "
                "--data, if the data have moved.",
                kind="conflict",
            )
        job = runs.resume(resume, data)
    else:
        if name is None or source is None:
            raise InputError(
                "name a baseline and its data, for example: nmln baseline train "
                f"{name or 'NAME'} pubchem-10. nmln baseline list shows the names.",
                kind="missing",
            )
        if data is not None:
            raise InputError(
                "--data is used only with --resume. Name the data of a new run without it.",
                kind="conflict",
            )
        from nmln.baselines.base import Budget
        from nmln.config import Config, override

        chosen = {"nodes": size, "sizes": sizes_in(sizes), "max_size": max_size}
        of_data = {"source": source} | chosen
        molecules = override(Config(), {f"data.{key}": one for key, one in of_data.items()}).data
        budget = Budget(updates, minutes)
        changes = settings_in(change or [])
        folder = output or Path("runs") / name
        job = runs.begin(folder, name, molecules, budget, seed or 0, changes)
    _train(job)


def _train(job: "BaselineJob") -> None:
    from nmln.runs import baseline as runs

    training, source = job.training, job.source
    typer.echo(
        f"{training.baseline.size:,} molecules to learn from, {len(source.test):,} held out; "
        f"{training.updates:,} updates, kept in {job.folder}",
        err=True,
    )
    if len(source.buckets) > 1:
        typer.echo(source.domains_in_words, err=True)
    if source.dropped:
        _note(dropped_lines(source.dropped))
    for note in source.notes:
        _note(note)
    if refused := job.head.refused:
        reasons = "; ".join(
            f"{one.count:,} x {one.reason}, such as {one.example}" for one in refused
        )
        _note(f"{job.head.name} cannot represent some training molecules: {reasons}.")
    with bar("training") as tell:
        runs.run(job, _telling(tell))
    typer.echo(
        f"{training.update:,} updates in {training.seconds / 60:.1f} CPU minutes. Written: "
        f"{job.home.model}, metrics.jsonl, checkpoints, baseline.json"
    )


def _note(text: str) -> None:
    typer.secho("note: ", fg="yellow", nl=False, err=True)
    typer.echo(text, err=True)


def _telling(tell: Callable[[int, int], None]) -> Callable[[int, int, float], None]:
    """A watcher that moves a bar on a terminal, and otherwise prints a line every 20 seconds."""
    shown_at = time.monotonic()

    def watch(done: int, total: int, loss: float) -> None:
        nonlocal shown_at
        tell(done, total)
        if not sys.stderr.isatty() and time.monotonic() - shown_at > 20:
            shown_at = time.monotonic()
            typer.echo(f"update {done:,} of {total:,}, loss {loss:.3f}", err=True)

    return watch


@baseline.command(
    epilog=examples(
        "nmln baseline sample runs/theirs --num-samples 50000",
        "nmln baseline sample runs/theirs --seed 1 --output theirs-1",
        "nmln baseline sample runs/digress --steps 500",
    )
)
def sample(
    run: Run,
    num_samples: Annotated[
        int, typer.Option(min=1, help="Number of samples to draw, invalid molecules included.")
    ] = 1000,
    minutes: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="M",
            help="End after M minutes of processor time, after a whole batch, and keep what was drawn.",
            show_default="no limit",
        ),
    ] = 0.0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the samples.", show_default="RUN/samples")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Heavy atoms per molecule; must be those of the training."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps of denoising of DiGress and ConGress, up to 500; fewer are faster.",
            show_default="as trained",
        ),
    ] = None,
    seed: Seed = 0,
    overwrite: Annotated[
        bool,
        typer.Option(
            help="Replace existing samples when the new ones are complete.", show_default=False
        ),
    ] = False,
) -> None:
    """Draw molecules from a trained baseline.

    Writes samples.csv.gz, counts.csv and sampling.json, as nmln sample does. A sample is valid if it is
    one connected molecule of a size of the training molecules. Ctrl-C keeps what was drawn; the same
    command continues.
    """
    require("nmln baseline sample", "rdkit", "pooch")
    one_thread()
    from nmln.runs.baseline import open_baseline
    from nmln.runs.baseline_sample import sample as draw

    command = shlex.join(["nmln", *sys.argv[1:]])
    opened = open_baseline(run)
    with bar("sampling") as tell:
        found = draw(
            opened, num_samples, output, seed=seed, size=size, steps=steps, minutes=minutes,
            overwrite=overwrite, again=command, about={"command": command}, progress=tell,
        )  # fmt: skip
    [level] = found["levels"]
    typer.echo(
        f"{found['attempts']:,} attempts, {level['valid'] / found['attempts']:.1%} valid, "
        f"{level['unique']:,} different molecules; {found['samples_per_second']:,.0f} samples per "
        f"second. Written: {output or run / 'samples'}"
    )


@baseline.command(epilog=examples("nmln baseline likelihood runs/theirs --most 500"))
def likelihood(
    run: Run,
    most: Annotated[
        int | None,
        typer.Option(min=1, help="Most molecules of either set to measure; by default all."),
    ] = None,
    seed: Seed = 0,
    data: Data = None,
) -> None:
    """Measure the mean log-probability, in nats, of a baseline's training and test molecules.

    Some baselines know it exactly, others a lower bound, others neither. Writes likelihood.json, from
    which nmln evaluate takes the nats of samples of this baseline.
    """
    require("nmln baseline likelihood", "rdkit", "pooch")
    one_thread()
    from nmln.runs import baseline as runs

    with bar("measuring") as tell:
        found = runs.likelihood(run, most, seed, data, tell)
    shown = ", ".join(f"{part} {_mean(found, f'{part}_molecules')}" for part in ("train", "test"))
    bound = "" if found["exact"] else ", lower bound"
    typer.echo(f"mean log-probability, nats per molecule{bound}: {shown}")
    typer.echo(f"Written: {run / 'likelihood.json'}")


def _mean(found: dict[str, Any], name: str) -> str:
    value, error, impossible = (found[f"{name}{end}"] for end in ("", "_error", "_impossible"))
    if impossible:
        return f"-inf ({impossible:,} of {found[f'{name}_count']:,} cannot be written)"
    if value is None:
        return "-"
    return f"{value:.2f}" + ("" if error is None else f" +- {error:.2f}")
