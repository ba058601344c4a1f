"""Write docs/reference/settings.md, the table of all settings, from nmln/config.py.

python scripts/settings_reference.py

The meaning of a setting is the comment above it in the code. A test compares the page with the code, so
run this after any change of a setting.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nmln import config
from nmln.files import write_lines

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "settings.md"

INTRODUCTION = """\
# Settings

Every setting of a run of training. Give them in a TOML file (`nmln train --config run.toml`), as flags
(`--set chains.moves=5`) or in Python (`nmln.configure({"chains": {"moves": 5}})`). Unknown names are
refused with the nearest known one, and a run keeps its final settings in its `config.json`.
[Train a model](../how-to/training.md) explains what the settings do. This page is written by
`scripts/settings_reference.py`.

`--preset NAME`, or `preset = "NAME"` in the file, changes several defaults at once. The columns
*molecules* and *paper* show what these presets change; the preset `small` changes nothing.
[Train a model](../how-to/training.md) lists all presets."""


def page() -> str:
    """The text of the page."""
    lines = [INTRODUCTION]
    comments = _comments()
    for section in fields(config.Config):
        default: Any = section.default_factory()  # pyright: ignore[reportCallIssue]
        family = type(default)
        lines += ["", f"## {section.name}", "", *_paragraphs(family.__doc__ or ""), ""]
        lines += ["| setting | type | default | molecules | paper | meaning |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        hints = get_type_hints(family)
        for one in fields(family):
            cells = (
                f"`{section.name}.{one.name}`",
                _kind(hints[one.name]),
                _shown(getattr(default, one.name)),
                *(_preset(name, section.name, one.name) for name in ("molecules", "paper")),
                comments.get((family.__name__, one.name), ""),
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for line in text.strip().splitlines():
        yield line.strip()


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        inner = " or ".join(_kind(one) for one in get_args(hint) if one is not type(None))
        return f"{inner}, or unset" if type(None) in get_args(hint) else inner
    if get_origin(hint) is tuple:
        return "list of numbers"
    return {int: "whole number", float: "number", str: "string", bool: "true or false"}[hint]


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ", ".join(f"{one:g}" for one in value)
    return f"{value:g}" if isinstance(value, float) else f"`{value}`"


def _preset(preset: str, section: str, key: str) -> str:
    changed = config.PRESETS[preset].get(section, {})
    return _shown(changed[key]) if key in changed else ""


def _comments() -> dict[tuple[str, str], str]:
    """The comment above or behind each setting, by the name of its class and its own."""
    text = Path(config.__file__).read_text(encoding="utf-8")
    found: dict[tuple[str, str], str] = {}
    family, above = "", ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if match := re.match(r"class (\w+)", token.line):
            family, above = match[1], ""
        elif token.line.strip() and not token.line.startswith("    "):
            family, above = "", ""
        if not family:
            continue
        if token.type == tokenize.COMMENT:
            comment = token.string.removeprefix("#").strip().replace("|", "\\|")
            above = f"{above} {comment}".strip()
        elif token.type == tokenize.NEWLINE:
            if match := re.match(r" {4}(\w+): ", token.line):
                found[family, match[1]] = above
            above = ""
    return found


if __name__ == "__main__":
    write_lines(PAGE, page().splitlines())
