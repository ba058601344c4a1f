"""Samplings that end after some processor time and keep what was drawn."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmln.baselines.base import Budget
from nmln.config import DataConfig
from nmln.errors import InputError, InterruptedRunError
from nmln.molecules.chemistry import STATUSES
from nmln.runs import blocks, stream
from nmln.runs.baseline import begin as begin_baseline
from nmln.runs.baseline import open_baseline
from nmln.runs.baseline import run as run_baseline
from nmln.runs.baseline_sample import sample as sample_baseline
from nmln.runs.workspace import Part
from tests.baselines import fake
from tests.runs.main_jobs import MOLECULES
from tests.runs.sampling_runs import begin, finished, read, summary
from tests.runs.sampling_runs import run as run  # a fixture

OPTIONS = {"count": 105, "chains": 10, "burn_in": 3, "thin": 2, "block": 4}  # blocks of 4, 4 and 2


def ticking(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every look at the processor time find it later by some seconds."""
    count = itertools.count()
    clock = SimpleNamespace(**vars(blocks.time))
    clock.process_time = lambda: seconds * next(count)
    monkeypatch.setattr(blocks, "time", clock)


def test_what_was_drawn_is_the_beginning_of_a_longer_sampling(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {row[0]: row for row in read(finished(run, "whole", **OPTIONS))}
    ticking(monkeypatch, 10.0)
    limited = finished(run, "limited", **OPTIONS, minutes=2.0)  # 40 seconds for each block
    rows = read(limited)
    assert 10 <= len(rows) < 105
    assert len(rows) % 10 == 0, "every chain has equally many samples"
    assert {row[0]: row for row in rows} == {number: whole[number] for number in range(len(rows))}
    found = summary(limited)
    [target] = found["levels"]
    assert found["attempts"] == len(rows) == sum(target[status] for status in STATUSES)
    assert found["cpu_seconds"] >= 40


def test_blocks_that_came_further_give_up_samples(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begin(run, "uneven", **OPTIONS, minutes=1.0)
    ticking(monkeypatch, 1.0)
    stream.work(job, [0, 1])
    ticking(monkeypatch, 5.0)  # the last block is slower
    stream.work(job, [2])
    drawn = [blocks.Kept.load(job, block).draws(job.settings) for block in range(3)]
    assert drawn[2] < drawn[0]
    stream.finish(job)
    assert len(read(job.folder)) == 10 * min(drawn)


def test_one_sample_of_every_chain_is_always_drawn(run: Path) -> None:
    assert len(read(finished(run, "short", **OPTIONS, minutes=1e-9))) == 10


def test_a_limited_sampling_continues_after_an_interruption(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begin(run, "stopped", **OPTIONS, minutes=100.0)
    looks = iter([False, False, True])
    monkeypatch.setattr(stream, "interruption", _asked(looks))
    with pytest.raises(InterruptedRunError):
        stream.work(job)
    monkeypatch.undo()
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    again = begin(run, "stopped", **OPTIONS, minutes=100.0)
    stream.work(again)
    stream.finish(again)
    assert read(again.folder) == read(finished(run, "whole", **OPTIONS))


def _asked(looks: Iterator[bool]) -> Callable[..., AbstractContextManager[Callable[[], bool]]]:
    @contextmanager
    def interruption(*_: object) -> Iterator[Callable[[], bool]]:
        yield lambda: next(looks, False)

    return interruption


def test_limits_that_would_end_unequally_are_refused(run: Path) -> None:
    with pytest.raises(InputError, match="parts") as refused:
        begin(run, "part", **OPTIONS, minutes=1.0, part=Part(1, 2))
    assert refused.value.token == "--minutes"


def test_a_baseline_keeps_whole_batches(tmp_path: Path) -> None:
    fake.register()
    data = tmp_path / "mine.smi"
    data.write_text("\n".join(MOLECULES) + "\n")
    folder = tmp_path / "run"
    run_baseline(begin_baseline(folder, fake.NAME, DataConfig(str(data)), Budget(5)))
    opened = open_baseline(folder)
    whole = sample_baseline(opened, 130, tmp_path / "whole")
    found = sample_baseline(opened, 130, tmp_path / "limited", minutes=1e-9)
    assert (whole["attempts"], found["attempts"]) == (130, opened.generator.at_once)
    assert read(tmp_path / "limited") == read(tmp_path / "whole")[: opened.generator.at_once]
    assert sample_baseline(opened, 130, tmp_path / "long", minutes=100)["attempts"] == 130
