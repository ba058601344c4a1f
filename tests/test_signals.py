"""Signals that ask to stop: all alike, none that was ignored, and searches that listen."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from nmln import checkpoint, signals
from nmln.cli import main
from nmln.errors import InterruptedRunError
from nmln.formats.mln import parse_formula
from nmln.kernels.repair import repair
from nmln.language import Language, predicate
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import constraint
from nmln.runs import train as training
from nmln.runs.train import Silent, TrainingJob
from nmln.signals import STOPPING, give_way, handling, interruption
from nmln.space import Space
from nmln.training import Metrics
from tests.runs.runs import settings, write_worlds


@pytest.fixture(autouse=True)
def same_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    found = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == before


@pytest.mark.parametrize("number", STOPPING)
def test_the_first_signal_is_seen_and_the_second_ends_at_once(number: signal.Signals) -> None:
    with handling(signal.default_int_handler), interruption(alone=True) as interrupted:
        assert not interrupted()
        signal.raise_signal(number)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("number", STOPPING)
def test_one_of_several_processes_may_get_a_signal_twice(number: signal.Signals) -> None:
    with interruption(alone=False) as interrupted:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert interrupted()


def test_a_signal_that_is_ignored_stays_so_and_the_others_are_obeyed() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruption(alone=True) as interrupted:
            signal.raise_signal(signal.SIGINT)
            assert not interrupted()
            signal.raise_signal(signal.SIGTERM)
            assert interrupted()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", STOPPING)
def test_a_command_that_keeps_nothing_leaves_without_a_traceback(
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["nmln", "infer", "-i", "x.mln", "-q", "A"])
    infer = sys.modules["nmln.cli.infer"]  # by its name the package has the function
    monkeypatch.setattr(infer, "one_thread", lambda: signal.raise_signal(number))
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert capsys.readouterr().err in ("", "error: interrupted.\n")


class Sender(Silent):
    """Sends a signal after the third step."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def on_step(self, metrics: Metrics, quality: dict[str, float]) -> None:
        if metrics.step == 3:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", STOPPING)
def test_a_training_keeps_what_it_has_at_every_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    config = settings(write_worlds(tmp_path), training__checkpoint_seconds=1000.0)
    job: TrainingJob = training.begin(tmp_path / "run", config)
    with pytest.raises(InterruptedRunError, match="stopped after step 3"):
        training.run(job, Sender(number))
    assert checkpoint.latest_step(tmp_path / "run") == 3


@pytest.fixture
def contradiction() -> BasePotential:
    """Formulas that no world satisfies."""
    language = Language(predicate("smokes", "person"))
    space = Space(language, {"person": 200})
    texts = ("smokes(x).", "!smokes(x).")
    return constraint(space, [parse_formula(text, language, {}) for text in texts], 1)


def test_a_search_for_what_cannot_be_found_gives_way(
    contradiction: BasePotential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_SHORT", 0.0)
    calls, count = 0, contradiction.violations_of

    def violations(values: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            signal.raise_signal(signal.SIGTERM)
        return count(values)

    monkeypatch.setattr(contradiction, "violations_of", violations)
    values = torch.zeros(1, 2, 200, dtype=contradiction.space.dtype)
    with interruption(alone=False), pytest.raises(KeyboardInterrupt):
        repair(contradiction, values, Generator().manual_seed(0))
    assert calls <= 4


def test_a_search_that_is_not_asked_continues(contradiction: BasePotential) -> None:
    give_way()
    with interruption(alone=True):
        give_way()
        signal.raise_signal(signal.SIGTERM)
        give_way()  # a moment is given to end by itself
    give_way()
