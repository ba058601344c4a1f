"""Record the results of a grid, and write docs/reproduction.md with its figures from the record.

python scripts/reproduction_page.py [GRID]

With the folder of a grid (`--output` of `nmln reproduce`) its condensed numbers are copied to
docs/results/reproduction/BUDGET first; samples stay where they are. The page and the figures are made
from the recorded files alone. A test compares the page with them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from nmln.files import write_json
from nmln.report.figures import draw
from nmln.reproduction.budgets import BUDGETS
from nmln.reproduction.cells import EXPERIMENTS
from nmln.reproduction.figures import SIZE, painter
from nmln.reproduction.pages import markdown, recorded_in, write_markdown
from nmln.reproduction.story import Picture, Recorded, story

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reproduction.md"
RESULTS = DOCS / "results" / "reproduction"
FIGURES = DOCS / "figures" / "reproduction"
_PICTURES = {
    "toy-tracking": "toy-tracking.svg",
    "two-peaks": "two-peaks.png",
    "n-queens": "n-queens.svg",
}


def recorded() -> Recorded:
    """All recorded results, by budget; the experiments without molecules belong to every budget."""
    paths = [DOCS / "results" / f"{one.verb}.json" for one in EXPERIMENTS]
    experiments = {path.stem: _read(path) for path in paths if path.exists()}
    found = {}
    for name in BUDGETS:
        results = {path.stem: _read(path) for path in sorted((RESULTS / name).glob("*.json"))}
        if results:
            found[name] = {**experiments, **results}
    return found or {next(iter(BUDGETS)): experiments}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def record(grid: Path) -> None:
    """Copy the condensed numbers of a grid; those of experiments that are recorded already stay."""
    verbs = {one.verb for one in EXPERIMENTS}
    for budget, results in recorded_in(grid).items():
        for name, content in results.items():
            if name not in verbs:
                write_json(RESULTS / budget / f"{name}.json", content, indent=None)


def place_of(one: Picture) -> str:
    """Where a picture of the page lies, from the page."""
    if one.budget is None:
        return f"figures/{_PICTURES[one.name]}"
    return f"figures/reproduction/{_stem(one)}.png"


def _stem(one: Picture) -> str:
    return f"{one.budget}-{one.name}{'-by-probability' if one.second else ''}"


def page() -> str:
    """The text of the page."""
    return markdown(story(recorded()), place_of)


def draw_pictures() -> None:
    """Draw every figure of the page that comes from recorded molecules."""
    found = recorded()
    for one in story(found):
        if isinstance(one, Picture) and one.budget is not None:
            paint = painter(found[one.budget][one.name], by_probability=one.second)
            for path in draw(FIGURES / _stem(one), paint, SIZE):
                if path.suffix == ".svg":  # the page shows the other, which is smaller
                    path.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        record(Path(sys.argv[1]))
    write_markdown(PAGE, recorded(), place_of)
    draw_pictures()
