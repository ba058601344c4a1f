"""The same blocks give the same run on any number of processes, here threads that pose as ranks."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmln.distributed import Ranks
from tests.runs.runs import equal, nmln, weights, write_config, write_worlds
from tests.training.test_trainer import same, trainer, untimed

pytestmark = pytest.mark.usefixtures("unchecked")


class Meeting:
    """Where threads lay down what they have and take what all have laid down."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=60)
        self.table: list[Any] = [None] * count

    def all(self, rank: int, own: Any) -> list[Any]:
        self.table[rank] = own
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()
        return found


class Threads(Ranks):
    """Ranks that are threads of one process."""

    def __init__(self, rank: int, count: int, meeting: Meeting) -> None:
        super().__init__(rank, count)
        object.__setattr__(self, "meeting", meeting)

    def _all(self, own: Any) -> list[Any]:
        return vars(self)["meeting"].all(self.rank, own)

    def _all_rows(self, rows: Tensor, blocks: int) -> Iterator[Tensor]:
        for part in self._all(rows):
            yield from part

    def gather(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        return self._all(part)

    def agree(self, flag: bool) -> bool:
        return any(self._all(flag))

    def total(self, number: int) -> int:
        return sum(self._all(number))


def run_on(count: int, changes: dict, steps: int = 4, start: dict | None = None) -> list[dict]:
    """The whole state that each of `count` ranks sees after some steps."""
    meeting = Meeting(count)

    def work(rank: int) -> dict:
        run = trainer(changes, Threads(rank, count, meeting))
        if start is not None:
            run.restore(start)
        for _ in range(steps):
            run.step()
        return run.tree()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.corruption": "epoch", "chains.renewal": 0.2, "training.warm_start": 1},
        {"chains.weighted": True, "chains.changes": 5.0},
        {"chains.kernel": "screened", "model.local": True},
    ],
    ids=str,
)
def test_one_two_and_three_processes_learn_the_same_bits(changes: dict) -> None:
    blocks = {**changes, "training.blocks": 3}
    alone = trainer(blocks)
    for _ in range(4):
        alone.step()
    for count in (2, 3):
        for seen in run_on(count, blocks):
            assert same(untimed(alone.tree()), untimed(seen))
    # A twin that must fail: without blocks of their own, replicas depend on the processes.
    assert not same(alone.tree()["potential"], run_on(2, changes)[0]["potential"])


def test_a_run_continues_bit_for_bit_on_another_number_of_processes() -> None:
    blocks = {"training.blocks": 3}
    whole = trainer(blocks)
    for _ in range(4):
        whole.step()
    begun = run_on(2, blocks, steps=2)[0]
    resumed = run_on(3, blocks, steps=2, start=begun)
    assert same(untimed(whole.tree()), untimed(resumed[0]))


@pytest.mark.slow
def test_one_two_and_three_real_processes_learn_the_same_model(tmp_path: Path) -> None:
    source = write_worlds(tmp_path)
    path = write_config(tmp_path, training={"steps": 12, "blocks": 3})
    for count in ("1", "2", "3"):
        words = ["train", str(source), "--config", str(path), "--output", count]
        done = nmln(tmp_path, *words, "--processes", count)
        assert done.returncode == 0, done.stderr
    found = [weights(tmp_path / count) for count in ("1", "2", "3")]
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])


def test_a_mean_over_blocks_is_added_up_in_their_order() -> None:
    rows = torch.tensor([[1e8], [1.0], [-1e8]])
    assert Ranks().average(rows, 3).item() == 0  # the one is lost in this order, and in no other
    assert Ranks().average(rows[[0, 2, 1]], 3).item() == pytest.approx(1 / 3)
