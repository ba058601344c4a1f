"""Shared parts of the estimators: draws, independent blocks of them, averages of weights."""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from nmln.errors import InputError
from nmln.types import Potential, Values

Draws = Values | Iterable[Tensor]
"""Worlds of every level: one draw, or many draws from the same chains (`state.values` of sweeps).

A tensor (levels, chains, groups) is one draw of every chain; an iterable of such tensors, or a tensor
(draws, levels, chains, groups), has the draws in the order in which the chains made them. Chains are
taken to be independent of each other, the draws of a chain and the levels of a replica are not.
"""

LogWeights = Float64[Tensor, "draws columns chains"]
Labels = Int64[Tensor, "draws chains"]  # the block that each draw belongs to
Influence = Float64[Tensor, "blocks columns"]  # how far each block moved an estimate

FEWEST_BLOCKS = 20  # the error of an error bar is then about 16 per cent
NOTHING = float("-inf")


def each(potential: Potential, draws: Draws) -> Iterator[Values]:
    """The draws one after the other, checked."""
    shape = None
    for values in [draws] if isinstance(draws, Tensor) and draws.ndim == 3 else draws:
        expected = shape or (potential.levels, "any", "any")
        fits = values.ndim == 3 and values.shape[0] == potential.levels and values.shape[1]
        if not fits or (shape and values.shape != shape):
            raise InputError(
                f"draws must be values of shape (levels, chains, groups) = {tuple(expected)}, always "
                f"of the same chains, but one has the shape {tuple(values.shape)}."
            )
        shape = values.shape
        yield values
    if shape is None:
        raise InputError(
            "there are no draws. An iterator can be read only once: turn it into a list.",
            kind="empty",
        )


def check_possible(scores: Float[Tensor, "levels chains"]) -> None:
    """Refuse draws that their own level forbids: they cannot have its distribution."""
    forbidden = torch.nonzero(scores == NOTHING)
    if len(forbidden):
        level, chain = forbidden[0].tolist()
        raise InputError(
            f"a draw of a level must be possible at that level, but a hard formula forbids the one of "
            f"chain {chain} at level {level}. Record the chains with this potential.",
            kind="conflict",
        )


def label_blocks(draws: int, chains: int, batches: int | None) -> Labels:
    """Number the blocks whose averages count as independent."""
    if batches is None:
        batches = min(draws, -(-FEWEST_BLOCKS // chains))
    if not 1 <= batches <= draws or batches * chains < 2:
        raise InputError(
            f"an error needs at least two blocks of draws, but {chains} chains with {draws} draws in "
            f"{batches} batches do not make them. Give more chains or draws, or other batches."
        )
    batch = torch.arange(draws) * batches // draws
    return batch[:, None] * chains + torch.arange(chains)


def log_mean(logs: LogWeights, blocks: Labels) -> tuple[Float64[Tensor, " columns"], Influence]:
    """The log of the mean weight of each column, and how far each block moved it, to first order."""
    largest = logs.amax((0, 2))
    weights = (logs - largest[:, None]).exp()
    mean = weights.mean((0, 2))
    excess = (weights / mean[:, None] - 1).transpose(1, 2).flatten(0, 1) / blocks.numel()
    influence = excess.new_zeros(int(blocks.max()) + 1, logs.shape[1])
    return largest + mean.log(), influence.index_add_(0, blocks.flatten(), excess)


def standard_error(influence: Influence) -> Float64[Tensor, " columns"]:
    """The standard error of an estimate from what each of the independent blocks added to it."""
    number = len(influence)
    return (influence.square().sum(0) * (number / (number - 1))).sqrt()


def effective_size(logs: LogWeights) -> Float64[Tensor, " columns"]:
    """The square of the sum of the weights over the sum of their squares."""
    columns = logs.transpose(0, 1).flatten(1)
    return (2 * columns.logsumexp(1) - (2 * columns).logsumexp(1)).exp()
