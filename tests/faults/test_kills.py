"""SIGKILL at random moments: what is continued comes to the same bytes, every time."""

from pathlib import Path

import pytest

from tests.corpus.prepared import Shelf
from tests.faults.kills import KILLS, kill, plan
from tests.faults.trials import Verb
from tests.warm import Warm


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "kills"), KILLS, ids=lambda one: getattr(one, "name", None))
def test_a_command_that_was_killed_comes_to_the_same_bytes(
    verb: Verb, kills: int, call: Warm, shelf: Shelf, tmp_path: Path
) -> None:
    drawn = plan(verb, kills, call, shelf, tmp_path / "undisturbed")
    trials = [kill(drawn, n, call, shelf, tmp_path / str(n)) for n in range(kills)]
    assert not [str(trial) for trial in trials if not trial.fine]


def test_fifty_moments_are_drawn() -> None:
    assert sum(kills for _, kills in KILLS) == 50
