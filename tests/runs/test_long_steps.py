"""A step or sweep of very many moves ends soon after a signal, and the run continues from before it."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmln import checkpoint, sampler, signals
from nmln.config import override
from nmln.errors import InterruptedRunError
from nmln.model import load_run
from nmln.runs import stream
from nmln.runs import train as training
from nmln.training import chains
from tests.runs.runs import settings, write_worlds
from tests.runs.sampling_runs import TINY, begin, files, finished, run

__all__ = ["run"]  # a fixture


def asked_within(call: int, advance: Callable[..., Any]) -> Callable[..., Any]:
    """The same sweeps; within one of them somebody asks to stop."""
    calls = 0

    def interrupted(potential: Any, kernel: Any, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGTERM)
        return advance(potential, kernel, *rest)

    return interrupted


def test_a_long_sweep_is_given_up_and_all_before_it_is_kept(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finished(run, "whole", **TINY)
    job = begin(run, "out", **TINY)
    with monkeypatch.context() as patched:
        patched.setattr(signals, "_SHORT", 0.0)
        patched.setattr(sampler, "advance", asked_within(4, sampler.advance))
        with pytest.raises(InterruptedRunError, match="stopped after sweep 3 of"):
            stream.work(job)
    assert checkpoint.load(job.block(0)).step == 3
    stream.work(stream.resume(job.folder, load_run(run)))
    stream.finish(job)
    assert files(job.folder) == files(whole)


def test_a_sweep_that_ends_soon_is_not_given_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = begin(run, "out", **TINY)
    monkeypatch.setattr(sampler, "advance", asked_within(4, sampler.advance))
    with pytest.raises(InterruptedRunError, match="stopped after sweep 4 of"):
        stream.work(job)


def test_a_long_step_of_training_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(settings(write_worlds(tmp_path)), {"training.checkpoint_seconds": 0.0})
    training.run(training.begin(tmp_path / "whole", config))
    with monkeypatch.context() as patched:
        patched.setattr(training, "_PATIENCE", 0.0)
        sweeps = config.chains.sweeps
        patched.setattr(chains, "advance", asked_within(3 * sweeps, chains.advance))
        with pytest.raises(
            InterruptedRunError, match=r"stopped within a long step; step 2 is kept"
        ):
            training.run(training.begin(tmp_path / "out", config))
    training.run(training.resume(tmp_path / "out"))
    for name in ("model/tensors.safetensors", "model/content.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_long_step_before_the_first_checkpoint_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_PATIENCE", 0.0)
    monkeypatch.setattr(chains, "advance", asked_within(1, chains.advance))
    with pytest.raises(InterruptedRunError, match="nothing was kept yet"):
        training.run(training.begin(tmp_path / "out", settings(write_worlds(tmp_path))))
