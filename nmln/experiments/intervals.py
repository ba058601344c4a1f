"""Bootstrap intervals over independent repetitions."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Generator, Tensor

from nmln.errors import InputError


class Interval(NamedTuple):
    """A number, and the range that its uncertainty leaves."""

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
    """How far a statistic would spread, were the repetitions (first axis) drawn anew.

    The percentiles of resampled data sets, moved so that their mean is the value. For an average that is
    the usual percentile interval. An absolute error grows when it is resampled, because the noise of the
    seeds comes in twice; unmoved, its interval could lie beside the value.

    `statistic` is given many data sets at once, each with all repetitions, and returns one number each.
    """
    if not 0 < confidence < 1:
        raise InputError(f"a confidence lies between 0 and 1, but is {confidence}. Take 0.95.")
    seeds = len(repetitions)
    if seeds < 2:
        raise InputError(
            f"an interval over seeds needs at least two of them, but there is {seeds}."
        )
    chosen = torch.randint(seeds, (draws, seeds), generator=rng)
    found = statistic(repetitions[chosen]).double()
    tail = (1 - confidence) / 2
    value = statistic(repetitions[None]).double().item()
    centred = found + (value - found.mean())
    low, high = torch.quantile(centred, centred.new_tensor([tail, 1 - tail])).tolist()
    return Interval(value, low, high)


def mean(repetitions: Float[Tensor, "draws seeds"]) -> Float64[Tensor, " draws"]:
    """The plain average, for statistics that are one number a seed."""
    return repetitions.double().mean(1)
