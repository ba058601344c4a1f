"""The levels of a configuration, given or chosen for the worlds."""

import pytest

from nmln.config import Config, configure
from nmln.errors import InputError
from nmln.ladders import Ladder
from nmln.language import Language, predicate
from nmln.model import Model
from nmln.space import Space
from nmln.training.method import Method, with_rates
from tests.strategies import random_worlds

LANGUAGE = Language(predicate("p", "a"), predicate("q", "a", "a"))
SMALL, LARGE = (Space(LANGUAGE, {"a": size}) for size in (3, 12))
AUTO = {"ladder": {"rates": "auto", "swap": 0.5}, "model": {"layers": 1, "hidden": 4}}


def test_rates_that_are_given_stay() -> None:
    assert with_rates(Config(), [SMALL, LARGE]) == Config()


def test_rates_are_chosen_for_the_largest_world() -> None:
    found = with_rates(configure(AUTO), [SMALL, LARGE, SMALL])
    assert found.ladder.rates == Ladder.even(LARGE.groups, 0.5).rates
    assert len(found.ladder.rates) > len(Ladder.even(SMALL.groups, 0.5))
    assert configure(found.to_dict()) == found


def test_a_model_has_the_rates_that_were_chosen() -> None:
    model = Model.build(SMALL, random_worlds(SMALL, 20), configure(AUTO))
    assert model.method.noise == Ladder.even(SMALL.groups, 0.5)
    assert model.potential.levels == len(model.method.noise)


def test_levels_are_not_known_before_the_worlds() -> None:
    with pytest.raises(InputError, match="rates of this ladder are not chosen yet") as error:
        Method.of(configure(AUTO).ladder)
    assert error.value.token == "ladder.rates"
