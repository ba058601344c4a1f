"""A start from the weights of another size beside a new one: `python -m benchmarks.starts NAME ...`.

| name | what is trained |
| --- | --- |
| `15-new`, `15-from-10` | chembl_15, with new weights or from a model of chembl_10 |
| `20-new`, `20-from-15` | chembl_20, with new weights or from a model of chembl_15 |

`only-10` and `only-15` of `benchmarks.sizes` are the models to start from, and `only-15` is `15-new`:
they are trained first where they are missing. The sets are found through `NMLN_DATA`. All are trained by
the commands of a user, on one core, with the settings of `nmln run`. A row for each goes to
docs/results/starts/NAME.json: the share of valid training chains at the target by step, and the CPU
minutes (of all steps in equal parts) until the mean of the last measurements was 60, 85 and 95 %.
Whatever was interrupted continues, and what is done is not repeated. Without names the table is printed.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.cells import Cell, minutes_until, steps_of_run
from benchmarks.quality import SHARES
from benchmarks.sizes import PRESET, ROOT, Sizes, mix, steps_of
from nmln.files import plain, write_json

RESULTS = ROOT / "docs" / "results" / "starts"
NAMES = {"15-new": "new", "15-from-10": "only-10", "20-new": "new", "20-from-15": "only-15"}
"""The rows, and what each starts from."""
RECENT = 2  # measurements of 200 chains each that a share is the mean of


class Start(Cell):
    """One training on a larger size."""

    def __init__(self, name: str, folder: Path, sizes: Path, minutes: float) -> None:
        super().__init__(folder / name, folder / f"{name}.times.json")
        self.start = None if NAMES[name] == "new" else sizes / NAMES[name]
        self.data, self.minutes = f"chembl-{name[:2]}", minutes

    def train(self) -> None:
        if self.done("training"):
            return
        if (self.folder / "config.json").exists():
            self.nmln("training", "train", "--resume", self.folder)
            return
        begun = [] if self.start is None else ["--from", self.start]
        once = ["--processes", 1, "--steps", steps_of({"source": self.data}, self.minutes)]
        words = ["train", self.data, "--preset", PRESET, *begun, *once, "--output", self.folder]
        self.nmln("training", *words)


def described(name: str, cell: Cell) -> dict[str, Any]:
    """How the validity of the chains grew."""
    steps = steps_of_run(cell.folder)
    spent = cell.known()["training"]["cpu_seconds"] / 60
    valid = [(one["step"], one["valid"]) for one in steps if "valid" in one]
    return {
        "name": name,
        "command": cell.known()["training"]["command"],
        "cpu_minutes": spent,
        "steps": len(steps),
        "minutes_until_valid": minutes_until(steps, spent, SHARES, RECENT),
        "valid_at_the_end": sum(share for _, share in valid[-RECENT:]) / RECENT,
        "swaps_at_the_end": steps[-1]["swaps"],
        "valid": valid,
    }


def table() -> list[str]:
    """The rows as Markdown."""
    head = "| model | CPU min | steps | min until 60 % | 85 % | 95 % valid | valid at the end |"
    lines = [head, "|" + " --- |" * 7]
    for name in NAMES:
        if not (RESULTS / f"{name}.json").exists():
            continue
        row = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        reached = [row["minutes_until_valid"].get(f"{share:.0%}") for share in SHARES]
        until = " | ".join("-" if one is None else f"{one:.1f}" for one in reached)
        lines.append(
            f"| {name} | {row['cpu_minutes']:.1f} | {row['steps']:,} | {until} | "
            f"{row['valid_at_the_end']:.0%} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU minutes at 15 atoms")
    parser.add_argument("--more", type=float, default=15.0, help="CPU minutes at 20 atoms")
    parser.add_argument("--runs", type=Path, default=Path("runs/starts"))
    parser.add_argument("--sizes", type=Path, default=Path("runs/sizes"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.names:
        for folder in (given.runs, given.sizes):
            folder.mkdir(parents=True, exist_ok=True)
        mix(given.sizes / "mixed.smi")
    for name in given.names:
        first = "only-15" if name == "15-new" else NAMES[name]
        cell: Cell | None = None
        if first != "new":
            cell = Sizes(first, given.sizes, 3 * given.minutes, 0)
            cell.train()
        if name != "15-new":
            minutes = given.minutes if name.startswith("15") else given.more
            cell = Start(name, given.runs, given.sizes, minutes)
            cell.train()
        assert cell is not None
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_json(RESULTS / f"{name}.json", plain(described(name, cell)))
    print("\n".join(table()))


if __name__ == "__main__":
    main()
