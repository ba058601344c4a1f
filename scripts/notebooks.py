"""Write the tutorials as notebooks: docs/tutorials/NAME.ipynb beside each NAME.md with Python in it.

python scripts/notebooks.py

Blocks of Python become code cells, everything between them becomes Markdown. A test compares the
notebooks with the pages and runs their cells, so run this after any change of a tutorial.
"""

import json
import re
from pathlib import Path
from typing import Any

from nmln.files import write_lines

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"

_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def tutorials() -> list[Path]:
    """The pages that have code to run."""
    return [path for path in sorted(FOLDER.glob("*.md")) if _BLOCK.search(path.read_text("utf-8"))]


def notebook(path: Path) -> str:
    """The notebook of a page, as the text of its file."""
    pieces = _BLOCK.split(path.read_text(encoding="utf-8"))  # text and code in turn
    cells = [
        _cell(piece.strip("\n"), code=bool(place % 2), name=f"{path.stem}-{place}")
        for place, piece in enumerate(pieces)
        if piece.strip()
    ]
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


def _cell(source: str, *, code: bool, name: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    if not code:
        return {"cell_type": "markdown", "id": name, "metadata": {}, "source": lines}
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": {},
        "outputs": [],
        "source": lines,
    }


if __name__ == "__main__":
    for page in tutorials():
        write_lines(page.with_suffix(".ipynb"), notebook(page).splitlines())
