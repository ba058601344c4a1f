"""Counts of generated strings: how often each one was generated, in how many attempts."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from nmln.errors import InputError

FIRST = 1_000
"""The smallest k of unique@k; the others are 10, 100 and so on times as large."""


@dataclass(frozen=True, repr=False)
class Counts:
    """How often each valid string was generated, in how many attempts, invalid ones included.

    `firsts[k]` is the number of different strings among the first k valid ones, for k = 1,000, 10,000
    and so on; it is empty if the order is not known.
    """

    counts: Mapping[str, int]
    attempts: int
    firsts: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.counts and (least := min(self.counts.values())) < 1:
            raise InputError(
                f"the count of a generated string must be at least 1, got {least}. Leave out strings "
                "that were not generated."
            )
        if self.attempts < self.valid:
            raise InputError(
                f"attempts must be at least the number of valid strings, {self.valid:,}, got "
                f"{self.attempts:,}. Count every attempt, also the invalid ones.",
                kind="conflict",
            )

    def __repr__(self) -> str:
        return f"Counts({self.unique:,} different in {self.valid:,} of {self.attempts:,} attempts)"

    @staticmethod
    def of(samples: "Counts | Mapping[str, int] | Iterable[str | None]") -> "Counts":
        """Counts of counts, of a mapping, or of samples in order with None for an invalid one."""
        if isinstance(samples, Counts):
            return samples
        if isinstance(samples, Mapping):
            given = cast("Mapping[str, int]", samples)
            return Counts(dict(given), sum(given.values()))
        counter = SampleCounter()
        for sample in samples:
            counter.add(sample)
        return counter.close()

    @cached_property
    def valid(self) -> int:
        """The number of attempts that yielded a string."""
        return sum(self.counts.values())

    @property
    def unique(self) -> int:
        """The number of different strings."""
        return len(self.counts)


class SampleCounter:
    """Counts samples as they arrive. Its memory grows with the number of different strings only."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.attempts = 0
        self._valid, self._next = 0, FIRST
        self._firsts: dict[int, int] = {}
        self._ordered = True

    def add(self, string: str | None, times: int = 1) -> None:
        """Count one attempt, or several at once: then the order of the samples is not known."""
        self.attempts += times
        self._ordered &= times == 1
        if string is None:
            return
        self.counts[string] = self.counts.get(string, 0) + times
        self._valid += times
        if self._valid == self._next:
            self._firsts[self._next] = len(self.counts)
            self._next *= 10

    def close(self, attempts: int | None = None, ordered: bool = True) -> Counts:
        """The counts; `attempts` is the number of attempts if more were made than were added."""
        firsts = self._firsts if ordered and self._ordered else {}
        return Counts(self.counts, self.attempts if attempts is None else attempts, firsts)


def as_set(strings: Collection[str]) -> frozenset[str]:
    """The strings as a set; a single string is refused, because it would be a set of letters."""
    if isinstance(strings, str):
        raise InputError(
            "a collection of strings is needed, got a single string. Put it into a list."
        )
    return strings if isinstance(strings, frozenset) else frozenset(strings)
