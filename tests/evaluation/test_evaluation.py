import math
import random
from collections import Counter
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.evaluation import (
    Counts,
    SampleCounter,
    Share,
    coverage,
    evaluate,
    expected_unique,
    ideal_coverage,
    recall_curve,
    unique_at,
    wilson,
)

LETTERS = "abcdef"
some_counts = st.dictionaries(st.sampled_from(LETTERS), st.integers(1, 3))
some_letters = st.sets(st.sampled_from(LETTERS + "xyz"))


def brute_force(counts: dict[str, int], wanted: set[str], removed: set[str], rank: int) -> float:
    """The mean over all orders of the strings, sorted by count with ties left as they fall."""
    left = [string for string in counts if string not in removed]
    found = []
    for order in permutations(left):
        ranking = sorted(order, key=lambda string: -counts[string])
        found.append(sum(string in wanted for string in ranking[:rank]))
    return sum(found) / len(found)


@given(some_counts, some_letters, some_letters, st.integers(0, 8))
def test_the_recall_curve_is_the_mean_over_all_orders_within_ties(
    counts: dict[str, int], wanted: set[str], removed: set[str], rank: int
) -> None:
    curve = recall_curve(counts, wanted, without=removed)
    assert curve.at(rank) == pytest.approx(brute_force(counts, wanted, removed, rank), abs=1e-12)


def test_the_brute_force_would_notice_ties_broken_by_the_order_of_the_file() -> None:
    counts, wanted = {"a": 1, "b": 1}, {"a"}
    broken = sum(string in wanted for string in sorted(counts, key=lambda s: -counts[s])[:1])
    assert broken != brute_force(counts, wanted, set(), 1) == recall_curve(counts, wanted).at(1)


@given(st.lists(st.sampled_from([*LETTERS, None]), max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(
    samples: list[str | None], chance: random.Random
) -> None:
    shuffled = list(samples)
    chance.shuffle(shuffled)
    assert recall_curve(samples, set("abc")) == recall_curve(shuffled, set("abc"))


@given(st.integers(1, 50), st.integers(0, 2000), st.integers(0, 120))
def test_a_sampler_of_the_training_set_finds_nothing_else(size: int, draws: int, rank: int) -> None:
    train = [f"train{number}" for number in range(size)]
    chance = random.Random(draws)
    found = evaluate([*train, *chance.choices(train, k=draws)], train, ["test1", "test2"])
    assert found.test.at(rank) == found.new.at(rank) == 0
    assert found.train.at(rank) == min(rank, size)
    assert found.novelty.value == found.vun.value == found.coverage_test.value == 0
    assert found.coverage_train.value == found.known_train.value == 1


def test_the_curve_is_linear_within_ties_and_stays_where_it_ends() -> None:
    curve = recall_curve({"a": 9, "b": 2, "c": 2, "d": 2, "e": 2}, ["a", "b"], at=(1, 3, 100))
    assert curve.ranks == (0, 1, 5)
    assert curve.found == (0, 1, 2)
    assert curve.table == {1: 1.0, 3: 1.5, 100: 2.0}
    assert curve.at(2.5) == 1 + 1.5 / 4
    share = curve.share(3)
    assert (share.count, share.total) == (1.5, 2)
    assert share.low < share.value < share.high
    assert recall_curve([], ["a"]).table == dict.fromkeys((100, 300, 1000, 3000, 10000), 0.0)


def test_invalid_attempts_use_up_draws_but_are_not_ranked() -> None:
    clean = evaluate(["a", "a", "b", "x"], ["a"], ["b"])
    noisy = evaluate(["a", None, "a", "b", None, "x"], ["a"], ["b"])
    assert noisy.test == clean.test
    assert noisy.samples.attempts == 6
    assert (noisy.valid.count, noisy.valid.total) == (4, 6)
    assert noisy.vun.value == 2 / 6
    assert noisy.novelty.value == clean.novelty.value == 2 / 3
    assert noisy.known_train.value == 2 / 4
    assert noisy.ideal > clean.ideal
    assert noisy.ideal == 1 - 0.5**6


def test_removing_the_training_set_moves_the_others_up() -> None:
    found = evaluate({"a": 5, "b": 4, "c": 3, "d": 1}, ["a", "b"], ["c", "z"], at=(1, 2, 3))
    assert found.test.table == {1: 0, 2: 0, 3: 1}
    assert found.new.table == {1: 1, 2: 1, 3: 1}
    assert found.train.table == {1: 1, 2: 2, 3: 2}
    assert found.coverage_test == Share(1, 2, "test set")


# Single numbers.


def test_the_ideal_coverage_is_that_of_uniform_draws() -> None:
    size, draws, times = 40, 60, 400
    chance = random.Random(0)
    covered = [len({chance.randrange(size) for _ in range(draws)}) / size for _ in range(times)]
    mean = sum(covered) / times
    spread = math.sqrt(sum((one - mean) ** 2 for one in covered) / (times - 1) / times)
    assert abs(mean - ideal_coverage(size, draws)) < 4 * spread
    assert abs(mean - ideal_coverage(size, draws + 10)) > 4 * spread
    assert ideal_coverage(1, 1) == 1
    assert ideal_coverage(5, 0) == 0
    assert ideal_coverage(10**9, 10**6) == pytest.approx(1e-3, rel=1e-3)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), min_size=1), st.data())
def test_expected_uniqueness_is_the_mean_over_all_choices(
    counts: dict[str, int], data: st.DataObject
) -> None:
    samples = [string for string, count in counts.items() for _ in range(count)]
    draws = data.draw(st.integers(0, len(samples)))
    different = [len(set(chosen)) for chosen in combinations(samples, draws)]
    expected = sum(different) / len(different)
    assert expected_unique(Counts.of(counts), draws) == pytest.approx(expected, abs=1e-9)


def test_expected_uniqueness_of_large_counts_joins_both_ways_of_summing() -> None:
    counts = Counts.of({"often": 300_000, "seldom": 99_999, "once": 1})
    missing = [math.comb(400_000 - c, 3) / math.comb(400_000, 3) for c in (300_000, 99_999, 1)]
    assert expected_unique(counts, 3) == pytest.approx(3 - sum(missing), rel=1e-9)


def test_uniqueness_is_of_the_first_samples_where_their_order_is_known() -> None:
    samples = [str(number % 500) for number in range(1000)] + [str(n) for n in range(9500)]
    first, second = unique_at(Counts.of([None, *samples]))
    assert (first.draws, first.different, first.first) == (1000, 500, True)
    assert (second.draws, second.different, second.value) == (10_000, 9000, 0.9)
    expected = unique_at(Counts.of(Counter(samples)))
    assert [one.first for one in expected] == [False, False]
    assert expected[0].different > 900
    tally = SampleCounter()
    tally.add("a", 1000)  # at once: whatever came first is not known
    assert not tally.close().firsts
    assert unique_at(tally.close())[0].different == pytest.approx(1)


def test_the_wilson_interval_holds_what_it_promises() -> None:
    trials, truth = 60, 0.9
    held = 0.0
    for count in range(trials + 1):
        low, high = wilson(count, trials)
        assert 0 <= low <= count / trials <= high <= 1
        chance = math.comb(trials, count) * truth**count * (1 - truth) ** (trials - count)
        held += chance * (low <= truth <= high)
    assert 0.93 < held < 0.975
    assert wilson(0, 0) == (0, 1)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe (1998), table I


def test_coverage_is_of_the_reference_set() -> None:
    found = coverage(Counts.of(["a", "a", "q"]), ["a", "b", "c", "c"])
    assert (found.count, found.total, found.of) == (1, 3, "reference set")


# What cannot be.


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        Counts({"a": 0}, 3)
    with pytest.raises(InputError, match="5, got 4"):
        Counts({"a": 5}, 4)
    with pytest.raises(InputError, match="Put it into a list"):
        recall_curve(["a"], "abc")
    with pytest.raises(InputError, match="at least one string each, got 1 and 0"):
        evaluate(["a"], ["a"], [])
    with pytest.raises(InputError, match="7 cannot be drawn from 2 valid samples"):
        expected_unique(Counts.of(["a", "b"]), 7)
    with pytest.raises(InputError, match="at least one string"):
        ideal_coverage(0, 3)


def test_nothing_valid_is_no_error_but_has_no_shares() -> None:
    found = evaluate([None, None], ["a"], ["b"])
    assert found.valid.value == 0
    assert math.isnan(found.novelty.value)
    assert found.test.at(10) == 0
    assert found.describe()["recall"]["test"] == {
        "size": 1, "ranked": 0, "at": found.describe()["recall"]["test"]["at"],
    }  # fmt: skip
