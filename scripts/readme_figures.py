"""Draw the two figures of README.md: molecules of the shipped model, and recall curves.

python scripts/readme_figures.py

The molecules are the first twelve that the shipped model gives under a fixed seed, not chosen. The
curves go through the ranks that docs/results has. It takes about half a minute.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nmln
from nmln.files import write_lines
from nmln.molecules.chemistry.drawing import draw_svg
from nmln.report.figures import draw
from nmln.report.recall import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
COLUMNS, WIDTH, HEIGHT = 6, 150, 112
HELD_OUT, KNOWN = 704, 3518  # molecules of pubchem-10: the test set, and all


def draw_molecules(path: Path, count: int = 12) -> None:
    """A grid of generated molecules on a white ground."""
    smiles = nmln.load("pubchem-10").generate(count, seed=1, chains=count)
    rows = -(-count // COLUMNS)
    across, down = COLUMNS * WIDTH, rows * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}">',
        f'<rect width="{across}" height="{down}" fill="#FFFFFF"/>',
    ]
    for number, one in enumerate(smiles):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        place = f'<svg x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
        lines.append(draw_svg(one, WIDTH, HEIGHT).replace("<svg ", place, 1))
    write_lines(path, [*lines, "</svg>"])


def draw_recall(stem: Path) -> None:
    """How many held-out molecules are among the t most frequent samples, for three models."""
    draw(stem, _paint, (5.6, 3.1))


def _paint(figure: "Figure") -> None:
    axes = figure.subplots()
    ranks = [100, 300, 1000, 3000, 10000]
    for (name, found), colour in zip(_curves().items(), COLOURS, strict=False):
        axes.plot(ranks, [found[str(rank)] for rank in ranks], "o-", color=colour, label=name)
    ends = [ranks[0], KNOWN, ranks[-1]]
    even = [min(HELD_OUT, rank * HELD_OUT / KNOWN) for rank in ends]
    label = "drawing from training and test set"
    axes.plot(ends, even, "--", color="#777777", linewidth=1, label=label)
    axes.axhline(
        HELD_OUT, color="#777777", linewidth=1, linestyle=":", label="all held-out molecules"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ranks, [f"{rank:,}" for rank in ranks])
    axes.set_yticks([10, 30, 100, 300, 704], ["10", "30", "100", "300", "704"])
    axes.minorticks_off()
    axes.set_xlabel("t most frequent different molecules of 200,000 samples")
    axes.set_ylabel("held-out molecules among them")
    axes.legend(loc="lower right")


def _curves() -> dict[str, dict[str, float]]:
    characters = _read("baselines/gru")["samples"]["200000"]["recall"]["test"]["at"]
    return {
        "the shipped model": _read("combined")["rows"][-1]["recall_test"],
        "nmln run (6 minutes of training)": _read("main-job-200000")["recall_test"],
        "recurrent network on SMILES": {rank: found["value"] for rank, found in characters.items()},
    }


def _read(name: str) -> Any:
    return json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    draw_molecules(DOCS / "figures" / "readme-molecules.svg")
    draw_recall(DOCS / "figures" / "readme-recall")
