"""Errors are for programs too: a kind, the offending token and the place."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from nmln.config import configure
from nmln.errors import InputError, InterruptedRunError, Kind
from nmln.formats.mln import parse_formula, parse_mln
from nmln.language import Language, predicate
from nmln.runs.folder import RunFolder

PACKAGE = Path(__file__).parents[1] / "nmln"


def test_an_error_has_a_kind_a_token_and_a_place() -> None:
    with pytest.raises(InputError) as caught:
        parse_mln("p(s)\n1.5 q(x)", "p.mln")
    assert (caught.value.kind, caught.value.token) == ("unknown", "q")
    assert caught.value.place == ("p.mln", 2, 5)


def test_kinds_tell_mistakes_apart(tmp_path: Path) -> None:
    found = {}
    language = Language(predicate("smokes", "person"))
    for name, act in {
        "twice": lambda: parse_mln("p(s)\np(s)"),
        "unknown": lambda: parse_formula("1 drinks(x)", language),
        "missing": lambda: RunFolder(tmp_path).read_head(),
        "value": lambda: configure({"chains": {"moves": "many"}}),
    }.items():
        with pytest.raises(InputError) as caught:
            act()
        found[name] = caught.value.kind
    assert found == {name: name for name in found}


def test_a_placed_error_keeps_its_kind_and_token() -> None:
    error = InputError("no such name.", token="x", kind="unknown").at("a.db", 3, "p(x)")
    assert (error.kind, error.token, error.place) == ("unknown", "x", ("a.db", 3, 3))


def test_an_interrupted_run_carries_the_command_to_continue() -> None:
    error = InterruptedRunError("stopped.", "nmln train --resume run")
    assert error.again == "nmln train --resume run"
    assert str(error) == "stopped. Continue with: nmln train --resume run"


def test_every_kind_that_is_written_is_known() -> None:
    """Pyright holds it too; here it is held for those that are passed on as well."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError":
                for word in node.keywords:
                    if word.arg == "kind" and isinstance(word.value, ast.Constant):
                        assert word.value.value in get_args(Kind), path


def test_no_code_reads_the_sentence_of_an_error() -> None:
    """A message may be passed on or shown; it is not searched, split or compared."""
    reading = {"startswith", "endswith", "split", "find", "index", "partition", "removeprefix"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            looked_at = None
            if isinstance(node, ast.Attribute) and node.attr in reading:
                looked_at = node.value
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                looked_at = node.comparators[0]
            if isinstance(looked_at, ast.Attribute) and looked_at.attr == "message":
                raise AssertionError(f"{path} reads a message: {ast.unparse(node)}")
