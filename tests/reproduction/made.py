"""Cells that were filled without any training, and results that were written by hand."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmln.config import DataConfig
from nmln.evaluation import wilson
from nmln.reproduction.cells import Cell
from nmln.reproduction.work import TIMES, Grid
from nmln.runs import data as sources
from nmln.runs.kept import keep_source


def fill(
    grid: Grid,
    cell: Cell,
    data: Path,
    samples: Sequence[str | None] | Mapping[int, Sequence[str | None]],
    minutes: float = 1.0,
    split_seed: int = 0,
) -> None:
    """The folder of a finished cell with these samples, of one level or of several."""
    run = grid.run_of(cell)
    (run / "samples").mkdir(parents=True)
    source = sources.load(DataConfig(str(data), split_seed=split_seed))
    keep_source(run / "worlds.safetensors", source)
    levels = samples if isinstance(samples, Mapping) else {0: samples}
    rows = ["sample,level,status,smiles"]
    for level, drawn in levels.items():
        for number, smiles in enumerate(drawn):
            rows.append(f"{number},{level},{'valid' if smiles else 'invalid'},{smiles or ''}")
    text = "\n".join(rows) + "\n"
    (run / "samples" / "samples.csv.gz").write_bytes(gzip.compress(text.encode()))
    attempts = len(next(iter(levels.values())))
    rates = [0.1 / 10**level for level in levels]
    summary = {
        "attempts": attempts,
        "levels": [{"level": one, "rate": rate} for one, rate in zip(levels, rates, strict=True)],
        "settings": {"chains": 2, "burn_in": 10, "thin": 1},
        "evaluations": {"scores": 1000, "slopes": 0},
    }
    (run / "samples" / "sampling.json").write_text(json.dumps(summary))
    steps = [{"step": n, "evaluations": 100 * n, "valid": 0.1 * n} for n in range(1, 4)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    times = {
        name: {"cpu_seconds": 60 * minutes, "seconds": 1.0, "done": True}
        for name in ("training", "sampling", "evaluation")
    }
    (grid.place(cell) / TIMES).write_text(json.dumps(times))


def share(count: float, total: int) -> dict[str, float]:
    low, high = wilson(count, total)
    return {"value": count / total, "low": low, "high": high, "count": count, "total": total}


def row(method: str, covered: float, top: float, kind: str = "nmln", **more: Any) -> dict[str, Any]:
    """A row that found so many of 1,000 test molecules in all and among the first 1,000."""
    at = {str(mark): float(min(mark, top)) for mark in (100, 300, 1000, 3000, 10_000)}
    points = [[1, 0.0], [1000, float(top)], [5000, float(covered)]]
    return {
        "cell": f"any/{method}-{more.get('seed', 0)}", "method": method, "title": method.upper(),
        "kind": kind, "seed": 0, "drawn": 5000, "minutes": {"training": 9.5, "sampling": 3.25},
        "updates": 77, "evaluations": None, "valid": share(4000, 5000), "unique": 2345,
        "covered": share(covered, 1000), "recall": {"points": points, "at": at},
        "by_probability": None, **more,
    }  # fmt: skip


def result(name: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The content of a result file."""
    budget = {"name": "quick", "minutes": 10, "samples": 20_000, "sampling": 10, "updates": 1_000}
    return {
        "figure": name, "title": f"Title of {name}", "layout": "recall", "budget": budget,
        "missing": [], "left_out": [], "data": "chembl-10", "title_of_data": "ChEMBL 10", "size": 10,
        "train": 4000, "test": 1000, "samples": 5000, "rows": list(rows), **more,
    }  # fmt: skip
