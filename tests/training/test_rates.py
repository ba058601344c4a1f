"""Rates that are chosen for the worlds, by default and within the memory of the machine."""

import re

import pytest
import torch

from nmln.buckets import Bucket
from nmln.config import Config, configure, override
from nmln.errors import InputError
from nmln.ladders import Ladder
from nmln.language import Attribute, Language, predicate
from nmln.model import Model
from nmln.molecules.chemistry import space_for
from nmln.space import Space
from nmln.training.rates import free_groups, with_rates
from nmln.training.sizes import dealt, step_memory
from tests.strategies import random_worlds

LANGUAGE = Language(predicate("p", "a"), predicate("q", "a", "a"))
SMALL, LARGE = (Space(LANGUAGE, {"a": size}) for size in (3, 12))
TINY = {"model": {"layers": 1, "hidden": 4}, "chains": {"replicas": 4}, "training": {"batch": 4}}


def data(*spaces: Space) -> list[Bucket]:
    return [Bucket(space, torch.zeros(5, space.groups, dtype=space.dtype)) for space in spaces]


@pytest.mark.parametrize(
    ("atoms", "rates"),
    [
        (10, (0.08, 0.0435, 0.0171, 0.001)),
        (15, (0.08, 0.0558, 0.0356, 0.0198, 0.00825, 0.001)),
        (20, (0.08, 0.0592, 0.0412, 0.0263, 0.0147, 0.00622, 0.001)),
    ],
)
def test_the_default_ladder_of_molecules_is_as_documented(
    atoms: int, rates: tuple[float, ...]
) -> None:
    found = with_rates(Config(), data(space_for(("C", "N", "O"), atoms)))
    assert found.ladder.rates == rates
    assert found == override(Config(), {"ladder.rates": rates})


def test_rates_that_are_given_stay() -> None:
    given = override(Config(), {"ladder.rates": [0.3, 0.1]})
    assert with_rates(given, data(SMALL, LARGE)) == given


def test_rates_are_chosen_for_the_largest_world() -> None:
    config = configure({"ladder": {"swap": 0.5}})
    found = with_rates(config, data(SMALL, LARGE, SMALL))
    assert found.ladder.rates == Ladder.even(LARGE.groups, 0.5).rates
    assert len(found.ladder.rates) > len(Ladder.even(SMALL.groups, 0.5))
    assert configure(found.to_dict()) == found


def test_groups_of_one_category_do_not_count() -> None:
    alone = Attribute("kind", ("a",), ("only",))
    language = Language(alone, predicate("q", "a", "a"))
    assert free_groups([Space(language, {"a": size}) for size in (3, 5, 4)]) == 25


@pytest.mark.parametrize("method", ["tempering", "single"])
def test_methods_with_one_trained_level_have_the_rate_of_the_target(method: str) -> None:
    found = with_rates(configure({"ladder": {"method": method}}), data(LARGE))
    assert found.ladder.rates == (0.001,)


def test_a_model_has_the_rates_that_were_chosen() -> None:
    model = Model.build(
        LARGE, random_worlds(LARGE, 20), configure({**TINY, "ladder": {"swap": 0.5}})
    )
    assert model.method.noise == Ladder.even(LARGE.groups, 0.5)
    assert model.potential.levels == len(model.method.noise)


def test_levels_that_memory_does_not_allow_are_refused_with_the_swap_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worlds = data(LARGE)
    config = configure({**TINY, "ladder": {"swap": 0.7}})
    levels = len(with_rates(config, worlds).ladder.rates)
    four = override(config, {"ladder.rates": [0.08, 0.04, 0.02, 0.001]})
    memory = int(step_memory(dealt(worlds, four, 1), four) / 0.9) + 100
    for module in ("memory", "training.rates"):
        monkeypatch.setattr(f"nmln.{module}.machine_memory", lambda: memory)
    named = (
        f"0.7 .ladder.swap. needs {levels} levels on worlds of 156 groups, but .* allows \\d+ with"
    )
    with pytest.raises(InputError, match=named) as error:
        Model.build(worlds, config=config)
    assert (error.value.kind, error.value.token) == ("size", "ladder.swap")
    cure = re.search(r"ladder\.swap=([\d.]+) or lower", str(error.value))
    allowed = re.search(r"allows (\d+)", str(error.value))
    assert cure is not None
    assert allowed is not None
    assert 4 <= int(allowed[1]) < levels
    lower = with_rates(override(config, {"ladder.swap": float(cure[1])}), worlds)
    assert len(lower.ladder.rates) in (int(allowed[1]), int(allowed[1]) - 1)


def test_chains_that_fit_at_no_number_of_levels_are_named_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("memory", "training.rates"):
        monkeypatch.setattr(f"nmln.{module}.machine_memory", lambda: 5000)
    with pytest.raises(InputError, match=r"model\.networks|chains\.replicas"):
        with_rates(configure({**TINY, "chains": {"replicas": 1000}}), data(LARGE))
