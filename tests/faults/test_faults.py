"""Whatever operation on files fails: one line says so, and the command continues to the same bytes."""

from pathlib import Path

import pytest

from tests.corpus.prepared import Shelf
from tests.faults.trials import HOWS, VERBS, Reference, Verb, disturb, reference, spread
from tests.warm import Warm

QUICK = 4  # operations of each command that are disturbed in the quick suite


@pytest.fixture(scope="session", params=VERBS, ids=lambda verb: verb.name)
def expected(
    request: pytest.FixtureRequest,
    call: Warm,
    shelf: Shelf,
    tmp_path_factory: pytest.TempPathFactory,
) -> Reference:
    verb: Verb = request.param
    return reference(verb, call, shelf, tmp_path_factory.mktemp("undisturbed"))


def test_a_few_operations_fail_in_turn(
    expected: Reference, call: Warm, shelf: Shelf, tmp_path: Path
) -> None:
    for number, at in enumerate(spread(len(expected.operations), QUICK)):
        trial = disturb(expected, at, HOWS[number % 3], call, shelf, tmp_path / str(at))
        assert trial.fine, str(trial)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_every_operation_fails_in_turn(
    how: str, expected: Reference, call: Warm, shelf: Shelf, tmp_path: Path
) -> None:
    failed = []
    for at in range(1, len(expected.operations) + 1):
        trial = disturb(expected, at, how, call, shelf, tmp_path / str(at))
        failed += [] if trial.fine else [str(trial)]
    assert not failed, "\n".join(failed)


def test_the_shim_counts_every_kind_of_operation(expected: Reference) -> None:
    kinds = {one.split()[0] for one in expected.operations}
    assert kinds >= {"open", "write", "fsync", "rename", "mkdir"}
    assert len(expected.operations) >= 20
