"""Shapes and types checked at every call, and the examples in the docs run as tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import config, install_import_hook
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

import tests.typechecking  # noqa: F401

install_import_hook("nmln", "tests.typechecking.checked")


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Tests of many small steps that leave shapes unchecked, which takes a third of their time.

    What they call is called with checks by the other tests of the same room.
    """
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def in_a_folder(tmp_path_factory: pytest.TempPathFactory, unchecked: None) -> Iterator[Path]:
    """Give the examples of a page a folder that they share."""
    before = os.getcwd()
    folder = tmp_path_factory.mktemp("examples")
    os.chdir(folder)
    yield folder
    os.chdir(before)


def evaluate_alone(example: Example) -> None:
    """Run a block without the names of the blocks before it, as a reader who copies it does."""
    example.namespace.clear()
    PythonEvaluator()(example)


pages = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["CONTRIBUTING.md", "docs/**/*.md"],
    excludes=["docs/tutorials/*.md"],  # run as notebooks, by tests/test_generated_pages.py
    fixtures=["in_a_folder"],
)
readme = Sybil(
    parsers=[CodeBlockParser("python", evaluate_alone), SkipParser()],
    pattern="README.md",
    fixtures=["in_a_folder"],
)
pytest_collect_file = (pages + readme).pytest()
