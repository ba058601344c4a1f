"""Several processes for one command, by torch.distributed's own launcher."""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from nmln.cli.common import fail

_EXPLAINED = (2, 130)  # how a process leaves that has said itself what is wrong
_PARTNER_LOST = 3


def alone() -> bool:
    """Whether this is the process that the user started, not one of several by torchrun."""
    return "WORLD_SIZE" not in os.environ


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_processes(
    count: int, folder: Path, arguments: Sequence[str] | None = None, again: str | None = None
) -> None:
    """Run this command again in `count` processes, or that with other `arguments`, and wait for them.

    When one is lost the others are ended, and the user is told how to go on from the last checkpoint: by
    the command `again`, or by resuming the training in the folder.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ["OMP_NUM_THREADS"] = "1"
    # Where the processes leave marks for each other; the launcher would never clear its own away.
    with tempfile.TemporaryDirectory(prefix="nmln-") as marks:
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=f"nmln-{os.getpid()}",
            max_restarts=0,
            monitor_interval=0.2,
            logs_specs=DefaultLogsSpecs(log_dir=marks),
        )
        try:
            elastic_launch(settings, sys.executable)(
                "-m", "nmln", *(sys.argv[1:] if arguments is None else arguments)
            )
        except SignalException:
            raise typer.Exit(130) from None
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            tell_loss(codes, count, folder, again)


def tell_loss(codes: dict[int, int], count: int, folder: Path, again: str | None = None) -> None:
    """Leave as the process did that failed first, and say how to go on if it could not say so itself."""
    rank = min(codes, key=lambda one: _blame(codes[one]))
    code = codes[rank]
    if code in _EXPLAINED:
        raise typer.Exit(code) from None
    how = f"signal {-code}" if code < 0 else f"code {code}"
    lost = f"process {rank} of {count} was lost ({how}), and the others were ended."
    if again is not None:
        fail(f"{lost} What was reached is kept. Go on with: {again}", code=1)
    if not (folder / "config.json").exists():
        fail(f"{lost} Nothing was kept yet: begin anew.", code=1)
    fail(
        f"{lost} The last checkpoint holds the chains of all. Go on with: nmln train --resume "
        f"{folder} (with --processes 1 to do it in one)",
        code=1,
    )


def _blame(code: int) -> int:
    """Smaller for what explains more: some only lost a partner, some were ended by the launcher."""
    if code in _EXPLAINED:
        return 0
    return {_PARTNER_LOST: 3, -signal.SIGTERM: 2}.get(code, 1)
