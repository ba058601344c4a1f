"""Write docs/reference/commands.md, the reference of the command line, from typer's own help.

python scripts/cli_reference.py

A test compares the page with the command line, so run this after any change of a verb or a flag.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from nmln.cli import app
from nmln.files import write_lines

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"

INTRODUCTION = """\
# Commands

Every verb of `nmln`, with its arguments and options, as `nmln VERB --help` shows them. This page is
written by `scripts/cli_reference.py`.

A mistake in what you type or in a file ends a command with one line and exit code 2; Ctrl-C ends it with
130. A run that lost one of its processes ends with 3.
"""


def page() -> str:
    """The text of the page."""
    command = get_command(app)
    context = _context(command, "nmln", None)
    verbs = list(_verbs(command, context))
    lines = [INTRODUCTION, "| verb | what it does |", "| --- | --- |"]
    for name, verb, _ in verbs:
        summary = _cell((verb.help or "").split("\n\n")[0])
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {summary} |")
    for name, verb, inner in verbs:
        lines += ["", f"## {name}", "", *_described(verb, inner)]
    return "\n".join(lines) + "\n"


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.context_class(command, info_name=name, parent=parent)


def _verbs(command: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every verb that does something, with its full name and its context."""
    for name, inner in command.commands.items():
        below = _context(inner, name, context)
        if hasattr(inner, "commands"):
            yield from _verbs(inner, below)
        elif not inner.hidden:
            yield below.command_path, inner, below


def _described(verb: Any, context: Any) -> Iterator[str]:
    yield from ("```console", verb.get_usage(context).removeprefix("Usage: "), "```", "")
    yield _escaped(verb.help or "")
    records = [
        (option.param_type_name, record)
        for option in verb.get_params(context)
        if (record := option.get_help_record(context)) and "--help" not in record[0]
    ]
    for kind in ("argument", "option"):
        rows = [record for found, record in records if found == kind]
        if rows:
            yield from ("", f"| {kind} | meaning |", "| --- | --- |")
            yield from (f"| `{_cell(name)}` | {_cell(_escaped(text))} |" for name, text in rows)
    if verb.epilog:
        head, _, examples = verb.epilog.partition("\n\n")
        yield from ("", head, "", "```console", examples, "```")


def _escaped(text: str) -> str:
    """Text with tags of HTML and marks of Markdown escaped."""
    for mark in ("*", "<", "["):
        text = text.replace(mark, "\\" + mark)
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    write_lines(PAGE, page().splitlines())
