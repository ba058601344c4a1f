"""Bootstrap intervals over independent repetitions."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Generator, Tensor

from nmln.errors import InputError


class Interval(NamedTuple):
    """A number with its interval of uncertainty."""

    value: float
    low: float
    high: float


def bootstrap(
    repetitions: Float[Tensor, "seeds *what"],
    statistic: Callable[[Float[Tensor, "draws seeds *what"]], Float[Tensor, " draws"]],
    rng: Generator,
    draws: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """The bootstrap interval of a statistic over independent repetitions (first axis).

    The percentiles of resampled data sets, shifted so that their mean is the value. For an average that
    is the usual percentile interval. An absolute error grows when it is resampled, because the noise of
    the seeds enters twice; without the shift, its interval might not contain the value.

    `statistic` gets many data sets at once, each with all repetitions, and returns one number per set.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be between 0 and 1, got {confidence}. Use 0.95.")
    seeds = len(repetitions)
    if seeds < 2:
        raise InputError(
            f"an interval over repetitions needs at least two of them, got {seeds}. Use more seeds."
        )
    chosen = torch.randint(seeds, (draws, seeds), generator=rng)
    found = statistic(repetitions[chosen]).double()
    tail = (1 - confidence) / 2
    value = statistic(repetitions[None]).double().item()
    centred = found + (value - found.mean())
    low, high = torch.quantile(centred, centred.new_tensor([tail, 1 - tail])).tolist()
    return Interval(value, low, high)


def mean(repetitions: Float[Tensor, "draws seeds"]) -> Float64[Tensor, " draws"]:
    """The plain average, for statistics with one number per seed."""
    return repetitions.double().mean(1)
