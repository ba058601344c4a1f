"""Kernels made of kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from nmln.files import InputError
from nmln.types import Info, Kernel, Potential, State, Values


@dataclass(frozen=True)
class Composition:
    """One kernel after the other; its acceptance is the mean over them."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not self.kernels:
            raise InputError("a composition needs at least one kernel.")

    def init(self, potential: Potential, values: Values) -> State:
        return self.kernels[0].init(potential, values)

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        before, acceptance = state.values, []
        for kernel in self.kernels:
            state, info = _hand_over(kernel, potential, state, rng)
            acceptance.append(info.acceptance)
        moved = (state.values != before).any(-1).to(state.scores.dtype).mean(1)
        return state, Info(torch.stack(acceptance).mean(0), moved)


@dataclass(frozen=True)
class Mixture:
    """One of several kernels, drawn anew for every move; what the worlds are has no say in it."""

    kernels: tuple[Kernel, ...]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        weights = self.weights if self.weights is not None else [1.0] * len(self.kernels)
        if len(weights) != len(self.kernels) or not self.kernels or not all(w > 0 for w in weights):
            raise InputError(
                f"a mixture needs a positive weight for every kernel, but {len(self.kernels)} kernels "
                f"have the weights {self.weights}."
            )

    def init(self, potential: Potential, values: Values) -> State:
        return self.kernels[0].init(potential, values)

    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        weights = self.weights if self.weights is not None else [1.0] * len(self.kernels)
        chances = torch.tensor(weights, dtype=torch.float64, device=rng.device)
        chosen = int(torch.multinomial(chances, 1, generator=rng))
        return _hand_over(self.kernels[chosen], potential, state, rng)


def _hand_over(
    kernel: Kernel, potential: Potential, state: State, rng: Generator
) -> tuple[State, Info]:
    """Let a kernel go on from the state of another, which may lack the slopes that it needs."""
    if state.slopes is None:
        state = kernel.init(potential, state.values)
    return kernel.step(potential, state, rng)
