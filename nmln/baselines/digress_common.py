"""What both kinds of DiGress have in common: molecules as graphs, the schedule, the training set."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import pi
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor

from nmln.baselines.base import Generator, check_settings
from nmln.baselines.digress_network import NetworkSettings
from nmln.buckets import Bucket, Bucketed
from nmln.dropped import DropCounter, Dropped
from nmln.errors import InputError
from nmln.molecules.chemistry import (
    BONDS,
    FRAGMENTS,
    NORMALISED,
    Molecule,
    Refusal,
    encode_all,
    order_atoms,
    parse_all,
    space_for,
)
from nmln.molecules.decoding import Decoder
from nmln.space import Space

BOND_KINDS = len(BONDS)


@dataclass(frozen=True)
class DiffusionSettings(NetworkSettings):
    """The network, its training, and the number of steps that are drawn.

    There are `times` steps of noise in training; drawing uses `sampling_steps` of them.
    """

    times: int = 500
    sampling_steps: int = 500
    batch: int = 512
    epochs: int = 1000
    rate: float = 2e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, {"times": 1, "batch": 1, "epochs": 1}, positive=("rate",))
        if not 1 <= self.sampling_steps <= self.times:
            raise InputError(
                f"sampling_steps must be between 1 and times={self.times}, got {self.sampling_steps}."
            )


_REFUSALS = {
    "invalid": Refusal("not a molecule", "an atom has too many bonds, or the graph is a radical."),
    "disconnected": Refusal(FRAGMENTS, "the graph has several pieces; a molecule is one."),
    "normalised": Refusal(NORMALISED, "RDKit reads the graph as another one, with other charges."),
}

SMALL: dict[str, Any] = {
    "layers": 4, "heads": 4, "node_width": 64, "edge_width": 32, "whole_width": 32,
    "node_feedforward": 64, "edge_feedforward": 32, "whole_feedforward": 128,
    "node_hidden": 64, "edge_hidden": 64, "whole_hidden": 64, "batch": 64, "rate": 1e-3,
}  # fmt: skip
"""A network for one core; the learning rate is ours."""


@dataclass(frozen=True)
class Graphs:
    """Molecules with `nodes` heavy atoms of some kinds: worlds, and the same as dense graphs."""

    atoms: tuple[str, ...]
    nodes: int

    @cached_property
    def space(self) -> Space:
        return space_for(self.atoms, self.nodes)

    @cached_property
    def pairs(self) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
        """The first and the second node of every pair, in the order of a world."""
        first, second = torch.triu_indices(self.nodes, self.nodes, 1)
        return first, second

    def symmetric(
        self, pairs: Float[Tensor, "graphs pairs channels"]
    ) -> Float[Tensor, "graphs nodes nodes channels"]:
        """Values of pairs as matrices with a diagonal of zeros."""
        first, second = self.pairs
        made = pairs.new_zeros(len(pairs), self.nodes, self.nodes, pairs.shape[-1])
        made[:, first, second] = made[:, second, first] = pairs
        return made

    def one_hot(
        self, worlds: Int64[Tensor, "graphs groups"]
    ) -> tuple[Float[Tensor, "graphs nodes kinds"], Float[Tensor, "graphs pairs 4"]]:
        """Nodes and pairs of worlds, each as one-hot vectors."""
        dtype = torch.get_default_dtype()
        kinds = torch.eye(len(self.atoms), dtype=dtype)[worlds[:, : self.nodes]]
        return kinds, torch.eye(BOND_KINDS, dtype=dtype)[worlds[:, self.nodes :]]

    def renumbered(self, worlds: Int64[Tensor, "graphs groups"]) -> Int64[Tensor, "graphs groups"]:
        """The same graphs with their nodes in a random order."""
        order = torch.rand(len(worlds), self.nodes, dtype=torch.float64).argsort(1)
        first, second = self.pairs
        place = torch.zeros(self.nodes, self.nodes, dtype=torch.int64)
        place[first, second] = place[second, first] = self.nodes + torch.arange(len(first))
        source = torch.cat((order, place[order[:, first], order[:, second]]), 1)
        return worlds.gather(1, source)

    def decode(self, worlds: Integer[Tensor, "graphs groups"]) -> list[str | Refusal]:
        """The canonical SMILES of worlds, or why a world is not a valid molecule."""
        decoded = Decoder(self.space).decode(worlds)
        return [_REFUSALS[one.status] if one.smiles is None else one.smiles for one in decoded]


class GraphGenerator(Generator):
    """A baseline that learns from molecules of one or several sizes as labelled graphs.

    Of several sizes, one is drawn by its share of the training molecules, then a graph of that size. The
    number of groups of a world says which size it has.
    """

    settings: Any  # DiffusionSettings, or those of the subclass
    sizes: tuple[Graphs, ...]  # in rising order
    counts: tuple[int, ...]  # of training molecules of every size
    steps: list[int]  # times at which graphs are drawn, falling
    at_once = 100

    def __init__(self, name: str, settings: DiffusionSettings) -> None:
        super().__init__(name, settings)
        self.data: Bucketed | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Make the network for the training set in `sizes` and `data`."""

    @abstractmethod
    def draw_worlds(self, graphs: Graphs, count: int) -> Int64[Tensor, "graphs groups"]:
        """Worlds of one size; random numbers come from torch's global generator."""

    def build(self, train: Sequence[str]) -> tuple[Dropped, ...]:
        tally = DropCounter()
        molecules: list[Molecule] = []
        parsed = parse_all(train)
        several = len({len(one.atoms) for one in parsed if isinstance(one, Molecule)}) > 1
        for position, found in enumerate(parsed, 1):
            if not isinstance(found, Molecule):
                tally.add(position, found.reason, found.detail)
            elif several and len(found.atoms) == 1:
                tally.add(position, "a single atom", f"{found.smiles} has no pairs of atoms.")
            else:
                molecules.append(found)
        if molecules:
            self._take(molecules)
            self.prepare()
        return tally.dropped()

    def _take(self, molecules: Sequence[Molecule]) -> None:
        occurring = {atom for molecule in molecules for atom in molecule.atoms}
        found = Counter(len(molecule.atoms) for molecule in molecules)
        if max(found) < 2:
            raise InputError(
                f"{self.name} learns molecules of at least two heavy atoms, got only single atoms. "
                "Give larger molecules.",
                kind="unsupported",
            )
        self._make_sizes(order_atoms(occurring), found)
        places = {graphs.nodes: number for number, graphs in enumerate(self.sizes)}
        homes = torch.tensor([places[len(one.atoms)] for one in molecules], dtype=torch.int64)
        self.data = Bucketed(tuple(_bucket(one, molecules) for one in self.sizes), homes)

    def _make_sizes(self, atoms: Sequence[str], found: Mapping[int, int]) -> None:
        self.sizes = tuple(Graphs(tuple(atoms), size) for size in sorted(found))
        self.counts = tuple(found[graphs.nodes] for graphs in self.sizes)

    def draw_in(self, steps: int) -> None:
        """Draw with another number of steps from now on; as many as the noise has is the full kernel."""
        if not 1 <= steps <= self.settings.times:
            raise InputError(
                f"the number of steps must be between 1 and {self.settings.times}, got {steps}."
            )
        self.steps = descending_times(self.settings.times, steps)

    @property
    def graphs(self) -> Graphs:
        """The graphs of the largest size."""
        return self.sizes[-1]

    @property
    def worlds(self) -> Int64[Tensor, "molecules groups"]:
        """The training molecules, which must have one size."""
        return (
            torch.zeros(0, 0, dtype=torch.int64) if self.data is None else self.data.worlds.long()
        )

    def graphs_of(self, worlds: Integer[Tensor, "graphs groups"]) -> Graphs:
        """The graphs that have so many groups."""
        groups = worlds.shape[1]
        return next(one for one in self.sizes if one.nodes * (one.nodes + 1) // 2 == groups)

    def batches(
        self, chosen: Int64[Tensor, " molecules"]
    ) -> list[tuple[Graphs, Int64[Tensor, "graphs groups"]]]:
        """Some training molecules, by size."""
        assert self.data is not None
        parts = zip(self.sizes, self.data.chosen(chosen), strict=True)
        return [(graphs, part.worlds.long()) for graphs, part in parts if len(part.worlds)]

    @property
    def size(self) -> int:
        return 0 if self.data is None else len(self.data)

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    def optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.network.parameters(), lr=self.settings.rate, weight_decay=1e-12, amsgrad=True
        )

    def draw(self, count: int) -> Sequence[str | Refusal | None]:
        if len(self.sizes) == 1:
            return self.graphs.decode(self.draw_worlds(self.graphs, count))
        shares = torch.tensor(self.counts, dtype=torch.float64)
        drawn = torch.multinomial(shares, count, replacement=True)
        found: list[str | Refusal | None] = [None] * count
        for number, graphs in enumerate(self.sizes):
            places: list[int] = torch.nonzero(drawn == number).flatten().tolist()
            if places:
                names = graphs.decode(self.draw_worlds(graphs, len(places)))
                for place, name in zip(places, names, strict=True):
                    found[place] = name
        return found

    def describe(self) -> dict[str, Any]:
        content: dict[str, Any] = {"atoms": list(self.graphs.atoms), "nodes": self.graphs.nodes}
        if len(self.sizes) > 1:
            content["sizes"] = [
                [one.nodes, n] for one, n in zip(self.sizes, self.counts, strict=True)
            ]
        return content

    def rebuild(self, content: Mapping[str, Any]) -> None:
        found = {int(size): int(n) for size, n in content.get("sizes", [[content["nodes"], 1]])}
        self._make_sizes(content["atoms"], found)


def _bucket(graphs: Graphs, molecules: Sequence[Molecule]) -> Bucket:
    mine = [molecule for molecule in molecules if len(molecule.atoms) == graphs.nodes]
    return Bucket(graphs.space, encode_all(graphs.space, mine).worlds)


def cosine_schedule(times: int, largest: float) -> Float64[Tensor, " points"]:
    """abar_0 ... abar_T: the share of the signal that is left after each step of noise.

    abar falls as cos^2(pi/2 (u + 0.008) / 1.008) from u = 0 to 1, in steps that remove at most
    `largest`. The first step counts: abar_0 is slightly below 1.
    """
    points = times + 2
    share = torch.linspace(0, 1, points, dtype=torch.float64)
    left = torch.cos(pi / 2 * (share + 0.008) / 1.008).square()
    return (left[1:] / left[:-1]).clamp(min=1 - largest).cumprod(0)


def descending_times(times: int, steps: int) -> list[int]:
    """T = t_1 > t_2 > ... > 0, evenly spaced; all times if there are as many steps."""
    return [round(times * step / steps) for step in range(steps, -1, -1)]
