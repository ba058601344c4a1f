"""Walks: many balanced moves by a stand-in, which together cost less than one score of a network.

The proposal is that of `nmln.kernels.balanced`. The moves are made by the compiled kernel where it can
be used, and with torch otherwise. Both take the same random numbers and, up to rounding, the same path.
"""

import ctypes
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.moves import allowed_entries, free_groups
from nmln.potentials import compiled
from nmln.potentials.compiled_local import Part, part_of
from nmln.potentials.stand_in import StandIn
from nmln.signals import give_way
from nmln.space import Space
from nmln.types import Groups, Values

REST = 0.05
"""The probability that a move is rejected whatever it is, so that no parity is kept."""
_NUMBERS = 5  # uniform numbers for each move

Uniforms = Float64[Tensor, "chains _ 5"]
"""Random numbers for the moves of one level."""


class Walked(NamedTuple):
    """Worlds at the end of their walks, and how much their scores by the stand-in have grown."""

    values: Values
    gained: Float64[Tensor, "levels chains"]


class _Tables(NamedTuple):
    """A kind is a category of an attribute, counted over all attributes.

    Attributes are those with free groups, and `free` lists these groups attribute by attribute.
    """

    free: Int64[Tensor, " free"]
    first_kind: Int64[Tensor, " groups"]  # of the attribute of each group
    attribute_of_kind: Int64[Tensor, " kinds"]  # -1 where the attribute has no free group
    attribute_first: Int64[Tensor, " attributes"]  # where its groups start in `free`
    attribute_end: Int64[Tensor, " attributes"]
    attribute_kind: Int64[Tensor, " attributes"]  # its first kind
    attribute_size: Int64[Tensor, " attributes"]  # the number of its categories
    allowed_start: Int64[Tensor, " groups_and_one"]  # where each group starts in `allowed`
    allowed: Int64[Tensor, " allowed"]  # the categories that evidence leaves open

    @property
    def kinds(self) -> int:
        return len(self.attribute_of_kind)

    @property
    def attributes(self) -> int:
        return len(self.attribute_first)


class Walk:
    """Walks over one space, by the stand-in of any potential: sequences of reversible moves.

    Each move chooses an attribute, one of the categories that its free groups have, a group that has it
    and another allowed category, each uniformly, and accepts by Metropolis-Hastings.
    """

    def __init__(self, space: Space, evidence: Evidence | None = None) -> None:
        self.space, self.evidence = space, evidence

    @torch.no_grad()
    def run(
        self, stand_in: StandIn, values: Values, moves: Sequence[int], rng: Generator
    ) -> Walked:
        """Move every chain, at each level as often as `moves` says; the worlds must be possible."""
        if stand_in.space != self.space:
            raise InputError(
                "the potential is over another space than this kernel. Build the kernel with "
                "potential.space.",
                kind="conflict",
            )
        expected = (stand_in.levels, self.space.groups, len(moves))
        if (len(values), values.shape[-1], len(values)) != expected:
            raise InputError(
                f"a walk at {stand_in.levels} levels of {self.space.groups} groups needs such worlds, "
                f"got the shape {tuple(values.shape)}, and a number of moves for each level, got "
                f"{len(moves)}.",
                kind="conflict",
            )
        shape, device = (values.shape[1], _NUMBERS), values.device
        numbers = [
            torch.rand(
                shape[0], count, shape[1], generator=rng, dtype=torch.float64, device=rng.device
            ).to(device)
            for count in moves
        ]
        library = compiled.library()
        if library is not None and device.type == "cpu" and type(values) is Tensor:
            return self.in_c(library, stand_in, values, numbers)
        return self.with_torch(stand_in, values, numbers)

    # With torch.

    def with_torch(self, stand_in: StandIn, values: Values, numbers: Sequence[Uniforms]) -> Walked:
        """The walks with these random numbers, by torch."""
        found, gained = [], []
        for level, uniforms in enumerate(numbers):
            own = stand_in.at_levels([level])
            worlds = values[level : level + 1]
            start = scores = own.score(worlds)
            for move in range(uniforms.shape[1]):
                give_way(step=True)
                worlds, scores = self._move(own, worlds, scores, uniforms[None, :, move])
            found.append(worlds)
            gained.append(scores - start)
        return Walked(torch.cat(found), torch.cat(gained))

    def _move(
        self, stand_in: StandIn, values: Values, scores: Tensor, numbers: Tensor
    ) -> tuple[Values, Tensor]:
        moved, factor = self.propose(values, numbers[..., :4])
        new = stand_in.score(moved)
        taken = numbers[..., 4] < chance(new - scores, factor)
        return torch.where(taken[..., None], moved, values), torch.where(taken, new, scores)

    def propose(
        self, values: Values, numbers: Float64[Tensor, "levels chains 4"]
    ) -> tuple[Values, Float64[Tensor, "levels chains"]]:
        """A changed world for each, chosen by four uniform numbers, and the factor of the proposal.

        The factor is the logarithm of the probability of the way back over that of the way there.
        """
        tables, device = self._tables, values.device
        free, first = tables.free.to(device), tables.first_kind.to(device)
        kinds = values[..., free].long() + first[free]
        ones = torch.ones((), dtype=torch.int64, device=device).expand(kinds.shape)
        counts = ones.new_zeros(*values.shape[:2], tables.kinds).scatter_add_(2, kinds, ones)
        attribute = _chosen(numbers[..., 0], tables.attributes)
        own = tables.attribute_of_kind.to(device) == attribute[..., None]
        present = own & (counts > 0)
        kind = _nth(present, numbers[..., 1])
        group = free[_nth(kinds == kind[..., None], numbers[..., 2])]
        changes = Metropolis(self.space, self.evidence)
        moved = changes.change(values, group, 1 + _chosen(numbers[..., 3], changes.others(group)))
        there = first[group] + moved.gather(2, group[..., None]).squeeze(2)
        had, has = (counts.gather(2, one[..., None]).squeeze(2) for one in (kind, there))
        before = present.sum(-1)
        after = before - (had == 1).long() + (has == 0).long()
        return moved, (before * had).double().log() - (after * (has + 1)).double().log()

    @cached_property
    def _tables(self) -> _Tables:
        space = self.space
        rules = Evidence(space, allowed_entries(space, self.evidence))
        categories, starts = rules.listed
        free = free_groups(space, self.evidence)
        sizes = [block.size for block in space.blocks]
        firsts = [0, *accumulate(sizes)][:-1]
        counts = [int(rules.free[block.groups].sum()) for block in space.blocks]
        some = [number for number, count in enumerate(counts) if count]
        ends = list(accumulate(counts[number] for number in some))
        numbered = torch.full((sum(sizes),), -1)
        for place, number in enumerate(some):
            numbered[firsts[number] : firsts[number] + sizes[number]] = place
        repeats = torch.tensor([block.count for block in space.blocks])
        return _Tables(
            free=free,
            first_kind=torch.tensor(firsts).repeat_interleave(repeats),
            attribute_of_kind=numbered,
            attribute_first=torch.tensor([0, *ends[:-1]]),
            attribute_end=torch.tensor(ends),
            attribute_kind=torch.tensor([firsts[number] for number in some]),
            attribute_size=torch.tensor([sizes[number] for number in some]),
            allowed_start=torch.cat([starts, rules.counts.sum()[None]]),
            allowed=categories,
        )

    # In C.

    def in_c(
        self,
        library: compiled.Library,
        stand_in: StandIn,
        values: Values,
        numbers: Sequence[Uniforms],
    ) -> Walked:
        """The walks with these random numbers, by the compiled kernel."""
        tables, kept = self._tables, []

        def at(table: Tensor) -> int:
            kept.append(table.cpu().contiguous())  # must outlive the call
            return kept[-1].data_ptr()

        parts = (Part * max(1, len(stand_in.local)))()
        for place, (own, nodes, ties) in enumerate(stand_in.local):
            parts[place] = part_of(own, nodes, ties, at)
        walk = _Walk(
            levels=len(values),
            chains=values.shape[1],
            groups=self.space.groups,
            entries=self.space.entries,
            attributes=tables.attributes,
            kinds=tables.kinds,
            parts=len(stand_in.local),
            rest=REST,
            offsets=at(self.space.offsets),
            entry_table=at(stand_in.entries),
            part=ctypes.addressof(parts),
            **{name: at(getattr(tables, name)) for name in _LISTS},
        )
        room = tables.kinds + sum(
            one.wiring.nodes * (1 + len(one.wiring.ties)) for one in stand_in.local
        )
        moved = torch.empty(values.shape, dtype=torch.int32).copy_(values)
        gained = torch.zeros(values.shape[:2], dtype=torch.float64)
        library.walk(
            walk,
            torch.tensor([uniforms.shape[1] for uniforms in numbers], dtype=torch.int64),
            moved,
            torch.cat([uniforms.flatten() for uniforms in numbers]),
            gained,
            torch.empty(room, dtype=torch.int64),
        )
        return Walked(moved.to(values.dtype), gained)


def chance(
    gained: Float64[Tensor, "levels chains"], factor: Float64[Tensor, "levels chains"]
) -> Float64[Tensor, "levels chains"]:
    """The probability that a proposed move is taken."""
    return (1 - REST) * (gained + factor).clamp(max=0).exp()


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


_LISTS = (
    *("attribute_first", "attribute_end", "attribute_kind", "attribute_size"),
    *("free", "allowed_start", "allowed"),
)
"""The fields of `_Tables` that the struct `Walk` has too."""


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class _Walk(ctypes.Structure):
    """The struct `Walk` of walk_kernel.c."""

    _fields_ = (
        *_fields(ctypes.c_int64, "levels", "chains", "groups", "entries", "attributes", "kinds"),
        *_fields(ctypes.c_int64, "parts"),
        *_fields(ctypes.c_double, "rest"),
        *_fields(ctypes.c_void_p, "offsets", *_LISTS, "entry_table", "part"),
    )
