"""The compiled kernel of the graph potential: used where it was built, never required.

It computes what graph.py computes, up to the last digits, on one processor core. A world has the same
score in any batch, bit for bit. Without the library, or with NMLN_COMPILED=0, everything uses torch.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from threading import local
from typing import Any

import torch
from jaxtyping import Int32, Int64, Integer
from torch import Tensor

from nmln.potentials.compile_kernel import FOLDER, LIBRARY, fingerprint
from nmln.potentials.links import Links
from nmln.potentials.wiring import Wiring
from nmln.types import Scores, Slopes, Values

_SCORES, _GRADIENTS, _SLOPES = range(3)
_PLACES = 2**21  # entries of the adjacency that slopes are computed for together
_SETS = ("the basic instruction set", "AVX2", "AVX-512")


class _Network(ctypes.Structure):
    """The struct `Network` of graph_kernel.c."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("levels", "nodes", "groups", "kinds", "features", "layers", "hidden")
        ),
        *((name, ctypes.c_int64) for name in ("residual", "entries", "chains", "heard_most")),
        ("pool_scale", ctypes.c_double),
        *(
            (name, ctypes.c_void_p)
            for name in ("offsets", "codes", "cell_start", "cell_group", "cell_heard")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("slot_start", "slot_group", "slot_column", "weights")
        ),
    )


class Library:
    """The loaded kernel and the best instruction set of this processor."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        source = self._library.nmln_source
        source.restype, source.argtypes = ctypes.c_uint, []
        if source() != fingerprint():
            raise OSError("it was compiled from other sources")
        self._room = self._library.nmln_room
        self._room.restype = ctypes.c_int64
        self._room.argtypes = [ctypes.POINTER(_Network), ctypes.c_int, ctypes.c_int]
        self._run = self._library.nmln_run
        self._run.restype = None
        self._run.argtypes = [
            ctypes.POINTER(_Network),
            ctypes.c_int,
            ctypes.c_int,
            *[ctypes.c_void_p] * 5,
        ]
        self._pieces, self._rings = self._library.nmln_pieces, self._library.nmln_rings
        for work in (self._pieces, self._rings):
            work.restype, work.argtypes = None, [ctypes.c_void_p] * 4
        self._local = self._library.nmln_local
        self._local.restype = None
        self._local.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 3]
        self._walk = self._library.nmln_walk
        self._walk.restype, self._walk.argtypes = None, [ctypes.c_void_p] * 6
        self.best = int(self._library.nmln_instructions())
        self.instructions = self.best

    def run(
        self,
        network: _Network,
        mode: int,
        values: Tensor,
        by_score: Tensor | None,
        scores: Tensor,
        out: Sequence[Tensor],
    ) -> None:
        room = _borrowed(self._room(network, mode, self.instructions))
        self._run(
            network,
            mode,
            self.instructions,
            room.data_ptr(),
            values.data_ptr(),
            None if by_score is None else by_score.data_ptr(),
            scores.data_ptr(),
            _pointers(out),
        )

    def pieces(
        self, worlds: Integer[Tensor, "worlds groups"], nodes: int, links: Links
    ) -> Int64[Tensor, " worlds"]:
        """The number of pieces of each world, see links_kernel.c."""
        found = torch.empty(len(worlds), dtype=torch.int64)
        self._on_links(self._pieces, worlds, nodes, links, found, nodes)
        return found

    def rings(
        self, worlds: Integer[Tensor, "worlds groups"], nodes: int, links: Links
    ) -> Int32[Tensor, "worlds two nodes"]:
        """The smallest ring of every node and how many of its links are on rings, see links_kernel.c."""
        found = torch.empty(len(worlds), 2, nodes, dtype=torch.int32)
        self._on_links(self._rings, worlds, nodes, links, found, nodes * (nodes + 3))
        return found

    def _on_links(
        self, work: Any, worlds: Tensor, nodes: int, links: Links, found: Tensor, room: int
    ) -> None:
        values, tables = worlds.int().contiguous(), links.contiguous()
        sizes = (len(values), values.shape[1], nodes, links.shape[1])
        graph = (ctypes.c_int64 * 8)(*sizes, *(row.data_ptr() for row in tables))  # a `Graph`
        scratch = torch.empty(max(1, room), dtype=torch.int64)
        tensors = (values, found, scratch)
        work(ctypes.addressof(graph), *(tensor.data_ptr() for tensor in tensors))

    def neighbourhoods(
        self, part: ctypes.Structure, nodes: int, values: Tensor, scores: Tensor
    ) -> None:
        """Adds scores of neighbourhoods in place, see local_kernel.c; `nodes` is the scratch."""
        room = torch.empty(max(1, nodes), dtype=torch.int64)
        tensors = (values, scores, room)
        self._local(
            ctypes.addressof(part), *values.shape, *(tensor.data_ptr() for tensor in tensors)
        )

    def walk(
        self,
        walk: ctypes.Structure,
        moves: Tensor,
        values: Tensor,
        numbers: Tensor,
        gained: Tensor,
        room: Tensor,
    ) -> None:
        """Moves worlds in place, see walk_kernel.c."""
        tensors = (moves, values, numbers, gained, room)
        self._walk(ctypes.addressof(walk), *(tensor.data_ptr() for tensor in tensors))


@cache
def _load(path: Path) -> Library | str:
    """The library, or why it cannot be used."""
    if not path.exists():
        return "it was not built when the package was installed"
    try:
        return Library(path)
    except (OSError, AttributeError) as error:
        return f"{path.name} cannot be used: {error}"


def library() -> Library | None:
    """The kernel, if it is to be used in this process."""
    found = None if os.environ.get("NMLN_COMPILED") == "0" else _load(FOLDER / LIBRARY)
    return found if isinstance(found, Library) else None


def state() -> str:
    """Whether the kernel is in use, in words."""
    if os.environ.get("NMLN_COMPILED") == "0":
        return "not in use: NMLN_COMPILED is 0"
    found = _load(FOLDER / LIBRARY)
    return (
        f"not in use: {found}" if isinstance(found, str) else f"in use, {_SETS[found.instructions]}"
    )


class Kernel:
    """What the kernel must know of a potential; made once for each wiring."""

    def __init__(
        self, wiring: Wiring, layers: int, hidden: int, residual: bool, pool_scale: float
    ) -> None:
        self.wiring = wiring
        starts, groups, columns = _slots(wiring)
        cells = [*wiring.cell_start.tolist(), len(wiring.cell_group)]
        heard = [min(wiring.relations - 1, end - start) for start, end in pairwise(cells)]
        self._tables = {
            "offsets": _numbers(wiring.offsets),
            "codes": wiring.codes.detach().cpu().contiguous(),
            "cell_start": _numbers(cells),
            "cell_group": _numbers(wiring.cell_group),
            "cell_heard": _numbers(wiring.cell_heard),
            "slot_start": _numbers(starts),
            "slot_group": _numbers(groups),
            "slot_column": _numbers(columns),
        }
        self._facts = {
            "nodes": wiring.nodes,
            "groups": wiring.space.groups,
            "kinds": wiring.relations - 1,
            "features": wiring.features,
            "layers": layers,
            "hidden": hidden,
            "residual": int(residual),
            "entries": wiring.space.entries,
            "heard_most": sum(heard),
            "pool_scale": pool_scale,
        }

    def score(self, library: Library, weights: Sequence[Tensor], values: Values) -> Scores:
        scores = torch.empty(values.shape[:2])
        self._run(library, _SCORES, weights, values, None, scores, [])
        return scores

    def gradients(
        self, library: Library, weights: Sequence[Tensor], values: Values, by_score: Scores
    ) -> list[Tensor]:
        """The gradients of sum(by_score * score) by all weights; the sum goes chain by chain."""
        found = [torch.zeros(weight.shape) for weight in weights]
        scores = torch.empty(values.shape[:2])
        self._run(library, _GRADIENTS, weights, values, by_score, scores, found)
        return found

    def slopes(
        self, library: Library, weights: Sequence[Tensor], values: Values, slopes: Slopes
    ) -> Scores:
        """Scores, and their slopes in the place given; so many worlds at a time that memory is flat."""
        wiring, kinds = self.wiring, self.wiring.relations - 1
        scores = torch.empty(values.shape[:2])
        places = wiring.nodes * kinds * wiring.nodes
        size = max(1, _PLACES // max(1, places * len(values)))
        for first in range(0, values.shape[1], size):
            some = slice(first, first + size)
            part = values[:, some]
            found, worlds = torch.empty(part.shape[:2]), len(part) * part.shape[1]
            by_feature = torch.empty(worlds, wiring.nodes, wiring.features)
            by_adjacency = torch.empty(worlds, places)
            self._run(library, _SLOPES, weights, part, None, found, [by_feature, by_adjacency])
            flat = slopes.new_zeros(worlds, slopes.shape[2])
            wiring.spread_features(flat, by_feature)
            wiring.spread_adjacency(flat, by_adjacency)
            scores[:, some], slopes[:, some] = found, flat.view_as(slopes[:, some])
        return scores

    def _run(
        self,
        library: Library,
        mode: int,
        weights: Sequence[Tensor],
        values: Values,
        by_score: Scores | None,
        scores: Scores,
        out: Sequence[Tensor],
    ) -> None:
        if not values.shape[1]:
            return
        weights = [weight.detach().contiguous() for weight in weights]  # kept during the call
        tables = {name: table.data_ptr() for name, table in self._tables.items()}
        pointers = _pointers(weights)
        network = _Network(
            levels=len(values),
            chains=values.shape[1],
            weights=ctypes.addressof(pointers),
            **self._facts,
            **tables,
        )
        if by_score is not None:
            by_score = by_score.contiguous()
        library.run(network, mode, values.int().contiguous(), by_score, scores, out)


def usable(potential: Tensor, values: Tensor) -> bool:
    """Whether the kernel can work on these: real tensors of single precision on the processor."""
    return (
        potential.dtype == torch.float32
        and potential.device.type == values.device.type == "cpu"
        and type(values) is Tensor
    )


def _slots(wiring: Wiring) -> tuple[list[int], list[int], list[int]]:
    """The active features of every node: a column, moved by the category of a group (-1: by none)."""
    slots: list[list[tuple[int, int]]] = [
        [(-1, column) for column in row.nonzero().flatten().tolist()] for row in wiring.template
    ]
    for block, column in wiring.feature_blocks:
        groups = range(wiring.space.groups)[block.groups]
        rows = range(wiring.nodes)[wiring.rows_of(block)]
        for index, node in enumerate(rows):
            slots[node].append((groups[index if len(groups) > 1 else 0], column))
    starts = [0, *accumulate(map(len, slots))]
    return starts, [slot[0] for row in slots for slot in row], [s[1] for row in slots for s in row]


def _numbers(table: Tensor | list[int]) -> Int64[Tensor, " numbers"]:
    return torch.as_tensor(table, dtype=torch.int64, device="cpu").contiguous()


_kept = local()


def _borrowed(size: int) -> Tensor:
    """Memory for a call, kept for the next of this thread: new memory costs as much as a small call."""
    room = getattr(_kept, "room", None)
    if room is None or len(room) < size:
        room = _kept.room = torch.empty(size, dtype=torch.uint8)
    return room


def _pointers(tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * max(1, len(tensors)))(*(tensor.data_ptr() for tensor in tensors))
