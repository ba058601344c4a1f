"""Reading text with errors that name the place, and atomic writing."""

import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import IO

from nmln.errors import InputError

if sys.platform != "win32":
    import fcntl

_PARTIAL = ".partial"  # the suffix of a file while it is being written
LONGEST = 2**24
"""Bytes or characters of one line of a text file; a longer one would only fill the memory."""


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a UTF-8 text file, without line ends; refuses binary files."""
    check_readable(path)
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
                if len(raw) > LONGEST:
                    raise endless(path, number)
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"byte 0x{raw[error.start]:02x} is not UTF-8 text. Is this a binary or "
                        "compressed file? Unpack it or convert it to UTF-8 first.",
                        str(path), number, error.start + 1, kind="encoding",
                    ) from None  # fmt: skip
                if "\0" in line:
                    raise InputError(
                        "a zero byte: this is a binary or damaged file, not text. Give a text file.",
                        str(path), number, line.index("\0") + 1, kind="binary",
                    )  # fmt: skip
                yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise InputError(
            "there is no such file. Check the path.", str(path), kind="missing"
        ) from None
    except IsADirectoryError:
        raise InputError(
            "this is a directory. Name a file in it.", str(path), kind="content"
        ) from None


def open_regular(path: str | Path, mode: str = "rb") -> IO[bytes]:
    """Open a regular file without following a link at its end; never blocks on a pipe or device.

    `mode` is rb, wb, ab or r+b. A link, pipe, device or directory is an `InputError`; files that a user
    names directly may be links and are checked with `check_readable` instead.
    """
    flags = {
        "rb": os.O_RDONLY,
        "wb": os.O_WRONLY | os.O_CREAT,  # emptied below, once it is known to be a regular file
        "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        "r+b": os.O_RDWR,
    }[mode]
    if Path(path).is_symlink():
        raise linked(path)
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags | extra | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise irregular(path)
        if mode == "wb":
            os.ftruncate(handle, 0)
        return os.fdopen(handle, mode)
    except BaseException:
        os.close(handle)
        raise


def check_readable(path: str | Path) -> None:
    """Refuse a pipe, socket or device that a user names as a file: reading it may never end."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError:  # a zero byte, or half a character
        raise InputError(f"{str(path)!r} cannot be the name of a file. Check the path.") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise irregular(path)


def refuse_links(folder: str | Path) -> None:
    """Refuse a folder with a link, pipe or device anywhere inside; the folder itself may be a link.

    The rule for every folder that nmln writes into or reads a run from: a received folder
    cannot make a command read or write files elsewhere.
    """
    waiting = [os.fspath(folder)]  # not by recursion: a received folder may be of any depth
    while waiting:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise linked(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise irregular(entry.path)


def linked(path: str | Path) -> InputError:
    return InputError(
        "links within a run folder are not followed. Link the run folder as a whole, or replace the "
        "link by a copy.",
        str(path),
        kind="content",
    )


def irregular(path: str | Path) -> InputError:
    return InputError(
        "this is not a regular file but a pipe, socket or device. Write its content to a file and name "
        "that.",
        str(path),
        kind="content",
    )


def endless(path: str | Path, line: int) -> InputError:
    return InputError(
        f"this line has more than {LONGEST:,} characters: this is not a text file of records, one per "
        "line. Give a text file.",
        str(path),
        line,
        kind="size",
    )


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then put it in place in one step.

    A reader sees the old file or the whole new one; a failure leaves the old one untouched. Temporary
    files that killed writers of the same file have left are removed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    try:
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}.", suffix=_PARTIAL
        )
    except OSError as error:
        error.filename = str(target)
        raise
    temporary = Path(name)
    try:
        _try_lock(handle)  # a sign to other writers that this one is alive
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:  # the user knows the file, not its temporary neighbour
        if error.errno is not None and error.filename in (None, name, temporary):
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Delete temporary files of this target whose writer is gone."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}{re.escape(_PARTIAL)}")
    for entry in list(os.scandir(target.parent)):
        if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(OSError, InputError), open_regular(entry.path) as file:
                if _try_lock(file.fileno()):
                    os.unlink(entry.path)


def _try_lock(handle: int) -> bool:
    """Lock an open file; False if another process holds the lock, or if the system has no locks."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines of text atomically, as UTF-8 with Unix line ends."""

    def write(temporary: Path) -> None:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)

    write_atomically(path, write)


def write_json(
    path: str | Path, content: object, *, indent: int | None = 2, ascii_only: bool = True
) -> None:
    """Write JSON atomically; NaN and infinity, which JSON does not have, become null."""
    write_lines(path, [json.dumps(plain(content), indent=indent, ensure_ascii=ascii_only)])


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Refuse to do `what` in a folder where another process does it; `path` is a lock file there.

    The file is made if need be and has no other use, so that nothing ever replaces it. Only its holder
    may remove it, because a lock on a deleted file protects nothing. The lock ends with the process,
    however that ends. Where the system has no locks, or no file can be made, nothing is refused.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_regular(path, "ab")
    except OSError:  # the next write there reports the reason
        yield
        return
    with file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is {what} in this folder. Wait for it, or stop it first.",
                str(path.parent),
                kind="busy",
            ) from None
        except OSError:  # a file system without locks
            pass
        if _is_current(file, path):
            yield
            return
    with only_one(path, what):  # its last holder has removed it meanwhile
        yield


def _is_current(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is still the one of its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def plain(content: object) -> object:
    """The content as strict JSON allows it: NaN and infinities become null."""
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, float) and not isfinite(content):
        return None
    return content
