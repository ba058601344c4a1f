"""More than one process: replicas dealt out over ranks, gradients averaged, rank 0 writes."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed

from nmln.files import LostProcessError

_PATIENCE = timedelta(minutes=10)
_GOODBYE = 0.3  # seconds
_LOOK = 1.0  # seconds between two looks for the launcher while the others are waited for

LAUNCHER = "NMLN_LAUNCHER"
"""Where a launcher tells the processes that it starts who it is."""


@dataclass(frozen=True)
class Ranks:
    """This process among all that train together; alone unless torchrun started several."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and talks."""
        return self.rank == 0

    def slice(self, total: int) -> tuple[int, int]:
        """Where this rank's share of `total` things begins, and how many they are."""
        share, more = divmod(total, self.count)
        return self.rank * share + min(self.rank, more), share + (self.rank < more)

    def share(self, total: int) -> int:
        return self.slice(total)[1]

    def average_gradients(
        self, rows: Float[Tensor, "own numbers"], blocks: int
    ) -> Float[Tensor, " numbers"]:
        """The mean gradient over all blocks, of which this rank has some, one per row."""
        return self.average(rows, blocks)

    def average(self, rows: Float[Tensor, "own numbers"], blocks: int) -> Float[Tensor, " numbers"]:
        """The mean over all blocks, of which this rank has some, one per row.

        Rows are added up in the order of the blocks on every rank, so that the result does not depend
        on how the blocks are dealt out, to the bit.
        """
        total = None
        for row in self._all_rows(rows, blocks):
            total = row.clone() if total is None else total.add_(row)
        assert total is not None
        return total.div_(blocks)

    def _all_rows(
        self, rows: Float[Tensor, "own numbers"], blocks: int
    ) -> Iterator[Float[Tensor, " numbers"]]:
        """The rows of all ranks in the order of the blocks."""
        if self.count == 1:
            yield from rows
            return
        most = -(
            -blocks // self.count
        )  # messages of one size: those of ranks with fewer are filled up
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])])
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        with _together():
            distributed.all_gather(parts, padded)
        for rank, part in enumerate(parts):
            yield from part[: Ranks(rank, self.count).share(blocks)]

    def total(self, number: int) -> int:
        """The sum of a number over the ranks."""
        if self.count == 1:
            return number
        summed = torch.tensor(number, dtype=torch.int64)
        with _together():
            distributed.all_reduce(summed)
        return int(summed)

    def gather(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        """What every rank has, on all of them."""
        if self.count == 1:
            return [part]
        parts: list[Any] = [None] * self.count
        with _together():
            distributed.all_gather_object(parts, part)
        return parts

    def agree(self, flag: bool) -> bool:
        """Whether any rank says so."""
        if self.count == 1:
            return flag
        votes = torch.tensor(int(flag))
        with _together():
            distributed.all_reduce(votes)
        return int(votes) > 0

    def wait(self) -> None:
        if self.count > 1:
            with _together():
                distributed.barrier()


@contextmanager
def _together() -> Iterator[None]:
    """What all ranks do at once fails when one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(f"the connection to another process was lost ({error}).") from None


def launcher() -> int:
    """The process that started this one to work with others."""
    return int(os.environ.get(LAUNCHER, os.getppid()))


@contextmanager
def _while_launched() -> Iterator[None]:
    """End this process if its launcher is gone: others are then waited for in vain, for many minutes."""
    parent, met = launcher(), threading.Event()

    def watch() -> None:
        while not met.wait(_LOOK):
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        met.set()


def join() -> Ranks:
    """Take part in what torchrun started; alone if nothing did."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return Ranks()
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _while_launched():
            distributed.init_process_group(backend, timeout=_PATIENCE)
    return Ranks(distributed.get_rank(), distributed.get_world_size())


def leave() -> None:
    """Say goodbye to the other ranks.

    A thread of gloo may still hold the tensors of the last exchange, and a process that ends while it
    lets go of them is aborted: it is given the time to.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        time.sleep(_GOODBYE)
