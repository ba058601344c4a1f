"""The page about the claims, in Markdown for the documentation and as one self-contained HTML file."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from nmln.files import write_lines
from nmln.report.figures import embedded, picture
from nmln.report.page import (
    Html,
    Section,
    bullets,
    code,
    joined,
    markup,
    paragraph,
    table,
    write_page,
)
from nmln.reproduction.budgets import BUDGETS
from nmln.reproduction.cells import EXPERIMENTS, RUN
from nmln.reproduction.figures import SIZE, painter
from nmln.reproduction.story import (
    TITLE,
    Block,
    Bullets,
    Code,
    Heading,
    Picture,
    Recorded,
    Table,
    Text,
    story,
)

PAGE = "reproduction.html"


def recorded_in(grid: Path) -> Recorded:
    """The results in the folder of a grid, by budget."""
    found = {}
    for name in BUDGETS:
        results = {
            path.stem: _read(path) for path in sorted((grid / name / "results").glob("*.json"))
        }
        for one in EXPERIMENTS:
            path = grid / name / "cells" / one.name / RUN / "results.json"
            if path.exists():
                results[one.verb] = _read(path)
        if results:
            found[name] = results
    return found


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


# Markdown.


def markdown(blocks: Sequence[Block], place_of: Callable[[Picture], str]) -> str:
    """The page in Markdown; `place_of` says where a picture lies."""
    return "\n\n".join(_in_markdown(block, place_of) for block in blocks) + "\n"


def _in_markdown(block: Block, place_of: Callable[[Picture], str]) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {_plain(text)}"
        case Text(text):
            return _plain(text)
        case Bullets(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Table(head, rows):
            lines = [head, tuple("---" for _ in head), *rows]
            cells = (" | ".join(_plain(cell).replace("|", "\\|") for cell in row) for row in lines)
            return "\n".join(f"| {row} |" for row in cells)
        case Code(text):
            return f"```sh\n{text}\n```"
        case Picture():
            return f"![{_plain(block.caption)}]({place_of(block)})"


def _plain(text: str) -> str:
    """Text in which a star is a star."""
    return text.replace("*", "\\*").replace("<", "&lt;")


# HTML.


def write_html(grid: Path) -> Path:
    """Write the page of a grid with all its figures inside."""
    recorded = recorded_in(grid)
    sections, title, parts = list[Section](), "Summary", list[Html]()
    for block in story(recorded)[1:]:
        if isinstance(block, Heading) and block.level == 2:
            sections.append(Section(title, joined(*parts)))
            title, parts = block.text, []
        else:
            parts.append(_in_html(block, recorded, grid))
    sections.append(Section(title, joined(*parts)))
    return write_page(grid / PAGE, TITLE, sections)


def _in_html(block: Block, recorded: Recorded, grid: Path) -> Html:
    match block:
        case Heading(_, text):
            return Html(f"<h3>{markup(text)}</h3>")
        case Text(text):
            return paragraph(text.replace("`", ""))
        case Bullets(items):
            return bullets(items)
        case Table(head, rows):
            return table(head, rows)
        case Code(text):
            return code(text)
        case Picture():
            svg = _svg(block, recorded, grid)
            return Html(f"<figure>{svg}<figcaption>{markup(block.caption)}</figcaption></figure>")


def _svg(one: Picture, recorded: Recorded, grid: Path) -> str:
    if one.budget is not None:
        paint = painter(recorded[one.budget][one.name], by_probability=one.second)
        return picture(paint, SIZE)
    for name in BUDGETS:
        path = grid / name / "cells" / "experiments" / one.name / RUN / "figure.svg"
        if path.exists():
            return embedded(path.read_text(encoding="utf-8"))
    return ""


def write_markdown(path: Path, recorded: Recorded, place_of: Callable[[Picture], str]) -> None:
    """Write the page of recorded results in Markdown."""
    write_lines(path, markdown(story(recorded), place_of).rstrip("\n").split("\n"))
