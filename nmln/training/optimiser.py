"""Optimisers, schedules of the step only, clipping level by level, and the moving average."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import cos, log, pi

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from nmln.config import OptimiserConfig
from nmln.devices import CPU, has_double
from nmln.potentials.base import by_level

BETAS = (0.9, 0.99)
MEMORY = ("step", "own_mean", "own_square", "common_mean", "common_square")
"""The state that `CommonAdam` keeps per parameter."""


def make_optimiser(
    parameters: Iterable[nn.Parameter], config: OptimiserConfig, levels: int = 1
) -> torch.optim.Optimizer:
    """Adam, or plain gradient ascent as in the paper; weight decay is decoupled from the gradient."""
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    if config.method == "sgd":
        return torch.optim.SGD(
            chosen, lr=config.learning_rate, weight_decay=config.weight_decay, foreach=True
        )
    if config.common and levels > 1:
        return CommonAdam(
            chosen, config.learning_rate, levels, config.common, weight_decay=config.weight_decay
        )
    return torch.optim.AdamW(
        chosen,
        lr=config.learning_rate,
        betas=BETAS,
        weight_decay=config.weight_decay,
        foreach=True,
    )


class CommonAdam(torch.optim.Optimizer):
    """Adam for levels that are models of their own, but of nearly the same data.

    Write the weights of level l as a + d_l. Each level can still become anything, but what all levels
    want goes into a, where the mean of their gradients is less noisy than each. Adam takes a step for
    every d_l and one, `common` times as long, for a; only the sums are kept. A parameter whose first
    axis is not the levels moves by itself.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        levels: int,
        common: float = 1.0,
        *,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        self.levels, self.common, self.eps = levels, common, eps
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group["lr"], group["weight_decay"])

    def _move(self, parameter: nn.Parameter, gradient: Tensor, rate: float, decay: float) -> None:
        kept = self.state[parameter]
        kept["step"] = kept.get("step", torch.zeros(())) + 1
        parameter.mul_(1 - rate * decay)
        self._descend(parameter, kept, "own", gradient, rate)
        if by_level(gradient, self.levels):
            self._descend(parameter, kept, "common", gradient.mean(0), rate * self.common)

    def _descend(
        self, parameter: Tensor, kept: dict[str, Tensor], name: str, gradient: Tensor, rate: float
    ) -> None:
        """Adam's step: the mean gradient over the root of its mean square, both moving averages."""
        if f"{name}_mean" not in kept:
            kept[f"{name}_mean"] = torch.zeros_like(gradient)
            kept[f"{name}_square"] = torch.zeros_like(gradient)
        mean, square, step = kept[f"{name}_mean"], kept[f"{name}_square"], float(kept["step"])
        first, second = BETAS
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second**step)).sqrt_().add_(self.eps)
        parameter.addcdiv_(mean, root, value=-rate / (1 - first**step))


def learning_rate(config: OptimiserConfig, step: int, steps: int) -> float:
    """The rate of a step (from 0): a linear warm-up, then constant or a cosine down to zero."""
    grown = min(1.0, (step + 1) / config.warm_up) if config.warm_up else 1.0
    if config.schedule == "constant":
        return config.learning_rate * grown
    return config.learning_rate * grown * 0.5 * (1 + cos(pi * min(1.0, step / max(1, steps))))


_GAIN, _MOST = 0.1, 0.1  # how fast the pace follows; largest change of its logarithm in a step


@contextmanager
def paced(parameters: Iterable[nn.Parameter], pace: Float64[Tensor, " levels"]) -> Iterator[None]:
    """Scale down the change that the body makes to the parameters of each level."""
    if bool((pace == 1).all()):
        yield
        return
    levels = [one for one in parameters if by_level(one, len(pace))]
    before = [one.detach().clone() for one in levels]
    yield
    with torch.no_grad():
        for one, old in zip(levels, before, strict=True):
            shape = (len(pace), *([1] * (one.ndim - 1)))
            one.copy_(torch.lerp(old, one, pace.to(one.dtype).to(one.device).view(shape)))


def next_pace(
    pace: Float64[Tensor, " levels"], shares: Float64[Tensor, " levels"], trust: float
) -> Float64[Tensor, " levels"]:
    """How far each level goes in the next step, so that the chains can follow.

    An update multiplies a chain's weight by exp(new score less old score). If these differences have
    the variance v, a share exp(-v) of the chains still counts, and v grows with the square of the step:
    the pace is steered to where the share is `trust`, and is never above one.
    """
    wanted, found = -log(trust), -shares.clamp(1e-3, 1 - 1e-3).log()
    change = (_GAIN * (wanted / found).log() / 2).clamp(-_MOST, _MOST)
    return (pace * change.exp()).clamp(max=1.0)


@torch.no_grad()
def clip_by_level(
    parameters: Iterable[nn.Parameter], levels: int, most: float
) -> Float[Tensor, " levels"]:
    """Scale down the gradient of every level whose norm is above `most`; returns the norms before.

    Levels are models of their own: one that jumps does not slow down the others. A parameter whose
    first axis is not the levels counts for all of them.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    device = gradients[0].device if gradients else CPU
    wide = torch.float64 if has_double(device) else torch.float32
    norms = torch.zeros(levels, dtype=wide, device=device)
    for gradient in gradients:
        rows = gradient.reshape(levels if by_level(gradient, levels) else 1, -1)
        norms += torch.linalg.vector_norm(rows, dim=1, dtype=wide).square()
    norms = norms.sqrt()
    if most > 0:
        scale = (most / norms.clamp(min=1e-30)).clamp(max=1.0)
        for gradient in gradients:
            if by_level(gradient, levels):
                shape = (levels, *([1] * (gradient.ndim - 1)))
                gradient.mul_(scale.to(gradient.dtype).view(shape))
            else:
                gradient.mul_(float(scale.min()))
    return norms.cpu().double()


_FARTHEST = 0.25  # of the way to each neighbour; from 0.5 on, levels would change places


@torch.no_grad()
def draw_together(parameters: Iterable[nn.Parameter], levels: int, share: float) -> None:
    """Move the parameters of every level towards those of its neighbours, by a share of the difference.

    Neighbours learn from nearly the same data. Where their parameters differ by chance only, worlds
    that they exchange lose probability for nothing. The mean over the levels stays.
    """
    share = min(share, _FARTHEST)
    for parameter in parameters:
        if parameter.requires_grad and by_level(parameter, levels):
            step = parameter.diff(dim=0).mul_(share)
            parameter[:-1].add_(step)
            parameter[1:].sub_(step)


@torch.no_grad()
def follow(average: nn.Module, current: nn.Module, decay: float, step: int) -> None:
    """Move the averaged parameters towards the current ones; faster in the first steps."""
    keep = min(decay, (1 + step) / (10 + step))
    for slow, now in zip(average.parameters(), current.parameters(), strict=True):
        slow.lerp_(now, 1 - keep)
