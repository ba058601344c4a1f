"""What a training step takes, known before it starts: its parts, its memory and its worlds."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator

from nmln.adaptation import start_tuning, with_sizes
from nmln.buckets import Bucket, deal, floor_of, name_of, shares_of
from nmln.config import Config, ModelConfig
from nmln.exchange import start_walkers
from nmln.kernels.registry import kernel_named
from nmln.memory import bytes_text, in_digits, refuse_size
from nmln.noise import uniform
from nmln.potentials.counted import Counted
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.registry import POTENTIALS
from nmln.sampler import advance, start
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


class Dealt(NamedTuple):
    """The part of a domain in every training step."""

    space: Space
    replicas: int
    batch: int


def dealt(buckets: Sequence[Bucket], config: Config, blocks: int) -> list[Dealt]:
    """Replicas and data of a step by the shares of the domains, at least one per block."""
    shares = shares_of(buckets)
    settings = {
        "chains.replicas": config.chains.replicas,
        "training.batch": config.training.batch,
    }
    parts = [
        deal(total, shares, max(blocks, floor_of(total, len(buckets))), name)
        for name, total in settings.items()
    ]
    return [Dealt(bucket.space, *numbers) for bucket, *numbers in zip(buckets, *parts, strict=True)]


def step_memory(domains: Sequence[Dealt], config: Config) -> int:
    """The bytes of a training step at the least, of all domains together.

    Refused if the machine does not have them; the error names the size that needs most.
    """
    if len(domains) == 1:
        return check_training(domains[0].space, config)
    method = Method.of(config.ladder)
    model = check_model(domains[0].space, method.trained_levels, config.model, _copies(config))
    each = [sum(_worlds_of(one, method)) for one in domains]
    needed, most = max(zip(each, domains, strict=True), key=lambda one: one[0])
    return refuse_size(
        model + sum(each),
        f"training on {len(domains)} sizes, of which {name_of(most.space)} with {most.replicas} chains "
        f"per level takes {bytes_text(needed)},",
        "Leave out large sizes (--max-size), or lower chains.replicas and training.batch.",
    )


def step_worlds(domains: Sequence[Dealt], config: Config) -> int:
    """How many worlds a training step scores, about: data, chains, their moves and their swaps.

    What a sweep scores is counted with one replica and a potential that costs nothing.
    """
    method, chains = Method.of(config.ladder), config.chains
    found = 0
    for space, replicas, batch in domains:
        first, sweep = _counted(space, method, config)
        followed = first * (2 if chains.renewal else 1) + chains.sweeps * sweep
        found += replicas * followed + (replicas + batch) * method.trained_levels
    return found


@torch.no_grad()
def _counted(space: Space, method: Method, config: Config) -> tuple[int, int]:
    """The worlds that one replica scores at its start and in a sweep, at all levels."""
    rng, levels = Generator().manual_seed(0), method.chain_levels
    flat = Counted(IndependentPotential(space, torch.zeros(levels, space.entries)))
    kernel = kernel_named(config.chains.kernel, space)
    kernel = with_sizes(kernel, start_tuning(kernel, levels))
    values = uniform(space, levels, 1, rng)
    state = start(flat, kernel, values, rng)
    first = _scored(flat)
    parities = (0, 1) if config.chains.phases == "both" else (0,)
    advance(flat, kernel, state, start_walkers(values), rng, config.chains.moves, parities)
    return first, _scored(flat) - first


def _scored(counted: Counted) -> int:
    return counted.evaluations.scores + counted.evaluations.slopes


def _worlds_of(part: Dealt, method: Method) -> tuple[int, int]:
    """The bytes of the chains and of the minibatch of a domain at the least."""
    world = part.space.measure.bytes_per_world
    chains = part.replicas * method.chain_levels * (world + 2 * _PLACE)
    return chains, part.batch * (method.trained_levels * world + _PLACE)


def check_training(space: Space, config: Config) -> int:
    """The bytes of a training step at the least; refused if the machine does not have them."""
    method = Method.of(config.ladder)
    model = check_model(space, method.trained_levels, config.model, _copies(config))
    part = Dealt(space, config.chains.replicas, config.training.batch)
    chains, batch = _worlds_of(part, method)
    needed = refuse_size(
        chains,
        f"training with chains.replicas={in_digits(config.chains.replicas)} at {method.chain_levels} "
        "levels",
        "Set it lower.",
    )
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
