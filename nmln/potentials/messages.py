"""The products and sums of message passing, on rows of (node, relation) that the caller has room for."""

from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nmln.potentials.wiring import Rows


class Weights(NamedTuple):
    """The weights of one level, layer by layer; or those of all, with a leading axis for the levels."""

    hear: list[Tensor]
    hear_bias: list[Tensor]
    update: list[Tensor]
    update_bias: list[Tensor]
    readout: list[Tensor]
    readout_bias: list[Tensor]


class Workspace(NamedTuple):
    """Room for the activations of one batch, taken once and used for all batches.

    `rows` holds what each node says along each relation; `heard` and `updated` are the two halves of
    a layer. For scores there is room for one layer, for slopes for all of them and a spare one.
    """

    rows: Float[Tensor, "layers rows hidden"]
    heard: Float[Tensor, "layers nodes hidden"]
    updated: Float[Tensor, "layers nodes hidden"]
    gathered: Float[Tensor, "rows hidden"]
    spare: Float[Tensor, "two nodes hidden"]


def affine(state: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    """A linear layer; where the weights are those of all levels, of as many equal parts of the state."""
    if weight.ndim == 2:
        return torch.addmm(bias, state, weight, out=out)
    out = None if out is None else _parts(out, weight)
    return torch.baddbmm(bias[:, None], _parts(state, weight), weight, out=out)


def _parts(rows: Tensor, weight: Tensor) -> Tensor:
    return rows.view(len(weight), -1, rows.shape[-1])


def transform(state: Tensor, weight: Tensor, rows: Rows | None, out: Tensor, room: Tensor) -> None:
    """What nodes say along the relations: those of `rows`, or all nodes along all relations."""
    if rows is None:
        said = out[: weight.shape[-1] // out.shape[1] * len(state)].view(len(state), -1)
        if weight.ndim == 2:
            torch.mm(state, weight, out=said)
        else:
            torch.bmm(_parts(state, weight), weight, out=_parts(said, weight))
        return
    gathered = _gather(state, rows, room)
    parts = weight.split(out.shape[1], dim=1)
    for columns, some in zip(parts, _spans(rows.counts), strict=True):
        torch.mm(gathered[some], columns, out=out[some])


def sums(table: Tensor, indices: Tensor, starts: Tensor) -> Tensor:
    """The sum of each bag's rows; skips the checks of the usual call, which cost much on small bags."""
    return torch.embedding_bag(table, indices, starts, False, 0)[0]


def transform_back(
    gradient: Tensor, weight: Tensor, rows: Rows | None, out: Tensor, room: Tensor
) -> None:
    """The backward pass of `transform`: gradients by the states of the nodes that were heard."""
    parts = weight.split(gradient.shape[1], dim=1)
    if rows is None:
        told = out[: len(parts) * len(gradient)].view(len(gradient), len(parts), -1)
        for relation, columns in enumerate(parts):
            torch.mm(gradient, columns.T, out=told[:, relation])
        return
    gathered = _gather(gradient, rows, room)
    for columns, some in zip(parts, _spans(rows.counts), strict=True):
        torch.mm(gathered[some], columns.T, out=out[some])


def _gather(state: Tensor, rows: Rows, room: Tensor) -> Tensor:
    if state.shape[1] != room.shape[1]:
        return state.index_select(0, rows.nodes)
    return torch.index_select(state, 0, rows.nodes, out=room[: len(rows.nodes)])


def _spans(counts: list[int]) -> list[slice]:
    ends = list(accumulate(counts))
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def relu_backward(gradient: Tensor, activation: Tensor) -> Tensor:
    """The gradient before a ReLU, put in the place of the one behind it."""
    return torch.ops.aten.threshold_backward.grad_input(
        gradient, activation, 0, grad_input=gradient
    )
