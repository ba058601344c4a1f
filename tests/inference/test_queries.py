"""What a query may say, and what is said about one that cannot be read."""

import pytest
import torch

from nmln.errors import InputError
from nmln.inference.queries import Questions, read_queries
from tests.inference.models import SPACE


def texts(query: str) -> list[str]:
    return [one.text for one in read_queries(query, SPACE)]


def test_predicates_atoms_patterns_and_formulas_can_be_asked() -> None:
    assert texts("mark") == ["mark(0)", "mark(1)", "mark(2)"]
    assert texts("mark/1") == texts("mark")
    assert texts("type/2")[:3] == ["type(0, A)", "type(0, B)", "type(0, C)"]
    assert texts("link(0, x)") == ["link(0, 1)", "link(0, 2)"], "link(0, 0) does not exist"
    assert texts("mark(0) ^ link(0, 1), mark(2)") == ["mark(0) ^ link(0, 1)", "mark(2)"]
    assert texts("mark(x) ^ type(x, A)")[0] == "mark(0) ^ type(0, A)"
    assert texts("mark, mark(1)") == texts("mark"), "each once"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (" , ", "the query is empty"),
        ("marked", "unknown predicate marked"),
        ("mark/2", "asks for 2 arguments, but mark takes 1"),
        ("mark(0", r"query 'mark\(0':7: the line ends here"),
        ("mark(7)", "undeclared constant 7"),
        ("1.5 mark(0)", "has a weight"),
        ("mark(0).", "full stop"),
        ("link(1, 1)", "repeats a constant"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused(query: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_queries(query, SPACE)


def test_truth_is_looked_up_in_worlds() -> None:
    worlds = SPACE.enumerate()
    found = Questions(SPACE, read_queries("mark(1), mark(0) ^ mark(1), EXIST x mark(x)", SPACE))
    marks = worlds[:, SPACE.block("mark").groups] == 1
    expected = torch.stack([marks[:, 1], marks[:, 0] & marks[:, 1], marks.any(1)], 1)
    assert torch.equal(found.truths(worlds), expected)
