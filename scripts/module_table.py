"""Write the tables of modules and layers in CONTRIBUTING.md, from docstrings and pyproject.toml.

python scripts/module_table.py

A test compares the page with the code, so run this after adding or moving a module or a room.
"""

import ast
import re
import tomllib
from pathlib import Path

from nmln.files import write_lines

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
PACKAGE = ROOT / "nmln"

MODULES = ("<!-- modules: written by scripts/module_table.py -->", "<!-- end of modules -->")
LAYERS = ("<!-- layers: written by scripts/module_table.py -->", "<!-- end of layers -->")


def page() -> str:
    """CONTRIBUTING.md with both tables brought up to date."""
    text = PAGE.read_text(encoding="utf-8")
    return _put(_put(text, MODULES, module_table()), LAYERS, layer_list())


def module_table() -> str:
    """Every module and room of the package with the first sentence of its docstring, low to high."""
    names = [name for layer in reversed(_layers()) for name in layer]
    rows = ["| module | what it is for |", "| --- | --- |"]
    for name in names:
        room = PACKAGE / name
        file = room / "__init__.py" if room.is_dir() else PACKAGE / f"{name}.py"
        if file.exists():
            shown = f"{name}/" if room.is_dir() else f"{name}.py"
            rows.append(f"| `{shown}` | {first_sentence(file)} |")
    return "\n".join(rows)


def layer_list() -> str:
    """The layers of imports, high to low."""
    return "\n".join("    " + " | ".join(layer) for layer in _layers())


def first_sentence(file: Path) -> str:
    """The first sentence of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0].replace("|", "\\|")


def _layers() -> list[list[str]]:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = content["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [[name.strip(" ()") for name in layer.split("|")] for layer in layers]


def _put(text: str, marks: tuple[str, str], table: str) -> str:
    begin, end = marks
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


if __name__ == "__main__":
    write_lines(PAGE, page().splitlines())
