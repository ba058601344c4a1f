"""Stopping a process from outside: the only module that sets signal handlers.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 all ask a command to save its work and end. A signal that is
ignored when a command starts, as by `nohup` or for `&` in a script, stays ignored.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LAUNCHER = "NMLN_LAUNCHER"
"""The environment variable that holds the process number of the launcher."""

PRIVATE_FOLDER = "NMLN_PRIVATE_FOLDER"
"""The environment variable that names a folder which only a launcher and its processes use."""

STOPPING = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    if hasattr(signal, name)
)

_SHORT = 0.5  # seconds within which a search or a step may still end by itself
_asked_at: float | None = None  # when a stop was requested that the loop has not yet handled
_patience = _SHORT  # seconds after the request within which a step of that loop may still end


class GivenUpError(KeyboardInterrupt):
    """A search or step was given up because a stop was requested; only `give_way` raises it."""


def launcher() -> int:
    """The process that started this one to work with others."""
    return int(os.environ.get(LAUNCHER, os.getppid()))


@contextmanager
def handling(
    handle: Callable[[int, FrameType | None], Any], numbers: Iterable[int] = STOPPING
) -> Iterator[dict[int, Any]]:
    """Let `handle` answer signals; yields the handlers before, and restores them at the end.

    Signals that are ignored stay ignored. Outside the main thread, where Python cannot set handlers,
    nothing changes.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.getsignal(number) or signal.SIG_DFL
                signal.signal(number, handle)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def raising() -> Iterator[None]:
    """Let every signal that asks to stop raise KeyboardInterrupt, as Ctrl-C does."""
    with handling(signal.default_int_handler):
        yield


@contextmanager
def interruption(alone: bool, patience: float | None = None) -> Iterator[Callable[[], bool]]:
    """A function that says whether a stop was requested, for use between two steps.

    A second signal ends the process at once. If there are several processes, all stop when their
    launcher is gone: nothing could stop them later, and they would still write when the run is
    resumed. Long searches and the moves of chains call `give_way`: a step that has not ended
    `patience` seconds after the signal is given up.
    """
    global _asked_at, _patience
    asked, parent = False, launcher()
    _patience = _SHORT if patience is None else patience

    def handle(number: int, frame: FrameType | None) -> None:
        global _asked_at
        nonlocal asked
        asked, _asked_at = True, time.monotonic()
        # Several processes may get a signal twice: from the terminal, and from their launcher.
        if alone:
            signal.signal(number, before[number])

    def interrupted() -> bool:
        return asked or (not alone and os.getppid() != parent)

    with handling(handle) as before:
        try:
            yield interrupted
        finally:
            _asked_at = None


def give_way(step: bool = False) -> None:
    """End a long search, or a step between two of its moves, if a stop was requested.

    Inside `interruption` a signal only sets a flag, which the loop reads after its step, so that a
    finished step is kept. But a search, or a step of very many moves, may take minutes.
    """
    seconds = _patience if step else _SHORT
    if _asked_at is not None and time.monotonic() - _asked_at > seconds:
        raise GivenUpError
