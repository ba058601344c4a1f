"""Chains carried from independent groups to a level and back, and what their works say of Z."""

from collections.abc import Callable
from itertools import pairwise
from math import log

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from nmln.files import InputError
from nmln.partition.blocks import label_blocks, log_mean, standard_error
from nmln.potentials.base import BasePotential
from nmln.potentials.independent import IndependentPotential
from nmln.types import Alternatives, Groups, Kernel, Scores, Slopes, State, Values

_MOST_BATCHES = 100  # of starts drawn before hard formulas are found too strict

Works = Float64[Tensor, " chains"]


def log_mean_of(works: Works) -> tuple[float, float]:
    """The log of the mean of exp(work) and its standard error."""
    mean, influence = log_mean(works[None, None], label_blocks(1, len(works), None))
    return float(mean), float(standard_error(influence))


def bennett(there: Works, back: Works) -> tuple[float, float]:
    """The log of the ratio of two partition functions from works both ways, and its standard error.

    The ratio at which a guess whether a work is of the way there is right as often as for the way back
    (Bennett, 1976). As many works each way; none may be infinite.
    """
    if len(there) != len(back) or len(there) < 2:
        raise InputError(
            f"as many works each way, at least two, but there are {len(there)} and {len(back)}."
        )
    works = torch.cat([there, back])
    least, most = float(works.min()) - 1, float(works.max()) + 1
    middle = (least + most) / 2
    for _ in range(100):
        gap = (there - middle).sigmoid().sum() - (middle - back).sigmoid().sum()
        least, most = (middle, most) if gap > 0 else (least, middle)
        middle = (least + most) / 2
    ahead, behind = (there - middle).sigmoid(), (middle - back).sigmoid()
    slope = (ahead * (1 - ahead)).sum() + (behind * (1 - behind)).sum()
    variance = len(there) * (ahead.var() + behind.var())
    return middle, float(variance.sqrt() / slope)


def draw_possible(
    start: IndependentPotential, target: BasePotential, chains: int, rng: Generator
) -> tuple[Values, float, float]:
    """Worlds of independent groups that no hard formula forbids; the log of their share, its error."""
    kept, found, drawn, at_once = [], 0, 0, max(chains, 100)
    while found < chains:
        if drawn >= _MOST_BATCHES * at_once:
            raise InputError(
                f"of {drawn} worlds of independent groups hard formulas forbid all but {found}, too many"
                " to estimate log Z from. Measure the model without them."
            )
        values = start.draw(at_once, rng)
        possible = target.score(values)[0] > float("-inf")
        kept.append(values[:, possible])
        found, drawn = found + int(possible.sum()), drawn + at_once
    share = found / drawn
    return torch.cat(kept, 1)[:, :chains], log(share), ((1 - share) / (share * drawn)) ** 0.5


class _Between(BasePotential):
    """(1 - beta) times a start plus beta times an end, both of one level."""

    def __init__(self, start: IndependentPotential, end: BasePotential, beta: float) -> None:
        super().__init__(end.space, 1)
        self.start, self.end, self.beta = start, end, beta
        self.precision = end.precision

    def evaluate(self, values: Values) -> Scores:
        return self.mix(self.start.evaluate(values), self.end.evaluate(values))

    def evaluate_with_slopes(self, values: Values) -> tuple[Scores, Slopes]:
        starts, ends = (
            self.start.evaluate_with_slopes(values),
            self.end.evaluate_with_slopes(values),
        )
        return self.mix(starts[0], ends[0]), self.mix(starts[1], ends[1])

    def evaluate_alternatives(self, values: Values, groups: Groups) -> Alternatives:
        starts = self.start.evaluate_alternatives(values, groups)
        return self.mix(starts, self.end.evaluate_alternatives(values, groups))

    def mix(self, start: Tensor, end: Tensor) -> Tensor:
        return (1 - self.beta) * start + self.beta * end

    def end_of(self, start: Tensor, mixed: Tensor) -> Tensor:
        """What the end gives, where the mixture is known."""
        return (mixed - (1 - self.beta) * start) / self.beta


def carry(
    start: IndependentPotential,
    end: BasePotential,
    kernel: Kernel,
    values: Values,
    schedule: range,
    rng: Generator,
    tick: Callable[[], None],
) -> tuple[Works, Values]:
    """The log weights of chains that are carried along the betas of a schedule, there or back, and
    where they arrive.
    """
    steps = max(schedule)
    state = kernel.init(end, values)
    works = torch.zeros(values.shape[1], dtype=torch.float64)
    for before, after in pairwise(schedule):
        gain = (state.scores - start.evaluate(state.values))[0].double()
        works += (after - before) / steps * gain
        if 0 < after < steps:
            state = _explore(_Between(start, end, after / steps), kernel, state, rng)
        tick()
    return works, state.values


def _explore(between: _Between, kernel: Kernel, state: State, rng: Generator) -> State:
    """One move at one beta; scores and slopes go in and come out as the end gives them.

    They are linear in beta and the start costs next to nothing, so that no world is scored anew for a
    change of beta; those of a world that has not moved are kept, so that rounding does not add up.
    """
    scores, slopes = between.start.evaluate_with_slopes(state.values)
    mixed = state._replace(
        scores=between.mix(scores, state.scores),
        slopes=None if state.slopes is None else between.mix(slopes, state.slopes),
    )
    moved, _ = kernel.step(between, mixed, rng)
    same = (moved.values == state.values).all(-1)
    scores, slopes = between.start.evaluate_with_slopes(moved.values)
    ended = torch.where(same, state.scores, between.end_of(scores, moved.scores))
    if moved.slopes is None or state.slopes is None:
        return moved._replace(scores=ended)
    found = between.end_of(slopes, moved.slopes)
    return moved._replace(scores=ended, slopes=torch.where(same[..., None], state.slopes, found))
