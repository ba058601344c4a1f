"""Swaps of worlds between neighbouring levels, with the exact replica-exchange ratio."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.types import Potential, Scores, Slopes, State, SwapInfo, Values, Walkers


class Exchanged(NamedTuple):
    """The state of all levels after an exchange phase, and the labels that travelled along."""

    state: State
    walkers: Walkers
    info: SwapInfo


def start_walkers(values: Values) -> Walkers:
    """Label every state of a replica by the level where it starts."""
    levels, chains, _ = values.shape
    return torch.arange(levels, device=values.device)[:, None].repeat(1, chains)


def pairs_of(levels: int, parity: int) -> tuple[int, ...]:
    """The upper levels of the pairs of a phase: 0, 2, … if it is even, 1, 3, … if it is odd."""
    if parity not in (0, 1):
        raise InputError(f"parity must be even (0) or odd (1), got {parity}.", token="parity")
    return tuple(range(parity, levels - 1, 2))


def partners(levels: int, parity: int) -> Int64[Tensor, " levels"]:
    """The level that each level may swap with; itself where it has no partner in this phase."""
    order = torch.arange(levels)
    for upper in pairs_of(levels, parity):
        order[upper], order[upper + 1] = upper + 1, upper
    return order


def log_swap_ratio(
    scores: Scores, cross: Scores, pairs: tuple[int, ...]
) -> Float[Tensor, "pairs chains"]:
    """The logarithm of the replica-exchange ratio of each pair.

    `cross` holds the score of every level for the world of its partner. Each level's score occurs once
    with a plus and once with a minus, so that constants added to a level's potential cancel.
    """
    upper = torch.tensor(pairs, dtype=torch.int64, device=scores.device)
    cross, scores = cross.double(), scores.double()
    gained = cross[upper] + cross[upper + 1]
    return gained - scores[upper] - scores[upper + 1]


@torch.no_grad()
def exchange(
    potential: Potential, state: State, walkers: Walkers, parity: int, rng: Generator
) -> Exchanged:
    """One phase: propose to swap the worlds of neighbouring levels, independently in every replica.

    Costs one score of every world (with slopes, if the state has them): afterwards the scores and slopes
    of a swapped world are those that its new level just gave it.
    """
    levels, chains, _ = state.values.shape
    pairs = pairs_of(levels, parity)
    if not pairs:
        nothing = state.scores.new_zeros(0, chains)
        return Exchanged(state, walkers, SwapInfo(pairs, nothing, nothing.bool()))
    order = partners(levels, parity).to(state.values.device)
    offered = state.values[order]
    slopes: Slopes | None = None
    if state.slopes is None:
        cross = potential.score(offered)
    else:
        cross, slopes = potential.score_and_slopes(offered)
    probabilities = log_swap_ratio(state.scores, cross, pairs).clamp(max=0).exp()
    swapped = decide(probabilities, rng)

    moved = torch.zeros(levels, chains, dtype=torch.bool, device=state.values.device)
    upper = torch.tensor(pairs, device=state.values.device)
    moved[upper], moved[upper + 1] = swapped, swapped
    new = State(
        torch.where(moved[..., None], offered, state.values),
        torch.where(moved, cross, state.scores),
        None
        if slopes is None or state.slopes is None
        else torch.where(moved[..., None], slopes, state.slopes),
    )
    labels = torch.where(moved, walkers[order], walkers)
    reported = probabilities.to(state.scores.dtype)
    return Exchanged(new, labels, SwapInfo(pairs, reported, swapped))


def decide(
    probabilities: Float[Tensor, "pairs chains"], rng: Generator
) -> Bool[Tensor, "pairs chains"]:
    """Draw for every pair whether it swaps; statistics use the probabilities, not these draws.

    Drawn and compared in double precision, as in every move.
    """
    uniform = torch.rand(
        probabilities.shape, generator=rng, dtype=torch.float64, device=probabilities.device
    )
    return uniform < probabilities.double()
