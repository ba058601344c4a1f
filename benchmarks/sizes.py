"""One model of several sizes beside models of one size: `python -m benchmarks.sizes NAME [NAME ...]`.

| name | what is trained |
| --- | --- |
| `mixed` | one model of all molecules of chembl_9, chembl_10 and chembl_15, in one file |
| `only-9`, `only-10`, `only-15` | a model of one size, each for a third of the time |
| `unseen` | one model of 9 and 15 atoms, for two thirds of the time; 10 is held out |

The sets are found through `NMLN_DATA`. All are trained and sampled by the commands of a user, on one
core, with the same split of every size; a row for each goes to docs/results/sizes/NAME.json. Whatever
was interrupted continues, and what is done is not repeated. `--page` writes the table into
docs/explanation/sizes.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import Cell, drawn
from benchmarks.pages import put
from benchmarks.quality import steps_in
from nmln.config import configure
from nmln.evaluation import MARKS, evaluate
from nmln.files import plain, write_json, write_lines
from nmln.model import Model
from nmln.runs import data as sources

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "sizes"
PRESET = "molecules"
SIZES = (9, 10, 15)
TRAINED: dict[str, tuple[int, ...]] = {
    "mixed": SIZES,
    **{f"only-{size}": (size,) for size in SIZES},
    "unseen": (9, 15),
}


class Sizes(Cell):
    """One model, and its samples of every size that it is compared at."""

    def __init__(self, name: str, folder: Path, minutes: float, samples: int) -> None:
        super().__init__(folder / name, folder / f"{name}.times.json")
        self.name, self.samples, self.sizes = name, samples, TRAINED[name]
        self.minutes = minutes * len(self.sizes) / len(SIZES)
        self.data = folder / "mixed.smi"

    def train(self) -> None:
        if self.done("training"):
            return
        if (self.folder / "config.json").exists():
            self.nmln("training", "train", "--resume", self.folder)
            return
        sizes = ["--sizes", ",".join(map(str, self.sizes))]
        data = {"source": str(self.data), "sizes": self.sizes}
        steps = steps_of(data, self.minutes)
        once = ["--processes", 1, "--steps", steps, "--output", self.folder]
        self.nmln("training", "train", self.data, "--preset", PRESET, *sizes, *once)

    def row(self) -> dict[str, Any]:
        self.train()
        train, test = parts(self.data)
        found = {}
        for size in SIZES if self.name == "unseen" else self.sizes:
            output = self.folder / f"samples-{size}"
            if not self.done(f"sampling-{size}"):
                chosen = ["--size", size] if len(self.sizes) > 1 else []
                count = ["--num-samples", self.samples, "--processes", 1, "--output", output]
                self.nmln(f"sampling-{size}", "sample", self.folder, *chosen, *count)
            known = train[size], test[size]
            if size not in self.sizes:  # all molecules of this size were held out
                known = [one for own in self.sizes for one in train[own]], train[size] + test[size]
            found[str(size)] = evaluate(drawn(output), *known, MARKS).describe()
        return {"name": self.name, "sizes": self.sizes, "steps": self.known(), "by_size": found}


def steps_of(data: dict[str, Any], minutes: float) -> int:
    """As many steps as fit into the processor time."""
    config = configure({"data": data, "training": {"steps": 10**6}}, preset=PRESET)
    learned = sources.load(config.data).learned
    return steps_in(minutes, Model.build(learned, config=config), learned)


def parts(mixed: Path) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Training and test molecules of every size."""
    source = sources.load(configure({"data": {"source": str(mixed), "sizes": SIZES}}).data)
    places = {"train": source.train.tolist(), "test": source.test.tolist()}
    homes = source.homes.tolist()
    train, test = (
        {
            size: [source.names[place] for place in some if homes[place] == number]
            for number, size in enumerate(SIZES)
        }
        for some in places.values()
    )
    return train, test


def mix(path: Path) -> None:
    """All molecules of the sets in one file."""
    if not path.exists():
        sets = [
            sources.load(configure({"data": {"source": f"chembl-{size}"}}).data) for size in SIZES
        ]
        write_lines(path, [name for one in sets for name in one.names])


def table() -> list[str]:
    """The rows as Markdown, by size."""
    lines = [
        "| size | model | trained on | valid | different | covered | 100 | 300 | 1,000 | 3,000 | "
        "10,000 | CPU min of training |",
        "|" + " --- |" * 12,
    ]
    rows = [json.loads((RESULTS / f"{name}.json").read_text()) for name in TRAINED
            if (RESULTS / f"{name}.json").exists()]  # fmt: skip
    for size in map(str, SIZES):
        for row in rows:
            if size not in row["by_size"]:
                continue
            found = row["by_size"][size]
            at = found["recall"]["test"]["at"]
            recall = " | ".join(f"{at[str(mark)]['value']:.0f}" for mark in MARKS)
            minutes = row["steps"]["training"]["cpu_seconds"] / 60
            lines.append(
                f"| {size} | {row['name']} | {', '.join(map(str, row['sizes']))} | "
                f"{found['valid']['value']:.1%} | {found['unique']['count']:,} | "
                f"{found['coverage_test']['value']:.1%} | {recall} | {minutes:.1f} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRAINED))
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="CPU minutes of all three sizes"
    )
    parser.add_argument("--samples", type=int, default=10_000, help="of every size")
    parser.add_argument("--runs", type=Path, default=Path("runs/sizes"))
    parser.add_argument("--page", action="store_true", help="write the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.names:
        given.runs.mkdir(parents=True, exist_ok=True)
        mix(given.runs / "mixed.smi")
    for name in given.names:
        row = Sizes(name, given.runs, given.minutes, given.samples).row()
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_json(RESULTS / f"{name}.json", plain(row))
    if given.page:
        put("sizes.md", "table", table())
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
