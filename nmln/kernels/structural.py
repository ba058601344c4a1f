"""Structural moves: ties of a symmetric attribute change places and keep their categories.

A *tie* is a pair of constants whose category is not the null value (false, or none). To turn one graph
into another with as many ties, single changes must pass through a graph with one tie less or more,
which a sharp target hardly allows. The moves here keep the number of ties of every category, so none
of them reaches every world alone: mix them with a kernel that does (`ByLevel`).

Each chain chooses one of the symmetric binary attributes with a null value, uniformly, then a tie, then
where it goes; all on flat rows of worlds, without regard to levels. Observed groups stay as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64, Integer
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.balanced import BalancedMetropolis
from nmln.kernels.combined import ByLevel, Lazy
from nmln.kernels.moves import Proposal, Proposing, offer
from nmln.kernels.registry import KERNELS
from nmln.space import Block, Space
from nmln.types import Info, Kernel, Potential, State, Values

Rows = Integer[Tensor, "rows groups"]
Chosen = Int64[Tensor, " rows"]
Pairs = Bool[Tensor, "rows pairs"]
Options = Bool[Tensor, "rows options"]
View = Tensor  # of the worlds, a row for each

LARGEST = 100  # constants up to which `structural` regrafts, whose cost grows with their cube
SHARE, LOWEST = 0.6, 2  # of structural moves in `structural`, at so many levels next to the target


class Graph(NamedTuple):
    """The tables of one symmetric attribute; pairs are those of two different constants."""

    null: int
    groups: Int64[Tensor, " pairs"]  # of the world
    ends: Int64[Tensor, "pairs 2"]
    pair: Int64[Tensor, "constants constants"]  # of two constants; on the diagonal any
    free: Bool[Tensor, " pairs"]  # evidence leaves more than one category
    disjoint: Bool[Tensor, "pairs pairs"]  # they have no constant in common

    @staticmethod
    def of(space: Space, block: Block, evidence: Evidence | None) -> "Graph":
        table = torch.from_numpy(space.table(block.attribute.name).copy())
        ends = torch.triu_indices(*table.shape, offset=1).T
        groups = block.first_group + table[ends[:, 0], ends[:, 1]]
        pair = torch.zeros_like(table)
        number = torch.arange(len(ends))
        pair[ends[:, 0], ends[:, 1]] = pair[ends[:, 1], ends[:, 0]] = number
        counts = space.sizes if evidence is None else evidence.counts
        shared = (ends[:, None, :, None] == ends[None, :, None, :]).flatten(2).any(2)
        null = block.attribute.null
        assert null is not None
        return Graph(null, groups, ends, pair, counts[groups] > 1, ~shared)

    def to(self, device: torch.device) -> "Graph":
        return Graph(self.null, *(table.to(device) for table in self[1:]))

    @property
    def constants(self) -> int:
        return len(self.pair)

    def ties(self, worlds: Rows) -> Pairs:
        """The pairs that are tied, observed ones included."""
        return worlds[:, self.groups] != self.null

    def around(self, worlds: Rows, constants: Chosen) -> Bool[Tensor, "rows constants"]:
        """The neighbours of one constant per row."""
        categories = worlds.gather(1, self.groups[self.pair][constants])
        return (categories != self.null) & self._apart(constants)

    def open(self, worlds: Rows, constants: Chosen) -> Bool[Tensor, "rows constants"]:
        """The constants that a tie of one constant per row may go to."""
        pairs = self.pair[constants]
        empty = worlds.gather(1, self.groups[pairs]) == self.null
        return empty & self.free[pairs] & self._apart(constants)

    def voltages(self, worlds: Rows) -> Float64[Tensor, "rows constants constants"]:
        """The voltage at each constant when one ampere enters at another, where a tie is a resistor of
        one ohm and each of the n constants is grounded with a conductance of 1 / (4 n^2).

        The ampere through a tie makes a voltage of at most 1 - 1/n across it if a path goes round it,
        and of more than 1 - 1/(16 n) if it is a bridge, because so little flows to the ground. Then the
        voltage is above 1/(2 n) everywhere on one side, below -1/(2 n) on the other, and 0 elsewhere.
        So rounding cannot hide what is a bridge, or what lies on which side.
        """
        tied = (worlds[:, self.groups[self.pair].flatten()] != self.null).double()
        tied = tied.view(-1, self.constants, self.constants)
        eye = torch.eye(self.constants, dtype=torch.float64, device=worlds.device)
        tied = tied * (1 - eye)
        ground = 1 / (4 * self.constants**2)
        return torch.linalg.inv(torch.diag_embed(tied.sum(2) + ground) - tied)

    def _apart(self, constants: Chosen) -> Bool[Tensor, "rows constants"]:
        return torch.arange(self.constants, device=constants.device) != constants[:, None]


def graphs(space: Space, evidence: Evidence | None) -> tuple[Graph, ...]:
    """The attributes that structural moves apply to: symmetric, binary, with a null value."""
    chosen = [
        block
        for block in space.blocks
        if block.attribute.symmetric and block.attribute.null is not None and block.shape[0] > 1
    ]
    if not chosen:
        raise InputError(
            "structural moves need a symmetric binary predicate with a value false or none over at "
            f"least two constants, but {', '.join(a.name for a in space.language)} is not of that "
            "kind. Declare one 'symmetric', or take the kernel 'balanced'.",
            kind="unsupported",
        )
    return tuple(Graph.of(space, block, evidence) for block in chosen)


class Rewired(NamedTuple):
    """Pairs that become null, and those that get their categories, in this order.

    The first of the new ties is the one with which the way back starts.
    """

    old: Int64[Tensor, "rows moved"]
    new: Int64[Tensor, "rows moved"]
    possible: Bool[Tensor, " rows"]


@dataclass(frozen=True)
class Rewiring(ABC):
    """A move of ties: choose a tie of those in `first`, an option of those in `second`, then one of the
    `turns`, each uniformly.

    The number of ties in `first` must be the same before and after each move; that of options may
    change unless the move is `even`, and is then counted again on the way back.
    """

    space: Space
    evidence: Evidence | None = None
    turns: ClassVar[int] = 1
    even: ClassVar[bool] = True

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        return offer(potential, state, self.propose(state.values, rng), rng)

    def view(self, graph: Graph, worlds: Rows) -> View:
        """What `first` and `second` need to know of the worlds: by default the pairs that are tied."""
        return graph.ties(worlds)

    def first(self, graph: Graph, worlds: Rows, view: View) -> Pairs:
        """The ties that may be chosen: those that are not observed."""
        return view & graph.free

    @abstractmethod
    def second(self, graph: Graph, worlds: Rows, view: View, tie: Chosen) -> Options:
        """What may be chosen after a tie."""

    @abstractmethod
    def rewired(
        self, graph: Graph, worlds: Rows, tie: Chosen, option: Chosen, turn: Chosen
    ) -> Rewired:
        """The ties that a choice moves."""

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        return graphs(self.space, self.evidence)

    @torch.no_grad()
    def propose(self, values: Values, rng: Generator) -> Proposal:
        worlds = values.flatten(0, 1)
        tables = [graph.to(values.device) for graph in self.graphs]
        if len(tables) == 1:
            changed, factor = self._draw(tables[0], worlds, rng)
        else:
            changed, factor = worlds.clone(), torch.zeros(len(worlds), dtype=torch.float64)
            factor = factor.to(values.device)
            chosen = torch.randint(len(tables), (len(worlds),), generator=rng, device=values.device)
            for number, graph in enumerate(tables):
                rows = torch.nonzero(chosen == number).flatten()
                changed[rows], factor[rows] = self._draw(graph, worlds[rows], rng)
        return Proposal(changed.view_as(values), factor.view(values.shape[:2]))

    def _draw(
        self, graph: Graph, worlds: Rows, rng: Generator
    ) -> tuple[Rows, Float64[Tensor, " rows"]]:
        view = self.view(graph, worlds)
        tie, tied = pick(self.first(graph, worlds, view), rng)
        options = self.second(graph, worlds, view, tie)
        option, optional = pick(options, rng)
        turn = torch.zeros_like(tie)
        if self.turns > 1:
            turn = torch.randint(self.turns, tie.shape, generator=rng, device=tie.device)
        changed, factor = self.moved(graph, worlds, tie, options, option, turn)
        possible = tied & optional & (factor > float("-inf"))
        return (
            torch.where(possible[:, None], changed, worlds),
            factor.masked_fill(~possible, float("-inf")),
        )

    def moved(
        self,
        graph: Graph,
        worlds: Rows,
        tie: Chosen,
        options: Options,
        option: Chosen,
        turn: Chosen,
    ) -> tuple[Rows, Float64[Tensor, " rows"]]:
        """The worlds after a choice and its factor, minus infinity where the choice is impossible."""
        found = self.rewired(graph, worlds, tie, option, turn)
        old, new = graph.groups[found.old], graph.groups[found.new]
        categories = worlds.gather(1, old)
        empty = (worlds.gather(1, new) == graph.null) & graph.free[found.new]
        if self.evidence is not None:
            entries = self.space.offsets.to(new.device)[new] + categories
            allowed = self.evidence.allowed.to(new.device)
            empty &= allowed[entries.clamp(max=self.space.entries - 1)]
            freed = self.space.offsets.to(old.device)[old] + graph.null
            empty &= allowed[freed]
        possible = found.possible & empty.all(1)
        changed = worlds.scatter(1, old, graph.null).scatter(1, new, categories)
        factor = torch.zeros(len(worlds), dtype=torch.float64, device=worlds.device)
        if not self.even:
            back = self.second(graph, changed, self.view(graph, changed), found.new[:, 0])
            factor = options.sum(1).double().log() - back.sum(1).double().log()
        return changed, factor.masked_fill(~possible, float("-inf"))


def pick(options: Options, rng: Generator) -> tuple[Chosen, Bool[Tensor, " rows"]]:
    """One of the options of every row, all equally likely, and whether there is one."""
    counted = options.cumsum(1, dtype=torch.int32)
    count = counted[:, -1:]
    uniform = torch.rand(count.shape, generator=rng, dtype=torch.float64, device=count.device)
    wanted = 1 + (uniform * count).to(torch.int32)
    place = torch.searchsorted(counted, wanted).squeeze(1)
    return place.clamp(max=options.shape[1] - 1), count.squeeze(1) > 0


class EndMove(Rewiring):
    """Moves of one end of a tie (u, v).

    The options up to the number of constants are new partners of u, those after it new ones of v.
    """

    def rewired(
        self, graph: Graph, worlds: Rows, tie: Chosen, option: Chosen, turn: Chosen
    ) -> Rewired:
        kept = graph.ends[tie, option // graph.constants]
        partner = option % graph.constants
        new = graph.pair[kept, partner]
        return Rewired(tie[:, None], new[:, None], kept != partner)


class LocalSlide(EndMove):
    """Move one end of a tie (u, v) to a neighbour w of v that has no tie to u.

    The options are counted in both worlds: they are the neighbours of the end that is left.
    """

    even: ClassVar[bool] = False

    def second(self, graph: Graph, worlds: Rows, view: View, tie: Chosen) -> Options:
        one, other = graph.ends[tie].unbind(1)
        return torch.cat(
            [
                graph.around(worlds, other) & graph.open(worlds, one),
                graph.around(worlds, one) & graph.open(worlds, other),
            ],
            dim=1,
        )


class Switch(Rewiring):
    """Exchange the ends of two ties without a common constant: (a, b), (c, d) become (a, d), (c, b).

    Keeps the number of ties of every constant, so no valence changes if both have one category.
    """

    turns: ClassVar[int] = 4
    even: ClassVar[bool] = False

    def second(self, graph: Graph, worlds: Rows, view: View, tie: Chosen) -> Options:
        return view & graph.free & graph.disjoint[tie]

    def rewired(
        self, graph: Graph, worlds: Rows, tie: Chosen, option: Chosen, turn: Chosen
    ) -> Rewired:
        row = turn[:, None] >> torch.arange(2, device=turn.device) & 1  # which end comes first
        a, c = graph.ends[tie, row[:, 0]], graph.ends[option, row[:, 1]]
        b, d = graph.ends[tie, 1 - row[:, 0]], graph.ends[option, 1 - row[:, 1]]
        new = torch.stack([graph.pair[a, d], graph.pair[c, b]], dim=1)
        return Rewired(torch.stack([tie, option], dim=1), new, torch.ones_like(a, dtype=torch.bool))


class Regraft(EndMove):
    """Cut a bridge (u, v), and tie u to another constant on the side of v, or v to one on that of u.

    The new tie is a bridge between the same two sides, so that every other bridge stays one and the
    number of options is the same on the way back: the move is symmetric.
    """

    def view(self, graph: Graph, worlds: Rows) -> View:
        return graph.voltages(worlds)

    def first(self, graph: Graph, worlds: Rows, view: View) -> Pairs:
        own = view.diagonal(dim1=1, dim2=2)
        one, other = graph.ends.unbind(1)
        across = own[:, one] + own[:, other] - 2 * view[:, one, other]
        bridge = across > 1 - 1 / (2 * graph.constants)
        return bridge & graph.ties(worlds) & graph.free

    def second(self, graph: Graph, worlds: Rows, view: View, tie: Chosen) -> Options:
        one, other = graph.ends[tie].unbind(1)
        row = torch.arange(len(tie), device=tie.device)
        # an ampere through the bridge: every constant on a side has nearly the voltage of its end
        there = view[row, one] - view[row, other]
        least = 1 / (4 * graph.constants)
        sides = torch.cat([there < -least, there > least], dim=1)
        ends = torch.stack([other, one + graph.constants], dim=1)
        return sides.scatter(1, ends, False)


MOVES: Sequence[type[Rewiring]] = (LocalSlide, Switch, Regraft)
"""All structural moves."""


def _with_balanced(space: Space, evidence: Evidence | None) -> Kernel:
    """Balanced moves; at the two levels next to the target 60 % of them are structural.

    Where evidence leaves no two pairs of an attribute free, all moves are balanced.
    """
    balanced = BalancedMetropolis(space, evidence)
    if all(int(graph.free.sum()) < 2 for graph in graphs(space, evidence)):
        return Lazy(balanced)
    moves: list[Proposing] = [LocalSlide(space, evidence), Switch(space, evidence)]
    if all(graph.constants <= LARGEST for graph in graphs(space, evidence)):
        moves.append(Regraft(space, evidence))
    share = SHARE / len(moves)
    near = (1 - SHARE, *[share] * len(moves))
    far = (1.0, *[0.0] * len(moves))
    return Lazy(ByLevel((balanced, *moves), (far, *[near] * LOWEST)))


KERNELS.add("structural", _with_balanced)
