"""The discrete noise of DiGress: how graphs lose their information, and how they are drawn back.

Noise. Every node and every pair is kept or redrawn on its own. After time t it is kept with
probability abar_t and else drawn from m, the frequencies in the training set (`marginal`, each
category counted once more so that none is impossible) or equal ones (`uniform`):

    q(z_t | x) = abar_t [z_t = x] + (1 - abar_t) m(z_t),

and from s to t in the same way with abar_t / abar_s.

Drawing. z_T is drawn from m. A step from t to s draws each node and pair from

    p(z_s | z_t) = sum_x phat(x | z_t) q(z_s | z_t, x),
    q(z_s | z_t, x) = q(z_t | z_s) q(z_s | x) / q(z_t | x),

which holds for any s < t: with fewer steps than T the kernel is still the exact one of the noise. The
last z_0 is the molecule.

Likelihood. For a world x, with z_0 = x and z_t drawn from q(z_t | x),

    log p(x) >= E log p(x | z_1) - KL(q(z_T | x) || m)
                - sum over s >= 1 of E KL(q(z_s | z_t, x) || p(z_s | z_t)),

over the steps that are drawn, each pair counted once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn import functional

Kinds = Int64[Tensor, "graphs groups"]
Sites = Int64[Tensor, "graphs sites"]
Odds = Float64[Tensor, "graphs sites categories"]
Guess = tuple[Float64[Tensor, "graphs nodes kinds"], Float64[Tensor, "graphs pairs bonds"]]
Denoiser = Callable[[Kinds, Int64[Tensor, " graphs"]], Guess]
"""Probabilities of the clean nodes and pairs of worlds at some times."""


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
