"""Reading text with errors that name the place, and writing that is never half done."""

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path


class InputError(ValueError):
    """What the user gave cannot be used; the message says where, what and the cure.

    `source`, `line` and `column` (counted from 1) are set where the input came from a file,
    `index` where one item of a sequence is to blame, `token` where one name in it is.
    """

    def __init__(
        self,
        message: str,
        source: str | None = None,
        line: int | None = None,
        column: int | None = None,
        index: int | None = None,
        token: str | None = None,
    ) -> None:
        place = ":".join(str(part) for part in (source, line, column) if part is not None)
        super().__init__(f"{place}: {message}" if place else message)
        self.message, self.source, self.line, self.column = message, source, line, column
        self.index, self.token = index, token

    def at(self, source: str, line: int | None = None, text: str = "") -> "InputError":
        """The same complaint, placed in a file; `text` begins at `line` and shows the column."""
        column = None
        if self.token and (found := re.search(rf"(?<!\w){re.escape(self.token)}(?!\w)", text)):
            before = text[: found.start()]
            line = None if line is None else line + before.count("\n")
            column = len(before) - before.rfind("\n")
        return InputError(self.message, source, line, column)


class InterruptedRunError(Exception):
    """Somebody asked a long run to stop, and it did, with everything kept; the message says where."""


class LostProcessError(Exception):
    """Another process of a common run is gone."""


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a UTF-8 text file, without line ends; refuses binary files."""
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"byte 0x{raw[error.start]:02x} is not UTF-8 text. Is this a binary or "
                        "compressed file? Unpack it or convert it to UTF-8 first.",
                        str(path), number, error.start + 1,
                    ) from None  # fmt: skip
                if "\0" in line:
                    raise InputError(
                        "a zero byte: this is a binary or damaged file, not text. Give a text file.",
                        str(path), number, line.index("\0") + 1,
                    )  # fmt: skip
                yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise InputError("there is no such file. Check the path.", str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a directory. Name a file in it.", str(path)) from None


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then put it in place in one step.

    A reader sees the old file or the whole new one; a failure leaves the old one untouched.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines of text atomically, as UTF-8 with Unix line ends."""

    def write(temporary: Path) -> None:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)

    write_atomically(path, write)


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Refuse to do `what` in a folder where another process does it; `path` is a file there.

    The lock is on that file, which is made if need be, and ends with the process, however that ends.
    Where the system has no locks nothing is refused.
    """
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
    except (ImportError, OSError):
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is {what} in this folder. Wait for it, or stop it first.",
                str(path.parent),
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def plain(content: object) -> object:
    """The same for JSON, which has neither NaN nor infinity: they become null."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, float) and not isfinite(content):
        return None
    return content
