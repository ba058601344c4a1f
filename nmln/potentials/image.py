"""The image potential: a small convolutional network over a binary predicate read as pixels."""

import torch
from torch import Generator, nn
from torch.nn.functional import conv2d

from nmln.config import ModelConfig
from nmln.errors import InputError
from nmln.potentials.base import Labels, NeuralPotential
from nmln.potentials.layers import LevelMLP, uniform_weights
from nmln.potentials.registry import POTENTIALS, NamedPotential
from nmln.space import Space
from nmln.types import OneHot, Scores


class ImagePotential(NeuralPotential):
    """Reads the first argument of a predicate as rows and the second as columns of a picture.

    Convolutions of 3 x 3 with ReLU, then a network on all pixels. The order of the constants means
    something here, so the potential is not invariant under relabelling, on purpose. Every category
    but false or none is a channel of its own. If the language has more than one predicate, `name`
    says which is the picture; the others are ignored.
    """

    def __init__(
        self,
        space: Space,
        levels: int,
        name: str | None = None,
        channels: int = 32,
        layers: int = 3,
        hidden: int = 128,
        *,
        rng: Generator | None = None,
    ) -> None:
        super().__init__(space, levels)
        if name is None and len(space.language) != 1:
            listed = ", ".join(attribute.name for attribute in space.language)
            raise InputError(
                f"name must say which predicate is the picture, as in name='queen', of: {listed}.",
                kind="missing",
            )
        attribute = space.language[name] if name is not None else space.language.attributes[0]
        if attribute.arity != 2:
            raise InputError(
                f"a picture needs a binary predicate, but {attribute.declaration()} has arity "
                f"{attribute.arity}. Use GraphPotential or FragmentPotential.",
                token=attribute.name,
                kind="unsupported",
            )
        if min(channels, layers, hidden) < 1:
            raise InputError(
                f"an image potential needs at least one channel, layer and hidden unit, but has "
                f"channels={channels}, layers={layers}, hidden={hidden}."
            )
        rng = rng or Generator().manual_seed(0)
        self.name = attribute.name
        self.shown = [c for c in range(len(attribute.categories)) if c != attribute.null]
        inputs = [len(self.shown)] + [channels] * (layers - 1)
        # Level-major, so that training clips the gradient of every level by itself.
        self.filters = nn.ParameterList(
            uniform_weights((levels, channels, size, 3, 3), 9 * size, rng, 2**0.5)
            for size in inputs
        )
        self.biases = nn.ParameterList(torch.zeros(levels, channels) for _ in inputs)
        rows, columns = space.block(attribute.name).shape
        self.top = LevelMLP(levels, (channels * rows * columns, hidden, 1), rng, last_gain=0.1)

    def labels(self) -> dict[str, dict[int, Labels]]:
        categories = self.space.language[self.name].categories
        return {"filters.0": {2: [categories[shown] for shown in self.shown]}}

    def forward(self, onehot: OneHot) -> Scores:
        picture = self.space.pairwise(onehot)[self.name][..., self.shown]
        # Levels become groups of channels: one convolution serves them all.
        layer = picture.permute(1, 0, 4, 2, 3).flatten(1, 2)
        for weight, bias in zip(self.filters, self.biases, strict=True):
            kernels, shift = weight.flatten(0, 1), bias.flatten()
            layer = conv2d(layer, kernels, shift, padding=1, groups=self.levels).relu()
        channels = layer.shape[1] // self.levels
        pixels = layer.unflatten(1, (self.levels, channels)).flatten(2).transpose(0, 1)
        return self.top(pixels).squeeze(-1)


def _network(space: Space, levels: int, model: ModelConfig, rng: Generator) -> ImagePotential:
    return ImagePotential(space, levels, layers=model.layers, channels=model.hidden, rng=rng)


def _fewest(space: Space, model: ModelConfig) -> int:
    pixels = max((block.count for block in space.blocks), default=0)
    return 9 * (model.layers - 1) * model.hidden**2 + model.hidden * (9 + pixels)


POTENTIALS.add("image", NamedPotential(ImagePotential, _network, _fewest))
