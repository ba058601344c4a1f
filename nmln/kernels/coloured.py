"""Gibbs sampling in classes: groups that no term ties together are redrawn at once."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.moves import allowed_entries, draw, free_groups
from nmln.potentials.base import BasePotential
from nmln.space import Space
from nmln.types import Changes, Info, Potential, State, Values

Classes = tuple[Int64[Tensor, " _"], ...]


@runtime_checkable
class Changeable(Protocol):
    """A potential that can score many single changes at once."""

    def score_changes(self, values: Values, groups: Int64[Tensor, " some"]) -> Changes: ...


@dataclass(frozen=True, eq=False)
class ColouredGibbs:
    """Redraw every free group once, a class of independent groups at a time.

    No two groups of a class occur in one term of the potential, so that each has the same conditional
    distribution whatever the others of its class do. With a potential that looks only at the terms
    concerned, a step costs little more than one evaluation of every term. `of` finds the classes.

    Where `expects` is set, `Info.expected` has the conditional probabilities that were drawn from.
    """

    space: Space
    evidence: Evidence | None
    classes: Classes
    expects: bool = False

    @staticmethod
    def of(
        potential: BasePotential, evidence: Evidence | None = None, *, expects: bool = False
    ) -> "ColouredGibbs":
        """The kernel for a potential, which is also right for it at other levels or temperatures."""
        return ColouredGibbs(
            potential.space, evidence, independent_classes(potential, evidence), expects
        )

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        values = state.values.clone()
        expected = self.space.one_hot(values, state.scores.dtype) if self.expects else None
        for groups in self.classes:
            log_p = self.conditionals(potential, values, groups)
            values[..., groups.to(values.device)] = draw(log_p, rng).to(values.dtype)
            if expected is not None:
                self._expect(expected, groups, log_p.exp())
        moved = (values != state.values).any(-1).to(state.scores.dtype).mean(1)
        info = Info(torch.ones_like(moved), moved, expected=expected)
        return State(values, potential.score(values)), info

    def conditionals(
        self, potential: Potential, values: Values, groups: Int64[Tensor, " some"]
    ) -> Changes:
        """The log-probabilities of every category of some groups, each given all the others."""
        if not isinstance(potential, Changeable):
            raise InputError(
                "this kernel needs a potential of nmln. Wrap your function in a OneHotPotential or a "
                "ValuesPotential, or take another kernel.",
                kind="unsupported",
            )
        changes = potential.score_changes(values, groups)
        if self.evidence is not None:
            entry = self._entries(groups, changes.shape[3])
            allowed = allowed_entries(self.space, self.evidence)[entry]
            changes = changes.masked_fill(~allowed.to(changes.device), float("-inf"))
        return changes.log_softmax(-1)

    def _entries(self, groups: Int64[Tensor, " some"], most: int) -> Int64[Tensor, "some most"]:
        entry = self.space.offsets[groups.cpu()][:, None] + torch.arange(most)
        return entry.clamp(max=self.space.entries - 1)

    def _expect(
        self,
        expected: Float[Tensor, "levels chains entries"],
        groups: Int64[Tensor, " some"],
        probabilities: Changes,
    ) -> None:
        most = probabilities.shape[3]
        exists = torch.arange(most) < self.space.sizes[groups.cpu()][:, None]
        entry = self._entries(groups, most)[exists].to(expected.device)
        expected[..., entry] = probabilities[..., exists.to(expected.device)]


def independent_classes(potential: BasePotential, evidence: Evidence | None = None) -> Classes:
    """The free groups in classes, none tied to another of its class; every group alone if unknown.

    Greedy: groups with many ties choose first, each takes the first class without a tie.
    """
    space = potential.space
    free = free_groups(space, evidence)
    mask = torch.zeros(space.groups, dtype=torch.bool)
    mask[free] = True
    ties = potential.ties(mask)
    if ties is None:
        return tuple(free.split(1))
    both = np.concatenate([ties.numpy(), ties.flip(0).numpy()], axis=1)
    both = both[:, np.argsort(both[0], kind="stable")]
    start = np.searchsorted(both[0], np.arange(space.groups + 1))
    degree = np.diff(start)
    colours = np.full(space.groups, -1)
    for group in sorted(free.tolist(), key=lambda one: (-degree[one], one)):
        taken = set(colours[both[1, start[group] : start[group + 1]]].tolist())
        colours[group] = next(colour for colour in range(space.groups) if colour not in taken)
    found = [np.flatnonzero(colours == colour) for colour in range(int(colours.max()) + 1)]
    return tuple(torch.from_numpy(groups) for groups in found)
