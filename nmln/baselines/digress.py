"""DiGress: denoising diffusion of graphs with discrete noise (Vignac et al., ICLR 2023).

Re-implemented, with bonds none, single, double and triple. Of several sizes, one is drawn by its share
of the training molecules, then a molecule of that size.

Noise and drawing are those of `digress_diffusion`: nodes and pairs are kept or redrawn on their own,
from the frequencies in the training set (`marginal`, each category counted once more so that none is
impossible) or evenly (`uniform`).

Training. The network sees z_t and extra features of it, and predicts x with the cross-entropy, mean
over nodes plus 5 times mean over pairs, at t uniform in 1 ... T.

Likelihood. `digress_diffusion` has a lower bound of log p(x) for a world x. A molecule is a set of N
worlds: its Kekulé structures in all numberings. For w uniform among them log p(molecule) >= log N +
E log p(w), by Jensen; this needs no exchangeable model. The estimate is unbiased for this bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor
from torch.nn import functional

from nmln.baselines.base import BASELINES, LogProb, Named, check_settings, seeded
from nmln.baselines.digress_common import (
    BOND_KINDS,
    SMALL,
    DiffusionSettings,
    GraphGenerator,
    Graphs,
    cosine_schedule,
    descending_times,
)
from nmln.baselines.digress_diffusion import Diffusion, Guess, Kinds, Noise, draw_categories
from nmln.baselines.digress_features import NODE_FEATURES, WHOLE_FEATURES, Features
from nmln.baselines.digress_network import GraphTransformer
from nmln.errors import InputError
from nmln.molecules.chemistry import encode_all
from nmln.molecules.chemistry.elements import atom_weights, usual_valences
from nmln.molecules.likelihood import Structures

_PAIRS_COUNT = 5  # the weight of the cross-entropy of pairs


@dataclass(frozen=True)
class DigressSettings(DiffusionSettings):
    """Settings of the discrete model; `bound_draws` is the number of noisy copies for a likelihood."""

    transitions: str = "marginal"  # or "uniform"
    bound_draws: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transitions not in ("marginal", "uniform"):
            raise InputError(
                f"transitions must be marginal or uniform, got {self.transitions}.",
                token=self.transitions,
                kind="unknown",
            )
        check_settings(self, {"bound_draws": 1})


class Digress(GraphGenerator):
    """The discrete model."""

    settings_type = DigressSettings

    def prepare(self) -> None:
        assert self.data is not None
        atoms = self.graphs.atoms
        weights = torch.tensor(atom_weights(atoms), dtype=torch.float64)
        atom_counts = torch.zeros(len(atoms), dtype=torch.int64)
        bond_counts = torch.zeros(BOND_KINDS, dtype=torch.int64)
        heaviest = 0.0
        for graphs, bucket in zip(self.sizes, self.data.buckets, strict=True):
            kinds, bonds = bucket.worlds.long().tensor_split([graphs.nodes], dim=1)
            atom_counts += kinds.flatten().bincount(minlength=len(atoms))
            bond_counts += bonds.flatten().bincount(minlength=BOND_KINDS)
            heaviest = max(heaviest, float(weights[kinds].sum(1).max()))
        self._make(atom_counts.tolist(), bond_counts.tolist(), heaviest)

    def _make(self, atom_counts: list[int], bond_counts: list[int], heaviest: float) -> None:
        atoms, nodes = self.graphs.atoms, self.graphs.nodes
        self.statistics = {"atom": atom_counts, "bond": bond_counts, "heaviest": heaviest}
        self.features = Features(atom_weights(atoms), usual_valences(atoms), heaviest, nodes)
        kept = cosine_schedule(self.settings.times, 0.9999)
        self.noise_of_nodes, self.noise_of_pairs = (
            Noise(kept, self._stationary(counts)) for counts in (atom_counts, bond_counts)
        )
        self.steps = descending_times(self.settings.times, self.settings.sampling_steps)
        inputs = len(atoms) + NODE_FEATURES, BOND_KINDS, 1 + WHOLE_FEATURES
        self.network = GraphTransformer(self.settings, inputs, (len(atoms), BOND_KINDS))

    @property
    def diffusion(self) -> Diffusion:
        """The noise of worlds of the largest size."""
        return self.diffusion_of(self.graphs)

    def diffusion_of(self, graphs: Graphs) -> Diffusion:
        """The noise of worlds of one size."""
        nodes = graphs.nodes
        pairs = nodes * (nodes - 1) // 2
        return Diffusion(nodes, pairs, self.noise_of_nodes, self.noise_of_pairs)

    def _stationary(self, counts: list[int]) -> Float64[Tensor, " categories"]:
        found = torch.tensor(counts, dtype=torch.float64) + 1
        chosen = found if self.settings.transitions == "marginal" else torch.ones_like(found)
        return chosen / chosen.sum()

    def describe(self) -> dict[str, Any]:
        return super().describe() | self.statistics

    def rebuild(self, content: Mapping[str, Any]) -> None:
        super().rebuild(content)
        self._make(content["atom"], content["bond"], content["heaviest"])

    def logits(
        self, worlds: Kinds, times: Int64[Tensor, " graphs"]
    ) -> tuple[Float[Tensor, "graphs nodes kinds"], Float[Tensor, "graphs pairs 4"]]:
        """The network's prediction of clean nodes and pairs."""
        graphs = self.graphs_of(worlds)
        kinds, pairs = graphs.one_hot(worlds)
        bonds = graphs.symmetric(pairs)
        orders = (bonds @ torch.arange(BOND_KINDS, dtype=bonds.dtype)).long()
        extra, whole = self.features(worlds[:, : graphs.nodes], orders)
        features = torch.cat(((times.double() / self.settings.times)[:, None], whole), -1)
        nodes = torch.cat((kinds, extra.to(kinds.dtype)), -1)
        of_nodes, of_pairs = self.network(nodes, bonds, features.to(kinds.dtype))
        return of_nodes, of_pairs[:, *graphs.pairs]

    def denoise(self, worlds: Kinds, times: Int64[Tensor, " graphs"]) -> Guess:
        """The probabilities of clean nodes and pairs."""
        nodes, pairs = self.logits(worlds, times)
        return nodes.double().softmax(-1), pairs.double().softmax(-1)

    def loss(self, chosen: Int64[Tensor, " molecules"], update: int) -> Float[Tensor, ""]:
        parts = self.batches(chosen)
        losses = [self._losses(graphs, worlds) for graphs, worlds in parts]
        if len(losses) == 1:
            of_nodes, of_pairs = losses[0]
            return of_nodes + _PAIRS_COUNT * of_pairs
        # Means over all nodes and over all pairs, as if the graphs were of one size.
        nodes = torch.tensor([len(worlds) * graphs.nodes for graphs, worlds in parts])
        pairs = torch.tensor([worlds.numel() for _, worlds in parts]) - nodes
        of_nodes, of_pairs = (torch.stack(some) for some in zip(*losses, strict=True))
        return (nodes / nodes.sum()) @ of_nodes + _PAIRS_COUNT * (pairs / pairs.sum()) @ of_pairs

    def _losses(self, graphs: Graphs, worlds: Kinds) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The cross-entropies of nodes and of pairs of graphs of one size."""
        times = torch.randint(1, self.settings.times + 1, (len(worlds),))
        nodes, pairs = self.logits(self.diffusion_of(graphs).noisy(worlds, times), times)
        truth = worlds[:, : graphs.nodes], worlds[:, graphs.nodes :]
        of_nodes = functional.cross_entropy(nodes.flatten(0, 1), truth[0].flatten())
        of_pairs = functional.cross_entropy(pairs.flatten(0, 1), truth[1].flatten())
        return of_nodes, of_pairs

    def draw_worlds(self, graphs: Graphs, count: int) -> Kinds:
        return self.diffusion_of(graphs).draw(count, self.steps, self.denoise)

    @torch.no_grad()
    def log_prob(self, molecules: Sequence[str], seed: int = 0) -> LogProb:
        """Unbiased estimates of lower bounds; the same ones for the same seed."""
        self.network.eval()
        values = torch.full((len(molecules),), float("-inf"), dtype=torch.float64)
        batches = 0
        for graphs, count in zip(self.sizes, self.counts, strict=True):
            encoded = encode_all(graphs.space, molecules)
            known = torch.tensor(encoded.positions, dtype=torch.int64)
            of_size = log(count / sum(self.counts))
            for some in torch.arange(len(known)).split(self.at_once) if len(known) else ():
                with seeded(seed, "bound", batches):
                    bounds = self._molecule_bounds(graphs, encoded.worlds[some])
                values[known[some]] = bounds + of_size
                batches += 1
        return LogProb(values, exact=False)

    def _molecule_bounds(
        self, graphs: Graphs, molecules: Integer[Tensor, "molecules groups"]
    ) -> Float64[Tensor, " molecules"]:
        """log N + the bound of a random world of each molecule, of which one world is given."""
        structures = Structures.of(graphs.space, molecules)
        mine = structures.molecule == torch.arange(len(molecules))[:, None]
        logs = torch.where(mine, structures.log_counts, float("-inf"))
        counts = logs.logsumexp(1)
        found = torch.zeros(len(molecules), dtype=torch.float64)
        for _ in range(self.settings.bound_draws):
            picked = draw_categories((logs - counts[:, None]).exp()[:, None]).squeeze(1)
            worlds = graphs.renumbered(structures.worlds[picked].long())
            found += self.diffusion_of(graphs).bound(worlds, self.steps, self.denoise)
        return counts + found / self.settings.bound_draws


_PUBLISHED = "as published (not the authors' checkpoint)"
_PRESETS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("digress-s", "DiGress-S", "scaled down to 4 layers, 50 steps", SMALL | {"sampling_steps": 50}),
    ("digress-uniform-s", "DiGress-S, uniform", "as digress-s, with uniform transitions",
     SMALL | {"sampling_steps": 50, "transitions": "uniform"}),
    ("digress-5l", "DiGress, 5 layers", f"the default size, {_PUBLISHED}", {}),
    ("digress-9l", "DiGress, 9 layers", f"the size for QM9, {_PUBLISHED}",
     {"layers": 9, "batch": 1024}),
    ("digress-12l", "DiGress, 12 layers", f"the size for MOSES, {_PUBLISHED}",
     {"layers": 12, "whole_width": 128, "whole_hidden": 256, "batch": 256, "epochs": 300}),
)  # fmt: skip
for _name, _title, _about, _changes in _PRESETS:
    _about = f"discrete diffusion of graphs, {_about}"
    BASELINES.add(_name, Named(_title, Digress, DigressSettings(**_changes), _about))
