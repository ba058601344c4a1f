"""The held-out log-likelihood of a trained model, by annealed importance sampling."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.config import configure
from nmln.files import InputError, plain, write_lines
from nmln.kernels.defaults import kernel_named
from nmln.model import Model
from nmln.partition import annealed
from nmln.workflow import sampling, sources
from nmln.workflow.training import read_head


@dataclass(frozen=True)
class Likelihood:
    """Mean log-probability of worlds at the target level, in nats a world.

    The worlds are labelled ones, as they stand in the data: all orders of the constants count apart.
    log Z is low on average, so that the likelihood is high on average; its error says by how much.
    """

    worlds: int
    train: float
    test: float | None
    log_z: float
    log_z_error: float
    effective_size: float  # of the annealed chains


def run(
    folder: Path,
    *,
    chains: int = 100,
    steps: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Likelihood:
    """The likelihood of the training and test worlds of a run; kept as `likelihood.json`."""
    head = read_head(folder)
    config = configure(head["config"], str(folder / "config.json"))
    source = sources.load(config.data)
    model = sampling.load(folder)
    found = measure(
        model,
        sources.pick(source.worlds, source.train),
        sources.pick(source.worlds, source.test),
        chains=chains,
        steps=steps,
        seed=seed,
        progress=progress,
    )
    write_lines(folder / "likelihood.json", [json.dumps(plain(asdict(found)), indent=2)])
    return found


@torch.no_grad()
def measure(
    model: Model,
    train: Integer[Tensor, "worlds groups"],
    test: Integer[Tensor, "others groups"],
    *,
    chains: int = 100,
    steps: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Likelihood:
    """The mean log-probability of worlds under a model, with the error of its log Z."""
    if not len(train):
        raise InputError("there are no worlds to measure the likelihood of.")
    kernel = kernel_named(model.config.chains.kernel, model.space)
    rng = Generator().manual_seed(seed)
    found = annealed(model.potential, kernel, chains, steps, rng, progress=progress)
    log_z = float(found.log_z[-1])

    def mean(worlds: Tensor) -> float | None:
        if not len(worlds):
            return None
        scores = model.potential.score(worlds.expand(model.potential.levels, -1, -1))
        return float(scores[-1].double().mean()) - log_z

    whole = mean(train)
    assert whole is not None
    return Likelihood(
        len(train) + len(test),
        whole,
        mean(test),
        log_z,
        float(found.error[-1]),
        float(found.effective_size[-1]),
    )
