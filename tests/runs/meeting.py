"""Processes that meet as those of a launcher do, forked from one that has torch already.

Prints, for each way to meet, what every process found, as JSON.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import torch

from nmln import distributed
from nmln.errors import InputError
from nmln.signals import LAUNCHER, PRIVATE_FOLDER
from nmln.trees import flatten

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int16, torch.uint8, torch.bool)


def tree(rank: int) -> dict[str, Any]:
    """Something of every kind, of another shape on each rank."""
    rng = torch.Generator().manual_seed(rank)
    return {
        "tensors": [torch.randn(rank, 2, generator=rng).to(dtype) for dtype in DTYPES],
        "scalar": torch.tensor(nan),
        "across": torch.arange(6.0).view(2, 3).T,
        "state": rng.get_state(),
        "plain": (None, True, rank, 0.1, -inf, "é\u2028\ud800"),
        "nested": {"a/b": {}, 1: [], None: {"$x": torch.tensor(-0.0)}},
    }


def exact(one: Any) -> tuple[str, dict[str, tuple[str, list[int], bytes]]]:
    """A tree in a form in which equal means equal in every bit."""
    tensors, content = flatten(one)
    held = {
        name: (
            str(t.dtype),
            list(t.shape),
            t.reshape(-1).clone().view(torch.uint8).numpy().tobytes(),
        )
        for name, t in tensors.items()
    }
    return json.dumps(content), held


def gather(rank: int, count: int) -> Any:
    ranks = distributed.join()
    parts = ranks.gather(tree(rank))
    same = [exact(part) == exact(tree(one)) for one, part in enumerate(parts)]
    ranks.wait()
    distributed.leave()
    return same


def only_join(rank: int, count: int) -> Any:
    try:
        distributed.join()
    except InputError as error:
        return str(error)
    return "joined"


def meet(count: int, work: Callable[[int, int], Any], strangers: tuple[int, ...] = ()) -> list[Any]:
    """What `work` gives on each of several processes, some of which do not know the secret."""
    with tempfile.TemporaryDirectory() as common:
        folders = []
        for rank in range(count):
            folder = Path(common) / ("strange" if rank in strangers else "known")
            if not folder.exists():
                folder.mkdir()
                distributed.prepare(folder)
                (folder / "store").symlink_to(Path(common) / "store")
            folders.append(folder)
        children = []
        for rank, folder in enumerate(folders):
            if not (child := os.fork()):
                told = {"RANK": rank, "WORLD_SIZE": count, LAUNCHER: os.getppid()}
                os.environ |= {name: str(value) for name, value in told.items()}
                os.environ[PRIVATE_FOLDER] = str(folder)
                try:
                    found = json.dumps(work(rank, count))
                except BaseException:
                    found = json.dumps(traceback.format_exc())
                (Path(common) / f"found-{rank}").write_text(found)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return [json.loads((Path(common) / f"found-{r}").read_text()) for r in range(count)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed._PROOF_PATIENCE = timedelta(seconds=10)
    found = {
        "three": meet(3, gather),
        "two": meet(2, gather),
        "stranger": meet(2, only_join, strangers=(1,)),
    }
    sys.stdout.write(json.dumps(found) + "\n")
