"""Optimisers, schedules of the step only, clipping level by level, and the moving average."""

from collections.abc import Iterable
from math import cos, pi

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nmln.config import OptimiserConfig


def make_optimiser(
    parameters: Iterable[nn.Parameter], config: OptimiserConfig
) -> torch.optim.Optimizer:
    """Adam, or plain gradient ascent as in the paper; weight decay is decoupled from the gradient."""
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    if config.method == "sgd":
        return torch.optim.SGD(
            chosen, lr=config.learning_rate, weight_decay=config.weight_decay, foreach=True
        )
    return torch.optim.AdamW(
        chosen,
        lr=config.learning_rate,
        betas=(0.9, 0.99),
        weight_decay=config.weight_decay,
        foreach=True,
    )


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """The rate of a step (from 0): a linear warm-up, then constant or a cosine down to zero."""
    grown = min(1.0, (step + 1) / config.warm_up) if config.warm_up else 1.0
    if config.schedule == "constant":
        return config.learning_rate * grown
    return config.learning_rate * grown * 0.5 * (1 + cos(pi * min(1.0, step / max(1, steps))))


@torch.no_grad()
def clip_by_level(
    parameters: Iterable[nn.Parameter], levels: int, most: float
) -> Float[Tensor, " levels"]:
    """Scale down the gradient of every level whose norm is above `most`; returns the norms before.

    Levels are models of their own: one that jumps does not slow down the others. A parameter whose
    first axis is not the levels counts for all of them.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.zeros(levels, dtype=torch.float64)
    for gradient in gradients:
        square = gradient.double().square()
        by_level = square.ndim > 0 and len(square) == levels
        norms += square.reshape(levels, -1).sum(1) if by_level else square.sum()
    norms = norms.sqrt()
    if most > 0:
        scale = (most / norms.clamp(min=1e-30)).clamp(max=1.0)
        for gradient in gradients:
            if gradient.ndim > 0 and len(gradient) == levels:
                shape = (levels, *([1] * (gradient.ndim - 1)))
                gradient.mul_(scale.to(gradient.dtype).view(shape))
            else:
                gradient.mul_(float(scale.min()))
    return norms


@torch.no_grad()
def follow(average: nn.Module, current: nn.Module, decay: float, step: int) -> None:
    """Move the averaged parameters towards the current ones; faster in the first steps."""
    keep = min(decay, (1 + step) / (10 + step))
    for slow, now in zip(average.parameters(), current.parameters(), strict=True):
        slow.lerp_(now, 1 - keep)
