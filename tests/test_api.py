import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import nmln


def test_every_public_name_is_there() -> None:
    public = [name for name in dir(nmln) if not name.startswith("_") and name != "TYPE_CHECKING"]
    assert {"Space", "Language", "Ladder", "corrupt", "read_db"} <= set(public)
    for name in nmln._HOMES:
        assert getattr(nmln, name).__module__.startswith("nmln.")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ('nmln.Attribute("p", "node")', "must be tuples of names, got a single string"),
        (
            'nmln.Space(nmln.Language(nmln.predicate("p", "a")), {"a": (1, 2)})',
            "constants must be strings, but the sort a has 1. Convert them with",
        ),
        (
            's = nmln.Space(nmln.Language(nmln.predicate("p", "a")), {"a": 2});'
            "nmln.GraphPotential(s, 1).score(s.enumerate()[None].float())",
            "values must be integers, one category per group, got torch.float32",
        ),
        (
            's = nmln.Space(nmln.Language(nmln.predicate("p", "a")), {"a": 2});'
            "v = s.enumerate()[None]; nmln.GraphPotential(s, 1).score_alternatives(v, v[0].long())",
            "in the shape (levels, chains) = (1, 4), got (4, 2)",
        ),
    ],
)
def test_types_that_only_a_type_checker_would_catch_are_named(code: str, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import nmln; {code}"], capture_output=True, text=True, check=False
    )
    assert message in done.stderr


def functions() -> Iterator[Callable]:
    """Public functions, and public methods of the model."""
    yield from (one for one in (getattr(nmln, name) for name in nmln._HOMES) if callable(one))
    for name, one in vars(nmln.Model).items():
        if not name.startswith("_"):
            yield one.__func__ if isinstance(one, staticmethod) else one


LONG = [
    pytest.param(one, id=one.__qualname__)
    for one in functions()
    if inspect.isfunction(one) and len(set(inspect.signature(one).parameters) - {"self"}) > 3
]


@pytest.mark.parametrize("function", LONG)
def test_a_function_of_many_parameters_describes_each(function: Callable) -> None:
    text = inspect.getdoc(function) or ""
    assert "\nArgs:\n" in text
    described = text.split("\nArgs:\n")[1]
    for name in set(inspect.signature(function).parameters) - {"self"}:
        assert f"\n    {name}: " in f"\n{described}"


def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, nmln; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
