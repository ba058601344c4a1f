"""DiGress: denoising diffusion of graphs with discrete noise (Vignac et al., ICLR 2023).

Re-implemented, with bonds none, single, double and triple. Of several sizes, one is drawn by its share
of the training molecules, then a molecule of that size.

Noise. Every node and every pair is kept or redrawn on its own. After time t it is kept with
probability abar_t and else drawn from m, the frequencies in the training set (`marginal`, each
category counted once more so that none is impossible) or equal ones (`uniform`):

    q(z_t | x) = abar_t [z_t = x] + (1 - abar_t) m(z_t),

and from s to t in the same way with abar_t / abar_s.

Training. The network sees z_t and extra features of it, and predicts x with the cross-entropy, mean
over nodes plus 5 times mean over pairs, at t uniform in 1 ... T.

Drawing. z_T is drawn from m. A step from t to s draws each node and pair from

    p(z_s | z_t) = sum_x phat(x | z_t) q(z_s | z_t, x),
    q(z_s | z_t, x) = q(z_t | z_s) q(z_s | x) / q(z_t | x),

which holds for any s < t: with fewer steps than T the kernel is still the exact one of the noise. The
last z_0 is the molecule.

Likelihood. For a world x, with z_0 = x and z_t drawn from q(z_t | x),

    log p(x) >= E log p(x | z_1) - KL(q(z_T | x) || m)
                - sum over s >= 1 of E KL(q(z_s | z_t, x) || p(z_s | z_t)),

over the steps that are drawn, each pair counted once. A molecule is a set of N worlds: its Kekulé
structures in all numberings. For w uniform among them log p(molecule) >= log N + E log p(w), by
Jensen; this needs no exchangeable model. The estimate is unbiased for this bound.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Integer
from torch import Tensor
from torch.nn import functional

from nmln.baselines.base import BASELINES, LogProb, Named, seeded
from nmln.baselines.digress_common import (
    BOND_KINDS,
    SMALL,
    DiffusionSettings,
    GraphGenerator,
    Graphs,
    cosine_schedule,
    descending_times,
)
from nmln.baselines.digress_features import NODE_FEATURES, WHOLE_FEATURES, Features
from nmln.baselines.digress_network import GraphTransformer
from nmln.errors import InputError
from nmln.molecules.chemistry import encode_all
from nmln.molecules.chemistry.elements import atom_weights, usual_valences
from nmln.molecules.likelihood import Structures

Kinds = Int64[Tensor, "graphs groups"]
Sites = Int64[Tensor, "graphs sites"]
Odds = Float64[Tensor, "graphs sites categories"]
Guess = tuple[Float64[Tensor, "graphs nodes kinds"], Float64[Tensor, "graphs pairs bonds"]]
Denoiser = Callable[[Kinds, Int64[Tensor, " graphs"]], Guess]
"""Probabilities of the clean nodes and pairs of worlds at some times."""

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
        if self.bound_draws < 1:
            raise InputError(f"bound_draws must be at least 1, got {self.bound_draws}.")


@dataclass(frozen=True)
class Noise:
    """Independent noise of sites: kept with probability abar_t, else drawn from `stationary`."""

    kept: Float64[Tensor, " times"]
    stationary: Float64[Tensor, " categories"]

    def noisy(self, clean: Sites, times: Int64[Tensor, " graphs"]) -> Sites:
        """Draw z_t given x."""
        redrawn = draw_categories(self.stationary.expand(*clean.shape, -1))
        stays = torch.rand(clean.shape, dtype=torch.float64) < self.kept[times][:, None]
        return torch.where(stays, clean, redrawn)

    def forward(self, clean: Sites, time: int) -> Odds:
        """The probabilities q(z_t | x) of all categories of z_t."""
        return self._mix(functional.one_hot(clean, len(self.stationary)).double(), self.kept[time])

    def backward(self, guess: Odds, noisy: Sites, earlier: int, time: int) -> Odds:
        """p(z_s | z_t) for all categories of z_s, given probabilities of x; normalised."""
        of_noisy = functional.one_hot(noisy, len(self.stationary)).double()
        chance = self.stationary[noisy][..., None]
        left = self.kept[time]
        weights = guess / (left * of_noisy + (1 - left) * chance)  # phat(x) / q(z_t | x)
        step = left / self.kept[earlier]
        return (step * of_noisy + (1 - step) * chance) * self._mix(weights, self.kept[earlier])

    def _mix(self, weights: Odds, left: Float64[Tensor, ""]) -> Odds:
        return left * weights + (1 - left) * weights.sum(-1, keepdim=True) * self.stationary


@dataclass(frozen=True)
class Diffusion:
    """The noise of worlds, nodes first and then pairs; drawing and likelihood with a denoiser."""

    nodes: int
    pairs: int
    of_nodes: Noise
    of_pairs: Noise

    def noisy(self, worlds: Kinds, times: Int64[Tensor, " graphs"]) -> Kinds:
        """Draw z_t given x."""
        first, rest = self._parts(worlds)
        return torch.cat((self.of_nodes.noisy(first, times), self.of_pairs.noisy(rest, times)), 1)

    def backward(self, guess: Guess, worlds: Kinds, earlier: int, time: int) -> Guess:
        """The probabilities of all nodes and pairs at an earlier time."""
        first, rest = self._parts(worlds)
        return (
            self.of_nodes.backward(guess[0], first, earlier, time),
            self.of_pairs.backward(guess[1], rest, earlier, time),
        )

    def draw(self, count: int, times: Sequence[int], denoise: Denoiser) -> Kinds:
        """Worlds at the last of the times, which fall."""
        worlds = self._picked(self._stationary(count))
        for time, earlier in pairwise(times):
            guess = denoise(worlds, torch.full((count,), time))
            worlds = self._picked(self.backward(guess, worlds, earlier, time))
        return worlds

    def bound(
        self, worlds: Kinds, times: Sequence[int], denoise: Denoiser
    ) -> Float64[Tensor, " graphs"]:
        """An unbiased estimate, per world, of a lower bound of log p under `draw`."""
        first, rest = self._parts(worlds)
        ends = self.of_nodes.forward(first, times[0]), self.of_pairs.forward(rest, times[0])
        found = -divergence(ends, self._stationary(len(worlds)))
        clean = (
            functional.one_hot(first, len(self.of_nodes.stationary)).double(),
            functional.one_hot(rest, len(self.of_pairs.stationary)).double(),
        )
        for time, earlier in pairwise(times):
            when = torch.full((len(worlds),), time)
            noisy = self.noisy(worlds, when)
            model = self.backward(denoise(noisy, when), noisy, earlier, time)
            # At the end the molecule itself must be drawn.
            truth = self.backward(clean, noisy, earlier, time) if earlier else clean
            found = found - divergence(truth, model)
        return found

    def _stationary(self, count: int) -> Guess:
        return (
            self.of_nodes.stationary.expand(count, self.nodes, -1),
            self.of_pairs.stationary.expand(count, self.pairs, -1),
        )

    def _picked(self, odds: Guess) -> Kinds:
        return torch.cat([draw_categories(part) for part in odds], 1)

    def _parts(self, worlds: Kinds) -> tuple[Sites, Int64[Tensor, "graphs pairs"]]:
        return worlds[:, : self.nodes], worlds[:, self.nodes :]


def draw_categories(odds: Odds) -> Sites:
    """One category per site, by probabilities that sum to one."""
    chance = torch.rand(*odds.shape[:-1], 1, dtype=torch.float64)
    return (chance > odds.cumsum(-1)[..., :-1]).sum(-1)


def divergence(truth: Guess, model: Guess) -> Float64[Tensor, " graphs"]:
    """KL(truth || model), summed over nodes and pairs."""
    return torch.stack(
        [
            (torch.xlogy(one, one) - torch.xlogy(one, other)).sum((1, 2))
            for one, other in zip(truth, model, strict=True)
        ]
    ).sum(0)


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
    def log_prob(self, molecules: Sequence[str]) -> LogProb:
        """Unbiased estimates of lower bounds; the same ones at every call."""
        self.network.eval()
        values = torch.full((len(molecules),), float("-inf"), dtype=torch.float64)
        batches = 0
        for graphs, count in zip(self.sizes, self.counts, strict=True):
            encoded = encode_all(graphs.space, molecules)
            known = torch.tensor(encoded.positions, dtype=torch.int64)
            of_size = log(count / sum(self.counts))
            for some in torch.arange(len(known)).split(self.at_once) if len(known) else ():
                with seeded(0, "bound", batches):
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
