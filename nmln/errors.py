"""Errors for users: one line that says where, what and the cure, with fields for programs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Kind = Literal[
    "missing",  # a file, folder or part that must be there is not
    "exists",  # something is there that would be replaced
    "busy",  # another process works in the same place
    "syntax",  # text that does not follow its format
    "unknown",  # a name that is not known; `token` is the name
    "twice",  # a name that is declared or given twice; `token` is the name
    "value",  # a value of the wrong type or beyond its range
    "conflict",  # two inputs that contradict each other
    "size",  # more than fits into memory, or than is allowed
    "damaged",  # a file that is not as it was written
    "version",  # a file of a newer version
    "unsupported",  # a request that is not offered for this kind of data or model
    "system",  # the disk or the system refused
    "numeric",  # a computation that did not give a number
    "empty",  # nothing to work on
    "extra",  # an optional package that is not installed
    "network", "hash", "content", "gzip", "encoding", "binary", "columns",  # of downloaded files
]  # fmt: skip
"""What is wrong, for programs: no code reads the sentence of an error."""

# Characters that end a line, move the cursor or turn the direction of writing in some terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MOST_SHOWN = 2_000  # characters of a message; names in received files have any length


def one_line(text: str) -> str:
    """A text for a message: control characters escaped, the middle of a very long one left out."""
    shown = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[: _MOST_SHOWN // 2]} […] {shown[-_MOST_SHOWN // 2 :]}"
    return shown


class InputError(ValueError):
    """An input of the user cannot be used; the message says where, what and the cure.

    Args:
        message: what must hold, what was found, what to do; control characters are escaped.
        source: the file or input that is to blame.
        line: the line in it, counted from 1.
        column: the column in that line, counted from 1.
        index: which item of a sequence is to blame.
        token: which name or word is to blame.
        kind: what is wrong, for programs.
    """

    def __init__(
        self,
        message: str,
        source: str | None = None,
        line: int | None = None,
        column: int | None = None,
        index: int | None = None,
        token: str | None = None,
        *,
        kind: Kind = "value",
    ) -> None:
        message = one_line(message)
        named = None if source is None else one_line(source)
        place = ":".join(str(part) for part in (named, line, column) if part is not None)
        super().__init__(f"{place}: {message}" if place else message)
        self.message, self.source, self.line, self.column = message, source, line, column
        self.index, self.token = index, token
        self.kind: Kind = kind

    @property
    def place(self) -> tuple[str | None, int | None, int | None]:
        """The source, line and column."""
        return self.source, self.line, self.column

    def at(self, source: str, line: int | None = None, text: str = "") -> "InputError":
        """The same error, placed in a file; `text` starts at `line` and shows the column."""
        column = None
        if self.token and (found := re.search(rf"(?<!\w){re.escape(self.token)}(?!\w)", text)):
            before = text[: found.start()]
            line = None if line is None else line + before.count("\n")
            column = len(before) - before.rfind("\n")
        return InputError(self.message, source, line, column, token=self.token, kind=self.kind)


@contextmanager
def placed(path: str | Path | None) -> Iterator[None]:
    """Give errors that name no place the name of the file that is being read."""
    try:
        yield
    except InputError as error:
        raise error if error.source or path is None else error.at(str(path)) from None


class InterruptedRunError(Exception):
    """A long run stopped on request, with everything kept; the command `again` continues it."""

    def __init__(self, message: str = "", again: str | None = None) -> None:
        super().__init__(message if again is None else f"{message} Continue with: {again}")
        self.message, self.again = message, again


class LostProcessError(Exception):
    """Another process of a common run is gone."""
