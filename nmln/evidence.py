"""Evidence: which categories of each group are still possible."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import torch
from jaxtyping import Bool, Float64, Int64, Integer
from torch import Tensor

from nmln.counting import count_up, log_number_of, number_of, refuse_overflow, strides
from nmln.errors import InputError
from nmln.space import Space
from nmln.types import Allowed, Worlds
from nmln.worlds import Statement, locate


@dataclass(frozen=True, eq=False)
class Evidence:
    """A mask of allowed categories; a group with one left is observed, the others are free.

    A positive literal leaves its group one category, a negative one removes a category. Evidence that
    leaves a group no category is refused.
    """

    space: Space
    allowed: Allowed

    def __post_init__(self) -> None:
        if self.allowed.shape != (self.space.entries,):
            raise InputError(
                f"evidence must have one bit for each of the {self.space.entries} entries, but this "
                f"mask has the shape {tuple(self.allowed.shape)}."
            )
        empty = torch.nonzero(self.counts == 0)
        if len(empty):
            raise InputError(
                f"the evidence contradicts itself: it leaves no category for "
                f"{self.space.group_name(int(empty[0]))}. Remove one of the literals about it.",
                kind="conflict",
            )

    @staticmethod
    def none(space: Space) -> "Evidence":
        """Evidence that allows every world."""
        return Evidence(space, torch.ones(space.entries, dtype=torch.bool))

    @staticmethod
    def of(space: Space, statements: Iterable[Statement], closed: Sequence[str] = ()) -> "Evidence":
        """The evidence that a list of literals gives.

        Of the predicates named in `closed`, every tuple that is not mentioned as true is observed to
        be false (or none); all other unmentioned atoms stay unknown.
        """
        listed = list(statements)
        entries, positive = locate(space, listed)
        allowed = torch.ones(space.entries, dtype=torch.bool)
        true = torch.from_numpy(entries[positive])
        settled = torch.zeros(space.groups, dtype=torch.bool)
        settled[space.group_of_entry[true]] = True
        for name in closed:
            block = space.block(name)
            if block.attribute.null is None:
                raise InputError(
                    f"{name} cannot be closed: it has no category false or none.",
                    token=name,
                    kind="unsupported",
                )
            view = allowed[block.entries].view(block.count, block.size)
            view[:] = False
            view[:, block.attribute.null] = True
        allowed &= ~settled.repeat_interleave(space.sizes)
        allowed[true] = True
        allowed[torch.from_numpy(entries[~positive])] = False
        return Evidence(space, allowed)

    @staticmethod
    def observe(
        space: Space, world: Integer[Tensor, " groups"], groups: Sequence[int] | Tensor
    ) -> "Evidence":
        """Observe some groups as they are in a world; the others stay free."""
        chosen = torch.zeros(space.groups, dtype=torch.bool)
        chosen[torch.as_tensor(groups, dtype=torch.int64)] = True
        same = space.one_hot(world) > 0
        return Evidence(space, same | ~chosen.repeat_interleave(space.sizes))

    def __and__(self, other: "Evidence") -> "Evidence":
        """Both pieces of evidence together."""
        if self.space != other.space:
            raise InputError(
                "these two pieces of evidence are about different spaces. Build them with one space.",
                kind="conflict",
            )
        return Evidence(self.space, self.allowed & other.allowed)

    @cached_property
    def counts(self) -> Int64[Tensor, " groups"]:
        """How many categories each group has left."""
        parts = [
            self.allowed[block.entries].view(block.count, block.size).sum(1)
            for block in self.space.blocks
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)

    @cached_property
    def free(self) -> Bool[Tensor, " groups"]:
        """The groups that can still change."""
        return self.counts > 1

    @cached_property
    def ranks(self) -> Int64[Tensor, " entries"]:
        """The place of each allowed category among those allowed in its group; -1 for the others."""
        before = self.allowed.cumsum(0) - self.allowed.long()
        starts = before[self.space.offsets].repeat_interleave(self.space.sizes)
        return torch.where(self.allowed, before - starts, -1)

    @cached_property
    def listed(self) -> tuple[Int64[Tensor, " allowed"], Int64[Tensor, " groups"]]:
        """The allowed categories of all groups one after the other, and where each group starts."""
        entries = torch.nonzero(self.allowed).flatten()
        categories = entries - self.space.offsets[self.space.group_of_entry[entries]]
        return categories, self.counts.cumsum(0) - self.counts

    def choices(
        self, groups: Int64[Tensor, "*some"], ranks: Int64[Tensor, "*some"]
    ) -> Int64[Tensor, "*some"]:
        """The allowed category of each group that has the given rank among its allowed ones."""
        categories, starts = (table.to(groups.device) for table in self.listed)
        return categories[starts[groups] + ranks]

    @cached_property
    def narrowed(self) -> Int64[Tensor, " some"]:
        """The groups that have lost a category."""
        return torch.nonzero(self.counts < self.space.sizes).flatten()

    def allows(self, values: Worlds) -> Bool[Tensor, "*batch"]:
        """Whether each world agrees with the evidence."""
        device = values.device
        observed = torch.nonzero(self.counts == 1).flatten().to(device)
        partly = self.narrowed[self.counts[self.narrowed] > 1].to(device)
        agrees = (values[..., observed] == self._first(observed, values.dtype)).all(-1)
        if len(partly):
            entries = values[..., partly] + self.space.offsets.to(device)[partly]
            agrees &= self.allowed.to(device)[entries].all(-1)
        return agrees

    def clamp(self, values: Worlds) -> Worlds:
        """Set observed groups, and move every other forbidden category to the first allowed one."""
        groups = self.narrowed.to(values.device)
        entries = values[..., groups] + self.space.offsets.to(values.device)[groups]
        agrees = self.allowed.to(values.device)[entries]
        clamped = values.clone()
        first = self._first(groups, values.dtype)
        clamped[..., groups] = torch.where(agrees, values[..., groups], first)
        return clamped

    def _first(
        self, groups: Int64[Tensor, " some"], dtype: torch.dtype
    ) -> Integer[Tensor, " some"]:
        """The first allowed category of some groups."""
        return self.choices(groups, torch.zeros_like(groups)).to(dtype)

    @property
    def number_of_worlds(self) -> int:
        """How many worlds agree with the evidence: an exact integer of any length."""
        return number_of(self.counts)

    @property
    def log_number_of_worlds(self) -> float:
        """The natural logarithm of how many worlds agree with the evidence."""
        return log_number_of(self.counts)

    def enumerate(self, limit: int = 2**24) -> Integer[Tensor, "worlds groups"]:
        """Every world that agrees, in the order of `index`; refused if there are more than `limit`."""
        worlds = count_up(self.counts, limit, self.space.dtype)
        for group in self.narrowed.tolist():
            ranks = worlds[:, group].long()
            worlds[:, group] = self.choices(torch.full_like(ranks, group), ranks).to(worlds.dtype)
        return worlds

    def index(self, values: Worlds) -> Int64[Tensor, "*batch"]:
        """The position of worlds in `enumerate`; the worlds must agree with the evidence."""
        ranks = self.ranks.to(values.device)[values + self.space.offsets.to(values.device)]
        return (ranks * self._strides.to(values.device)).sum(-1)

    @cached_property
    def _strides(self) -> Int64[Tensor, " groups"]:
        refuse_overflow(self.counts)
        return strides(self.counts)


@dataclass(frozen=True, eq=False)
class VirtualEvidence:
    """Reports that are right with some probability: each adds log p / (1 - p) to the score of its atom.

    A report multiplies the odds of its atom by p / (1 - p), like a witness who tells the truth with
    probability p. The probability of the atom does not become p: that would be Jeffrey's rule, with
    another factor.
    """

    space: Space
    table: Float64[Tensor, " entries"]  # added to the score, by entry

    @staticmethod
    def none(space: Space) -> "VirtualEvidence":
        """No report."""
        return VirtualEvidence(space, torch.zeros(space.entries, dtype=torch.float64))

    @staticmethod
    def of(
        space: Space,
        reports: Iterable[tuple[Statement, float]],
        evidence: Evidence | None = None,
    ) -> "VirtualEvidence":
        """Reports about different atoms; one about an atom that `evidence` settles is refused.

        The error carries the position of the offending report as `index`.
        """
        listed = list(reports)
        table = torch.zeros(space.entries, dtype=torch.float64)
        first: dict[int, int] = {}
        for row, (statement, probability) in enumerate(listed):
            try:
                entries, positive = locate(space, [statement])
            except InputError as error:
                error.index = row
                raise
            entry = int(entries[0])
            if not 0 < probability < 1:
                raise InputError(
                    f"the probability of a report must be between 0 and 1, but {statement} has "
                    f"{probability:g}. Write a certain one as a plain literal.",
                    index=row,
                )
            if entry in first:
                raise InputError(
                    f"{statement} is reported twice, with {listed[first[entry]][1]:g} and "
                    f"{probability:g}. Keep one; independent reports multiply their odds p / (1 - p).",
                    index=row,
                    kind="twice",
                )
            if evidence is not None and not bool(evidence.free[space.group_of_entry[entry]]):
                raise InputError(
                    f"{statement} is reported with {probability:g}, but the evidence settles it "
                    "already. Remove one of the two.",
                    index=row,
                    kind="conflict",
                )
            first[entry] = row
            table[entry] = log(probability / (1 - probability)) * (1 if positive[0] else -1)
        return VirtualEvidence(space, table)
