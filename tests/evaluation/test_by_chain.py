"""Intervals over chains: they cover what they promise, where those for independent samples do not."""

from collections import Counter
from math import isnan, nan
from random import Random

import pytest
from scipy.stats import t as student_distribution

from nmln.evaluation import (
    Estimate,
    LevelEvaluation,
    ahead,
    clustered_share,
    count_by_chain,
    evaluate,
    fallen,
    judge_levels,
    recall_curve,
    recall_estimate,
    student,
    wilson,
)


def chains_of_shares(chance: Random, chains: int = 40, length: int = 50) -> list[int]:
    """How many samples of each chain are valid, where chains differ: Beta(4, 1), 0.8 on average."""
    return [
        sum(chance.random() < share for _ in range(length))
        for share in (chance.betavariate(4, 1) for _ in range(chains))
    ]


def coverage(intervals: list[tuple[float, float]], truth: float) -> float:
    return sum(low <= truth <= high for low, high in intervals) / len(intervals)


def test_intervals_of_shares_cover_the_truth_though_samples_of_a_chain_are_alike() -> None:
    chance = Random(0)
    drawn = [chains_of_shares(chance) for _ in range(400)]
    over_chains = [clustered_share(parts, [50] * 40)[1:] for parts in drawn]
    assert 0.92 < coverage(over_chains, 0.8) < 0.98


def test_intervals_for_independent_samples_would_not() -> None:
    chance = Random(0)
    drawn = [chains_of_shares(chance) for _ in range(400)]
    assert coverage([wilson(sum(parts), 2000) for parts in drawn], 0.8) < 0.6


def test_chains_that_are_independent_draws_are_worth_as_much() -> None:
    chance = Random(1)
    parts = [int(chance.random() < 0.3) for _ in range(500)]
    found = clustered_share(parts, [1] * 500)
    assert found[1:] == pytest.approx(wilson(sum(parts), 500), abs=2e-3)


def test_where_all_chains_agree_each_is_one_draw() -> None:
    assert clustered_share([50] * 20, [50] * 20) == Estimate(1.0, *wilson(20, 20))
    assert clustered_share([0] * 20, [50] * 20) == Estimate(0.0, *wilson(0, 20))
    assert clustered_share([25] * 20, [50] * 20) == Estimate(0.5, *wilson(500, 1000))


def test_few_chains_give_no_interval() -> None:
    found = clustered_share([3, 4], [5, 5])
    assert found.value == 0.7
    assert isnan(found.low)
    assert isnan(found.high)
    assert all(map(isnan, clustered_share([0, 0], [0, 0])))
    assert isnan(recall_estimate([Counter("a")], "a", 1).low)


def groups_of_strings(chance: Random, groups: int = 20) -> list[Counter[str]]:
    """Strings of which some come often, and each several times in a row."""
    names = [str(number) for number in range(400)]
    weights = [1 / (number + 10) for number in range(400)]
    found = []
    for _ in range(groups):
        runs = chance.choices(names, weights, k=30)
        found.append(Counter(name for name in runs for _ in range(chance.randint(1, 6))))
    return found


def test_the_jackknife_spreads_as_far_as_recall_does() -> None:
    chance = Random(2)
    reference = {str(number) for number in range(0, 400, 3)}
    drawn = [groups_of_strings(chance) for _ in range(150)]
    found = [recall_estimate(groups, reference, 100) for groups in drawn]
    values = [one.value for one in found]
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    told = sum(one.high - one.low for one in found) / len(found) / 2 / student(19)
    assert 0.8 < told / spread < 1.5
    assert coverage([one[1:] for one in found], mean) > 0.9


def test_recall_is_that_of_all_chains_together() -> None:
    groups = groups_of_strings(Random(3))
    reference = {str(number) for number in range(50)}
    whole = sum(groups, Counter[str]())
    assert recall_estimate(groups, reference, 60).value == recall_curve(whole, reference).at(60)


def test_finding_nothing_is_not_being_sure_of_nothing() -> None:
    found = recall_estimate(
        groups_of_strings(Random(4)), {"unheard of", "as well"} | set("xyz"), 60
    )
    assert found == Estimate(0.0, 0.0, 3.7)


@pytest.mark.parametrize("freedom", [4, 9, 19, 99])
def test_the_quantile_is_that_of_student(freedom: int) -> None:
    assert student(freedom) == pytest.approx(
        float(student_distribution.ppf(0.975, freedom)), rel=0.02
    )


def row(sample: int, level: int) -> tuple[int, int, str, str]:
    smiles = "C.OFSP"[sample % 6].strip(".")
    return sample, level, "valid" if smiles else "invalid", smiles


def rows() -> list[tuple[int, int, str, str]]:
    """Two levels of six chains, three samples each; chain 1 gives nothing, the others their letter."""
    return [row(sample, level) for level in (0, 1) for sample in range(18)]


def test_rows_are_counted_by_the_chain_that_their_number_names() -> None:
    counted = count_by_chain(rows(), 6, {"C", "O"}, {"F"})
    for level in (0, 1):
        one = counted[level]
        assert [one.attempts[chain] for chain in range(6)] == [3] * 6
        assert [one.valid[chain] for chain in range(6)] == [3, 0, 3, 3, 3, 3]
        assert [one.train[chain] for chain in range(6)] == [3, 0, 3, 0, 0, 0]
        assert [one.test[chain] for chain in range(6)] == [0, 0, 0, 3, 0, 0]
        assert one.groups[3] == {"F": 3}


def test_levels_have_what_the_evaluation_says() -> None:
    samples = [smiles or None for _, level, _, smiles in rows() if not level]
    found = evaluate(samples, {"C", "O"}, {"F"})
    counted = count_by_chain(rows(), 6, {"C", "O"}, {"F"})
    first, target = judge_levels([(0, found), (1, found)], counted, ("0.1", "0.01"), {"F"})
    assert (first.name, target.name) == ("0.1", "0.01")
    for one in (first, target):
        assert one.valid.value == found.valid.value
        assert one.known_train.value == found.known_train.value
        assert one.known_test.value == found.known_test.value
        assert one.recall.value == found.test.at(1000)
        assert one.valid.low < one.valid.value < one.valid.high


def level(valid: Estimate, recall: Estimate) -> LevelEvaluation:
    unknown = Estimate(nan, nan, nan)
    return LevelEvaluation(
        0, "", evaluate(["C"], {"C"}, {"N"}), valid, unknown, unknown, 1000, recall
    )


def test_only_what_lies_beyond_the_intervals_is_reported() -> None:
    low, middle, high = Estimate(2, 1, 3), Estimate(3.5, 2.5, 4.5), Estimate(6, 5, 7)
    rising = [level(one, one) for one in (low, middle, high)]
    assert not fallen(rising)
    assert not ahead(rising)
    blurred = [level(one, one) for one in (middle, low)]
    assert not fallen(blurred)
    assert not ahead(blurred)
    falling = [level(one, one) for one in (high, middle, low)]
    assert fallen(falling) == [(falling[0], falling[1])]
    assert ahead(falling) == [falling[0]]
