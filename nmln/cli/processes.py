"""Several processes for one command, by torch.distributed's own launcher."""

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from nmln.cli.common import fail
from nmln.files import InterruptedRunError

_EXPLAINED = (2, 130)  # how a process leaves that has said itself what is wrong
_PARTNER_LOST = 3
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # that the launcher handles


def alone() -> bool:
    """Whether this is the process that the user started, not one of several by torchrun."""
    return "WORLD_SIZE" not in os.environ


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def stoppable(again: str) -> Iterator[None]:
    """Whoever stops this, by Ctrl-C or SIGTERM, is told how to go on: by the command `again`."""
    with _same_handlers():
        if _in_main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield
        except KeyboardInterrupt:
            raise _stopped(again) from None


def _stopped(again: str) -> InterruptedRunError:
    return InterruptedRunError(f"stopped. What was reached is kept. Go on with: {again}")


@contextmanager
def _same_handlers() -> Iterator[None]:
    """Afterwards signals do what they did before; the launcher would keep them for itself."""
    known = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    before = {one: signal.getsignal(one) for one in known} if _in_main_thread() else {}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler or signal.SIG_DFL)


def _in_main_thread() -> bool:
    """Whether this thread may say what signals do."""
    return threading.current_thread() is threading.main_thread()


def _silence_launcher() -> None:
    """Some of the launcher's loggers have levels of their own, so each is told by its name."""
    for name in ("torch.distributed.elastic", *logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


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

    from nmln.distributed import LAUNCHER

    _silence_launcher()
    os.environ |= {"OMP_NUM_THREADS": "1", LAUNCHER: str(os.getpid())}
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
            with _same_handlers():
                elastic_launch(settings, sys.executable)(
                    "-m", "nmln", *(sys.argv[1:] if arguments is None else arguments)
                )
        except SignalException:
            if again is not None and not any(Path(marks).rglob("said-*")):
                raise _stopped(again) from None
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
