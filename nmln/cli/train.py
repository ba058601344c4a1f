"""`nmln train`: learn a model from worlds, and resume it."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmln.cli.common import Data, alone, one_thread, settings_in
from nmln.cli.processes import cores
from nmln.cli.stages import perform
from nmln.dropped import dropped_lines
from nmln.errors import InputError
from nmln.extras import require
from nmln.signals import PRIVATE_FOLDER

if TYPE_CHECKING:
    from nmln.config import Config
    from nmln.runs.data import Source
    from nmln.runs.train import TrainingJob
    from nmln.training import Metrics

_MOST_SEED = 2**63 - 1
_LENGTHS = ("steps", "minutes")
_DATA = "data.safetensors"  # in the folder of several processes: the data, parsed


def train(
    source: Annotated[
        str | None,
        typer.Argument(help="A set of molecules, a .smi, .csv, .db or .graphml file, or a folder."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The folder of the run.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue with the run in this folder.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="What to build on: small, molecules or paper.")
    ] = None,
    language: Annotated[Path | None, typer.Option(help="A .mln file, for .db worlds.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Heavy atoms of the molecules.")] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="How many updates.")] = None,
    minutes: Annotated[float | None, typer.Option(help="How long, instead of steps.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=_MOST_SEED, help="Repeats a run exactly.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=0, help="How many processes; 0: one for each core.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, as chains.moves=5; may be repeated."),
    ] = None,
    tensorboard: Annotated[bool, typer.Option(help="Write events for TensorBoard too.")] = False,
    data: Data = None,
) -> None:
    """Train one model for every corruption level, with persistent chains.

    Everything is kept in the folder of the run: its settings, one line of metrics a step, checkpoints
    once a minute, and in the end the model. Ctrl-C keeps what was reached and leaves.
    """
    if tensorboard:
        require("nmln train --tensorboard", "tensorboard")
    one_thread()
    if resume is not None:
        given = (source, output, config, preset, nodes, steps, minutes, seed, change)
        if any(one is not None and one != [] for one in given):
            raise InputError(
                "--resume continues a run as it is. Give nothing else with it but --processes, "
                "--tensorboard, and --data or --language where the data have moved.",
                kind="conflict",
            )
        named = None if language is None else str(language)
        settings = {"data": data, "language": named, "tensorboard": tensorboard}
        _resume(resume, processes, settings)
        return
    if data is not None:
        raise InputError(
            "--data is for --resume. Name the data of a new run without it.", kind="conflict"
        )
    flags: dict[str, Any] = {
        "data.source": source,
        "data.language": None if language is None else str(language),
        "data.nodes": nodes,
        "training.steps": steps,
        "training.minutes": minutes,
        "training.seed": seed,
        "model.seed": seed,
        "training.processes": processes,
    }
    flags = {name: value for name, value in flags.items() if value is not None}
    chosen = _settings(config, preset, {**flags, **settings_in(change or [])})
    folder = output or Path("runs") / Path(chosen.data.source).name.split(".")[0]
    if alone():
        _check_new(folder)
    start_training(folder, chosen, _processes(chosen) if alone() else 1, tensorboard)


def start_training(
    folder: Path,
    config: "Config",
    processes: int,
    tensorboard: bool = False,
    source: "Source | None" = None,
) -> None:
    """Train a new run in this process or in several; `source` are its data, if they are parsed."""
    settings = {"folder": str(folder), "config": config.to_dict(), "tensorboard": tensorboard}
    if processes == 1:
        begin_training(**settings, source=source)
        return
    from nmln.runs import data
    from nmln.runs.kept import keep_source

    parsed = source or data.load(config.data)  # once, for all processes

    def attach(private: Path) -> None:
        keep_source(private / _DATA, parsed)

    perform("train", processes, folder, settings, attach=attach)


def begin_training(
    folder: str, config: dict[str, Any], tensorboard: bool, source: "Source | None" = None
) -> None:
    """The stage of a new run: this process is all of it, or one of several."""
    from nmln.config import configure, override
    from nmln.distributed import join, leave
    from nmln.runs import train as training
    from nmln.runs.kept import kept_source

    if source is None and (private := os.environ.get(PRIVATE_FOLDER)):
        source = kept_source(Path(private) / _DATA)
    ranks = join()
    try:
        chosen = override(configure(config), {"training.processes": ranks.count})
        _train(training.begin(Path(folder), chosen, ranks, source), tensorboard)
    finally:
        leave()


def resume_training(folder: str, data: str | None, language: str | None, tensorboard: bool) -> None:
    """The stage of a run that is continued: this process is all of it, or one of several."""
    from nmln.distributed import join, leave
    from nmln.runs import train as training

    ranks = join()
    try:
        _train(training.resume(Path(folder), ranks, data, language), tensorboard)
    finally:
        leave()


def _check_new(folder: Path) -> None:
    """Before any process is started: a run that is there must not be started again."""
    from nmln.runs.folder import RunFolder

    RunFolder(folder).check_new()


def _settings(config: Path | None, preset: str | None, flags: dict[str, Any]) -> "Config":
    """The settings of a new run: flags override the file, which overrides the preset."""
    from nmln.config import configure, override, read_config

    base = (
        configure({}, preset=preset or "small") if config is None else read_config(config, preset)
    )
    length = {name: flags[f"training.{name}"] for name in _LENGTHS if f"training.{name}" in flags}
    if None not in length.values() and len(length) > 1:
        raise InputError(
            "--minutes and --steps both say how long to train. Give one of them.", kind="conflict"
        )
    if length.keys() == {"steps"}:
        flags = {"training.minutes": None, **flags}  # of the file, which flags override
    return override(base, flags)


def _processes(config: "Config") -> int:
    """How many processes a run gets: as it says, or one for each core; no more than it has blocks."""
    wanted = config.training.processes or cores()
    wanted = min(wanted, config.training.blocks or wanted)
    return min(wanted, config.chains.replicas, config.training.batch)


def _resume(folder: Path, processes: int | None, settings: dict[str, Any]) -> None:
    from nmln.runs.folder import RunFolder

    recorded = RunFolder(folder).read_head().config
    count = recorded.training.processes if processes is None else processes
    count = min(count or cores(), recorded.chains.replicas, recorded.training.batch)
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
        typer.echo(f"Written: {job.folder}/model, metrics.jsonl, checkpoints, config.json")


class TrainingDisplay:
    """A table of the levels and a bar on a terminal; a line now and then elsewhere."""

    def __init__(self, job: "TrainingJob") -> None:
        from rich.console import Console

        self.job, self.quality = job, {}
        self.console = Console(stderr=True, highlight=False, emoji=False)
        self.live: Any = None
        self.started = self.told = time.monotonic()
        self.first_step = job.trainer.step_number

    def __enter__(self) -> "TrainingDisplay":
        if self.console.is_terminal and self.job.trainer.ranks.first:
            from rich.live import Live

            self.live = Live(console=self.console, refresh_per_second=2, transient=False)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*error)

    def on_start(self, job: "TrainingJob") -> None:
        source, training = job.source, job.config.training
        self.console.print(
            f"{len(source.train):,} worlds to learn from, {len(source.test):,} kept apart; "
            f"{source.space.measure}\n{training.steps:,} steps, {job.trainer.ranks.count} "
            f"process{'es' if job.trainer.ranks.count > 1 else ''}, kept in {job.folder}",
            markup=False,
        )
        if source.dropped:
            self.on_note(dropped_lines(source.dropped))

    def on_note(self, text: str) -> None:
        self.console.print(f"note: {text}", style="yellow", markup=False)

    def on_step(self, metrics: "Metrics", quality: dict[str, float]) -> None:
        self.quality = quality or self.quality
        now = time.monotonic()
        last = metrics.step == self.job.config.training.steps
        if now - self.told < (0.5 if self.live else 20) and not last:
            return
        self.told = now
        if self.live is not None:
            self.live.update(self._table(metrics))
        else:
            self.console.print(self._line(metrics), markup=False)

    def _left(self, metrics: "Metrics") -> str:
        done = metrics.step - self.first_step
        steps = self.job.config.training.steps
        each = (time.monotonic() - self.started) / max(1, done)
        seconds = round((steps - metrics.step) * each)
        return f"step {metrics.step:,} of {steps:,}, {seconds // 60}:{seconds % 60:02d} left"

    def _quality(self) -> str:
        told = dict(self.quality)
        held_out = told.pop("held_out", None)
        text = "".join(f", {name} {share:.0%}" for name, share in told.items())
        return text if held_out is None else f"{text}, held out {held_out:.1f} nats a world"

    def _line(self, metrics: "Metrics") -> str:
        return (
            f"{self._left(metrics)}{self._quality()}; at the target: gap {metrics.gap[-1]:+.2f}, "
            f"acceptance {metrics.acceptance[-1]:.0%}"
        )

    def _table(self, metrics: "Metrics") -> Any:
        from rich.table import Table

        table = Table(title=self._left(metrics) + self._quality(), title_justify="left")
        for name in ("level", "rate", "gap", "gradient", "acceptance", "moved", "swaps"):
            table.add_column(name, justify="right")
        ladder = self.job.trainer.method.ladder
        extra = len(ladder.rates) - len(metrics.gap)
        for level, rate in enumerate(ladder.rates):
            own = level - extra
            swap = f"{metrics.swaps[level]:.0%}" if level < len(metrics.swaps) else ""
            table.add_row(
                str(level),
                f"{rate:g}",
                f"{metrics.gap[own]:+.2f}" if own >= 0 else "",
                f"{metrics.gradient[own]:.2f}" if own >= 0 else "",
                f"{metrics.acceptance[level]:.0%}",
                f"{metrics.moved[level]:.0%}",
                swap,
            )
        return table
