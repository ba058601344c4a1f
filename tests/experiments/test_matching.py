import json
from inspect import signature
from pathlib import Path

import pytest
import torch

from nmln.cli.reproduce import matching as command
from nmln.experiments.matching import (
    MatchingSettings,
    fit_and_sample,
    matchings,
    obeys,
    run,
    space_of,
)

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(("nodes", "count"), [(2, 1), (4, 3), (6, 15), (8, 105)])
def test_all_ways_to_pair_up_are_found(nodes: int, count: int) -> None:
    space = space_of(nodes)
    worlds = matchings(space)
    assert len(worlds) == len(worlds.unique(dim=0)) == count
    assert obeys(space, worlds).all()


def test_only_they_obey() -> None:
    space = space_of(4)
    worlds = space.enumerate()
    found = {tuple(world.tolist()) for world in worlds[obeys(space, worlds)]}
    assert found == {tuple(world.tolist()) for world in matchings(space)}


def test_a_short_run_writes_its_numbers(tmp_path: Path) -> None:
    settings = MatchingSettings(
        nodes=4, evaluations=4000, chains=20, sweeps=4, burn_in=3, runs=2, learning_rates=(3e-3,)
    )
    ticks: list[None] = []
    outcome = run(settings, tmp_path, lambda: ticks.append(None))
    assert len(ticks) == settings.ticks
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["settings"]["nodes"] == 4
    assert len(content["runs"]) == 4
    assert all(0 <= one["changed"] <= 1 for one in content["runs"])
    assert outcome.difference.value == pytest.approx(
        outcome.satisfied["noising"].value - outcome.satisfied["single"].value
    )


def test_the_command_has_the_defaults_of_the_experiment() -> None:
    for name, parameter in signature(command).parameters.items():
        assert name == "output" or parameter.default == getattr(MatchingSettings, name)


@pytest.mark.slow
def test_noising_learns_a_deterministic_constraint() -> None:
    torch.set_num_threads(1)
    found = fit_and_sample(MatchingSettings(evaluations=1_000_000), "noising", 3e-3, seed=1)
    assert found.satisfied >= 0.9
