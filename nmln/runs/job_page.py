"""The last stage of `nmln run`: evaluates the samples of every level and writes the report."""

import csv
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.errors import InputError
from nmln.evaluation import Estimate, LevelEvaluation, Share, count_by_chain, judge_levels
from nmln.files import write_lines
from nmln.report import molecules as parts
from nmln.report import page
from nmln.report.chains import chains_html
from nmln.report.page import Html, Section, write_page
from nmln.runs import evaluate as evaluation
from nmln.runs import pages, stream
from nmln.runs.sample_rows import read_rows
from nmln.runs.start import in_words

RANK = 1_000
"""The rank at which recall curves are compared."""


@dataclass(frozen=True)
class JobOutcome:
    """The results of the job: the levels, the target last, and the files written."""

    folder: Path
    levels: tuple[LevelEvaluation, ...]
    seconds: dict[str, float]
    findings: list[str]
    written: tuple[Path, ...]
    by_size: Mapping[int, evaluation.SizeEvaluation] = field(default_factory=dict)  # of the target

    @property
    def report(self) -> Path:
        return self.folder / "report.html"


def conclude(folder: Path, again: str, say: Callable[[str], None]) -> JobOutcome:
    """Evaluate the samples of every level and write the report, only from the files of the folder.

    `again` is the command that repeats the job.
    """
    samples = folder / "samples"
    say("comparing with the training and test set")
    found = evaluation.run(
        [samples], folder / "evaluation", folder=folder, level="all", with_fcd=False, progress=say
    )
    say("intervals over chains")
    record = pages.read_run(folder)
    summary = read_summary(samples / stream.SUMMARY)
    train, test = found.train.smiles, found.test.smiles
    rows = read_rows(samples / stream.SAMPLES)
    counted = count_by_chain(rows, summary["settings"]["chains"], train, test)
    evaluated = [(one.level or 0, one.found) for one in found.evaluated]
    levels = judge_levels(evaluated, counted, record.levels.chains, test, RANK)
    write_lines(folder / "evaluation" / "levels.csv", _table(levels))
    say("writing the report")
    kept = samples / "chains.json"
    judged = checkpoint.read_json(kept) if kept.exists() else {}
    sections = [
        *parts.sections(levels, train, test),
        *_by_size(summary, found),
        _chains(summary, judged, record),
        *_training(record),
        _files(folder),
        _again(folder, again, _alike(summary["settings"], record.config.training.processes or 1)),
        pages.configuration_section(record),
    ]
    name = Path(record.config.data.source).name
    path = folder / "report.html"
    curves = pages.write_curves(record)
    write_page(
        path, f"New molecules from {name}", sections, _lead(record, summary, found), parts.STYLE
    )
    _, wrong = parts.level_findings(levels)
    seconds = {"training": record.seconds, "generating": float(summary["seconds"])}
    findings = [*wrong, *summary["findings"]]
    by_size = found.evaluated[-1].by_size
    return JobOutcome(folder, levels, seconds, findings, (path, *curves, *found.written), by_size)


def read_summary(path: Path) -> dict[str, Any]:
    """The summary that `nmln sample` wrote, checked for the entries that the page needs."""
    summary = checkpoint.read_json(path)
    settings = summary.get("settings")
    whole = ("attempts", "moves_per_sample", "processes", "moves_before_the_first")
    real = ("seconds", "samples_per_second", "decoding_share")
    if not (
        isinstance(settings, dict)
        and all(isinstance(settings.get(name), int) for name in ("chains", "parts"))
        and all(isinstance(summary.get(name), int) for name in whole)
        and all(isinstance(summary.get(name), int | float) for name in real)
        and all(isinstance(summary.get(name), list) for name in ("levels", "findings"))
        and all(isinstance(one, str) for one in summary["findings"])
    ):
        raise InputError(
            "this does not describe samples. Restore it from a copy, or sample again (--overwrite).",
            str(path),
            kind="damaged",
        )
    return summary


# Parts of the page.


def _lead(
    record: pages.RunRecord, summary: dict[str, Any], found: evaluation.EvaluationOutcome
) -> str:
    levels = len(summary["levels"])
    at = f"at each of {levels} levels" if levels > 1 else "at one level"
    return (
        f"{_sizes(found.sizes)} heavy atoms. Trained on {len(found.train.smiles):,} molecules in "
        f"{pages.duration(record.seconds)}, {len(found.test.smiles):,} more were held out; "
        f"{summary['attempts']:,} attempts {at} in {pages.duration(summary['seconds'])}."
        + ("" if record.start is None else f" Training {in_words(record.start)}.")
    )


def _sizes(sizes: Sequence[int]) -> str:
    """Sizes in words; of many only the first and the last."""
    shown = ", ".join(map(str, sizes)) if len(sizes) <= 12 else f"{sizes[0]} to {sizes[-1]}"
    return " and ".join(shown.rsplit(", ", 1))


def _by_size(summary: dict[str, Any], found: evaluation.EvaluationOutcome) -> list[Section]:
    """The samples of the target by size, if there are several."""
    target = found.evaluated[-1].by_size
    if not target:
        return []
    new = [one["size"] for one in summary.get("sizes", ()) if one.get("extrapolation")]
    head = ("heavy atoms", "attempts", "valid", "different", "covered test", "covered train",
            f"test molecules among the {RANK:,} most frequent")  # fmt: skip
    rows = [
        (
            f"{size} (extrapolation)" if str(size) in new else size,
            f"{one.samples.attempts:,}" if known else "",
            _percent(one.valid) if known else "",
            f"{one.samples.unique:,}",
            _percent(one.coverage_test),
            _percent(one.coverage_train),
            f"{one.test.at(RANK):,.0f} of {one.coverage_test.total:,}",
        )
        for size, (one, known) in [("all", (found.evaluated[-1].found, True)), *target.items()]
    ]
    return [Section("By size", page.table(head, rows))]


def _percent(share: Share) -> str:
    return f"{100 * share.value:.1f} %" if share.total else ""


def _chains(summary: dict[str, Any], judged: dict[str, Any], record: pages.RunRecord) -> Section:
    try:
        html = chains_html(
            summary["findings"], judged, record.levels.chains, record.levels.predicted
        )
    except checkpoint.FOREIGN:
        raise InputError(
            "this does not describe chains. Restore it from a copy, or sample again (--overwrite).",
            str(record.folder / "samples" / "chains.json"),
            kind="damaged",
        ) from None
    speed = (
        f"{summary['samples_per_second']:,.0f} samples per second at the target, "
        f"{summary['moves_per_sample']} moves apart, by {summary['processes']} process"
        f"{'es' if summary['processes'] > 1 else ''}; {summary['moves_before_the_first']:,} moves "
        f"before the first. Decoding took {summary['decoding_share']:.0%} of the time."
    )
    return Section("Chains", page.joined(html, page.paragraph(speed)))


def _training(record: pages.RunRecord) -> list[Section]:
    titles = {
        "Findings": "Training",
        "The run": "Training: the run",
        "Levels": "Training: levels",
        "By size": "Training: by size",
        "Curves": "Training: curves",
    }
    return [
        replace(one, title=titles.get(one.title, one.title))
        for one in pages.training_sections(record)
    ]


_FILES = {
    "model": "the model, for nmln sample",
    "samples/samples.csv.gz": "one row per attempt, for all levels",
    "samples/counts.csv": "the count of each valid molecule at the target",
    "samples/chains.html": "more about the chains",
    "evaluation/levels.csv": "the table of levels with its intervals",
    "evaluation/evaluation.json": "all measures of every level",
    "evaluation/recall.csv": "the recall curves",
    "evaluation/ranking.csv": "the molecules of the target by their log-probability",
    "training.csv": "the training curves",
    "split.json": "which molecules were held out",
    "worlds.safetensors": "the molecules as they were read",
}


def _files(folder: Path) -> Section:
    rows = [(name, what) for name, what in _FILES.items() if (folder / name).exists()]
    html = "".join(
        f"<tr><th scope='row'><a href='{name}'>{name}</a></th><td>{page.markup(what)}</td></tr>"
        for name, what in rows
    )
    return Section("Files beside this page", Html(f"<table class='facts'>{html}</table>"))


def _again(folder: Path, command: str, alike: bool) -> Section:
    """`alike`: whether the command draws the same samples."""
    exact = "To repeat this job exactly, in a new folder:"
    near = (
        "To repeat this job in a new folder; the samples will differ, because these were drawn by "
        "another number of processes:"
    )
    html = page.joined(
        page.paragraph(exact if alike else near),
        page.code(command),
        page.paragraph("To draw more molecules from the same model:"),
        page.code(_more(folder)),
    )
    return Section("Repeat", html)


def _alike(settings: dict[str, Any], processes: int) -> bool:
    """Blocks of a fixed size do not depend on processes; earlier versions had one part per process."""
    return bool(settings.get("block")) or settings["parts"] == processes


def _more(folder: Path) -> str:
    return shlex.join(
        ["nmln", "sample", str(folder), "--num-samples", "100000", "--output", f"{folder}-more"]
    )


def _table(levels: tuple[LevelEvaluation, ...]) -> list[str]:
    """The levels as CSV; unknown intervals are empty."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow((
        "level", "name", "attempts", "valid", "valid_low", "valid_high", "unique",
        "in_train", "in_train_low", "in_train_high", "in_test", "in_test_low", "in_test_high",
        "covered_test", "covered_train", "rank", "recall", "recall_low", "recall_high",
        "recall_train",
    ))  # fmt: skip

    def cells(estimate: Estimate | tuple[float]) -> list[str]:
        return ["" if isnan(one) else f"{one:.6g}" for one in estimate]

    for one in levels:
        found = one.found
        table.writerow((
            one.number, one.name, found.samples.attempts, *cells(one.valid),
            *cells((found.unique.value,)), *cells(one.known_train), *cells(one.known_test),
            f"{found.coverage_test.value:.6g}", f"{found.coverage_train.value:.6g}",
            one.rank, *cells(one.recall), f"{found.train.at(one.rank):.6g}",
        ))  # fmt: skip
    return text.getvalue().removesuffix("\n").split("\n")
