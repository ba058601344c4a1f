"""The metrics of a run, read from its JSON lines: one curve for every name that occurs in a line."""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import nan
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from nmln.errors import InputError
from nmln.files import read_lines

_MOST = 1e100  # sums and scales of anything larger are not finite


@dataclass(frozen=True)
class Curve:
    """One metric at the steps where it was recorded; NaN where it was not a finite number."""

    name: str
    rows: Int[np.ndarray, " points"]  # the lines of the history that have it
    steps: Int[np.ndarray, " points"]
    numbers: Float[np.ndarray, "points width"]
    listed: bool  # one number per level or pair, not one for all

    @property
    def width(self) -> int:
        return self.numbers.shape[1]

    def late(self, share: float = 0.2) -> Float[np.ndarray, "late width"]:
        """The last part of the curve, by default the last fifth."""
        return self.numbers[-max(1, round(share * len(self.numbers))) :]


@dataclass(frozen=True)
class History:
    """All curves of a run, in the order of their first lines."""

    steps: Int[np.ndarray, " lines"]
    curves: dict[str, Curve]
    notes: tuple[str, ...] = ()  # what was wrong with the file
    by_size: dict[str, dict[str, Curve]] = field(default_factory=dict)  # metric, then size

    def last(self, name: str) -> float | None:
        """The last number of a metric that has one for all levels, if there is any."""
        curve = self.curves.get(name)
        return None if curve is None or curve.listed else float(curve.numbers[-1, 0])


@dataclass
class _Column:
    listed: bool
    width: int
    rows: array = field(default_factory=lambda: array("q"))
    numbers: array = field(default_factory=lambda: array("d"))


def read_history(path: str | Path) -> History:
    """The curves in a file of JSON lines, each with a step.

    A last line that is cut off, as a killed run leaves it, is left out and noted; any other damage is
    an error that names the line. Where a run went back, the later lines count. Strings, Booleans and
    tables in a line are ignored, except `by_size`: its curves have the size in their names.
    """
    steps, columns = array("q"), dict[str, _Column]()
    sized: dict[str, tuple[str, str]] = {}  # the metric and the size of a column
    broken: InputError | None = None
    for number, line in read_lines(path):
        if broken is not None:
            raise broken
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:  # also of numbers with very many digits
            broken = InputError(f"this is not JSON: {error}.", str(path), number, kind="syntax")
            continue
        step = content.get("step") if isinstance(content, dict) else None
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**63:
            raise InputError(
                "a line of metrics needs a whole number as its step.",
                str(path),
                number,
                token="step",
            )
        for name, value in content.items():
            if name == "by_size":
                for metric, size, one in _sized(value):
                    own = f"{metric}, size {size}"
                    sized[own] = metric, size
                    _tell(columns, own, one, len(steps), (str(path), number))
            elif name != "step":
                _tell(columns, name, value, len(steps), (str(path), number))
        steps.append(step)
    if not steps:
        raise InputError(
            "no step of this run is recorded yet: there is nothing to draw.",
            str(path),
            kind="empty",
        )
    note = f"The last line of {Path(path).name} is cut off and was left out."
    notes = () if broken is None else (note,)
    found = _history(np.array(steps, dtype=np.int64), columns, notes)
    by_size: dict[str, dict[str, Curve]] = {}
    for own, (metric, size) in sized.items():
        if own in found.curves:
            by_size.setdefault(metric, {})[size] = found.curves.pop(own)
    return replace(found, by_size=by_size)


def _sized(content: object) -> Iterator[tuple[str, str, object]]:
    """The metrics of every size in a line: the metric, the size and the value."""
    for size, metrics in content.items() if isinstance(content, dict) else ():
        for metric, value in metrics.items() if isinstance(metrics, dict) else ():
            yield metric, size, value


def _tell(
    columns: dict[str, _Column], name: str, value: object, row: int, place: tuple[str, int]
) -> None:
    if value is None:  # a number that was not finite; the width is unknown before the first line
        if name not in columns:
            return
        value = [None] * columns[name].width if columns[name].listed else None
    listed = isinstance(value, list)
    numbers = [_number(one) for one in value] if isinstance(value, list) else [_number(value)]
    if not numbers or None in numbers:
        return
    column = columns.setdefault(name, _Column(listed, len(numbers)))
    if (column.listed, column.width) != (listed, len(numbers)):
        raise InputError(
            f"{name} must have {column.width} numbers as in the lines before, got {len(numbers)}. If "
            "the file has lines of two runs, keep those of one.",
            *place,
            token=name,
            kind="conflict",
        )
    column.rows.append(row)
    column.numbers.extend(one for one in numbers if one is not None)


def _number(value: object) -> float | None:
    """A value of a line as a number, NaN if it cannot be drawn; None if it is not a number."""
    if value is None:
        return nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_MOST < value < _MOST else nan


def _history(
    steps: Int[np.ndarray, " lines"], columns: dict[str, _Column], notes: tuple[str, ...]
) -> History:
    kept = _not_repeated(steps)
    moved = np.cumsum(kept) - 1  # the position of a kept line among the kept ones
    curves = {}
    for name, column in columns.items():
        rows = np.array(column.rows, dtype=np.int64)
        numbers = np.array(column.numbers).reshape(-1, column.width)
        mine = kept[rows]
        if mine.any():
            curves[name] = Curve(
                name, moved[rows[mine]], steps[rows[mine]], numbers[mine], column.listed
            )
    return History(steps[kept], curves, notes)


def _not_repeated(steps: Int[np.ndarray, " lines"]) -> Bool[np.ndarray, " lines"]:
    """The lines after which no line has the same or an earlier step."""
    lowest_later = np.minimum.accumulate(steps[::-1])[::-1]
    kept = np.ones(len(steps), dtype=bool)
    kept[:-1] = steps[:-1] < lowest_later[1:]
    return kept


def table(history: History, names: dict[str, list[str]]) -> Iterator[str]:
    """All numbers as CSV, one line per step; `names` gives the names of the columns of a list."""
    head, columns = ["step"], [np.empty((len(history.steps), 0))]
    sized = [curve for sizes in history.by_size.values() for curve in sizes.values()]
    for curve in (*history.curves.values(), *sized):
        whole = np.full((len(history.steps), curve.width), nan)
        whole[curve.rows] = curve.numbers
        parts = names.get(curve.name) or (
            [""] if not curve.listed else map(str, range(curve.width))
        )
        head += [f"{curve.name} {part}".strip() for part in parts]
        columns.append(whole)
    yield ",".join(_quoted(name) for name in head)
    for step, row in zip(history.steps, np.hstack(columns), strict=True):
        yield ",".join(
            [str(step), *("" if number != number else f"{number:.6g}" for number in row)]
        )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n\r') else text


def smooth(numbers: Float[np.ndarray, " points"], window: int) -> Float[np.ndarray, " points"]:
    """The running mean over a window around each number, shorter at the ends; NaN stays where it is."""
    finite = np.isfinite(numbers)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, numbers, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.arange(len(numbers))
    first = np.maximum(at - window // 2, 0)
    after = np.minimum(at + window // 2 + 1, len(numbers))
    means = (sums[after] - sums[first]) / np.maximum(counts[after] - counts[first], 1)
    return np.where(finite, means, nan)


def extremes(numbers: Float[np.ndarray, " points"], most: int) -> Int[np.ndarray, " shown"]:
    """Places of about `most` numbers that represent all: the lowest and highest of each stretch.

    A stretch without any finite number keeps one, which leaves the gap in the curve.
    """
    if len(numbers) <= most:
        return np.arange(len(numbers))
    kept = [0, len(numbers) - 1]
    edges = np.linspace(0, len(numbers), max(1, most // 2) + 1).astype(int)
    for first, after in pairwise(edges.tolist()):
        part = numbers[first:after]
        if np.isfinite(part).any():
            kept += [first + int(np.nanargmin(part)), first + int(np.nanargmax(part))]
        else:
            kept.append(first)
    return np.unique(kept)


def spread(count: int, most: int) -> Int[np.ndarray, " shown"]:
    """At most `most` of `count` places, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
