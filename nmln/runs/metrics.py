"""metrics.jsonl: one JSON line per training step, without gaps or repeats."""

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from nmln.files import open_regular, plain, write_lines
from nmln.runs.folder import RunFolder, writing


@dataclass(frozen=True)
class MetricsLog:
    """The lines of a run. The file is opened for each line, because `cut` may have replaced it."""

    folder: Path

    @property
    def path(self) -> Path:
        return RunFolder(self.folder).metrics

    def append(self, line: dict[str, Any]) -> None:
        text = json.dumps(plain(line)) + "\n"
        with writing(self.path), open_regular(self.path, "ab") as file:
            file.write(text.encode())

    def synchronise(self) -> None:
        """Flush all lines to disk: a checkpoint must never be newer than the lines."""
        if self.path.exists():
            with writing(self.path), open_regular(self.path, "r+b") as file:
                os.fsync(file.fileno())

    def cut(self, step: int) -> str | None:
        """Drop the lines of steps after the one that a run continues from, and damaged lines.

        Returns a sentence about earlier steps whose lines are missing, if there are any.
        """
        found: dict[int, str] = {}
        last = 0
        if self.path.exists():
            with writing(self.path):
                with open_regular(self.path) as file:
                    before = file.read()
                for line in before.decode("utf-8", "replace").split("\n"):
                    number = _step(line)
                    if number is not None and last < number <= step:
                        found[number], last = line, number
                if "".join(f"{line}\n" for line in found.values()).encode() != before:
                    write_lines(self.path, found.values())
        return _gaps(found, step)


def _step(line: str) -> int | None:
    """The step of an intact line; None for a damaged one."""
    try:
        number = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return number if type(number) is int else None


def _gaps(found: dict[int, str], step: int) -> str | None:
    gaps = [
        f"{one + 1} to {other - 1}" if other - one > 2 else str(one + 1)
        for one, other in pairwise([0, *found, step + 1])
        if other - one > 1
    ]
    if not gaps:
        return None
    return (
        f"metrics.jsonl has no intact line for step {', '.join(gaps)}: the curves have a gap there. The "
        "model is not affected."
    )
