"""Linear layers with separate weights for every level."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn


def uniform_weights(
    shape: tuple[int, ...], fan_in: int, rng: torch.Generator, gain: float = 1.0
) -> nn.Parameter:
    """Weights drawn uniformly with the variance gain^2 / fan_in."""
    bound = gain * (3 / max(1, fan_in)) ** 0.5
    return nn.Parameter((2 * torch.rand(shape, generator=rng) - 1) * bound)


class LevelLinear(nn.Module):
    """A linear layer with separate weights for every level: (levels, …, inputs) to outputs."""

    def __init__(
        self, levels: int, inputs: int, outputs: int, rng: torch.Generator, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = uniform_weights((levels, inputs, outputs), inputs, rng, gain)
        self.bias = nn.Parameter(torch.zeros(levels, outputs))

    def forward(
        self, inputs: Float[Tensor, "levels *batch inputs"]
    ) -> Float[Tensor, "levels *batch outputs"]:
        flat = inputs.flatten(1, -2) if inputs.ndim > 2 else inputs[:, None]
        outputs = torch.baddbmm(self.bias[:, None], flat, self.weight)
        return outputs.reshape(*inputs.shape[:-1], self.bias.shape[1])


class LevelMLP(nn.Module):
    """Linear layers with ReLU between them, separate weights for every level."""

    def __init__(
        self, levels: int, sizes: tuple[int, ...], rng: torch.Generator, last_gain: float = 1.0
    ) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        gains = [2**0.5] * (len(pairs) - 1) + [last_gain]
        self.layers = nn.ModuleList(
            LevelLinear(levels, a, b, rng, gain) for (a, b), gain in zip(pairs, gains, strict=True)
        )

    def forward(
        self, inputs: Float[Tensor, "levels *batch inputs"]
    ) -> Float[Tensor, "levels *batch outputs"]:
        for index, layer in enumerate(self.layers):
            inputs = layer(inputs if index == 0 else inputs.relu())
        return inputs
