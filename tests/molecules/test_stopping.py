"""Commands about molecules that somebody stops, and what they say then."""

import hashlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmln.molecules.datasets import DIRECTORY
from nmln.molecules.downloads import PublicSource, cache_folder
from tests.molecules.download_server import Server
from tests.molecules.test_user_files import Nmln


@pytest.fixture
def nmln(
    source: PublicSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Nmln:
    monkeypatch.setenv("COLUMNS", "200")
    return Nmln(monkeypatch, capsys, tmp_path)


def until(holds: Callable[[], bool]) -> None:
    """Wait for it, but not for ever."""
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_download_that_is_stopped_keeps_what_came_and_says_so(
    server: Server, source: PublicSource, nmln: Nmln
) -> None:
    server.content = b"smiles\n" + b"CCO\n" * 300_000
    half = len(server.content) // 2
    part = cache_folder() / "small.csv.part"
    main_thread, handled = threading.main_thread().ident, threading.Event()
    assert main_thread is not None

    def press_control_c() -> None:
        until(lambda: part.exists() and part.stat().st_size > half - (1 << 14))
        signal.pthread_kill(main_thread, signal.SIGINT)
        handled.wait(30)

    server.pause = press_control_c
    demanded = ("--sha256", hashlib.sha256(server.content).hexdigest())
    code, _, error = nmln("data", "fetch", "small", *demanded)
    handled.set()
    assert code == 130
    assert error.startswith("error: stopped.")
    assert error.count("\n") == 1
    kept = part.read_bytes()
    assert half - (1 << 14) < len(kept) <= half
    assert server.content.startswith(kept)

    server.pause = None
    code, out, error = nmln("data", "fetch", "small", *demanded)
    assert (code, error) == (0, "")
    assert "as expected" in out
    assert server.asked[-1]["Range"] == f"bytes={len(kept)}-"


@pytest.mark.parametrize(
    ("stopped", "arguments", "told"),
    [
        ("downloads.select", ("fetch", "small-3"), "small.csv is kept"),
        ("datasets.describe", ("info", "pubchem-9"), ""),
    ],
)
def test_a_stopped_command_ends_in_one_line(
    nmln: Nmln,
    monkeypatch: pytest.MonkeyPatch,
    stopped: str,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    def stop(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"nmln.molecules.{stopped}", stop)
    code, _, error = nmln("data", *arguments)
    assert code == 130
    assert error.startswith(f"error: stopped. {told}".rstrip())
    assert error.count("\n") == 1


def test_the_list_says_that_the_directory_is_not_there(
    nmln: Nmln, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "gone"))
    code, out, error = nmln("data", "list")
    assert code == 0
    assert "pubchem-9" in out
    assert error.startswith(f"warning: {DIRECTORY} must name a directory")
    assert f"{tmp_path}/gone" in error
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    assert nmln("data", "list")[2] == ""
