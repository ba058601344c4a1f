"""Balanced moves by a stand-in, many of them for the price of a fraction of one score of a network.

The proposal is that of `nmln.kernels.balanced`. In C where the compiled kernel can be used, else in torch:
both take the same random numbers, and so the same way up to rounding.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.moves import free_groups
from nmln.potentials import compiled
from nmln.potentials.compiled_local import Part, part_of
from nmln.potentials.stand_in import StandIn
from nmln.space import Space
from nmln.types import Groups, Values

REST = 0.05
"""The probability that a move is rejected whatever it is, so that no parity is kept."""
_NUMBERS = 5  # uniform numbers for each move


class Walked(NamedTuple):
    """Worlds after some moves, and how much their scores by the stand-in have grown."""

    values: Values
    gained: Float64[Tensor, "levels chains"]


class _Tables(NamedTuple):
    """Of the free groups; a kind is a category of an attribute, counted over all attributes."""

    free: Int64[Tensor, " free"]
    first_kind: Int64[Tensor, " groups"]  # of the attribute of each group
    attribute_of_kind: Int64[Tensor, " kinds"]  # -1 where it has no free group
    more: dict[str, Int64[Tensor, " numbers"]]  # as the struct `Walk` of walk_kernel.c has them

    @property
    def kinds(self) -> int:
        return len(self.attribute_of_kind)


class Walk:
    """Moves by the stand-in of any potential over one space; a sequence of reversible moves.

    Each chooses an attribute, one of the categories that its groups have, a group that has it and another
    allowed category, each uniformly, and accepts by Metropolis-Hastings.
    """

    def __init__(self, space: Space, evidence: Evidence | None = None) -> None:
        self.space, self.evidence = space, evidence

    @torch.no_grad()
    def run(
        self, stand_in: StandIn, values: Values, moves: Sequence[int], rng: Generator
    ) -> Walked:
        """So many moves of every chain of each level."""
        chains = values.shape[1]
        numbers = [
            torch.rand(
                chains, count, _NUMBERS, generator=rng, dtype=torch.float64, device=rng.device
            )
            for count in moves
        ]
        library = compiled.library()
        if library is not None and values.device.type == "cpu" and type(values) is Tensor:
            return self._compiled(library, stand_in, values, moves, numbers)
        return self._plain(stand_in, values, moves, [one.to(values.device) for one in numbers])

    # With torch.

    def _plain(
        self, stand_in: StandIn, values: Values, moves: Sequence[int], numbers: Sequence[Tensor]
    ) -> Walked:
        found, gained = [], []
        for level, count in enumerate(moves):
            own = _at(stand_in, level)
            worlds = values[level : level + 1]
            start = scores = own.score(worlds)
            for move in range(count):
                worlds, scores = self._move(own, worlds, scores, numbers[level][None, :, move])
            found.append(worlds)
            gained.append(scores - start)
        return Walked(torch.cat(found), torch.cat(gained))

    def _move(
        self, stand_in: StandIn, values: Values, scores: Tensor, numbers: Tensor
    ) -> tuple[Values, Tensor]:
        moved, factor = self.propose(values, numbers[..., :4])
        new = stand_in.score(moved)
        chance = (1 - REST) * (new - scores + factor).clamp(max=0).exp()
        taken = numbers[..., 4] < chance
        return torch.where(taken[..., None], moved, values), torch.where(taken, new, scores)

    def propose(
        self, values: Values, numbers: Float64[Tensor, "levels chains four"]
    ) -> tuple[Values, Float64[Tensor, "levels chains"]]:
        """A changed world for each, by four uniform numbers, and the logarithm of the way back."""
        tables, device = self._tables, values.device
        free, kind_of = tables.free.to(device), tables.first_kind.to(device)
        kinds = values[..., free].long() + kind_of[free]
        ones = torch.ones((), dtype=torch.int64, device=device).expand(kinds.shape)
        counts = ones.new_zeros(*values.shape[:2], tables.kinds).scatter_add_(2, kinds, ones)
        attribute = _chosen(numbers[..., 0], len(tables.more["attribute_first"]))
        own = tables.attribute_of_kind.to(device) == attribute[..., None]
        present = own & (counts > 0)
        kind = _nth(present, numbers[..., 1])
        group = free[_nth(kinds == kind[..., None], numbers[..., 2])]
        changes = Metropolis(self.space, self.evidence)
        shift = 1 + _chosen(numbers[..., 3], changes.others(group))
        moved = changes.change(values, group, shift)
        there = kind_of[group] + moved.gather(2, group[..., None]).squeeze(2)
        had, has = (counts.gather(2, one[..., None]).squeeze(2) for one in (kind, there))
        before = present.sum(-1)
        after = before - (had == 1).long() + (has == 0).long()
        return moved, (before * had).double().log() - (after * (has + 1)).double().log()

    @cached_property
    def _tables(self) -> "_Tables":
        space, rules = self.space, self.evidence or Evidence.none(self.space)
        categories, starts = rules.listed
        sizes = [block.size for block in space.blocks]
        firsts = [0, *accumulate(sizes)][:-1]
        free = free_groups(space, self.evidence)
        inside = [
            (free >= block.first_group) & (free < block.first_group + block.count)
            for block in space.blocks
        ]
        some = [number for number, one in enumerate(inside) if bool(one.any())]
        counts = [int(inside[number].sum()) for number in some]
        numbered = torch.full((sum(sizes),), -1)
        for place, number in enumerate(some):
            numbered[firsts[number] : firsts[number] + sizes[number]] = place
        repeats = torch.tensor([block.count for block in space.blocks])
        return _Tables(
            free,
            torch.tensor(firsts).repeat_interleave(repeats),
            numbered,
            {
                "attribute_first": torch.tensor([0, *accumulate(counts)][:-1]),
                "attribute_end": torch.tensor(list(accumulate(counts))),
                "attribute_kind": torch.tensor([firsts[number] for number in some]),
                "attribute_size": torch.tensor([sizes[number] for number in some]),
                "allowed_start": torch.cat([starts, rules.counts.sum()[None]]),
                "allowed": categories,
            },
        )

    # In C.

    def _compiled(
        self,
        library: compiled.Library,
        stand_in: StandIn,
        values: Values,
        moves: Sequence[int],
        numbers: Sequence[Tensor],
    ) -> Walked:
        tables, kept = self._tables, []

        def at(numbers: Tensor) -> int:
            kept.append(numbers.contiguous())
            return kept[-1].data_ptr()

        parts = (Part * max(1, len(stand_in.local)))()
        for place, (own, nodes, ties) in enumerate(stand_in.local):
            parts[place] = part_of(own, nodes, ties, at)
        walk = _Walk(
            levels=len(values),
            chains=values.shape[1],
            groups=self.space.groups,
            entries=self.space.entries,
            attributes=len(tables.more["attribute_first"]),
            kinds=tables.kinds,
            parts=len(stand_in.local),
            rest=REST,
            offsets=at(self.space.offsets),
            first_kind=at(tables.first_kind),
            free=at(tables.free),
            **{name: at(table) for name, table in tables.more.items()},
            entry_table=at(stand_in.entries),
            part=ctypes.addressof(parts),
        )
        room = tables.kinds + sum(
            one.wiring.nodes * (1 + len(one.wiring.ties)) for one in stand_in.local
        )
        moved = values.int().contiguous()
        if moved is values:
            moved = moved.clone()
        gained = torch.zeros(values.shape[:2], dtype=torch.float64)
        library.walk(
            walk,
            torch.tensor(list(moves), dtype=torch.int64),
            moved,
            torch.cat([one.flatten() for one in numbers]),
            gained,
            torch.empty(room, dtype=torch.int64),
        )
        return Walked(moved.to(values.dtype), gained)


def _at(stand_in: StandIn, level: int) -> StandIn:
    """One level of a stand-in."""
    local = [
        one._replace(nodes=one.nodes[level : level + 1], ties=one.ties[level : level + 1])
        for one in stand_in.local
    ]
    return replace(stand_in, entries=stand_in.entries[level : level + 1], local=tuple(local))


def _chosen(uniform: Tensor, count: Tensor | int) -> Int64[Tensor, "levels chains"]:
    """One of `count`, by a uniform number."""
    return torch.minimum(
        (uniform * count).long(), torch.as_tensor(count, device=uniform.device) - 1
    )


def _nth(options: Bool[Tensor, "levels chains options"], uniform: Tensor) -> Groups:
    """One of the options of every chain, by a uniform number."""
    counted = options.cumsum(-1)
    wanted = 1 + _chosen(uniform, counted[..., -1])
    return torch.searchsorted(counted, wanted[..., None]).squeeze(-1)


class _Walk(ctypes.Structure):
    """The struct `Walk` of walk_kernel.c."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("levels", "chains", "groups", "entries", "attributes", "kinds", "parts")
        ),
        ("rest", ctypes.c_double),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("offsets", "first_kind", "attribute_first", "attribute_end"),
                *("attribute_kind", "attribute_size", "free", "allowed_start", "allowed"),
                *("entry_table", "part"),
            )
        ),
    )
