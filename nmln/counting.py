"""Numbers in mixed radix: how many there are, in words, and all of them in order."""

from math import log

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.memory import in_digits

Radices = Int64[Tensor, " digits"]


def number_of(radices: Radices) -> int:
    """How many numbers there are: an exact integer of any length."""
    total = 1
    for radix, times in zip(*(part.tolist() for part in _distinct(radices)), strict=True):
        total *= radix**times
    return total


def log_number_of(radices: Radices) -> float:
    """The natural logarithm of how many numbers there are, computed without the number itself."""
    return sum(
        times * log(radix) if radix else float("-inf")
        for radix, times in zip(*(part.tolist() for part in _distinct(radices)), strict=True)
    )


def _distinct(radices: Radices) -> tuple[Tensor, Tensor]:
    return radices.unique(return_counts=True)


def worlds_text(radices: Radices) -> str:
    """How many worlds there are, for a reader: `1,048,576` or `about 10^4,516`."""
    logs = log_number_of(radices)
    return in_digits(number_of(radices)) if logs < 80 else f"about 10^{int(logs / log(10)):,}"


def more_than(radices: Radices, limit: int) -> bool:
    """Whether there are more than `limit`, without the number itself where it is astronomical."""
    return log_number_of(radices) > log(limit) + 1 or number_of(radices) > limit


def strides(radices: Radices) -> Int64[Tensor, " digits"]:
    """The place value of each digit in mixed radix; the last digit runs fastest."""
    return torch.cat([radices.flip(0).cumprod(0).flip(0)[1:], radices.new_ones(1)])[: len(radices)]


def refuse_overflow(radices: Radices) -> None:
    """An index of a world must fit into 63 bits."""
    if more_than(radices, 2**63 - 1):
        raise InputError(
            f"there are {worlds_text(radices)} worlds, too many for an index. Use space.pack(worlds) as "
            "a key.",
            kind="size",
        )


def count_up(radices: Radices, limit: int, dtype: torch.dtype) -> Integer[Tensor, "numbers digits"]:
    """All numbers in mixed radix, in order; refused if there are more than `limit`."""
    if more_than(radices, limit):
        raise InputError(
            f"there are {worlds_text(radices)} worlds, too many to enumerate (the limit is {limit:,}). "
            "Observe more groups, take fewer constants, or sample instead.",
            kind="size",
        )
    total = number_of(radices)
    numbers = torch.empty(total, len(radices), dtype=dtype)
    remaining = torch.arange(total)
    for digit in range(len(radices) - 1, -1, -1):  # a column at a time: nothing larger is held
        numbers[:, digit] = remaining % radices[digit]
        remaining = remaining.div(radices[digit], rounding_mode="floor")
    return numbers
