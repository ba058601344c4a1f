"""Potentials by name: what the setting `model.potential` can name."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from torch import Generator

from nmln.config import ModelConfig
from nmln.potentials.base import BasePotential
from nmln.registry import Registry
from nmln.space import Space

NetworkBuilder = Callable[[Space, int, ModelConfig, Generator], BasePotential]
"""Makes a network of the given number of levels, with weights drawn from a generator."""


def fewest_parameters(space: Space, model: ModelConfig) -> int:
    """The weights of a network that has at least `layers` layers of the width `hidden`, or `sizes`."""
    if model.sizes is not None:
        return sum(one * other for one, other in pairwise(model.sizes)) + sum(model.sizes)
    return (model.layers - 1) * model.hidden**2 + model.hidden


@dataclass(frozen=True)
class NamedPotential:
    """A class of potentials and how the settings of a model make one.

    `network` is None where a model has no network, only the formulas of its program. `fewest` gives the
    number of weights of one network at one level, never more than it really has, so that a size which
    does not fit into memory is refused before anything is built.
    """

    family: type[BasePotential]
    network: NetworkBuilder | None
    fewest: Callable[[Space, ModelConfig], int] = fewest_parameters


POTENTIALS: Registry[NamedPotential] = Registry("potential", "nmln.potentials")
"""Registered by the files of the potentials; `ModelConfig.potential` lists the same names."""
