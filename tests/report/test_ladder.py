"""The ladder in words and as a table: predicted and measured swaps, and what to do about rare ones."""

from math import nan

import pytest

from nmln.ladders import Ladder
from nmln.report.curves import Levels
from nmln.report.ladder import ladder_html, ladder_in_words, share_range, swap_sentences

RATES = ("0.08", "0.0435", "0.0171", "0.001")
LEVELS = Levels(RATES, RATES, "corruption rate", (0.43, 0.43, 0.44), 55)
FAR = Levels(RATES, RATES, "corruption rate", (0.08, 0.12, 0.3), 210, several=True)
HEATS = Levels(("0.001",), ("T = 2", "T = 1.4", "T = 1"), "level")


def test_levels_that_swap_are_one_sentence_with_the_prediction() -> None:
    fine, rare = swap_sentences(LEVELS, (0.36, 0.41, 0.2))
    assert fine == [
        "Swaps between neighbouring levels are taken 20 to 41 % of the time (predicted 43 to 44 %)."
    ]
    assert rare == []


def test_a_trained_pair_that_falls_behind_its_prediction_needs_training_or_closer_levels() -> None:
    fine, (rare,) = swap_sentences(LEVELS, (0.36, 0.41, 0.149))
    assert fine == [
        "Swaps between the other levels are taken 36 to 41 % of the time (predicted 43 %)."
    ]
    assert rare.startswith(
        "Swaps between 0.0171 and 0.001 are taken 15 % of the time (predicted 44 %): worlds hardly"
    )
    assert "Train longer" in rare
    assert "--set ladder.swap=0.5" in rare
    assert swap_sentences(LEVELS, (0.36, 0.41, 0.15))[1] == []


def test_pairs_that_are_too_far_apart_need_the_levels_of_these_worlds() -> None:
    fine, (rare,) = swap_sentences(FAR, (0.03, 0.05, 0.22))
    assert len(fine) == 1
    assert "less than 15 % of the time between 0.08 and 0.0435 (3 %), between" in rare
    assert "(predicted 8 to 12 %)" in rare
    assert "--set ladder.rates=auto" in rare
    assert "Train longer" not in rare


def test_temperatures_have_no_predictions() -> None:
    fine, (rare,) = swap_sentences(HEATS, (0.5, 0.01))
    assert fine == ["Swaps between T = 2 and T = 1.4 are taken 50 % of the time."]
    assert rare.endswith("Put a level between them.")
    assert "predicted" not in rare


def test_pairs_that_were_not_measured_are_left_out() -> None:
    assert swap_sentences(LEVELS, (nan, nan, nan)) == ([], [])
    assert swap_sentences(LEVELS, ()) == ([], [])
    assert "unknown" in ladder_html(LEVELS, (nan, 0.3, 0.2))


def test_many_rare_pairs_are_named_in_part() -> None:
    names = tuple(f"{rate}" for rate in range(12))
    _, (rare,) = swap_sentences(Levels(names, names), [0.01] * 11)
    assert rare.count("between") == 4 + 1  # the cure names one too
    assert "and 7 more pairs" in rare


def test_the_table_has_predicted_and_measured_swaps() -> None:
    html = ladder_html(LEVELS, (0.36, 0.41, 0.2)).replace("&nbsp;", " ")
    assert "predicted" in html
    assert "0.08 and 0.0435" in html
    assert "43 %" in html
    assert "36 %" in html
    assert "55 groups per world;" in html
    assert "the largest of the data" in ladder_html(FAR, (0.3, 0.3, 0.3))
    assert "predicted" not in ladder_html(HEATS, (0.3, 0.3)).lower()


def test_the_ladder_is_described_before_the_first_step() -> None:
    ladder = Ladder.even(55, 0.4)
    assert ladder_in_words(ladder.rates, ladder.predicted_swaps(55)).startswith(
        "ladder: 4 levels with corruption rates 0.08, 0.0435, 0.0171, 0.001; neighbours swap in 43 %"
    )
    long = [0.9 - 0.05 * level for level in range(15)]
    assert "0.9, 0.85, 0.8, ..., 0.2;" in ladder_in_words(long, [0.4])
    assert ladder_in_words((0.001,), ()) == "ladder: one level, at the corruption rate 0.001"


@pytest.mark.parametrize(
    ("shares", "shown"),
    [((0.4, 0.4), "40 %"), ((0.14, 0.4), "14 to 40 %"), ((0.004, 0.2), "0.4 to 20 %")],
)
def test_a_range_of_shares(shares: tuple[float, ...], shown: str) -> None:
    assert share_range(shares) == shown
