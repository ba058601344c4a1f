"""Absolute partition functions, by chains annealed between a simple distribution and a level.

One annealer, `anneal`, carries chains along a path from uniform worlds or from independent groups to a
potential, or back. `annealed` and `reverse_annealed` turn its weights into estimates of log Z.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.kernels.combined import simple_kernels
from nmln.memory import in_digits, refuse_size
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
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.scaled import ScaledPotential
from nmln.potentials.stand_in import StandIn
from nmln.types import Alternatives, Groups, Kernel, Scores, Slopes, State, Values

Progress = Callable[[int, int], None]
"""Called with the number of steps done and the number of all steps."""

_BETA = 32  # bytes of a number in a list


class LogZ(NamedTuple):
    """log Z of every level, its standard error, and the effective sample size of the weights.

    With an effective size of only a few, the error is not reliable: anneal in more steps.
    """

    log_z: Float64[Tensor, " levels"]
    error: Float64[Tensor, " levels"]
    effective_size: Float64[Tensor, " levels"]


# The annealer.


class AnnealingStep(NamedTuple):
    """One step of a path: by how much beta grows (negative on the way back), and to which value."""

    width: float
    beta: float


def equal_steps(number: int, *, back: bool = False) -> list[AnnealingStep]:
    """Steps of equal width from beta 0 to 1, or back. All widths are exactly the same number."""
    if back:
        return [AnnealingStep(-1 / number, step / number) for step in range(number - 1, -1, -1)]
    return [AnnealingStep(1 / number, step / number) for step in range(1, number + 1)]


def steps_along(betas: Sequence[float]) -> list[AnnealingStep]:
    """Steps from each beta to the next."""
    return [AnnealingStep(after - before, after) for before, after in pairwise(betas)]


@dataclass(frozen=True)
class AnnealingPath:
    """Potentials (1 - beta) * start + beta * end, for beta between 0 and 1.

    The start is a potential of independent groups, which costs next to nothing to evaluate, or None for
    uniform worlds, whose score is 0.
    """

    end: BasePotential
    start: IndependentPotential | None = None

    def at(self, beta: float) -> BasePotential:
        """The potential at a beta above 0."""
        if self.start is None:
            return ScaledPotential(self.end, [beta] * self.end.levels)
        return _Between(self.start, self.end, beta)

    def gain(self, state: State) -> Scores:
        """The derivative of the score by beta; the state has the scores of the end."""
        if self.start is None:
            return state.scores
        values, there = state.values, self.start.device
        return state.scores - self.start.evaluate(values.to(there)).to(values.device)

    def start_of(self, values: Values) -> tuple[Scores | float, Slopes | float]:
        """Scores and slopes of the start."""
        if self.start is None:
            return 0.0, 0.0
        scores, slopes = self.start.evaluate_with_slopes(values.to(self.start.device))
        return scores.to(values.device), slopes.to(values.device)


class _Between(BasePotential):
    """(1 - beta) times a start plus beta times an end."""

    def __init__(self, start: IndependentPotential, end: BasePotential, beta: float) -> None:
        super().__init__(end.space, end.levels)
        self.start, self.end, self.beta = start, end, beta
        self.precision = end.precision

    def evaluate(self, values: Values) -> Scores:
        return _mix(self.beta, self.start.evaluate(values), self.end.evaluate(values))

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        starts = self.start.evaluate_with_slopes(values)
        ends = self.end.evaluate_with_slopes(values)
        return _mix(self.beta, starts[0], ends[0]), _mix(self.beta, starts[1], ends[1])

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        starts = self.start.evaluate_alternatives(values, groups)
        return _mix(self.beta, starts, self.end.evaluate_alternatives(values, groups))

    def stand_in(self) -> StandIn:
        both = torch.full((self.levels,), self.beta, dtype=torch.float64)
        found, end = self.start.stand_in().times(1 - both), self.end.stand_in()
        return found if end is None else found.plus(end.times(both))


def _mix(beta: float, start: Tensor | float, end: Tensor) -> Tensor:
    return (1 - beta) * start + beta * end


def _unmix(beta: float, start: Tensor | float, mixed: Tensor) -> Tensor:
    """The part of the end in a mixture."""
    return (mixed - (1 - beta) * start) / beta


def anneal(
    path: AnnealingPath,
    kernel: Kernel,
    state: State,
    steps: Sequence[AnnealingStep],
    rng: Generator,
    *,
    moves: int = 1,
    tick: Callable[[], None],
) -> tuple[Float64[Tensor, "levels chains"], State]:
    """Carry chains along the steps of a path; their log weights, and the state in which they end.

    Args:
        path: the potentials to pass through.
        kernel: makes the moves.
        state: where the chains start, with the scores of the end of the path.
        steps: the steps of beta, up or down. No move follows the last one.
        rng: the generator of the moves.
        moves: moves of the kernel after each step.
        tick: called after each step.
    """
    weights = torch.zeros(state.scores.shape, dtype=torch.float64, device=state.scores.device)
    for number, (width, beta) in enumerate(steps, 1):
        weights += width * path.gain(state).double()
        if number < len(steps):  # at the end of a path no weight depends on the worlds any more
            state = _explore(path, kernel, state, beta, moves, rng)
        tick()
    return weights, state


def _explore(
    path: AnnealingPath, kernel: Kernel, state: State, beta: float, moves: int, rng: Generator
) -> State:
    """Moves at one beta; the state has the scores and slopes of the end, before and after.

    They are linear in beta, so that no world is scored again for a change of beta. Those of a world
    that has not moved are kept, so that rounding errors do not accumulate.
    """
    potential = path.at(beta)
    scores, slopes = path.start_of(state.values)
    moved = state._replace(
        scores=_mix(beta, scores, state.scores),
        slopes=None if state.slopes is None else _mix(beta, slopes, state.slopes),
    )
    for _ in range(moves):
        moved, _ = kernel.step(potential, moved, rng)
    same = (moved.values == state.values).all(-1)
    scores, slopes = path.start_of(moved.values)
    ended = torch.where(same, state.scores, _unmix(beta, scores, moved.scores))
    found = None if moved.slopes is None else _unmix(beta, slopes, moved.slopes)
    if found is not None and state.slopes is not None:
        found = torch.where(same[..., None], state.slopes, found)
    return moved._replace(scores=ended, slopes=found)


# Estimates.


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

    Independent chains start in uniformly drawn worlds that the evidence allows, and are carried to each
    level through beta * rho. The estimate of Z itself is unbiased. A chain that starts in a world which
    a hard formula forbids has weight 0: it stands for the share of forbidden worlds.

    Args:
        potential: the levels whose log Z is estimated.
        kernel: makes the moves; built with the same evidence.
        chains: the number of chains, at least two.
        steps: the number of equal steps of beta, or the betas themselves, from 0 to 1.
        rng: the generator of all random numbers.
        evidence: the categories that are allowed; without it, all of them.
        moves: moves of the kernel at every beta.
        progress: called after each step.
    """
    if chains < 2:
        raise InputError(f"chains must be at least 2 for a standard error, got {chains}.")
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
            "forbidden worlds.",
            kind="conflict",
        )
    # The weight of a forbidden start stays 0 wherever it goes, so it takes the place of another chain.
    first = alive.int().argmax(1, keepdim=True)
    own = torch.arange(chains, device=alive.device)
    state = _take(state, torch.where(alive, own, first))
    up, path = steps_along(betas), AnnealingPath(potential)
    tick = _ticker(len(up), progress)
    weights, state = anneal(path, kernel, state, up, rng, moves=moves, tick=tick)
    _check_kept(evidence, state)
    weights = weights.masked_fill(~alive, NOTHING)[None]
    mean, influence = log_mean(weights, label_blocks(1, chains, None).to(weights.device))
    return LogZ(
        evidence.log_number_of_worlds + mean, standard_error(influence), effective_size(weights)
    )


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

    Errors come from independent blocks, as in `stepping_stone`. Annealing ends among the worlds that no
    hard formula forbids. Their share of the worlds that the evidence allows is counted in uniform worlds
    and its error is added; the estimate can then err on either side. Each draw costs one run of
    annealing.

    Args:
        potential: the levels whose log Z is estimated.
        kernel: makes the moves; built with the same evidence.
        draws: worlds with the distribution of their level.
        steps: the number of equal steps of beta, or betas from 0 to 1; they are taken downwards.
        rng: the generator of all random numbers.
        evidence: the categories that are allowed; without it, all of them.
        moves: moves of the kernel at every beta.
        batches: blocks of draws per chain, as in `stepping_stone`.
        uniform: the number of uniform worlds that the share is counted in.
        progress: called after each step.
    """
    betas = _schedule(steps, moves)
    evidence = _agreed(potential, kernel, evidence)
    listed = list(each(potential, draws))
    down, path = steps_along(betas[::-1]), AnnealingPath(potential)
    tick = _ticker(len(listed) * len(down), progress)
    found = []
    for values in listed:
        if not bool(evidence.allows(values).all()):
            raise InputError(
                "the draws must agree with the evidence, but some of them do not.", kind="conflict"
            )
        state = kernel.init(potential, values)
        check_possible(state.scores)
        weights, state = anneal(path, kernel, state, down, rng, moves=moves, tick=tick)
        _check_kept(evidence, state)
        found.append(weights)
    weights = torch.stack(found)
    blocks = label_blocks(len(weights), weights.shape[2], batches).to(weights.device)
    mean, influence = log_mean(weights, blocks)
    share, share_error = _possible_share(potential, evidence, uniform, weights.shape[2], rng)
    error = (standard_error(influence) ** 2 + share_error**2).sqrt()
    return LogZ(evidence.log_number_of_worlds + share - mean, error, effective_size(weights))


def _schedule(steps: int | Sequence[float], moves: int) -> list[float]:
    """The betas from 0 to 1."""
    if moves < 1:
        raise InputError(f"moves must be at least 1, got {moves}.")
    if isinstance(steps, int):
        if steps < 1:
            raise InputError(f"steps must be at least 1, got {steps}.")
        refuse_size(_BETA * steps, f"annealing in {in_digits(steps)} steps", "Take fewer steps.")
        return [step / steps for step in range(steps + 1)]
    betas = [float(beta) for beta in steps]
    rising = all(before < after for before, after in pairwise(betas))
    if len(betas) < 2 or betas[0] != 0 or betas[-1] != 1 or not rising:
        raise InputError(
            f"betas must rise from 0 to 1 without repeats, got {betas}. Give a number of steps instead "
            "for equal ones."
        )
    return betas


def _agreed(potential: BasePotential, kernel: Kernel, evidence: Evidence | None) -> Evidence:
    """The evidence for start and kernel alike; refuses a kernel that was built with other evidence."""
    evidence = evidence or Evidence.none(potential.space)
    if evidence.space != potential.space:
        raise InputError(
            "the evidence is about another space than the potential. Build it with the same space.",
            kind="conflict",
        )
    for one in simple_kernels(kernel):
        theirs = getattr(one, "evidence", evidence) or Evidence.none(potential.space)
        if not torch.equal(theirs.allowed, evidence.allowed):
            raise InputError(
                f"the kernel must be built with the evidence of the estimate, but "
                f"{type(one).__name__} was given other evidence. Give both the same.",
                token=type(one).__name__,
                kind="conflict",
            )
    return evidence


def _check_kept(evidence: Evidence, state: State) -> None:
    if not bool(evidence.allows(state.values).all()):
        raise InputError(
            "the kernel must keep to the evidence, but it has made worlds that do not agree. Build it "
            "with the same evidence.",
            kind="conflict",
        )


def _possible_share(
    potential: BasePotential, evidence: Evidence, number: int, at_once: int, rng: Generator
) -> tuple[Float64[Tensor, " levels"], Float64[Tensor, " levels"]]:
    """The log of the share of allowed worlds that no hard formula forbids, and its standard error."""
    if number < 1:
        raise InputError(f"uniform must be at least 1, got {number}.")
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
            f"level {level}. Raise uniform, or take evidence that leaves fewer forbidden worlds.",
            kind="conflict",
        )
    return share.log(), ((1 - share) / (share * number)).sqrt()


def _take(state: State, chains: Int64[Tensor, "levels chains"]) -> State:
    """The state in which every chain has the world of a given chain of its level."""
    wide = chains[..., None]
    slopes = state.slopes
    return state._replace(
        values=state.values.gather(1, wide.expand_as(state.values)),
        scores=state.scores.gather(1, chains),
        slopes=None if slopes is None else slopes.gather(1, wide.expand_as(slopes)),
    )


def _ticker(total: int, progress: Progress | None) -> Callable[[], None]:
    """A function to call after every step; it reports how many there have been."""
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick
