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

from nmln.baselines.base import Generator
from nmln.baselines.digress_network import NetworkSettings
from nmln.dropped import DropCounter, Dropped
from nmln.errors import InputError
from nmln.molecules.chemistry import BONDS, Molecule, encode_all, order_atoms, parse_all, space_for
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
        if not 1 <= self.sampling_steps <= self.times:
            raise InputError(
                f"sampling_steps must be between 1 and times={self.times}, got {self.sampling_steps}."
            )


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

    def decode(self, worlds: Integer[Tensor, "graphs groups"]) -> list[str | None]:
        """The canonical SMILES of worlds; None where a world is not a valid molecule."""
        return [one.smiles for one in Decoder(self.space).decode(worlds)]


class GraphGenerator(Generator):
    """A baseline that learns from molecules of one size as labelled graphs."""

    settings: Any  # DiffusionSettings, or those of the subclass
    graphs: Graphs
    worlds: Int64[Tensor, "molecules groups"]
    at_once = 100

    def __init__(self, name: str, settings: DiffusionSettings) -> None:
        super().__init__(name, settings)
        self.worlds = torch.zeros(0, 0, dtype=torch.int64)

    @abstractmethod
    def prepare(self) -> None:
        """Make the network for the training set in `graphs` and `worlds`."""

    def build(self, train: Sequence[str]) -> tuple[Dropped, ...]:
        tally = DropCounter()
        molecules: list[Molecule] = []
        for position, found in enumerate(parse_all(train), 1):
            if isinstance(found, Molecule):
                molecules.append(found)
            else:
                tally.add(position, found.reason, found.detail)
        if molecules:
            nodes = self._only_size(molecules)
            occurring = {atom for molecule in molecules for atom in molecule.atoms}
            self.graphs = Graphs(order_atoms(occurring), nodes)
            self.worlds = encode_all(self.graphs.space, molecules).worlds.long()
            self.prepare()
        return tally.dropped()

    @property
    def size(self) -> int:
        return len(self.worlds)

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    def optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.network.parameters(), lr=self.settings.rate, weight_decay=1e-12, amsgrad=True
        )

    def describe(self) -> dict[str, Any]:
        return {"atoms": list(self.graphs.atoms), "nodes": self.graphs.nodes}

    def rebuild(self, content: Mapping[str, Any]) -> None:
        self.graphs = Graphs(tuple(content["atoms"]), int(content["nodes"]))

    def _only_size(self, molecules: Sequence[Molecule]) -> int:
        sizes = Counter(len(molecule.atoms) for molecule in molecules)
        ((common, _),) = sizes.most_common(1)
        if len(sizes) > 1:
            found = ", ".join(f"{size}: {count:,}" for size, count in sorted(sizes.items())[:20])
            raise InputError(
                f"{self.name} learns molecules of one size, got several (heavy atoms: molecules): "
                f"{found}. Choose one, for example {common}.",
                kind="unsupported",
            )
        if common < 2:
            raise InputError(
                f"{self.name} learns molecules of at least two heavy atoms, got only single atoms. "
                "Give larger molecules.",
                kind="unsupported",
            )
        return common


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
