"""The report of a run: one page from its files, with the training curves as figures and numbers."""

import json
import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nmln import checkpoint
from nmln.config import Config, LadderConfig, configure
from nmln.dropped import Dropped
from nmln.errors import InputError, placed
from nmln.files import write_lines
from nmln.report import page
from nmln.report.curves import Levels, Panel, is_constant, paint_all, paint_panel, panels_of
from nmln.report.figures import draw
from nmln.report.findings import Finding, findings_of, means
from nmln.report.history import History, read_history, table
from nmln.report.ladder import ladder_html
from nmln.report.page import Html, Section, write_page
from nmln.runs.folder import RunFolder
from nmln.runs.start import in_words
from nmln.training.method import Method
from nmln.training.rates import free_groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS, _ROW = (
    3,
    3.0,
)  # of the figure with all curves: panels per row, and the height of a row in inches


class Report(NamedTuple):
    """The findings of a report, and the files written."""

    findings: list[Finding]
    written: tuple[Path, ...]


class RunRecord(NamedTuple):
    """The content of the files of a run."""

    folder: Path
    kind: str  # molecules, db or graphs
    config: Config
    history: History
    split: dict[str, int]  # the numbers of training and test worlds
    likelihood: dict[str, Any]
    dropped: tuple[Dropped, ...] = ()  # dropped lines of the data
    start: dict[str, Any] | None = None  # whose weights it started with
    shares: Mapping[str, float] = {}  # of the sizes in the data, if there are several
    groups: int = 0  # that noise can change, in the largest world; 0: unknown
    predicted: tuple[float, ...] | None = None  # swaps of neighbours, where the data determine them

    @property
    def levels(self) -> Levels:
        return levels_of(self.config.ladder, self.groups, bool(self.shares), self.predicted)

    @property
    def swaps(self) -> list[float] | None:
        """The mean swap probabilities of neighbours in the last fifth; None without exchange."""
        curve = self.history.curves.get("swaps")
        fits = curve is not None and curve.width == len(self.levels.chains) - 1
        return means(curve) if curve is not None and fits else None

    @property
    def findings(self) -> list[Finding]:
        return findings_of(self.history, self.levels, self.config.optimiser.clip)

    @property
    def step(self) -> int:
        return int(self.history.steps[-1])

    @property
    def seconds(self) -> float:
        seconds = self.history.last("seconds") or 0.0
        return seconds if isfinite(seconds) else 0.0


def write_report(folder: Path, more: Iterable[Section] = ()) -> Report:
    """Write report.html, training.png, training.svg and training.csv into the folder of a run.

    `more` are further sections, placed before the settings of the run. Neither the data nor the weights
    are read.
    """
    run = read_run(folder)
    curves = write_curves(run)
    sections = [*training_sections(run), *more, _again(run), configuration_section(run)]
    written = write_page(RunFolder(folder).report, _title(run), sections, _lead(run))
    return Report(run.findings, (written, *curves))


def write_curves(run: RunRecord) -> tuple[Path, ...]:
    """Write training.png, training.svg and training.csv into the folder of a run."""
    folder, panels = run.folder, panels_of(run.history, run.levels)
    names = {
        curve.name: run.levels.names(curve) for curve in run.history.curves.values() if curve.listed
    }
    write_lines(folder / "training.csv", table(run.history, names))
    rows = -(-len(panels) // _ACROSS)
    figures = draw(folder / "training", paint_all(panels, _ACROSS), (11.5, max(1, rows) * _ROW))
    return (*figures, folder / "training.csv")


def read_run(folder: Path) -> RunRecord:
    """Read everything that a report shows; files that a run does not have yet count as empty."""
    home = RunFolder(folder)
    head = home.read_head()
    if not home.metrics.exists() or not home.metrics.stat().st_size:
        raise InputError(
            "this run has no recorded step yet, so there is nothing to draw. Continue it: "
            f"{home.resume_command}",
            str(home.metrics),
            kind="missing",
        )
    split = {
        name: len(worlds) for name, worlds in _read(home.split).items() if isinstance(worlds, list)
    }
    history, found = read_history(home.metrics), _read(home.likelihood)
    with placed(str(home.head)):
        shares, groups = head.shares, free_groups(head.spaces)
    return RunRecord(
        folder,
        head.kind,
        head.config,
        history,
        split,
        found,
        head.dropped,
        head.start,
        shares,
        groups,
        head.predicted_swaps,
    )


def _read(path: Path) -> dict[str, Any]:
    """The content of a JSON file, empty if it does not exist."""
    return checkpoint.read_json(path) if path.exists() else {}


def levels_of(
    ladder: LadderConfig,
    groups: int = 0,
    several: bool = False,
    predicted: tuple[float, ...] | None = None,
) -> Levels:
    """The names of the levels of a configuration, and the predictions for worlds of so many groups.

    `several`: whether there are smaller worlds too. `predicted`: what was predicted from the data.
    """
    method = Method.of(ladder)
    trained = tuple(f"{rate:g}" for rate in method.noise.rates)
    if method.temperatures is None:
        if method.marginal:
            predicted = predicted or ()
        else:
            predicted = method.noise.predicted_swaps(groups) if groups else ()
        return Levels(trained, trained, "corruption rate", predicted, groups, several)
    heats = tuple(f"T = {heat:.3g}" for heat in method.temperatures.rates)
    return Levels(trained, heats, "level")


def _title(run: RunRecord) -> str:
    return f"Training on {Path(run.config.data.source).name}"


def _lead(run: RunRecord) -> str:
    steps = run.config.training.steps
    state = "finished" if run.step >= steps else f"{run.step / steps:.0%} done"
    start = "" if run.start is None else f"; {in_words(run.start)}"
    return f"{run.step:,} of {steps:,} steps, {state}, {duration(run.seconds)}{start}"


def training_sections(run: RunRecord) -> list[Section]:
    """The findings, facts and curves of the training."""
    findings, panels = run.findings, panels_of(run.history, run.levels)
    warnings = [one.text for one in findings if one.warning]
    verdict = page.bad(warnings) if warnings else page.good("No problems found.")
    said = page.bullets(one.text for one in findings if not one.warning)
    drawn = page.panels([partial(_paint, panel) for panel in panels])
    hint = page.paragraph("Faint: each step. Strong: running mean.")
    sections = [
        Section("Findings", page.joined(verdict, said)),
        Section("The run", _facts(run)),
        Section("Curves", page.joined(hint, drawn)),
    ]
    if run.swaps:
        sections.insert(2, Section("Levels", ladder_html(run.levels, run.swaps)))
    if run.likelihood:
        sections.insert(2, Section("Likelihood", _likelihood(run)))
    if run.shares:
        sections.insert(2, Section("By size", _by_size(run)))
    return sections


def _by_size(run: RunRecord) -> Html:
    """The last numbers of every size, the overall ones first; nats are those of `likelihood.json`."""
    rows = [("all", "100.0 %", *_sized(run, None))]
    rows += [
        (size, f"{100 * share:.1f} %", *_sized(run, size)) for size, share in run.shares.items()
    ]
    head = ("size", "share of the data", "valid", "known", "least swaps", "log Z", "nats per world",
            "nats per molecule")  # fmt: skip
    used = [place for place in range(len(head)) if any(row[place] for row in rows)]
    hint = "Shares of the chains at the target, at the end of training."
    if run.likelihood:
        hint += (
            " Nats: mean log-probability of the test data, given the size; of all sizes together, with "
            "that of the size."
        )
    table = page.table([head[one] for one in used], [[row[one] for one in used] for row in rows])
    return page.joined(page.paragraph(hint), table)


def _sized(run: RunRecord, size: str | None) -> list[str]:
    """The cells of one size, or of all; those that are not known are empty."""
    measured = run.likelihood
    if size is not None:
        each = measured.get("by_size")
        found = each.get(size) if isinstance(each, dict) else None
        measured = found if isinstance(found, dict) else {}

    def last(name: str) -> float | None:
        curves = run.history.curves
        curve = curves.get(name) if size is None else run.history.by_size.get(name, {}).get(size)
        return None if curve is None else float(np.fmin.reduce(curve.numbers[-1]))

    def formatted(number: object, form: str, scale: float = 1) -> str:
        if not isinstance(number, int | float) or not isfinite(number):
            return ""
        return form.format(scale * number)

    return [
        *(formatted(last(name), "{:.1f} %", 100) for name in ("valid", "known", "swaps")),
        *(formatted(measured.get(name), "{:.2f}") for name in ("log_z", "test", "test_molecules")),
    ]


def _paint(panel: Panel, axes: "Axes") -> None:
    paint_panel(axes, panel)


def _facts(run: RunRecord) -> Html:
    config, split = run.config, run.split
    minutes = run.seconds / 60
    facts: list[tuple[str, object]] = [
        ("data", f"{config.data.source} ({run.kind})"),
        ("steps", f"{run.step:,} of {config.training.steps:,}"),
        ("time", f"{duration(run.seconds)}, {run.step / minutes:,.0f} steps per minute")
        if minutes
        else ("time", "unknown"),
        ("processes", config.training.processes or "one per core"),
        ("chains", f"{config.chains.replicas} replicas of {len(run.levels.chains)} levels"),
    ]
    if split:
        apart = f"{split.get('train', 0):,} to learn from, {split.get('test', 0):,} held out"
        facts.insert(1, ("worlds", apart))
    if run.dropped:
        facts.insert(2, ("dropped lines", "; ".join(map(str, run.dropped))))
    if (evaluations := run.history.last("evaluations")) is not None:
        facts.append(("worlds scored", f"{evaluations:,.0f}"))
    facts += [
        (f"{name.replace('_', ' ')}, at every step", _number(float(curve.numbers[0, 0])))
        for name, curve in run.history.curves.items()
        if not curve.listed and is_constant(curve)
    ]
    return page.facts(facts)


def _likelihood(run: RunRecord) -> Html:
    """All numbers of `likelihood.json` with their errors, and known names in words."""
    words = {
        "worlds": "worlds",
        "train": "training worlds, nats per world",
        "test": "test worlds, nats per world",
        "train_molecules": "training molecules, nats per molecule",
        "test_molecules": "test molecules, nats per molecule",
        "log_z": "log Z",
        "log_z_low": "log Z, from below",
        "log_z_high": "log Z, from above",
        "log_z_least": "log Z, at least",
        "log_z_most": "log Z, at most",
        "effective_size": "effective number of annealed chains",
    }
    found = {name: value for name, value in run.likelihood.items() if name != "by_size"}
    rows = []
    for name, value in found.items():
        if name.removesuffix("_error") in found and name.endswith("_error"):
            continue
        error = found.get(f"{name}_error")
        shown = "none" if value is None else _number(value)
        with_error = shown if error is None else f"{shown} ± {_number(error)}"
        rows.append((words.get(name, name.replace("_", " ")), with_error))
    return page.facts(rows)


def configuration_section(run: RunRecord) -> Section:
    """All settings of a run; those that are not defaults are bold."""
    default = configure({}).to_dict()
    content = run.config.to_dict()
    parts = []
    for name, part in content.items():
        rows = [
            (key, _setting(value, changed=value != default[name].get(key)))
            for key, value in part.items()
            if value is not None
        ]
        parts.append((name, page.facts(rows)))
    hint = page.paragraph("Settings that differ from the defaults are bold.")
    return Section("Configuration", page.joined(hint, page.cards(parts)))


def _again(run: RunRecord) -> Section:
    unfinished = run.step < run.config.training.steps
    html = page.joined(
        page.paragraph("To repeat this run, in a new folder:"),
        page.code(repeating(run.config, run.folder, (run.start or {}).get("run"))),
        page.paragraph("To continue this run:" if unfinished else
                       "To continue that run, if it is interrupted:"),
        page.code(RunFolder(run.folder).resume_command),
    )  # fmt: skip
    return Section("Repeat", html)


def _setting(value: object, changed: bool) -> Html:
    shown = ", ".join(map(_number, value)) if isinstance(value, list) else _number(value)
    return Html(f"<strong>{page.markup(shown)}</strong>") if changed else page.markup(shown)


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def repeating(config: Config, folder: Path, start: str | None = None) -> str:
    """The command that repeats a run in another folder: the data and all non-default settings.

    `start` is the run whose weights it started with.
    """
    default = configure({}).to_dict()
    words = ["nmln", "train", config.data.source, "--output", f"{folder}-again"]
    if config.data.language is not None:
        words += ["--language", config.data.language]
    if start is not None:
        words += ["--from", str(start)]
    for name, part in config.to_dict().items():
        for key, value in part.items():
            has_a_flag = (name, key) in (("data", "source"), ("data", "language"))
            if not has_a_flag and value != default[name].get(key):
                shown = value if isinstance(value, str) else json.dumps(value)
                words += ["--set", f"{name}.{key}={shown}"]
    return shlex.join(words)


def duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
