"""Gradients of the graph potential by its parameters, with flat memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmln.potentials.messages import Weights
from nmln.types import Scores, Values

if TYPE_CHECKING:
    from nmln.potentials.graph import GraphPotential


class Recomputed(torch.autograd.Function):
    """Scores whose gradient by the parameters computes every batch again, to keep memory flat."""

    @staticmethod
    def forward(ctx: Any, potential: GraphPotential, values: Values, *stacks: Tensor) -> Scores:
        ctx.potential = potential
        ctx.save_for_backward(values, *stacks)  # a change in place before `backward` is noticed
        return potential._score_batches(values)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *by_score: Tensor
    ) -> tuple[Tensor | None, ...]:
        potential: GraphPotential = ctx.potential
        values, *stacks = ctx.saved_tensors
        if found := potential._compiled(values):
            kernel, library = found
            return None, None, *kernel.gradients(library, stacks, values, by_score[0])
        gradients = [torch.zeros_like(stack) for stack in stacks]
        sizes = [len(stack) for stack in potential._stacks()]
        for level, some in potential._batches(values):
            tensors = [stack[level].detach().requires_grad_() for stack in stacks]
            split = iter(tensors)
            weights = Weights(*([next(split) for _ in range(size)] for size in sizes))
            with torch.enable_grad():
                scores = potential._densely(potential._one_hot(values[level, some]), weights)
            found = torch.autograd.grad(scores, tensors, by_score[0][level, some])
            for total, part in zip(gradients, found, strict=True):
                total[level] += part
        return None, None, *gradients
