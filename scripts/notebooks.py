"""Write the tutorials as notebooks: docs/tutorials/NAME.ipynb beside each NAME.md with Python in it.

python scripts/notebooks.py

Blocks of Python become code cells, and a block of text right after one becomes its output. Everything
else becomes Markdown. A test compares the
notebooks with the pages and runs their cells, so run this after any change of a tutorial.
"""

import json
import re
from pathlib import Path
from typing import Any

from nmln.files import write_lines

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"

_BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?",  # the code, and what it prints
    re.DOTALL | re.MULTILINE,
)


def tutorials() -> list[Path]:
    """The pages that have code to run."""
    return [path for path in sorted(FOLDER.glob("*.md")) if _BLOCK.search(path.read_text("utf-8"))]


def notebook(path: Path) -> str:
    """The notebook of a page, as the text of its file."""
    pieces = _BLOCK.split(path.read_text(encoding="utf-8"))  # text, code and output in turn
    cells: list[dict[str, Any]] = []
    for place in range(0, len(pieces), 3):
        if text := pieces[place].strip("\n"):
            cells.append(_markdown(text, name=f"{path.stem}-{len(cells)}"))
        if place + 1 < len(pieces):
            code, output = pieces[place + 1].strip("\n"), pieces[place + 2]
            cells.append(_code(code, output or "", name=f"{path.stem}-{len(cells)}"))
    content = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _markdown(source: str, *, name: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": lines}


def _code(source: str, output: str, *, name: str) -> dict[str, Any]:
    lines = output.splitlines(keepends=True)
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": {},
        "outputs": [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else [],
        "source": source.splitlines(keepends=True),
    }


if __name__ == "__main__":
    for page in tutorials():
        write_lines(page.with_suffix(".ipynb"), notebook(page).splitlines())
