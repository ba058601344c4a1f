"""Ladders of corruption rates and of temperatures, and what both have in common."""

import re
from itertools import pairwise

import pytest
import torch

from nmln.adaptation import equal_rejection
from nmln.errors import InputError
from nmln.ladders import Ladder, LadderLike, Temperatures, ladder_of_kind
from nmln.noise import swap_bound
from tests.strategies import random_worlds
from tests.test_noise import SPACE

BOTH = [Ladder((0.4, 0.1, 0.01)), Temperatures((4, 2, 1))]


@pytest.mark.parametrize("ladder", BOTH, ids=["noise", "temperature"])
def test_both_ladders_follow_one_protocol(ladder: LadderLike) -> None:
    assert isinstance(ladder, LadderLike)
    assert len(ladder) == 3
    assert tuple(ladder) == ladder.rates
    for rate in ladder:
        assert ladder.rate_at(ladder.coordinate(rate)) == pytest.approx(rate)
    assert ladder_of_kind(ladder.kind, ladder.rates) == ladder


@pytest.mark.parametrize("groups", [1, 6, 55, 120, 210])
@pytest.mark.parametrize("swap", [0.2, 0.4, 0.7])
def test_an_even_ladder_has_the_fewest_levels_with_the_wanted_swaps(
    groups: int, swap: float
) -> None:
    ladder = Ladder.even(groups, swap)
    assert (ladder.rates[0], ladder.rates[-1]) == (0.08, 0.001)
    swaps = [swap_bound(groups, *pair) for pair in pairwise(ladder)]
    assert min(swaps) >= swap - 0.01  # rates are rounded
    assert max(swaps) - min(swaps) < 0.02
    if len(ladder) > 2:
        fewer = equal_rejection(ladder, [1 - one for one in swaps], len(ladder) - 1).ladder()
        assert min(swap_bound(groups, *pair) for pair in pairwise(fewer)) < swap


def test_levels_at_twenty_atoms_are_those_that_were_found_by_hand() -> None:
    assert Ladder.even(210, 0.4).rates == pytest.approx(
        (0.080, 0.059, 0.041, 0.026, 0.015, 0.006, 0.001), abs=5e-4
    )


def test_levels_can_be_even_in_a_power_of_the_rate() -> None:
    ladder = Ladder((0.25, 0.2, 0.1, 0.0001))
    assert ladder.respaced(1.0).rates == (0.25, 0.167, 0.0834, 0.0001)
    assert ladder.respaced(0.5).rates == (0.25, 0.113, 0.03, 0.0001)
    for short in (Ladder((0.1,)), Ladder((0.1, 0.01))):
        assert short.respaced(0.5) == short


@pytest.mark.parametrize(("groups", "levels"), [(6, 2), (55, 4), (120, 6), (210, 7), (440, 10)])
def test_the_levels_for_swaps_of_two_fifths(groups: int, levels: int) -> None:
    assert len(Ladder.even(groups, 0.4)) == levels


@pytest.mark.parametrize(
    ("groups", "swap", "needed"), [(20_000, 0.8, 203), (120, 0.99, 317), (10**9, 0.4, 13_558)]
)
def test_swaps_that_need_too_many_levels_are_refused(groups: int, swap: float, needed: int) -> None:
    named = (
        f"needs about {needed:,} levels on worlds of {groups:,} groups, but a ladder may have 100"
    )
    with pytest.raises(InputError, match=named) as error:
        Ladder.even(groups, swap)
    assert (error.value.kind, error.value.token) == ("size", "ladder.swap")
    cure = re.search(r"ladder\.swap=([\d.]+) or lower", str(error.value))
    assert (cure is None) == (groups == 10**9)
    if cure is not None:
        assert len(Ladder.even(groups, float(cure[1]))) <= 100


def test_a_wanted_swap_probability_is_below_one() -> None:
    with pytest.raises(InputError, match="above 0 and below 1, got 1"):
        Ladder.even(10, 1.0)


def test_a_ladder_predicts_its_swaps_pair_by_pair() -> None:
    ladder = Ladder((0.08, 0.045, 0.02, 0.006, 0.001))
    assert ladder.predicted_swaps(55) == pytest.approx((0.45, 0.47, 0.55, 0.77), abs=5e-3)
    assert ladder.predicted_swaps(210) == pytest.approx((0.14, 0.14, 0.20, 0.42), abs=5e-3)
    assert Ladder((0.1,)).predicted_swaps(55) == ()


def test_an_unknown_kind_of_ladder_is_refused() -> None:
    with pytest.raises(InputError, match="kind of a ladder"):
        ladder_of_kind("pressure", (1.0,))


def test_a_ladder_corrupts_every_world_at_every_level() -> None:
    ladder = Ladder((0.5, 0.1, 0.0))
    worlds = random_worlds(SPACE, 2000)
    corrupted = ladder.corrupt(SPACE, worlds, torch.Generator().manual_seed(4))
    assert corrupted.shape == (3, 2000, SPACE.groups)
    assert corrupted.dtype == torch.uint8
    shares = (corrupted != worlds).double().mean((1, 2))
    assert torch.allclose(shares, torch.tensor(ladder.rates, dtype=torch.float64), atol=0.02)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Ladder(()), "at least one corruption rate"),
        (lambda: Ladder((0.1, -0.1)), "rate of level 1 must be between 0 and 1"),
        (lambda: Ladder((1.5,)), "must be between 0 and 1"),
        (lambda: Ladder((float("nan"),)), "must be between 0 and 1"),
        (
            lambda: Ladder((0.1, 0.2)),
            r"level 0 has 0.1 and level 1 has 0.2. .*Ladder\(\(0.2, 0.1\)\)",
        ),
        (lambda: Ladder((0.1, 0.1)), r"Sort them with Ladder\(\(0.1,\)\)"),
    ],
)
def test_rates_that_cannot_be_are_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ((), "at least one temperature"),
        ((1, 2), r"must fall .* Sort them with Temperatures\(\(2.0, 1.0\)\)"),
        ((2, 0), "positive and finite, but level 1 has 0"),
    ],
)
def test_temperatures_that_cannot_be_are_refused(rates, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Temperatures(rates)


def test_geometric_temperatures() -> None:
    assert Temperatures.geometric(4, 3).rates == pytest.approx((4, 2, 1))
    assert Temperatures.geometric(4, 1).rates == (1.0,)
    with pytest.raises(InputError, match="hottest 1"):
        Temperatures.geometric(1, 3)
