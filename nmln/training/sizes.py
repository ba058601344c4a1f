"""The least memory that a configuration takes, checked before anything is built."""

from collections.abc import Sequence
from dataclasses import replace

from nmln.config import Config, ModelConfig
from nmln.memory import in_digits, refuse_size
from nmln.potentials.registry import POTENTIALS
from nmln.space import Space
from nmln.training.method import Method

_NUMBER = 4  # bytes
_TENSOR = 500  # bytes of a parameter beside its numbers
_TENSORS = 2  # parameters of a layer
_PLACE = 8  # bytes of an index, a label or a uniform number


def fewest_parameters(space: Space, model: ModelConfig) -> int:
    """The numbers that one network has at one level; never more than it really has."""
    named = POTENTIALS.named(model.potential)
    return 0 if named.network is None else named.fewest(space, model)


def check_model(space: Space, levels: int, model: ModelConfig, copies: int = 1) -> int:
    """The bytes of a model's parameters at the least; refused if the machine does not have them.

    Training holds several copies: gradients, the optimiser's state, the moving average.
    """
    if POTENTIALS.named(model.potential).network is None:
        return 0
    numbers = _NUMBER * copies * levels * fewest_parameters(space, model)
    if model.sizes is None:
        layers = model.layers
        shape = f"model.layers={in_digits(layers)} and model.hidden={in_digits(model.hidden)}"
    else:
        layers = len(model.sizes)
        shape = f"model.sizes of at most {in_digits(max(model.sizes))} units"
    each = numbers + _TENSORS * _TENSOR * layers
    return refuse_size(
        model.networks * each,
        f"a model with model.networks={in_digits(model.networks)}, {shape} at {levels} levels",
        "Set the largest of them lower.",
    )


def step_memory(domains: Sequence[tuple[Space, int, int]], config: Config) -> int:
    """The bytes of a training step at the least: each domain with its replicas and its minibatch."""
    method = Method.of(config.ladder)
    found = 0
    for number, (space, replicas, batch) in enumerate(domains):
        part = replace(
            config,
            chains=replace(config.chains, replicas=replicas),
            training=replace(config.training, batch=batch),
        )
        model = check_model(space, method.trained_levels, config.model, _copies(config))
        found += check_training(space, part) - (model if number else 0)  # shared by all domains
    return found


def check_training(space: Space, config: Config) -> int:
    """The bytes of a training step at the least; refused if the machine does not have them."""
    method = Method.of(config.ladder)
    model = check_model(space, method.trained_levels, config.model, _copies(config))
    world = space.measure.bytes_per_world
    chains = config.chains.replicas * method.chain_levels * (world + 2 * _PLACE)
    needed = refuse_size(
        chains,
        f"training with chains.replicas={in_digits(config.chains.replicas)} at {method.chain_levels} "
        "levels",
        "Set it lower.",
    )
    batch = config.training.batch * (method.trained_levels * world + _PLACE)
    return (
        model
        + needed
        + refuse_size(
            batch,
            f"training with training.batch={in_digits(config.training.batch)}",
            "Set it lower.",
        )
    )


def _copies(config: Config) -> int:
    """How many numbers training holds for every parameter."""
    optimiser = config.optimiser
    return 2 + 2 * (optimiser.method == "adam") + (optimiser.average > 0)
