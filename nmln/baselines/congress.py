"""DiGress continuous (ConGress): diffusion of one-hot graphs with Gaussian noise.

Re-implemented from Vignac et al., ICLR 2023. Of several sizes, one is drawn by its share of the training
molecules, then a molecule of that size. One-hot vectors of nodes are divided by 2, those of pairs are
as they are. With alpha_t^2 from the cosine schedule and sigma_t^2 = 1 - alpha_t^2,

    z_t = alpha_t x + sigma_t eps,

where the noise of a pair is that of its mirror image, and zero on the diagonal. The network sees z_t
and t alone and predicts eps; the loss is the mean square error of nodes plus that of pairs, at t
uniform in 0 ... T. A step of drawing, from t to s < t, with a = alpha_t / alpha_s and
v = 1 - a^2, is

    z_s = (z_t - v eps_hat / sigma_t) / a + sqrt(v) sigma_s / sigma_t eps,

and at the end x = (z_0 - sigma_0 eps_hat) / alpha_0 + sigma_0 / alpha_0 eps, of which the largest
entry is taken. There is no likelihood: the published one is not that of this model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional

from nmln.baselines.base import BASELINES, Named
from nmln.baselines.digress_common import (
    BOND_KINDS,
    SMALL,
    DiffusionSettings,
    GraphGenerator,
    Graphs,
    cosine_schedule,
    descending_times,
)
from nmln.baselines.digress_network import GraphTransformer

Signal = tuple[Float[Tensor, "graphs nodes kinds"], Float[Tensor, "graphs pairs bonds"]]
"""Numbers for the nodes and for the pairs i < j, which stand for their mirror images too."""

Predictor = Callable[[Signal, Int64[Tensor, " graphs"]], Signal]

_NODE_SCALE = 2.0  # one-hot nodes are divided by it


@dataclass(frozen=True)
class CongressSettings(DiffusionSettings):
    """Settings of the continuous model."""

    layers: int = 6


@dataclass(frozen=True)
class GaussianNoise:
    """Variance preserving noise; `squares` are alpha_0^2 ... alpha_T^2."""

    squares: Float64[Tensor, " times"]

    def noisy(self, clean: Signal, noise: Signal, times: Int64[Tensor, " graphs"]) -> Signal:
        """z_t for given noise."""
        alpha = self.squares[times].sqrt()[:, None, None]
        sigma = (1 - self.squares[times]).sqrt()[:, None, None]
        first, second = (
            (alpha * one + sigma * other).to(one.dtype)
            for one, other in zip(clean, noise, strict=True)
        )
        return first, second

    def draw(self, like: Signal, times: Sequence[int], predict: Predictor) -> Signal:
        """Clean signals, from pure noise through falling times to 0; of the shapes of `like`."""
        signal, count = normal_like(like), len(like[0])
        for time, earlier in pairwise(times):
            step = self.squares[time] / self.squares[earlier]
            sigma, before = (1 - self.squares[time]).sqrt(), (1 - self.squares[earlier]).sqrt()
            guess = predict(signal, torch.full((count,), time))
            width = (1 - step).sqrt() * before / sigma
            signal = _combined(signal, guess, 1 / step.sqrt(), (1 - step) / sigma, width)
        alpha, sigma = self.squares[0].sqrt(), (1 - self.squares[0]).sqrt()
        guess = predict(signal, torch.zeros(count, dtype=torch.int64))
        return _combined(signal, guess, 1 / alpha, sigma, sigma / alpha)


def normal_like(like: Signal) -> Signal:
    """Standard normal noise of nodes and pairs."""
    return torch.randn_like(like[0]), torch.randn_like(like[1])


def _combined(
    signal: Signal,
    guess: Signal,
    scale: Float64[Tensor, ""],
    share: Float64[Tensor, ""],
    width: Float64[Tensor, ""],
) -> Signal:
    first, second = (
        float(scale) * (one - float(share) * eps) + float(width) * noise
        for one, eps, noise in zip(signal, guess, normal_like(signal), strict=True)
    )
    return first, second


class Congress(GraphGenerator):
    """The continuous model."""

    settings_type = CongressSettings

    def prepare(self) -> None:
        self.noise = GaussianNoise(cosine_schedule(self.settings.times, 0.999))
        self.steps = descending_times(self.settings.times, self.settings.sampling_steps)
        kinds = len(self.graphs.atoms)
        self.network = GraphTransformer(self.settings, (kinds, BOND_KINDS, 1), (kinds, BOND_KINDS))

    def rebuild(self, content: Mapping[str, Any]) -> None:
        super().rebuild(content)
        self.prepare()

    def signal(self, worlds: Int64[Tensor, "graphs groups"]) -> Signal:
        """The clean signal of worlds."""
        kinds, pairs = self.graphs_of(worlds).one_hot(worlds)
        return kinds / _NODE_SCALE, pairs

    def predict(self, signal: Signal, times: Int64[Tensor, " graphs"]) -> Signal:
        """The network's prediction of the noise in a signal."""
        when = (times.double() / self.settings.times)[:, None].to(signal[0].dtype)
        graphs = next(one for one in self.sizes if one.nodes == signal[0].shape[1])
        nodes, pairs = self.network(signal[0], graphs.symmetric(signal[1]), when)
        return nodes, pairs[:, *graphs.pairs]

    def loss(self, chosen: Int64[Tensor, " molecules"], update: int) -> Float[Tensor, ""]:
        found = [self._losses(worlds) for _, worlds in self.batches(chosen)]
        if len(found) == 1:
            errors, _ = found[0]
            return errors[0] + errors[1]
        # Means over all numbers of nodes and of pairs, as if the graphs were of one size.
        errors = torch.stack([torch.stack(one) for one, _ in found])
        numbers = torch.tensor([count for _, count in found], dtype=errors.dtype)
        return (errors * numbers / numbers.sum(0)).sum()

    def _losses(
        self, worlds: Int64[Tensor, "graphs groups"]
    ) -> tuple[list[Float[Tensor, ""]], list[int]]:
        """The errors of nodes and of pairs of graphs of one size, and how many numbers they have."""
        clean = self.signal(worlds)
        times = torch.randint(0, self.settings.times + 1, (len(worlds),))
        noise = normal_like(clean)
        guess = self.predict(self.noise.noisy(clean, noise, times), times)
        errors = [functional.mse_loss(*both) for both in zip(guess, noise, strict=True)]
        return errors, [one.numel() for one in noise]

    def draw_worlds(self, graphs: Graphs, count: int) -> Int64[Tensor, "graphs groups"]:
        nodes = graphs.nodes
        like = (
            torch.zeros(count, nodes, len(graphs.atoms)),
            torch.zeros(count, nodes * (nodes - 1) // 2, BOND_KINDS),
        )
        kinds, pairs = self.noise.draw(like, self.steps, self.predict)
        return torch.cat((kinds.argmax(-1), pairs.argmax(-1)), 1)


BASELINES.add(
    "congress",
    Named(
        "DiGress continuous",
        Congress,
        CongressSettings(),
        "Gaussian diffusion of graphs, 6 layers as published (not the authors' checkpoint)",
    ),
)
BASELINES.add(
    "congress-s",
    Named(
        "ConGress-S",
        Congress,
        CongressSettings(**SMALL, sampling_steps=100),
        "Gaussian diffusion of graphs, scaled down to 4 layers, 100 steps",
    ),
)
