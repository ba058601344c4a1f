"""Several processes for one stage of a command, started and supervised by this one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer

import nmln
from nmln.cli.common import fail, silence_processes, something_said
from nmln.errors import InterruptedRunError
from nmln.memory import refuse_size
from nmln.signals import LAUNCHER, PRIVATE_FOLDER, STOPPING, handling, raising

_EXPLAINED = (2, 130)  # exit codes of processes that have printed a message
_PARTNER_LOST = 3
_ASKING = (*STOPPING, *((signal.SIGQUIT,) if hasattr(signal, "SIGQUIT") else ()))
_PROCESS = 160 * 2**20  # the least memory of a process in bytes, with torch loaded
_CHILD = "from nmln.cli.stages import main; main()"
STAGE = "stage.json"  # in the private folder: the settings of the stage
_LOOK = 0.1  # seconds between two checks of the processes
_LAST_WORDS = 2.0  # seconds in which the other processes may detect that one has failed
_GRACE = 60.0  # seconds to save and exit, before a process is killed


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processes(count: int) -> None:
    """Refuse more processes than fit into memory: a configuration from elsewhere may name any number."""
    refuse_size(count * _PROCESS, f"a command in {count:,} processes", "Use fewer (--processes).")


@contextmanager
def stoppable(again: str) -> Iterator[None]:
    """Report an interruption by Ctrl-C or a signal with `again`, the command that continues."""
    with raising():
        try:
            yield
        except KeyboardInterrupt:
            raise _stopped(again) from None


def _stopped(again: str) -> InterruptedRunError:
    return InterruptedRunError("stopped. The progress is kept.", again)


def start_processes(
    count: int,
    folder: Path,
    stage: str,
    settings: Mapping[str, Any],
    again: str | None = None,
    *,
    rendezvous: bool = True,
    attach: Callable[[Path], None] | None = None,
) -> None:
    """Perform a stage in `count` processes, and wait for them.

    If one process is lost, the others are stopped, and the message names the command that continues
    from the last checkpoint.

    Args:
        count: the number of processes.
        folder: the folder that they work in.
        stage: a name in `nmln.cli.stages`.
        settings: the arguments of the stage, in JSON form.
        again: the command that continues; by default the one that resumes the training in the folder.
        rendezvous: whether the processes communicate. Without it no port is opened.
        attach: writes files that the stage reads into the private folder of the processes.
    """
    check_processes(count)
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    with _private_folder() as private, handling(ask, _ASKING):
        (private / STAGE).write_text(json.dumps(settings), encoding="utf-8")
        if attach is not None:
            attach(private)
        if rendezvous:
            from nmln.distributed import prepare

            prepare(private)
        children: list[subprocess.Popen[bytes]] = []
        try:
            children.extend(_start(stage, rank, count, private) for rank in range(count))
            codes = _supervise(children, asked, private)
        finally:
            _end(children)
        said = something_said(private)
    if asked:
        if said:
            raise typer.Exit(130)
        raise _stopped_in(folder, again)
    if codes:
        tell_loss(codes, count, folder, again)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A temporary folder that only this user can read, for data that the processes exchange."""
    folder = Path(tempfile.mkdtemp(prefix="nmln-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(stage: str, rank: int, count: int, private: Path) -> subprocess.Popen[bytes]:
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        LAUNCHER: str(os.getpid()),
        PRIVATE_FOLDER: str(private),
    }
    # The working directory may hold files from elsewhere: nothing is imported from it, unless the
    # package itself is.
    at_home = Path(nmln.__file__).resolve().parents[1] == Path.cwd().resolve()
    return subprocess.Popen(
        [sys.executable, *([] if at_home else ["-P"]), "-c", _CHILD, stage],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        # Ctrl-C at a terminal reaches only the launcher, which forwards it once to each process.
        start_new_session=True,
    )


def _supervise(
    children: Sequence[subprocess.Popen[bytes]], asked: Sequence[int], private: Path
) -> dict[int, int]:
    """Wait for all processes, and stop all if one fails or a signal arrives; returns exit codes.

    The codes are those of processes that failed on their own. A second signal stops all at once.
    """
    codes: dict[int, int] = {}
    while any(child.poll() is None for child in children) and not asked:
        if codes := _failed(children):
            _wait(children, _LAST_WORDS, lambda: bool(asked))
            break
        time.sleep(_LOOK)
    codes = _failed(children)
    if asked or codes:
        if codes and not asked:
            silence_processes(private)  # the launcher reports what happened
        for child in children:
            if child.poll() is None:
                child.terminate()
        before = len(asked)
        _wait(children, _GRACE, lambda: len(asked) > before)
    return codes


def _failed(children: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    return {rank: code for rank, child in enumerate(children) if (code := child.poll())}


def _wait(
    children: Sequence[subprocess.Popen[bytes]], seconds: float, hurry: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + seconds
    while any(child.poll() is None for child in children) and not hurry():
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.kill()
    for child in children:
        child.wait()


def _stopped_in(folder: Path, again: str | None) -> InterruptedRunError:
    if again is not None:
        return _stopped(again)
    from nmln.runs.folder import RunFolder

    if (home := RunFolder(folder)).is_run:
        return _stopped(home.resume_command)
    return InterruptedRunError("stopped before anything was saved.")


def tell_loss(codes: dict[int, int], count: int, folder: Path, again: str | None = None) -> None:
    """Exit as the first process that failed; report how to continue, unless that process did."""
    rank = min(codes, key=lambda one: _blame(codes[one]))
    code = codes[rank]
    if code in _EXPLAINED:
        raise typer.Exit(code) from None
    how = f"signal {-code}" if code < 0 else f"code {code}"
    lost = f"process {rank} of {count} was lost ({how}), and the others were stopped."
    if again is not None:
        fail(f"{lost} The last checkpoints are kept. Continue with: {again}", code=1)
    from nmln.runs.folder import RunFolder

    if not (home := RunFolder(folder)).is_run:
        fail(f"{lost} Nothing was saved yet: restart the command.", code=1)
    fail(
        f"{lost} The last checkpoint holds the chains of all processes. Continue with: "
        f"{home.resume_command} (add --processes 1 to use one process)",
        code=1,
    )


def _blame(code: int) -> int:
    """A sort key, smallest for the cause: some processes only lost a partner or were terminated."""
    if code in _EXPLAINED:
        return 0
    return {_PARTNER_LOST: 3, -signal.SIGTERM: 2}.get(code, 1)
