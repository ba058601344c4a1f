"""Ratios of partition functions between levels, from worlds recorded at every level."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from nmln.errors import InputError
from nmln.partition.blocks import (
    NOTHING,
    Draws,
    LogWeights,
    check_possible,
    each,
    label_blocks,
    log_mean,
    standard_error,
)
from nmln.types import Potential

_NO_SOLUTION = (
    "MBAR found no solution: the levels have too little in common for these draws. Record more draws, "
    "or put levels in between."
)


class Ratios(NamedTuple):
    """log Z of each level less that of the noisier level above it, and their sums over the ladder.

    The errors are standard errors. Those of the sums are not sums of the others: they include the
    correlation between the levels of a replica.
    """

    forward: Float64[Tensor, " pairs"]  # low on average
    reverse: Float64[Tensor, " pairs"]  # high on average
    forward_error: Float64[Tensor, " pairs"]
    reverse_error: Float64[Tensor, " pairs"]
    forward_sum: float  # the target less the noisiest level
    reverse_sum: float
    forward_sum_error: float
    reverse_sum_error: float


class Differences(NamedTuple):
    """log Z of the level in the column less that of the level in the row, with standard errors.

    `independent_errors` are pymbar's own: right only if every draw were independent of all others. The
    square of `errors / independent_errors` says how many draws are worth one.
    """

    log_ratios: Float64[Tensor, "levels levels"]
    errors: Float64[Tensor, "levels levels"]
    independent_errors: Float64[Tensor, "levels levels"]


@torch.no_grad()
def stepping_stone(potential: Potential, draws: Draws, *, batches: int | None = None) -> Ratios:
    """log Z ratios of neighbouring levels from worlds drawn at each of them, in both directions.

    Forward is the log mean over the upper level of exp(rho of the lower - rho of the upper), reverse
    the same with the levels exchanged and the sign reversed. Where a hard formula forbids at one level
    what is possible at the other, an average sees only the worlds that both allow, and is corrected by
    their share among the other level's draws; the side on which it errs is then not certain.

    The errors are those of averages over independent blocks, to first order: one block for each chain,
    or `batches` stretches of consecutive draws of each (by default as few as make 20 blocks), which
    must be longer than the autocorrelation. Each world is scored three times and not kept.
    """
    up, down = [], []
    for values in each(potential, draws):
        own = potential.score(values).double()
        check_possible(own)
        # What each level gives to the worlds of the level above it, and of the level below it.
        to_upper = potential.score(values.roll(1, 0)).double()
        to_lower = potential.score(values.roll(-1, 0)).double()
        up.append(to_upper[1:] - own[:-1])
        down.append(to_lower[:-1] - own[1:])
    forward, reverse = torch.stack(up), torch.stack(down)
    if not forward.shape[1]:
        raise InputError(
            "a ratio needs two levels, but this potential has one. Anneal instead.",
            kind="unsupported",
        )
    _check_overlap(forward, reverse)
    blocks = label_blocks(len(forward), forward.shape[2], batches).to(forward.device)
    ahead, ahead_influence = log_mean(forward, blocks)
    back, back_influence = log_mean(reverse, blocks)
    upper_share, upper_influence = log_mean(_possible(forward), blocks)
    lower_share, lower_influence = log_mean(_possible(reverse), blocks)
    ahead, ahead_influence = ahead - lower_share, ahead_influence - lower_influence
    back, back_influence = upper_share - back, upper_influence - back_influence
    return Ratios(
        forward=ahead,
        reverse=back,
        forward_error=standard_error(ahead_influence),
        reverse_error=standard_error(back_influence),
        forward_sum=float(ahead.sum()),
        reverse_sum=float(back.sum()),
        forward_sum_error=float(standard_error(ahead_influence.sum(1, keepdim=True))),
        reverse_sum_error=float(standard_error(back_influence.sum(1, keepdim=True))),
    )


@torch.no_grad()
def mbar(potential: Potential, draws: Draws, *, batches: int | None = None) -> Differences:
    """log Z ratios of all pairs of levels by the multistate Bennett acceptance ratio.

    Uses every draw for every level: the smallest error that the draws allow, without a known side.
    Errors come from independent blocks as in `stepping_stone`, through the linearised equations that
    the estimate solves; so neither autocorrelation nor swaps between levels make them too small. Every
    world is scored at every level, and those levels^2 * chains * draws scores are kept.
    """
    found = []
    for values in each(potential, draws):
        everywhere = values.flatten(0, 1).expand(len(values), -1, -1)
        scores = potential.score(everywhere).double().unflatten(1, values.shape[:2])
        check_possible(scores.diagonal().T)
        found.append(scores)
    table = torch.stack(found).permute(1, 2, 0, 3).cpu()  # scored by, drawn at, draw, chain
    levels, _, number, chains = table.shape
    if levels < 2:
        raise InputError(
            "a ratio needs two levels, but this potential has one. Anneal instead.",
            kind="unsupported",
        )
    _check_connected((table > NOTHING).flatten(2).any(2).T)
    blocks = label_blocks(number, chains, batches)
    log_z, independent = _solve(table.flatten(2))

    # The equations are those of a logistic regression that guesses the level of a draw.
    chances = (table.flatten(1) - log_z[:, None]).softmax(0)
    curvature = chances.sum(1).diag() - chances @ chances.T
    drawn_at = torch.eye(levels, dtype=torch.float64).repeat_interleave(number * chains, 1)
    missed = torch.zeros(int(blocks.max()) + 1, levels, dtype=torch.float64)
    missed.index_add_(0, blocks.flatten().repeat(levels), (drawn_at - chances).T)
    # A constant added to every log Z changes nothing; a constant matrix makes that direction regular.
    influence = torch.linalg.solve(curvature + curvature.diagonal().mean(), missed.T).T
    between = influence[:, :, None] - influence[:, None]
    errors = standard_error(between.flatten(1)).view(levels, levels)
    return Differences(log_z - log_z[:, None], errors, independent)


def _possible(logs: LogWeights) -> LogWeights:
    """The log of 1 for draws that the other level allows too, of 0 for the rest."""
    return torch.zeros_like(logs).masked_fill(logs == NOTHING, NOTHING)


def _check_overlap(forward: LogWeights, reverse: LogWeights) -> None:
    for logs, (start, end) in ((forward, (0, 1)), (reverse, (1, 0))):
        lost = torch.nonzero((logs == NOTHING).all(0).all(1))
        if len(lost):
            pair = int(lost[0])
            raise InputError(
                f"some draws of level {pair + start} must be possible at level {pair + end}, but hard "
                f"formulas forbid them all there, so the ratio cannot be estimated. Record more draws, "
                "or put a level with milder formulas in between.",
                kind="conflict",
            )


def _check_connected(reaches: Bool[Tensor, "levels levels"]) -> None:
    """Refuse draws that leave some ratio open: each level must reach all others over possible worlds."""
    reached = reaches.double()
    for _ in range(len(reaches)):
        reached = (reached + reached @ reached).clamp(max=1)
    apart = torch.nonzero(reached == 0)
    if len(apart):
        start, end = apart[0].tolist()
        raise InputError(
            f"levels must have possible worlds in common, but hard formulas forbid all draws of level "
            f"{start} at level {end}, and there is no way round over other levels. Record more draws, "
            "or put levels with milder formulas in between.",
            kind="conflict",
        )


def _solve(
    table: Float64[Tensor, "levels levels draws"],
) -> tuple[Float64[Tensor, " levels"], Float64[Tensor, "levels levels"]]:
    """pymbar's log Z relative to the first level, and its errors; refused if it found no solution."""
    levels, _, number = table.shape
    with _quiet():  # its warnings are about attempts; whether one succeeded is checked below
        import pymbar  # slow to import, and logs while it is imported
        from pymbar.utils import ParameterError

        # Without a seed it would reseed numpy's global generator.
        try:
            solved = pymbar.MBAR(-table.flatten(1).numpy(), [number] * levels, rseed=0)
            answer = solved.compute_free_energy_differences()
        except (ParameterError, np.linalg.LinAlgError) as error:
            raise InputError(f"{_NO_SOLUTION} pymbar says: {error}", kind="numeric") from None
    log_z = -torch.from_numpy(answer["Delta_f"][0]).clone()
    counts = (table.flatten(1) - log_z[:, None]).softmax(0).sum(1) / number
    if not bool(((counts - 1).abs() < 1e-5).all()):
        raise InputError(_NO_SOLUTION, kind="numeric")
    return log_z, torch.from_numpy(answer["dDelta_f"]).clone()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log and the warnings of pymbar."""
    logger = logging.getLogger("pymbar")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
