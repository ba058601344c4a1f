"""The memory of the machine, and the refusal of sizes that certainly do not fit, before allocation."""

import os
from math import log10

from nmln.errors import InputError

SHARE = 0.9  # of the machine's memory, which one command may use
CONSTANT = 150  # bytes that a constant takes: its name, its place in a sort and in a table of codes


def machine_memory() -> int:
    """The physical memory in bytes; 16 GiB where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**34


def refuse_size(needed: int, what: str, cure: str) -> int:
    """Return the bytes that something needs at least; refuse it if the machine has fewer."""
    there = machine_memory()
    if needed > SHARE * there:
        raise InputError(
            f"{what} needs at least {bytes_text(needed)} of memory, but the machine has "
            f"{bytes_text(there)}. {cure}",
            kind="size",
        )
    return needed


def bytes_text(number: int) -> str:
    """A number of bytes for a reader: `1.5 GiB`; powers of ten where that would be long."""
    gib = number / 2**30 if number < 2**100 else float("inf")
    return f"{gib:,.1f} GiB" if gib < 2**20 else f"{in_digits(number).removeprefix('about ')} bytes"


def in_digits(number: int) -> str:
    """A whole number of any length for a reader: with all digits up to 15 of them, else as a power.

    Python refuses to print numbers of more than 4300 digits.
    """
    if abs(number) < 10**15:
        return f"{number:,}"
    return f"about {'-' * (number < 0)}10^{int(log10(abs(number)) + 1e-9):,}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch has failed to allocate: it raises errors of several classes and texts."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    signs = (
        "can't allocate memory",
        "not enough memory",
        "out of memory",
        "Storage size calculation overflowed",
        "numel: integer multiplication overflow",
    )
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
