"""Neighbourhoods for the compiled kernel: the struct `Part` of neighbourhoods.h, filled in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

if TYPE_CHECKING:
    from nmln.potentials.local import Neighbourhoods

_NUMBERS = ("nodes", "kinds", "around", "cap", "ties", "categories")
_TABLES = ("one", "other", "node", "step", "pair", "tie")


class Part(ctypes.Structure):
    """The struct `Part`; its tables must be kept as long as it is used."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in (*_TABLES, "node_table", "tie_table")),
    )


def part_of(
    own: Neighbourhoods,
    nodes: Float64[Tensor, "levels nodes"],
    ties: Float64[Tensor, "levels ties"],
    at: Callable[[Tensor], int],
) -> Part:
    """What the kernel must know of one symmetric attribute; `at` keeps a table and gives its address."""
    tables = {**own.kernel_tables, "node_table": nodes, "tie_table": ties}
    return Part(
        nodes=own.nodes,
        kinds=own.kinds,
        around=own.around,
        cap=own.cap,
        ties=len(own.ties),
        categories=own.block.size,
        **{name: at(table) for name, table in tables.items()},
    )


def tables_of(own: Neighbourhoods, groups: int) -> dict[str, Int64[Tensor, ...]]:
    """The tables of the struct that depend on the space alone, whose worlds have so many groups.

    They are on the CPU, wherever the potential is.
    """
    pairs, ends = own.groups.cpu(), own.ends.cpu()
    one, other, node, step = torch.full((4, groups), -1)
    one[pairs], other[pairs] = ends
    factor = 1
    for block in reversed(own.unary):
        node[block.groups], step[block.groups] = torch.arange(block.count), factor
        factor *= block.size
    pair = torch.full((own.nodes, own.nodes), -1)
    pair[ends[0], ends[1]] = pair[ends[1], ends[0]] = pairs
    tie = torch.full((own.block.size,), -1)
    tie[own.ties] = torch.arange(len(own.ties))
    return dict(zip(_TABLES, (one, other, node, step, pair, tie), strict=True))
