"""Several processes for one command, by torch.distributed's own launcher."""

import logging
import os
import sys
from pathlib import Path

import typer

from nmln.cli.common import fail


def alone() -> bool:
    """Whether this is the process that the user started, not one of several by torchrun."""
    return "WORLD_SIZE" not in os.environ


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_processes(count: int, folder: Path) -> None:
    """Run this command again in `count` processes and wait for them.

    When one is lost the others are ended, and the user is told how to go on from the last checkpoint.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ["OMP_NUM_THREADS"] = "1"
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=f"nmln-{os.getpid()}",
        max_restarts=0,
        monitor_interval=0.2,
    )
    try:
        elastic_launch(settings, sys.executable)("-m", "nmln", *sys.argv[1:])
    except SignalException:
        raise typer.Exit(130) from None
    except ChildFailedError as error:
        # Those that only lost a partner leave with 3: the one to name is another.
        failures = sorted(error.failures.items(), key=lambda one: one[1].exitcode == 3)
        rank, failure = failures[0]
        if failure.exitcode in (2, 130):
            raise typer.Exit(failure.exitcode) from None  # it has said itself what is wrong
        how = f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"code {failure.exitcode}"
        fail(
            f"process {rank} of {count} was lost ({how}), and the others were ended. The last "
            f"checkpoint holds the chains of all. Go on with: nmln train --resume {folder} (with "
            "--processes 1 to do it in one)",
            code=1,
        )
