"""Figures condensed to numbers: all cells at an equal number of samples, without the samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nmln.evaluation import MARKS, Evaluation, RecallCurve, Share, evaluate
from nmln.files import write_json
from nmln.reproduction.grid import Figure
from nmln.reproduction.samples import Drawn, common
from nmln.reproduction.work import Grid

POINTS = 60
"""Ranks at which a curve is kept, evenly spaced on a logarithmic axis."""

_PREFIXES = 12  # numbers of samples at which recall is measured against evaluations


def condense(grid: Grid, figure: Figure) -> dict[str, Any]:
    """The numbers of a figure, written to its file in the results of the grid.

    Rows are those of the cells that are done, cut to the smallest number of samples among them; the
    others are listed as missing.
    """
    done = [cell for cell in figure.cells if grid.state(cell) == "done"]
    drawn = [Drawn(grid, cell) for cell in done]
    content: dict[str, Any] = {
        "figure": figure.name,
        "title": figure.title,
        "layout": figure.layout,
        "budget": grid.budget.described(),
        "missing": [cell.name for cell in figure.cells if cell not in done],
        "left_out": list(figure.left_out),
        "rows": [],
    }
    if drawn:
        content |= _measured(drawn, figure)
    write_json(grid.results / f"{figure.name}.json", content, indent=None)
    return content


def _measured(drawn: Sequence[Drawn], figure: Figure) -> dict[str, Any]:
    samples = common(drawn)
    sizes = {name: len(drawn[0].part(name)) for name in ("train", "test")}
    rows = {"recall": _recall, "levels": _levels, "compute": _compute}[figure.layout]
    return {
        "data": drawn[0].cell.data.key,
        "title_of_data": str(drawn[0].cell.data),
        "size": drawn[0].cell.data.size,
        **sizes,
        "samples": samples,
        "rows": [row for one in drawn for row in rows(one, samples)],
    }


def _recall(one: Drawn, samples: int) -> list[dict[str, Any]]:
    """The recall curves of a cell, by count and, for an NMLN, by probability."""
    first = one.first(samples)
    scores = one.scores(first)
    found = evaluate(first, one.part("train"), one.part("test"), MARKS, scores)
    ranked = found.by_probability
    by_probability = None if ranked is None else curve(ranked.test)
    return [{**one.describe(), **numbers(found), "by_probability": by_probability}]


def _levels(one: Drawn, samples: int) -> list[dict[str, Any]]:
    """The same for every level of a cell."""
    rows = []
    for level, rate in enumerate(one.rates):
        found = evaluate(one.first(samples, level), one.part("train"), one.part("test"))
        rows.append({**one.describe(), "level": level, "rate": rate, **numbers(found)})
    return rows


def _compute(one: Drawn, samples: int) -> list[dict[str, Any]]:
    """Validity in training, validity and recall in sampling, against the evaluations until then."""
    train, test = one.part("train"), one.part("test")
    first, settings = one.first(samples), one.summary["settings"]
    found = evaluate(first, train, test)
    counted = one.evaluations
    assert counted is not None
    chains = settings["chains"]
    sweeps = settings["burn_in"] + settings["thin"] * -(-one.attempts // chains)
    sampling = []
    for count in sorted({int(k) for k in np.geomspace(min(100, samples), samples, _PREFIXES)}):
        until = settings["burn_in"] + settings["thin"] * -(-count // chains)
        part = evaluate(first[:count], train, test)
        sampling.append(
            {
                "samples": count,
                "evaluations": round(counted["sampling"] * until / sweeps),
                "valid": share(part.valid),
                "covered": share(part.coverage_test),
            }
        )
    training = [[step["evaluations"], step["valid"]] for step in one.steps if "valid" in step]
    return [{**one.describe(), **numbers(found), "training": training, "sampling": sampling}]


def numbers(found: Evaluation) -> dict[str, Any]:
    """What a row says about samples."""
    return {
        "valid": share(found.valid),
        "unique": found.samples.unique,
        "covered": share(found.coverage_test),
        "recall": curve(found.test),
    }


def share(one: Share) -> dict[str, Any]:
    """A share with the 95 % interval of Wilson."""
    return {
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "count": one.count,
        "total": one.total,
    }


def curve(one: RecallCurve) -> dict[str, Any]:
    """A recall curve at some ranks up to its end, and at the marks."""
    last = one.ranks[-1]
    ranks = sorted({int(rank) for rank in np.geomspace(1, max(1, last), POINTS)} | {last})
    return {
        "points": [[rank, round(one.at(rank), 2)] for rank in ranks],
        "at": {str(mark): round(one.at(mark), 2) for mark in one.marks},
    }
