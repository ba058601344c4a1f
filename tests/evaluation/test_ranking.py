"""Recall of strings ranked by a score, held against all orders within ties."""

from itertools import pairwise, permutations
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.evaluation import Scores, evaluate, recall_by_score, recall_curve
from nmln.evaluation.recall import _blocks, _straightened

LETTERS = "abcdef"
some_scores = st.dictionaries(
    st.sampled_from(LETTERS), st.sampled_from([-inf, -2.5, -1.0, 0.0, 7.0])
)
some_letters = st.sets(st.sampled_from(LETTERS + "xyz"))


def brute_force(
    scores: dict[str, float], wanted: set[str], removed: set[str], rank: int, sign: int = -1
) -> float:
    """The mean over all orders of the strings, the highest score first with ties left as they fall."""
    found = []
    for order in permutations([string for string in scores if string not in removed]):
        ranking = sorted(order, key=lambda string: sign * scores[string])
        found.append(sum(string in wanted for string in ranking[:rank]))
    return sum(found) / len(found)


@given(some_scores, some_letters, some_letters, st.integers(0, 8))
def test_the_curve_is_the_mean_over_all_orders_within_ties(
    scores: dict[str, float], wanted: set[str], removed: set[str], rank: int
) -> None:
    curve = recall_by_score(scores, wanted, without=removed)
    assert curve.at(rank) == pytest.approx(brute_force(scores, wanted, removed, rank), abs=1e-12)


def test_the_brute_force_would_notice_the_lowest_score_first() -> None:
    scores, wanted = {"a": 2.0, "b": 1.0}, {"a"}
    assert brute_force(scores, wanted, set(), 1, sign=1) == 0
    assert recall_by_score(scores, wanted).at(1) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_a_curve_without_the_points_of_its_straight_parts_is_the_same(
    strings: list[tuple[int, bool]],
) -> None:
    keys = {str(number): float(key) for number, (key, _) in enumerate(strings)}
    wanted = frozenset(str(number) for number, (_, good) in enumerate(strings) if good)
    ranks, found = _blocks(keys, wanted, frozenset())
    kept, at = _straightened(ranks, found)
    curve = recall_by_score(keys, wanted)
    assert (list(curve.ranks), list(curve.found)) == (kept, at)
    assert [curve.at(rank) for rank in ranks] == pytest.approx(found)
    slopes = [(b - a) / (s - r) for r, s, a, b in zip(kept, kept[1:], at, at[1:], strict=False)]
    assert all(one != other for one, other in pairwise(slopes))


def test_only_generated_strings_are_ranked() -> None:
    counts, train, test = {"a": 5, "b": 1, "c": 2}, {"a"}, {"b", "never drawn"}
    logs = Scores({"a": -3.0, "b": -1.0, "c": -2.0}, exact=False)
    found = evaluate(counts, train, test, at=(1, 2, 3), log_probabilities=logs)
    ranking = found.by_probability
    assert ranking is not None
    assert not ranking.exact
    assert found.test.table == {1: 0, 2: 0, 3: 1}
    assert ranking.test.table == {1: 1, 2: 1, 3: 1}
    assert ranking.train.table == {1: 0, 2: 0, 3: 1}
    assert ranking.new.table == {1: 1, 2: 1, 3: 1}
    assert ranking.new.ranks[-1] == 2
    written = found.describe()["recall_by_probability"]
    assert written["exact"] is False
    assert written["test"]["at"]["1"]["value"] == 1
    plain = evaluate(counts, train, test)
    assert plain.by_probability is None
    assert "recall_by_probability" not in plain.describe()
    assert plain.test == recall_curve(counts, test)


@pytest.mark.parametrize("scores", [{"a": 0.0}, {"a": 0.0, "b": 0.0, "x": 0.0}])
def test_scores_of_other_strings_are_refused(scores: dict[str, float]) -> None:
    with pytest.raises(InputError, match="for each of the 2 generated strings"):
        evaluate({"a": 1, "b": 1}, {"a"}, {"b"}, log_probabilities=Scores(scores))


def test_a_score_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'b' is NaN"):
        recall_by_score({"a": 0.0, "b": nan}, {"a"})
