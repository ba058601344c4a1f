"""Counts of dropped lines by reason, so that no line of a file is left out silently."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_REASONS = 6  # that a sentence names


@dataclass(frozen=True)
class Dropped:
    """The number of lines that were left out for one reason, with the first of them."""

    reason: str
    count: int
    line: int
    example: str

    def __str__(self) -> str:
        return f"{self.count:,} x {self.reason} (first in line {self.line}: {self.example})"


def dropped_lines(dropped: Sequence[Dropped]) -> str:
    """What was left out of the data, in one short sentence."""
    lines = sum(one.count for one in dropped)
    shown = "; ".join(map(str, dropped[:_REASONS]))
    more = "" if len(dropped) <= _REASONS else f"; and {len(dropped) - _REASONS} other reasons"
    return f"{lines:,} line{'s' if lines > 1 else ''} left out: {shown}{more}."


class DropCounter:
    """Counts dropped lines by reason and keeps the first line of each reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, tuple[int, str]] = {}

    def add(self, line: int, reason: str, example: str) -> None:
        """Count one dropped line."""
        self._counts[reason] += 1
        if reason not in self._first or line < self._first[reason][0]:
            self._first[reason] = (line, example)

    def dropped(self) -> tuple[Dropped, ...]:
        """The counts, the most frequent reason first."""
        return tuple(Dropped(r, n, *self._first[r]) for r, n in self._counts.most_common())

    def __str__(self) -> str:
        return "Dropped: " + ("; ".join(map(str, self.dropped())) or "nothing") + "."
