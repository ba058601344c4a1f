"""The page about reliability shows what was measured, and what was measured is what is promised."""

import json

from benchmarks.reliability import FUZZED, FUZZING, PAGE, RESULT, fuzzing_table, on_page, table
from tests.corpus.runner import read_cases


def test_the_page_shows_the_measured_figures() -> None:
    content = json.loads(RESULT.read_text())
    assert on_page(PAGE.read_text()) == table(content)
    fuzzed = json.loads(FUZZING.read_text())
    assert on_page(PAGE.read_text(), FUZZED) == fuzzing_table(fuzzed)
    assert sum(one["traceback"] for one in fuzzed["readers"].values()) == 0


def test_the_measured_figures_are_those_promised() -> None:
    content = json.loads(RESULT.read_text())
    for part in ("corpus", "faults", "kills"):
        assert (
            content[part]["tracebacks"] == content[part]["hangs"] == content[part]["data lost"] == 0
        )
    assert content["corpus"]["complaints"] == 0
    assert content["kills"]["identical"] == content["kills"]["tried"] == 50
    assert content["faults"]["identical"] == content["faults"]["tried"] > 500


def test_the_figures_are_of_nearly_the_corpus_of_today() -> None:
    measured = json.loads(RESULT.read_text())["corpus"]["cases"]
    assert abs(measured - len(read_cases())) < 30
