"""Molecules of 15 and 20 atoms, beside a string model: `python -m benchmarks.large CELL [CELL ...]`.

A cell is a data set and a model, such as `chembl-15:nmln` or `chembl-20:gru`. The model is trained for
some minutes with the settings of `nmln run`, or as the baseline `gru`, sampled, and
measured, all on one core, by the commands that a user would type. Sets are found through `NMLN_DATA`;
the split is the usual one. Whatever was interrupted continues, and what is done is not repeated.

A row for each goes to docs/results/large/DATA-MODEL.json: the minutes of the processor until 60, 85 and
95 % of the training chains at the target were valid (means of the last four measurements, with all steps
in equal parts), how often neighbouring levels swapped in the last hundred steps, and of the samples
the share of valid ones, of different ones, of the test set that was generated, and the test
molecules among the t most frequent and the t most probable. `--page` writes the table into
docs/explanation/sizes.md; without anything it is printed.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import Cell, minutes_until, steps_of_run
from benchmarks.pages import put
from benchmarks.quality import SHARES
from benchmarks.sizes import PRESET, ROOT
from nmln.evaluation import MARKS
from nmln.files import plain, write_json

RESULTS = ROOT / "docs" / "results" / "large"
DATA = ("chembl-15", "chembl-20", "zinc250k-15", "zinc250k-20", "moses-15", "pubchem-10")
OURS = "nmln"
TITLES = {OURS: "NMLN\\*", "gru": "GRU (ours)"}
CLOCK = "training.clock=processor"
RECENT, LAST = 4, 100  # measurements that a share, and steps that a swap probability is the mean of
MOST = 1000  # test molecules whose likelihood under a baseline is measured


class Large(Cell):
    """One model of one data set."""

    def __init__(self, cell: str, folder: Path, minutes: float, samples: int) -> None:
        self.data, self.model = cell.split(":")
        self.name = f"{self.data}-{self.model}"
        super().__init__(folder / self.name, folder / f"{self.name}.times.json")
        self.minutes, self.samples, self.ours = minutes, samples, self.model == OURS

    def words(self, verb: str) -> list[str]:
        return [verb] if self.ours else ["baseline", verb]

    def train(self, more: Sequence[str]) -> None:
        if self.done("training"):
            return
        words, output = self.words("train"), ["--output", self.folder]
        if any((self.folder / name).exists() for name in ("config.json", "baseline.json")):
            self.nmln("training", *words, "--resume", self.folder)
            return
        budget = ["--minutes", self.minutes, *output]
        if self.ours:
            changes = [word for one in (CLOCK, *more) for word in ("--set", one)]
            once = ["--preset", PRESET, *changes, "--processes", 1]
            self.nmln("training", *words, self.data, *once, *budget)
        else:
            self.nmln("training", *words, self.model, self.data, *budget)

    def measure(self) -> None:
        """Samples, likelihood and evaluation, each once."""
        one, most = (["--processes", 1], []) if self.ours else ([], ["--most", MOST])
        chosen = [] if self.ours else ["--probability"]
        for step, verb, options in (
            ("sampling", self.words("sample"), ["--num-samples", self.samples, *one]),
            ("likelihood", self.words("likelihood"), most),
            ("evaluation", ["evaluate"], chosen),
        ):
            if not self.done(step):
                self.nmln(step, *verb, self.folder, *options)

    def row(self) -> dict[str, Any]:
        evaluation = json.loads((self.folder / "evaluation" / "evaluation.json").read_text())
        likelihood = json.loads((self.folder / "likelihood.json").read_text())
        sampling = json.loads((self.folder / "samples" / "sampling.json").read_text())
        sizes = {part: evaluation[part]["molecules"] for part in ("train", "test")}
        found = {"data": self.data, "model": self.model, **sizes, "steps": self.known()}
        if self.ours:
            config = json.loads((self.folder / "config.json").read_text())["config"]
            spent = self.known()["training"]["cpu_seconds"] / 60
            found |= {"rates": config["ladder"]["rates"], **grown(self.folder, spent)}
        found |= {"likelihood": likelihood, "findings": sampling.get("findings")}
        return found | {"samples": evaluation["samples"][-1]}


def grown(folder: Path, spent: float) -> dict[str, Any]:
    """How the validity of the training chains grew, and how often levels swapped at the end."""
    steps = steps_of_run(folder)
    swaps = torch.tensor([one["swaps"] for one in steps[-LAST:]]).mean(0)
    reached = minutes_until(steps, spent, SHARES, RECENT)
    return {"updates": len(steps), "minutes_until_valid": reached, "swaps": swaps.tolist()}


def table() -> list[str]:
    """The rows as Markdown."""
    ranks = ", ".join(f"{mark:,}" for mark in MARKS)
    lines = [
        "| data | model | CPU min of training | min until 60, 85, 95 % valid | least swap | valid | "
        f"different | covered | by count at {ranks} | by probability | nats |",
        "|" + " --- |" * 11,
    ]
    for data in DATA:
        for model, title in TITLES.items():
            path = RESULTS / f"{data}-{model}.json"
            if path.exists():
                row = json.loads(path.read_text(encoding="utf-8"))
                cells = [f"`{data}`", title, *columns(row)]
                lines.append("| " + " | ".join(cells) + " |")
    return lines


def columns(row: dict[str, Any]) -> list[str]:
    found, likelihood = row["samples"], row["likelihood"]
    until = [row.get("minutes_until_valid", {}).get(f"{share:.0%}") for share in SHARES]
    ours = row["model"] == OURS
    bound = "" if ours else "at least "
    error = likelihood.get("test_molecules_error")
    return [
        f"{row['steps']['training']['cpu_seconds'] / 60:.0f}",
        ", ".join("-" if one is None else f"{one:.0f}" for one in until) if ours else "",
        f"{min(row['swaps']):.0%}" if ours else "",
        f"{found['valid']['value']:.1%}",
        f"{found['unique']['count']:,}",
        f"{found['coverage_test']['value']:.1%}",
        recall(found["recall"]["test"]),
        recall((found.get("recall_by_probability") or {}).get("test")),
        f"{bound}{likelihood['test_molecules']:.2f}" + (f" ({error:.2f})" if error else ""),
    ]


def recall(curve: dict[str, Any] | None) -> str:
    if curve is None:
        return "-"
    return ", ".join(f"{curve['at'][str(mark)]['value']:.0f}" for mark in MARKS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", metavar="DATA:MODEL")
    parser.add_argument("--minutes", type=float, default=60.0, help="CPU minutes of training")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=Path, default=Path("runs/large"))
    parser.add_argument("--page", action="store_true", help="write the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.runs.mkdir(parents=True, exist_ok=True)
    for name in given.cells:
        cell = Large(name, given.runs, given.minutes, given.samples)
        cell.train(given.set)
        cell.measure()
        RESULTS.mkdir(parents=True, exist_ok=True)
        row = json.dumps(plain(cell.row()))  # without the path of this machine
        write_json(
            RESULTS / f"{cell.name}.json", json.loads(row.replace(f"{given.runs}/", "runs/large/"))
        )
    if given.page:
        put("sizes.md", "large table", table())
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
