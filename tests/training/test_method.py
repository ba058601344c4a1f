"""The levels of a configuration, given or chosen for the worlds."""

import pytest

from nmln.config import configure
from nmln.errors import InputError
from nmln.language import Language, predicate
from nmln.space import Space
from nmln.training.method import Method

LANGUAGE = Language(predicate("p", "a"), predicate("q", "a", "a"))
SMALL, LARGE = (Space(LANGUAGE, {"a": size}) for size in (3, 12))
AUTO = {"ladder": {"rates": "auto", "swap": 0.5}, "model": {"layers": 1, "hidden": 4}}


def test_levels_are_not_known_before_the_worlds() -> None:
    with pytest.raises(InputError, match="rates of this ladder are not chosen yet") as error:
        Method.of(configure(AUTO).ladder)
    assert error.value.token == "ladder.rates"
