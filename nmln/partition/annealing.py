"""Absolute partition functions, by chains annealed between the uniform distribution and a level."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.files import InputError
from nmln.kernels.combined import simple_kernels
from nmln.memory import refuse_size, told
from nmln.noise import uniform as uniform_worlds
from nmln.partition.blocks import (
    NOTHING,
    Draws,
    check_possible,
    each,
    effective_size,
    label_blocks,
    log_mean,
    standard_error,
)
from nmln.potentials.base import BasePotential
from nmln.potentials.scaled import ScaledPotential
from nmln.types import Kernel, State

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""


_BETA = 32  # bytes of a number in a list


class LogZ(NamedTuple):
    """log Z of every level, its standard error, and how many equal weights the weights are worth.

    An effective size of a few says that the error is not to be trusted: anneal in more steps.
    """

    log_z: Float64[Tensor, " levels"]
    error: Float64[Tensor, " levels"]
    effective_size: Float64[Tensor, " levels"]


@torch.no_grad()
def annealed(
    potential: BasePotential,
    kernel: Kernel,
    chains: int,
    steps: int | Sequence[float],
    rng: Generator,
    *,
    evidence: Evidence | None = None,
    moves: int = 1,
    progress: Progress | None = None,
) -> LogZ:
    """log Z of every level by annealed importance sampling from uniform worlds: low on average.

    Independent chains start in worlds that the evidence allows, all alike, and are carried to each
    level through beta * rho, with `moves` moves of the kernel at every beta. `steps` is the number of
    equal steps of beta, or the betas themselves, from 0 to 1. Z itself is estimated without bias. A
    chain that starts in a world which a hard formula forbids has weight 0: it stands for the share of
    worlds that is not there.
    """
    if chains < 2:
        raise InputError(f"an error needs at least two chains, but chains is {chains}.")
    betas = _schedule(steps, moves)
    evidence = _agreed(potential, kernel, evidence)
    state = kernel.init(
        potential, uniform_worlds(potential.space, potential.levels, chains, rng, evidence)
    )
    alive = state.scores > NOTHING
    if not bool(alive.any(1).all()):
        level = int(torch.nonzero(~alive.any(1))[0])
        raise InputError(
            f"at least one chain must start in a world that no hard formula forbids, but at level "
            f"{level} all {chains} are forbidden. Take more chains, or evidence that leaves fewer "
            "forbidden worlds."
        )
    # The weight of a forbidden start is 0 for ever: it may stand anywhere, so stand by another chain.
    first = alive.int().argmax(1, keepdim=True)
    own = torch.arange(chains, device=alive.device)
    state = _take(state, torch.where(alive, own, first))
    weights = _carry(
        potential, kernel, state, betas, moves, rng, evidence, _ticker(betas, 1, progress)
    )
    weights = weights.masked_fill(~alive, NOTHING)[None]
    mean, influence = log_mean(weights, label_blocks(1, chains, None).to(weights.device))
    return LogZ(_log_count(evidence) + mean, standard_error(influence), effective_size(weights))


@torch.no_grad()
def reverse_annealed(
    potential: BasePotential,
    kernel: Kernel,
    draws: Draws,
    steps: int | Sequence[float],
    rng: Generator,
    *,
    evidence: Evidence | None = None,
    moves: int = 1,
    batches: int | None = None,
    uniform: int = 4096,
    progress: Progress | None = None,
) -> LogZ:
    """log Z of every level by annealing its own draws to the uniform distribution: high on average.

    The draws must have the distribution of their level; errors come from independent blocks, as in
    `stepping_stone`. `steps`, a number or betas from 0 to 1, are gone through downwards. Annealing ends
    among the worlds that no hard formula forbids; their share of those that the evidence allows is
    counted in `uniform` worlds, and its error added; the side is then not certain. Each draw costs one
    run of annealing.
    """
    betas = _schedule(steps, moves)
    evidence = _agreed(potential, kernel, evidence)
    listed = list(each(potential, draws))
    tick = _ticker(betas, len(listed), progress)
    found = []
    for values in listed:
        if not bool(evidence.allows(values).all()):
            raise InputError("the draws must agree with the evidence, but some of them do not.")
        state = kernel.init(potential, values)
        check_possible(state.scores)
        found.append(_carry(potential, kernel, state, betas[::-1], moves, rng, evidence, tick))
    weights = torch.stack(found)
    blocks = label_blocks(len(weights), weights.shape[2], batches).to(weights.device)
    mean, influence = log_mean(weights, blocks)
    share, share_error = _possible_share(potential, evidence, uniform, weights.shape[2], rng)
    error = (standard_error(influence) ** 2 + share_error**2).sqrt()
    return LogZ(_log_count(evidence) + share - mean, error, effective_size(weights))


def _carry(
    potential: BasePotential,
    kernel: Kernel,
    state: State,
    betas: Sequence[float],
    moves: int,
    rng: Generator,
    evidence: Evidence,
    tick: Callable[[], None],
) -> Float64[Tensor, "levels chains"]:
    """The log weights of chains that are carried from the first beta to the last."""
    weights = torch.zeros(state.scores.shape, dtype=torch.float64, device=state.scores.device)
    for number, (before, after) in enumerate(pairwise(betas), 2):
        weights += (after - before) * state.scores.double()
        if number < len(betas):  # where a path ends nothing depends on the worlds any more
            state = _explore(potential, kernel, state, after, moves, rng)
        tick()
    if not bool(evidence.allows(state.values).all()):
        raise InputError(
            "the kernel must keep to the evidence, but it has made worlds that do not agree. Build it "
            "with the same evidence."
        )
    return weights


def _explore(
    potential: BasePotential, kernel: Kernel, state: State, beta: float, moves: int, rng: Generator
) -> State:
    """Moves at one beta; scores and slopes go in and come out as they are at beta 1.

    They are linear in beta, so that no world is scored anew for a change of beta; and those of a world
    that has not moved are kept, so that rounding does not add up.
    """
    scaled = ScaledPotential(potential, [beta] * potential.levels)
    slopes = None if state.slopes is None else beta * state.slopes
    moved = state._replace(scores=beta * state.scores, slopes=slopes)
    for _ in range(moves):
        moved, _ = kernel.step(scaled, moved, rng)
    same = (moved.values == state.values).all(-1)
    scores = torch.where(same, state.scores, moved.scores / beta)
    slopes = None if moved.slopes is None else moved.slopes / beta
    if slopes is not None and state.slopes is not None:
        slopes = torch.where(same[..., None], state.slopes, slopes)
    return moved._replace(scores=scores, slopes=slopes)


def _schedule(steps: int | Sequence[float], moves: int) -> list[float]:
    """The betas from 0 to 1."""
    if moves < 1:
        raise InputError(f"moves must be at least 1, but is {moves}.")
    if isinstance(steps, int):
        if steps < 1:
            raise InputError(f"annealing takes at least one step, but steps is {steps}.")
        refuse_size(_BETA * steps, f"annealing in {told(steps)} steps", "Take fewer steps.")
        return [step / steps for step in range(steps + 1)]
    betas = [float(beta) for beta in steps]
    rising = all(before < after for before, after in pairwise(betas))
    if len(betas) < 2 or betas[0] != 0 or betas[-1] != 1 or not rising:
        raise InputError(
            f"betas must rise from 0 to 1 without repeats, but these are {betas}. Give a number of "
            "steps instead for equal ones."
        )
    return betas


def _agreed(potential: BasePotential, kernel: Kernel, evidence: Evidence | None) -> Evidence:
    """The evidence that holds for start and kernel alike; refuses a kernel that was told otherwise."""
    evidence = evidence or Evidence.none(potential.space)
    if evidence.space != potential.space:
        raise InputError("this evidence is about another space than the potential's.")
    for one in simple_kernels(kernel):
        told = getattr(one, "evidence", evidence) or Evidence.none(potential.space)
        if not torch.equal(told.allowed, evidence.allowed):
            raise InputError(
                f"the kernel must be built with the evidence of the estimate, but "
                f"{type(one).__name__} was given other evidence. Give both the same."
            )
    return evidence


def _log_count(evidence: Evidence) -> float:
    """The log of the number of worlds that the evidence allows, which may be astronomical."""
    return evidence.log_number_of_worlds


def _possible_share(
    potential: BasePotential, evidence: Evidence, number: int, at_once: int, rng: Generator
) -> tuple[Float64[Tensor, " levels"], Float64[Tensor, " levels"]]:
    """The log of the share of allowed worlds that no hard formula forbids, and its standard error."""
    if number < 1:
        raise InputError(f"uniform must be at least 1, but is {number}.")
    possible = torch.zeros(potential.levels, dtype=torch.float64, device=rng.device)
    for first in range(0, number, at_once):
        worlds = uniform_worlds(
            potential.space, potential.levels, min(at_once, number - first), rng, evidence
        )
        possible += (potential.score(worlds) > NOTHING).sum(1)
    share = possible / number
    if not bool((share > 0).all()):
        level = int(torch.nonzero(share == 0)[0])
        raise InputError(
            f"some of {number} uniform worlds must be possible, but hard formulas forbid them all at "
            f"level {level}. Raise uniform, or take evidence that leaves fewer forbidden worlds."
        )
    return share.log(), ((1 - share) / (share * number)).sqrt()


def _take(state: State, chains: Int64[Tensor, "levels chains"]) -> State:
    """The state with every chain where another one of its level stands."""
    wide = chains[..., None]
    slopes = state.slopes
    return state._replace(
        values=state.values.gather(1, wide.expand_as(state.values)),
        scores=state.scores.gather(1, chains),
        slopes=None if slopes is None else slopes.gather(1, wide.expand_as(slopes)),
    )


def _ticker(betas: Sequence[float], runs: int, progress: Progress | None) -> Callable[[], None]:
    """What is called after every step, and tells how many there have been."""
    done, total = 0, runs * (len(betas) - 1)

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick
