"""Count what a process does to the files of a folder, and fail or end at one of these operations.

Counted are opening for writing, writing, truncating, fsync, renaming, removing and making folders. Those
that Python reports to audit hooks are caught there, from any caller; writes are caught in the file
objects that `open` gives out, half of the bytes having gone through when one fails; a file that
safetensors writes by itself counts as one write. Installed in a forked process, for all of its life.
"""

import builtins
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.warm import Fault

_NEEDS_SPACE = {"open", "write", "fsync", "mkdir", "truncate"}
_AUDITED = {
    "os.rename": "rename",
    "os.remove": "unlink",
    "os.rmdir": "rmdir",
    "os.mkdir": "mkdir",
    "os.truncate": "truncate",
    "os.link": "link",
    "os.symlink": "link",
}
_WRITING = os.O_WRONLY | os.O_RDWR


class Shim:
    """Counts the operations in a folder, and does at one of them what a `Fault` says."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.root = fault, os.path.realpath(fault.root)
        self.seen: list[str] = []
        self.busy = False

    def concerns(self, path: object) -> bool:
        try:
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            text = os.path.realpath(os.path.dirname(os.fsdecode(path) or ".") or ".")  # pyright: ignore
        except (OSError, TypeError, ValueError):
            return False
        return text == self.root or text.startswith(self.root + os.sep) or (
            os.path.abspath(os.fsdecode(path)) == self.root  # pyright: ignore
        )  # fmt: skip

    def step(self, what: str, path: object, half: Callable[[], object] | None = None) -> None:
        """One operation, just before it is done; `half` does a part of it."""
        if self.busy or not self.concerns(path):
            return
        self.busy = True
        try:
            self._step(what, path, half)
        finally:
            self.busy = False

    def _step(self, what: str, path: object, half: Callable[[], object] | None) -> None:
        fault = self.fault
        number = len(self.seen) + 1
        shown = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        self.seen.append(f"{what} {os.path.relpath(os.path.realpath(shown), self.root)}")
        if fault.how == "full" and fault.at <= number and what in _NEEDS_SPACE and fault.at:
            if half is not None and number == fault.at:
                half()
            raise _error(errno.ENOSPC, path)
        if number == fault.at and fault.how in ("error", "kill"):
            if half is not None:
                half()
            if fault.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise _error(errno.EIO, path)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.busy:
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, int) and isinstance(flags, int) and flags & _WRITING:
                self.step("open", path)
        elif event in _AUDITED:
            self.step(_AUDITED[event], arguments[1 if event == "os.rename" else 0])


def _error(number: int, path: object) -> OSError:
    """As the system reports it: with the name of the file, where the operation has been given one."""
    named = () if isinstance(path, int) else (path,)
    return OSError(number, os.strerror(number), *named)


def install(fault: Fault) -> None:
    """From now on count the operations of this process; `fault.count` gets their list at the end."""
    shim = Shim(fault)
    _wrap_opening(shim)
    _wrap_functions(shim)
    sys.addaudithook(shim.hook)
    if fault.count:
        leave = os._exit

        def counted(code: int) -> None:
            shim.busy = True
            Path(fault.count).write_text("".join(f"{one}\n" for one in shim.seen))
            leave(code)

        os._exit = counted  # pyright: ignore


def _wrap_opening(shim: Shim) -> None:
    opened = io.open

    class Raw(io.FileIO):
        """Bytes on their way to the system."""

        def write(self, content: Any, /) -> Any:
            shim.step("write", self.fileno(), lambda: super(Raw, self).write(_half(content)))
            return super().write(content)

        def truncate(self, size: int | None = None, /) -> int:
            shim.step("truncate", self.fileno())
            return super().truncate(size)

    def opening(
        file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
        errors: str | None = None, newline: str | None = None, closefd: bool = True,
        opener: Any = None,
    ) -> Any:  # fmt: skip
        if not set(mode) & set("wax+") or shim.busy:
            return opened(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = "".join(letter for letter in mode if letter in "rwax+")
        raw = Raw(file, plain, closefd, opener)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffered = io.BufferedRandom(raw, size) if "+" in plain else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
        text.mode = mode  # pyright: ignore
        return text

    import _io
    import pathlib
    import tempfile

    for module in (builtins, io, _io, pathlib, tempfile):
        if getattr(module, "open", None) is opened:
            module.open = opening  # pyright: ignore
    for module in list(sys.modules.values()):
        if module is not None and getattr(module, "__dict__", {}).get("open") is opened:
            module.open = opening  # pyright: ignore


def draw_nothing() -> None:
    """Figures are written, but not drawn, which takes seconds."""
    from matplotlib.figure import Figure

    def save(figure: Any, target: Any, **options: Any) -> None:
        content = b"<svg xmlns='http://www.w3.org/2000/svg'></svg>\n"
        if isinstance(target, io.TextIOBase):
            target.write(content.decode())
            return
        with open(target, "wb") as file:
            file.write(content)

    Figure.savefig = save  # pyright: ignore


def _half(content: Any) -> bytes:
    whole = bytes(content)
    return whole[: len(whole) // 2]


def _wrap_functions(shim: Shim) -> None:
    fsync, write, ftruncate = os.fsync, os.write, os.ftruncate

    def own_fsync(file: Any) -> None:
        shim.step("fsync", file if isinstance(file, int) else file.fileno())
        fsync(file)

    def own_write(file: int, content: Any) -> int:
        shim.step("write", file, lambda: write(file, _half(content)))
        return write(file, content)

    def own_ftruncate(file: int, size: int) -> None:
        shim.step("truncate", file)
        ftruncate(file, size)

    os.fsync, os.write, os.ftruncate = own_fsync, own_write, own_ftruncate
    from safetensors import torch as tensors

    save = tensors.save_file

    def own_save(content: Any, path: Any, *more: Any, **options: Any) -> None:
        def part() -> None:
            save(content, path, *more, **options)
            os.truncate(path, os.path.getsize(path) // 2)

        shim.step("write", path, part)
        shim.busy = True  # its own opening is part of it
        try:
            save(content, path, *more, **options)
        finally:
            shim.busy = False

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("save_file") is save:
            module.save_file = own_save  # pyright: ignore
