"""NMLN* beside every baseline: `python -m benchmarks.comparison NAME [NAME ...]`.

A name is one of `nmln baseline list`, `shipped` (the model in the package) or `main` (our model with
the default settings, trained for the same time in one process). Each is trained on the training
molecules of pubchem-10 for some minutes of processor time, sampled, and measured, all on one core, by
the commands that a user would type; they are kept in the result with their processor time. Whatever was
interrupted continues, and what is done is not repeated.

A row for each goes to docs/results/baselines/NAME.json. Sampling ends with the number of samples or
when an hour of processor time would not be enough; `--partial` takes what an interrupted one has. Every
row has the metrics of the first 10,000, 20,000, 50,000 and 200,000 samples, as far as there are, so that
equal numbers can be compared. `--page` writes the table into docs/explanation/comparison.md and draws
docs/figures/comparison.svg from all rows.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell, drawn, drawn_so_far
from benchmarks.pages import put
from nmln.baselines.base import BASELINES
from nmln.evaluation import RecallCurve, evaluate
from nmln.files import plain, write_json
from nmln.model.pretrained import unpack
from nmln.report.figures import draw
from nmln.report.recall import paint_curves
from nmln.runs.references import of_run

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "baselines"
FIGURE = ROOT / "docs" / "figures" / "comparison"
DATA = "pubchem-10"
OURS = {"shipped": "NMLN\\*, shipped model", "main": "NMLN\\*, equal time"}
CUTS = (10_000, 20_000, 50_000, 200_000)
HOUR = 3600.0
PILOT = 200  # samples that are timed first
MOST = 704  # molecules of either set whose likelihood is measured: all of the test set


class Model(Cell):
    """One model of the comparison."""

    def __init__(
        self, name: str, folder: Path, minutes: float, samples: int, partial: bool = False
    ) -> None:
        own = unpack(DATA, folder) if name == "shipped" else folder / name
        super().__init__(own, folder / f"{name}.times.json")
        self.name, self.minutes, self.samples = name, minutes, samples
        self.ours, self.partial = name in OURS, partial

    def train(self) -> None:
        if self.name == "shipped" or self.done("training"):
            return
        verb = ["train"] if self.ours else ["baseline", "train"]
        if (self.folder / "config.json").exists() or (self.folder / "baseline.json").exists():
            self.nmln("training", *verb, "--resume", self.folder)
            return
        name = [] if self.ours else [self.name]
        one = ["--processes", 1] if self.ours else []
        budget = ["--minutes", self.minutes, "--output", self.folder]
        self.nmln("training", *verb, *name, DATA, *one, *budget)

    def sample(self) -> None:
        if self.done("sampling") or self.partial:
            return
        verb = ["sample"] if self.ours else ["baseline", "sample"]
        one = ["--processes", 1] if self.ours else []
        count = self.samples if self.ours else self.affordable()
        self.nmln("sampling", *verb, self.folder, *one, "--num-samples", count)

    def affordable(self) -> int:
        """As many samples as fit into an hour, by the rate of some first ones; of round numbers."""
        trial = self.folder / "trial"
        if not (trial / "sampling.json").exists():
            words = ["baseline", "sample", self.folder, "--output", trial, "--seed", 1]
            self.nmln("trial", *words, "--num-samples", PILOT)
        found = json.loads((trial / "sampling.json").read_text())
        most = HOUR * found["attempts"] / found["cpu_seconds"]
        fitting = [one for one in (*CUTS, self.samples) if one <= min(most, self.samples)]
        return max(fitting, default=max(PILOT, int(most)))

    def likelihood(self) -> dict[str, Any] | None:
        if self.name.startswith("congress"):
            return None
        if not self.done("likelihood"):
            verb = ["likelihood"] if self.ours else ["baseline", "likelihood"]
            most = [] if self.ours else ["--most", MOST]
            self.nmln("likelihood", *verb, self.folder, *most)
        return json.loads((self.folder / "likelihood.json").read_text())

    def row(self) -> dict[str, Any]:
        """Everything, measured: the content of the result file."""
        self.train()
        self.sample()
        likelihood = self.likelihood()
        references = of_run(self.folder)
        train, test = references["train"].smiles, references["test"].smiles
        whole = self.done("sampling")
        samples = (drawn if whole else drawn_so_far)(self.folder / "samples")
        counts = [count for count in CUTS if count <= len(samples)] or [len(samples)]
        cuts = {str(count): described(samples[:count], train, test) for count in counts}
        known = self.known()
        baseline = self.folder / "baseline.json"
        head = json.loads(baseline.read_text()) if baseline.exists() else {}
        return {
            "name": self.name,
            "data": DATA,
            "train": len(train),
            "test": len(test),
            "steps": known,
            "drawn": len(samples),
            "trained": head.get("trained"),
            "settings": head.get("settings"),
            "likelihood": likelihood,
            "samples": cuts,
        }


def described(samples: Sequence[str | None], train: Any, test: Any) -> dict[str, Any]:
    found = evaluate(samples, train, test)
    content = found.describe()
    content["curve"] = {"ranks": found.test.ranks, "found": found.test.found}
    return content


# The table and the figure.


def stored() -> dict[str, dict[str, Any]]:
    """All rows, ours first, then in the order of their recall."""
    rows = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    cut = common(rows)
    rows.sort(key=lambda row: (row["name"] not in OURS, -_recall(row, cut, 1000)))
    return {row["name"]: row for row in rows}


def common(rows: Sequence[dict[str, Any]]) -> str:
    """The largest number of samples that all rows have."""
    shared = set.intersection(*(set(row["samples"]) for row in rows))
    if not shared:
        fewest = min(rows, key=lambda row: max(map(int, row["samples"])))
        raise SystemExit(
            f"{fewest['name']} has only {max(map(int, fewest['samples'])):,} samples, and others have "
            "no metrics of so few. Add this number to CUTS and measure them again, or remove the row."
        )
    return max(shared, key=int)


def _recall(row: dict[str, Any], cut: str, rank: int) -> float:
    return row["samples"][cut]["recall"]["test"]["at"][str(rank)]["value"]


def title(name: str) -> str:
    return OURS.get(name) or BASELINES.named(name).title


def table(rows: dict[str, dict[str, Any]], cut: str) -> list[str]:
    """The rows as Markdown, at an equal number of samples."""
    lines = [
        "| model | valid | different, novel | covered | test in the top 100, 300, 1,000, 3,000, 10,000 "
        "| nats | CPU min: training, sampling | updates |",
        "| --- |" + " --- |" * 7,
    ]
    for name, row in rows.items():
        found = row["samples"][cut]
        recall = ", ".join(f"{_recall(row, cut, t):.0f}" for t in (100, 300, 1000, 3000, 10_000))
        lines.append(
            f"| {title(name)} | {found['valid']['value']:.1%} | {found['unique']['count']:,}, "
            f"{found['novelty']['value']:.0%} | {found['coverage_test']['value']:.1%} | {recall} | "
            f"{nats(row)} | {minutes(row, 'training')}, {minutes(row, 'sampling')} | {updates(row)} |"
        )
    return lines


def nats(row: dict[str, Any]) -> str:
    """Of the test molecules; those that a model cannot write are left out and counted."""
    found = row["likelihood"] or {}
    value, lacking = found.get("test_molecules"), found.get("test_molecules_impossible")
    if value is None and lacking:
        value = found["test_molecules_possible"]
    if value is None:
        return "-"
    bound = "at least " if found.get("exact") is False else ""
    return f"{bound}{value:.2f}" + (f" (without {lacking})" if lacking else "")


def minutes(row: dict[str, Any], step: str) -> str:
    found = row["steps"].get(step)
    if step == "training" and row["trained"]:  # also counts commands that were cut off
        found = row["trained"]
    return "-" if found is None else f"{found['cpu_seconds'] / 60:.1f}"


def updates(row: dict[str, Any]) -> str:
    """Updates that were made; of those of a published schedule, if it is longer."""
    if not row["trained"]:
        return "-"
    settings, made = row["settings"], row["trained"]["updates"]
    schedule = settings["epochs"] * -(-row["trained"]["molecules"] // settings["batch"])
    published = "held_out" in settings and not settings["held_out"]
    return f"{made:,} of {schedule:,}" if published and made < schedule else f"{made:,}"


def page(rows: dict[str, dict[str, Any]]) -> None:
    """Write the table into the page, and draw the figure once it has one of our models."""
    cut = common(list(rows.values()))
    count = f"At {int(cut):,} samples of each model:"
    put("comparison.md", "table", [count, "", *table(rows, cut)])
    if set(OURS) & set(rows):
        draw(FIGURE, lambda figure: paint(figure, rows, cut), (9.6, 4.6))


def paint(figure: Any, rows: dict[str, dict[str, Any]], cut: str) -> None:
    """Two panels: ours and graphs, ours and strings."""
    graphs = [name for name in rows if name in OURS or "gress" in name]
    strings = [name for name in rows if name in OURS or "gress" not in name]
    for axes, names, what in zip(
        figure.subplots(1, 2), (graphs, strings), ("graphs", "strings"), strict=True
    ):
        lines = []
        for name in names:
            curve = rows[name]["samples"][cut]["curve"]
            size = rows[name]["test"]
            lines.append(
                (
                    title(name).replace("\\", ""),
                    RecallCurve(tuple(curve["ranks"]), tuple(curve["found"]), size),
                )
            )
        known = rows[names[0]]["train"] + rows[names[0]]["test"]
        paint_curves(axes, lines, known, max(curve.ranks[-1] for _, curve in lines))
        axes.set_title(f"Test molecules found, beside models of {what}")
        axes.legend(fontsize=6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU minutes of training")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--runs", type=Path, default=Path("runs/comparison"))
    parser.add_argument(
        "--partial", action="store_true", help="take what an interrupted sampling has drawn"
    )
    parser.add_argument("--page", action="store_true", help="write the table and the figure")
    given = parser.parse_args()
    for name in given.names:
        if (RESULTS / f"{name}.json").exists():
            print(f"{name} is done")
            continue
        row = Model(name, given.runs, given.minutes, given.samples, given.partial).row()
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_json(RESULTS / f"{name}.json", plain(row))
        cut = max(row["samples"], key=int)
        print("\n".join(table({name: row}, cut)), flush=True)
    if given.page:
        page(stored())


if __name__ == "__main__":
    main()
