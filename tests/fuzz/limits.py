"""A reader under watch: it gives a result or one line, within its memory and its time."""

import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from nmln.checkpoint import CheckpointWarning
from nmln.errors import InputError

MEMORY = 1 << 30  # bytes that one example may take beyond what the process has
SECONDS = float(os.environ.get("NMLN_FUZZ_SECONDS", "20"))


class EndlessError(BaseException):
    """Not an `Exception`, so that no reader takes it for a fault of the file."""


def judge(call: Callable[[], object]) -> str:
    """Read: "result" or "refused"; anything else goes through and fails the test."""
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            call()
    except InputError as error:
        text = str(error)
        assert "\n" not in text, f"more than one line: {text!r}"
        assert "\r" not in text, f"more than one line: {text!r}"
        assert len(text) < 5_000, f"{len(text):,} characters: {text[:300]!r}"
        return "refused"
    except OSError as error:  # the command line makes one line of it
        if error.filename is None:
            raise
        return "refused"
    return "result"


@contextmanager
def _limited() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def stop(_: int, __: FrameType | None) -> None:
        raise EndlessError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)
