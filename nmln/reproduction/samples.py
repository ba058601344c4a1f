"""What finished cells have drawn, in the order in which it was drawn."""

import csv
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from nmln.errors import InputError
from nmln.evaluation import Scores
from nmln.reproduction.cells import Cell
from nmln.reproduction.work import Grid
from nmln.runs.data import Source
from nmln.runs.folder import RunFolder
from nmln.runs.kept import kept_source
from nmln.runs.sample_rows import read_rows


class Drawn:
    """The samples of a finished cell and what they cost."""

    def __init__(self, grid: Grid, cell: Cell) -> None:
        self.grid, self.cell, self.run = grid, cell, grid.run_of(cell)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of sampling.json."""
        return json.loads((RunFolder(self.run).samples / "sampling.json").read_text())

    @property
    def attempts(self) -> int:
        return self.summary["attempts"]

    @property
    def rates(self) -> list[float]:
        """The rates of the levels whose samples were kept; the target is the last."""
        return [one["rate"] for one in self.summary["levels"]]

    @cached_property
    def source(self) -> Source:
        """The molecules of the run and their split."""
        path = RunFolder(self.run).worlds
        found = kept_source(path)
        if found is None:
            raise InputError(
                "this must hold the data that the run was started with. Restore it from a copy, or "
                "remove the cell.",
                str(path),
                kind="damaged",
            )
        return found

    def part(self, name: str) -> frozenset[str]:
        """The training or the test molecules."""
        places = self.source.train if name == "train" else self.source.test
        return frozenset(self.source.names[place] for place in places.tolist())

    def first(self, count: int, level: int = -1) -> list[str | None]:
        """The first samples of a level, by default the target, with None for invalid ones."""
        wanted = [one["level"] for one in self.summary["levels"]][level]
        found: list[str | None] = [None] * count
        for number, own, status, smiles in read_rows(
            RunFolder(self.run).samples / "samples.csv.gz"
        ):
            if own == wanted and number < count:
                found[number] = smiles if status == "valid" else None
        return found

    def scores(self, samples: Iterable[str | None]) -> Scores | None:
        """The log-probabilities of samples under the model, where the evaluation has them."""
        path = RunFolder(self.run).evaluation / "ranking.csv"
        if not path.exists():
            return None
        wanted = {one for one in samples if one is not None}
        with open(path, encoding="utf-8", newline="") as file:
            rows = ((row["smiles"], row["log_probability"]) for row in csv.DictReader(file))
            values = {smiles: float(logarithm) for smiles, logarithm in rows if smiles in wanted}
        return Scores(values) if values.keys() == wanted else None

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """What the training has recorded about each update."""
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def evaluations(self) -> dict[str, int] | None:
        """The worlds that an NMLN has scored in training and in sampling."""
        if self.cell.method.kind != "nmln":
            return None
        counted = self.summary["evaluations"]
        return {
            "training": self.steps[-1]["evaluations"],
            "sampling": counted["scores"] + counted["slopes"],
        }

    def describe(self) -> dict[str, Any]:
        """What the cell is and what it has cost, for its row in a result."""
        cell = self.cell
        minutes = {
            name: round(self.grid.minutes(cell, name), 2) for name in ("training", "sampling")
        }
        return {
            "cell": cell.name,
            "method": cell.method.name,
            "title": cell.method.title,
            "kind": cell.method.kind,
            "seed": cell.seed,
            "drawn": self.attempts,
            "minutes": minutes,
            "updates": len(self.steps),
            "evaluations": self.evaluations,
        }


def common(drawn: Sequence[Drawn]) -> int:
    """The number of samples that all have; refuses cells with different splits of the data."""
    first, *others = drawn
    for other in others:
        if any(first.part(name) != other.part(name) for name in ("train", "test")):
            raise InputError(
                f"{first.cell.name} and {other.cell.name} must have the same training and test "
                "molecules, but have not. Remove the one whose data file is another.",
                str(other.run),
                kind="conflict",
            )
    return min(one.attempts for one in drawn)
