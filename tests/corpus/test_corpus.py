"""Bad input of every kind ends in one line, and touches nothing of the user's."""

from collections import Counter
from pathlib import Path

import pytest

from tests.corpus.prepared import Shelf
from tests.corpus.runner import Case, read_cases, run
from tests.warm import Warm

CASES = read_cases()
VERBS = {
    "run", "train", "sample", "infer", "learn", "combine", "likelihood", "report", "evaluate", "data",
    "kb", "reproduce", "baseline",
}  # fmt: skip


QUICK_AND_SLOW = [
    pytest.param(case, marks=pytest.mark.slow) if number % 2 else case
    for number, case in enumerate(CASES)
]
"""Every second case is left to `make test-all`."""


@pytest.mark.parametrize("case", QUICK_AND_SLOW, ids=str)
def test_bad_input_ends_in_one_line_and_touches_nothing(
    case: Case, call: Warm, shelf: Shelf, tmp_path: Path
) -> None:
    verdict = run(case, call, shelf, tmp_path / "case")
    shown = f"{verdict.done.said}{verdict.done.out[-500:]}"
    assert not verdict.complaints, f"{verdict.complaints}\nnmln {case.command}\n{shown}"


def test_the_corpus_covers_every_verb_and_no_case_twice() -> None:
    assert len(CASES) >= 200
    assert {case.command.split()[0] for case in CASES} >= VERBS
    assert max(Counter(map(str, CASES)).values()) == 1
    alike = Counter(f"{c.command} {c.prepared} {c.files} {c.steps} {c.first}" for c in CASES)
    assert max(alike.values()) == 1, alike.most_common(3)
