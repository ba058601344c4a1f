"""`nmln train`: train a model, or continue a run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import (
    From,
    MaxSize,
    Resume,
    RunOutput,
    Sizes,
    alone,
    one_thread,
    seed_option,
    settings_in,
    sizes_in,
)
from nmln.cli.processes import cores
from nmln.cli.stages import perform
from nmln.cli.training_display import TrainingDisplay
from nmln.errors import InputError
from nmln.extras import require
from nmln.signals import PRIVATE_FOLDER

if TYPE_CHECKING:
    from nmln.config import Config
    from nmln.runs.data import Source
    from nmln.runs.train import TrainingJob

_LENGTHS = ("steps", "minutes")
_DATA = "data.safetensors"  # in the folder of several processes: the data, parsed


def train(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A named set of molecules, a .smi, .csv, .db, .nl or .graphml file, or a folder of "
            ".graphml or .db files.",
            show_default="pubchem-10",
        ),
    ] = None,
    output: RunOutput = None,
    resume: Resume = None,
    start: From = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with settings (docs/reference/settings.md); options override it."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Base settings: small, molecules (more chains, regularised), paper, verbatim, star, or "
            "s1 to s5 (docs/how-to/training.md).",
            show_default="small",
        ),
    ] = None,
    language: Annotated[
        Path | None,
        typer.Option(
            help="The .mln file that declares the predicates of .db data; its formulas are used too."
        ),
    ] = None,
    domains: Annotated[
        str | None,
        typer.Option(
            help="Constants of .db worlds that the language does not declare: 'common' to all worlds, "
            "or of 'each' world those that it names.",
            show_default="common",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            "--size",
            min=1,
            help="Use only molecules with exactly this many heavy atoms.",
        ),
    ] = None,
    sizes: Sizes = None,
    max_size: MaxSize = None,
    steps: Annotated[
        int | None,
        typer.Option(min=0, help="Number of parameter updates.", show_default="3000"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training time in minutes, instead of --steps.")
    ] = None,
    seed: Annotated[
        int | None,
        seed_option(
            "Random seed. The same seed, --steps and --processes give the same model.",
            show_default="0",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=0, help="Number of processes; 0 uses one per core.", show_default="0"),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: NAME=VALUE. May be repeated."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option(help="Also write events for TensorBoard.", show_default=False)
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="New location of the run's data, if the file has moved (only with --resume)."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where to compute: cpu, cuda, mps, or auto: a CUDA device if there is one, else the "
            "CPU. With --resume by default where the run was.",
            show_default="auto",
        ),
    ] = None,
) -> None:
    """Train a model: one network per corruption level, by maximum likelihood with persistent chains.

    The run folder holds the settings, metrics (one line per step), checkpoints (one per minute) and
    finally the model. Ctrl-C saves a checkpoint; continue with --resume.
    """
    if tensorboard:
        require("nmln train --tensorboard", "tensorboard")
    one_thread()
    if resume is not None:
        given = (
            source, output, start, config, preset, domains, nodes, sizes, max_size, steps, minutes,
            seed, change,
        )  # fmt: skip
        if any(one is not None and one != [] for one in given):
            raise InputError(
                "--resume continues a run with its recorded settings. The only other options allowed "
                "are --processes, --device, --tensorboard, and --data or --language if the data have "
                "moved.",
                kind="conflict",
            )
        named = None if language is None else str(language)
        settings = {
            "data": data, "language": named, "tensorboard": tensorboard, "device": device,
        }  # fmt: skip
        _resume(resume, processes, settings)
        return
    if data is not None:
        raise InputError(
            "--data is used only with --resume. Name the data of a new run without it.",
            kind="conflict",
        )
    flags: dict[str, Any] = {
        "data.source": source,
        "data.language": None if language is None else str(language),
        "data.domains": domains,
        "data.nodes": nodes,
        "data.sizes": sizes_in(sizes),
        "data.max_size": max_size,
        "training.steps": steps,
        "training.minutes": minutes,
        "training.seed": seed,
        "model.seed": seed,
        "training.processes": processes,
        "training.device": device,
    }
    flags = {name: value for name, value in flags.items() if value is not None}
    chosen = _settings(config, preset, {**flags, **settings_in(change or [])}, start)
    folder = output or Path("runs") / Path(chosen.data.source).name.split(".")[0]
    if alone():
        _check_new(folder)
    start_training(folder, chosen, _processes(chosen) if alone() else 1, tensorboard, start=start)


def start_training(
    folder: Path,
    config: "Config",
    processes: int,
    tensorboard: bool = False,
    source: "Source | None" = None,
    start: str | None = None,
) -> None:
    """Train a new run in this process or in several.

    `source` are its data, if they are parsed; `start` names the run whose weights it starts with.
    """
    settings = {
        "folder": str(folder),
        "config": config.to_dict(),
        "tensorboard": tensorboard,
        "start": start,
    }
    if processes == 1:
        begin_training(**settings, source=source)
        return
    from nmln.runs import data
    from nmln.runs.kept import keep_source

    parsed = source or data.load(config.data)  # once, for all processes
    processes = min(processes, _most_processes(config, len(parsed.buckets)))
    if processes == 1:
        begin_training(**settings, source=parsed)
        return

    def attach(private: Path) -> None:
        keep_source(private / _DATA, parsed)

    perform("train", processes, folder, settings, attach=attach)


def begin_training(
    folder: str,
    config: dict[str, Any],
    tensorboard: bool,
    start: str | None,
    source: "Source | None" = None,
) -> None:
    """The stage that starts a new run, in the only process or in one of several."""
    from nmln.config import configure, override
    from nmln.distributed import join, leave
    from nmln.runs import train as training
    from nmln.runs.kept import kept_source
    from nmln.runs.start import read_start

    if source is None and (private := os.environ.get(PRIVATE_FOLDER)):
        source = kept_source(Path(private) / _DATA)
    ranks = join()
    try:
        chosen = override(configure(config), {"training.processes": ranks.count})
        begun = None if start is None else read_start(start)
        _train(training.begin(Path(folder), chosen, ranks, source, begun), tensorboard)
    finally:
        leave()


def resume_training(
    folder: str,
    data: str | None,
    language: str | None,
    tensorboard: bool,
    device: str | None = None,
) -> None:
    """The stage that continues a run, in the only process or in one of several."""
    from nmln.distributed import join, leave
    from nmln.runs import train as training

    ranks = join()
    try:
        _train(training.resume(Path(folder), ranks, data, language, device), tensorboard)
    finally:
        leave()


def _check_new(folder: Path) -> None:
    """Refuse a folder that already holds a run, before any process is started."""
    from nmln.runs.folder import RunFolder

    RunFolder(folder).check_new()


def _settings(
    config: Path | None, preset: str | None, flags: dict[str, Any], start: str | None
) -> "Config":
    """The settings of a new run: flags override the file, which overrides the preset.

    Those of the potential that none of them names are those of the run that it starts from.
    """
    from nmln.config import configure, override, read_config
    from nmln.runs.start import read_start

    begun = None if start is None else read_start(start)
    under = None if begun is None else begun.settings
    if config is None:
        base = configure({}, preset=preset or "small", base=under)
    else:
        base = read_config(config, preset, under)
    length = {name: flags[f"training.{name}"] for name in _LENGTHS if f"training.{name}" in flags}
    if None not in length.values() and len(length) > 1:
        raise InputError(
            "--minutes and --steps both set the length of training. Give one of them.",
            kind="conflict",
        )
    if length.keys() == {"steps"}:
        flags = {"training.minutes": None, **flags}  # the flag overrides the minutes of the file
    chosen = override(base, flags)
    if begun is not None:
        begun.check(chosen)
    return chosen


def _processes(config: "Config") -> int:
    """The number of processes of a run: as set, or one per GPU or core; at most one per block."""
    from nmln.devices import processes_of

    there = processes_of(config.training.device)
    wanted = config.training.processes or there or cores()
    wanted = min(wanted, config.training.blocks or wanted)
    return min(wanted, config.chains.replicas, config.training.batch)


def _most_processes(config: "Config", sizes: int) -> int:
    """How many processes a run can have: each has chains and data of all sizes."""
    return max(1, min(config.chains.replicas, config.training.batch) // max(1, sizes))


def _resume(folder: Path, processes: int | None, settings: dict[str, Any]) -> None:
    from nmln.devices import processes_of
    from nmln.runs.folder import RunFolder
    from nmln.runs.train import recorded_device

    head = RunFolder(folder).read_head()
    count = head.config.training.processes if processes is None else processes
    there = processes_of(settings["device"] or recorded_device(head.config))
    count = min(count or there or cores(), _most_processes(head.config, len(head.shares)))
    perform("resume", count if alone() else 1, folder, {"folder": str(folder), **settings})


def _train(job: "TrainingJob", tensorboard: bool) -> None:
    from nmln.runs import train as training
    from nmln.runs.tensorboard import Several, TensorBoard

    first = job.trainer.ranks.first
    display = TrainingDisplay(job)
    watchers: list[training.Watcher] = [display] if first else []
    if tensorboard and first:
        watchers.append(TensorBoard(job.home.tensorboard))
    with display:
        training.run(job, Several(tuple(watchers)))
    if first:
        display.on_end()
        typer.echo(f"Written: {job.folder}/model, metrics.jsonl, checkpoints, config.json")
