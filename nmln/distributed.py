"""More than one process: replicas dealt out over ranks, gradients averaged, rank 0 writes.

On one machine the launcher of nmln starts the processes. They find each other by files in a private
folder, listen on the loopback interface only, and prove to each other that they can read a secret in
that folder: another user of the machine can connect to their ports, but is not taken for one of them.
Across machines torchrun starts them, on a network that must be trusted. Either way they exchange tensors
and JSON, never objects.
"""

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed

from nmln.errors import InputError, LostProcessError
from nmln.signals import PRIVATE_FOLDER, launcher
from nmln.trees import flatten, unflatten

_PATIENCE = timedelta(minutes=10)
_PROOF_PATIENCE = timedelta(minutes=1)
_GOODBYE = 0.3  # seconds
_LOOK = 1.0  # seconds between two checks that the launcher still runs
_BACKEND = "loopback"
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass(frozen=True)
class Ranks:
    """This process among all that train together; alone unless a launcher started several."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and reports."""
        return self.rank == 0

    def slice(self, total: int) -> tuple[int, int]:
        """The start and the size of this rank's share of `total` things."""
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
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])]).cpu()
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        with _together():
            distributed.all_gather(parts, padded)
        for rank, part in enumerate(parts):
            yield from part[: Ranks(rank, self.count).share(blocks)].to(rows.device)

    def total(self, number: int) -> int:
        """The sum of a number over the ranks."""
        if self.count == 1:
            return number
        summed = torch.tensor(number, dtype=torch.int64)
        with _together():
            distributed.all_reduce(summed)
        return int(summed)

    def gather(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        """The parts of all ranks, on every rank: trees of tensors and plain values, bit for bit."""
        if self.count == 1:
            return [part]
        own = _packed(part)
        with _together():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            distributed.all_gather(sizes, torch.tensor([len(own)]))
            most = max(int(size) for size in sizes)
            whole = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.count)]
            distributed.all_gather(whole, torch.cat([own, own.new_zeros(most - len(own))]))
        return [_unpacked(one[: int(size)]) for one, size in zip(whole, sizes, strict=True)]

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
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


def _packed(tree: dict[str, Any]) -> Tensor:
    """A tree as bytes: the length of a JSON text in eight of them, the text, then the tensors."""
    tensors, content = flatten(tree)
    flat = {name: tensor.detach().cpu().reshape(-1) for name, tensor in tensors.items()}
    kinds = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    text = json.dumps({"content": content, "kinds": kinds}).encode()
    head = torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), dtype=torch.uint8)
    return torch.cat([head, *(tensor.contiguous().view(torch.uint8) for tensor in flat.values())])


def _unpacked(whole: Tensor) -> dict[str, Any]:
    start = 8 + int.from_bytes(whole[:8].numpy().tobytes(), "little")
    head = json.loads(whole[8:start].numpy().tobytes())
    tensors = {}
    for name, (kind, shape) in head["kinds"].items():
        end = start + prod(shape) * _DTYPES[kind].itemsize
        tensors[name] = whole[start:end].clone().view(_DTYPES[kind]).reshape(shape)
        start = end
    return unflatten(tensors, head["content"])


@contextmanager
def _together() -> Iterator[None]:
    """Report a collective operation that fails because a rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError("the connection to another process was lost.") from error


@contextmanager
def _while_launched() -> Iterator[None]:
    """End this process if its launcher is gone, instead of waiting many minutes for the others."""
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


def prepare(folder: Path) -> None:
    """Make a private folder ready for processes that are to find each other by it."""
    handle = os.open(folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(32))


def join() -> Ranks:
    """Join the processes that a launcher started; alone if there is none."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return Ranks()
    if not distributed.is_initialized():
        with _while_launched():
            if private := os.environ.get(PRIVATE_FOLDER):
                _join_privately(Path(private))
            else:
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                with _together():
                    distributed.init_process_group(backend, timeout=_PATIENCE)
    return Ranks(distributed.get_rank(), distributed.get_world_size())


def _join_privately(folder: Path) -> None:
    """Join the processes of one launcher on this machine."""
    secret = (folder / "secret").read_bytes()
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if _BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(_BACKEND, _gloo_on_loopback, devices=["cpu", "cuda"])
    store = distributed.FileStore(str(folder / "store"), count)  # pyright: ignore[reportPrivateImportUsage]
    with _together():
        distributed.init_process_group(
            _BACKEND, store=store, rank=rank, world_size=count, timeout=_PATIENCE
        )
    _prove(secret, rank, count)


def _gloo_on_loopback(store: Any, rank: int, count: int, timeout: timedelta) -> Any:
    """Gloo, listening at 127.0.0.1; by itself it takes the address of the machine's name.

    All connections are made here: those that are made later would escape the proof.
    """
    gloo: Any = distributed.ProcessGroupGloo  # its annotations lack what follows
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=False)]
    return gloo(store, rank, count, options)


def _prove(secret: bytes, rank: int, count: int) -> None:
    """Exchange proofs of the secret over the connection to each other rank.

    A port on the loopback interface is open to every user of the machine, and gloo believes the rank
    that a connection claims to be. Each proof holds for one sender and one receiver, so that another
    program that receives one cannot use it elsewhere.
    """

    def proof(sender: int, receiver: int) -> Tensor:
        words = hmac.digest(secret, f"rank {sender} to {receiver}".encode(), hashlib.sha256)
        return torch.frombuffer(bytearray(words), dtype=torch.uint8)

    others = [other for other in range(count) if other != rank]
    found = {other: torch.zeros(32, dtype=torch.uint8) for other in others}
    try:
        under_way = [
            *(distributed.irecv(found[other], other) for other in others),
            *(distributed.isend(proof(rank, other), other) for other in others),
        ]
        for work in under_way:
            if work is not None:
                work.wait(_PROOF_PATIENCE)
    except RuntimeError:
        raise _strangers() from None
    for other in others:
        if not hmac.compare_digest(
            found[other].numpy().tobytes(), proof(other, rank).numpy().tobytes()
        ):
            raise _strangers()


def _strangers() -> InputError:
    return InputError(
        "the processes of this run could not prove to each other who they are: one of them ended, or "
        "another program on this machine connected in its place. Nothing was computed with it. Start "
        "again; if that does not help, look for programs that connect to ports of 127.0.0.1.",
        kind="system",
    )


def leave() -> None:
    """Leave the other ranks.

    A thread of gloo may still hold the tensors of the last exchange, and a process that ends before
    the thread releases them is aborted. So this function waits a little.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        time.sleep(_GOODBYE)
