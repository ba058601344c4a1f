"""log Z of the target level of a ladder, estimated from below and from above.

Chains are annealed from independent groups, with the marginals of the data, to the noisiest level and
back again. From there to the target the estimate climbs level by level, by worlds recorded at all of
them. Uniform worlds would be a much more distant start: for molecules they have the wrong atoms and far
too many bonds. Neighbouring levels overlap well, because they exchange worlds; a path from noise
straight to the target could not use that.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from math import log

import torch
from jaxtyping import Float64, Integer
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.memory import in_digits, refuse_size
from nmln.partition.annealing import AnnealingPath, Progress, anneal, equal_steps
from nmln.partition.blocks import effective_size, label_blocks, log_mean, standard_error
from nmln.partition.ratios import mbar, stepping_stone
from nmln.potentials.base import BasePotential
from nmln.potentials.independent import IndependentPotential
from nmln.sampler import Phases, sample
from nmln.types import Kernel, Values

CHAINS, STEPS, SWEEPS = 100, 3000, 1000

_MOST_BATCHES = 100  # of starts drawn before hard formulas count as too strict

Works = Float64[Tensor, " chains"]


@dataclass(frozen=True)
class LogZBracket:
    """log Z of the target level, estimated from below and from above, with standard errors.

    `low` and `high` err to their own side on average and approach the truth with more steps and sweeps.
    `value` combines both directions by their overlap (Bennett's ratio) and has the least error. `data`
    is the log of the part of Z that the data alone contribute: log Z is at least this.
    """

    value: float
    error: float
    low: float
    low_error: float
    high: float
    high_error: float
    effective_size: float  # of the chains that were annealed to the noisiest level
    data: float = float("-inf")

    def with_data(self, data: float) -> "LogZBracket":
        """The estimate with the knowledge that log Z is at least `data`, the part of the data alone.

        Chains that never find some of the data miss their part of Z; then `data` is the better value.
        """
        return replace(self, data=data, value=max(self.value, data))

    @staticmethod
    def mean(parts: Sequence["LogZBracket"], shares: Sequence[float]) -> "LogZBracket":
        """The mean of log Z over several domains by their shares; errors are independent."""
        if len(parts) == 1:
            return parts[0]
        columns = list(zip(*map(astuple, parts), strict=True))
        found = [sum(s * x for s, x in zip(shares, column, strict=True)) for column in columns]
        for place in (1, 3, 5):  # the errors
            squares = ((s * x) ** 2 for s, x in zip(shares, columns[place], strict=True))
            found[place] = sum(squares) ** 0.5
        return LogZBracket(*found)

    @property
    def missed(self) -> bool:
        """Whether the data alone contribute more than all that the chains have found."""
        return self.data > max(self.high + 2 * self.high_error, self.low + 2 * self.low_error)

    @property
    def interval(self) -> tuple[float, float]:
        """From two errors below the low estimate to two above the high one; never below `data`."""
        least = min(self.low - 2 * self.low_error, self.value - 2 * self.error)
        most = max(self.high + 2 * self.high_error, self.value + 2 * self.error)
        return max(least, self.data), max(most, self.data)

    @property
    def contradictory(self) -> bool:
        """Whether the low estimate is above the high one: the chains have not converged."""
        return self.low - 2 * self.low_error > self.high + 2 * self.high_error


@torch.no_grad()
def estimate_log_z(
    potential: BasePotential,
    noisiest: BasePotential,
    kernel: Kernel,
    worlds: Integer[Tensor, "worlds groups"],
    rng: Generator,
    *,
    chains: int = CHAINS,
    steps: int = STEPS,
    sweeps: int = SWEEPS,
    moves: int = 1,
    phases: Phases = "both",
    progress: Progress | None = None,
) -> LogZBracket:
    """log Z of the target level: by annealing to the noisiest level and back, then level by level.

    The way back starts where the recorded chains end. Parameters must not change meanwhile.

    Args:
        potential: all levels that chains run at, the target last.
        noisiest: the first of these levels alone.
        kernel: makes the moves of annealing and of the chains.
        worlds: data, corrupted as for the noisiest level; annealing starts from their marginals.
        rng: the generator of all random numbers.
        chains: the number of chains, at least 2.
        steps: the number of annealing steps in each direction, with one move each.
        sweeps: the number of sweeps of the recorded chains, at least 3.
        moves: moves per sweep of the recorded chains.
        phases: the exchange phases after each exploration, as in `sample`.
        progress: called with the number of steps and sweeps done, and of all.
    """
    for name, number, least in (("chains", chains, 2), ("steps", steps, 1), ("sweeps", sweeps, 3)):
        if number < least:
            raise InputError(f"{name} must be at least {least}, got {number}.")
    recorded = sweeps // 4 * chains * potential.levels
    refuse_size(
        recorded * potential.space.measure.bytes_per_world,
        f"recording {in_digits(recorded)} worlds",
        "Take fewer chains or sweeps.",
    )
    start = IndependentPotential.fit(potential.space, worlds[None]).to(
        noisiest.device, noisiest.dtype
    )
    path = AnnealingPath(noisiest, start)
    done, total = 0, sweeps + 2 * steps

    def tick(number: int = 1) -> None:
        nonlocal done
        done += number
        if progress is not None:
            progress(done, total)

    def carried(values: Values, back: bool) -> tuple[Works, Values]:
        state = kernel.init(noisiest, values)
        weights, state = anneal(path, kernel, state, equal_steps(steps, back=back), rng, tick=tick)
        return weights[0], state.values

    drawn, share, share_error = draw_possible(start, noisiest, chains, rng)
    there, arrived = carried(drawn, back=False)
    draws = _record(potential, kernel, arrived, sweeps, rng, moves, phases, tick)
    back, _ = carried(draws[-1][:1], back=True)

    (low, low_error), (high, high_error) = log_mean_of(there), log_mean_of(back)
    middle, middle_error = bennett(there, -back)
    found = [(middle, middle_error), (low, low_error), (-high, high_error)]
    numbers = [
        number
        for (first, error), (rest, other) in zip(found, _climb(potential, draws), strict=True)
        for number in (first + rest + share, (error**2 + other**2 + share_error**2) ** 0.5)
    ]
    return LogZBracket(*numbers, effective_size=float(effective_size(there[None, None])))


def log_mean_of(works: Works) -> tuple[float, float]:
    """The log of the mean of exp(work) and its standard error."""
    mean, influence = log_mean(
        works[None, None], label_blocks(1, len(works), None).to(works.device)
    )
    return float(mean), float(standard_error(influence))


def bennett(there: Works, back: Works) -> tuple[float, float]:
    """The log of the ratio of two partition functions from works both ways, and its standard error.

    This is the ratio at which a logistic guess of the direction of a work is right equally often for
    both directions (Bennett, 1976). There must be as many works each way; none may be infinite.
    """
    if len(there) != len(back) or len(there) < 2:
        raise InputError(
            f"there must be as many works each way, at least two, got {len(there)} and {len(back)}."
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
    """Worlds of independent groups that no hard formula forbids; the log of their share, its error.

    Args:
        start: the independent groups, of one level.
        target: the potential whose hard formulas forbid worlds.
        chains: the number of worlds.
        rng: the generator of the draws.
    """
    kept, found, drawn, at_once = [], 0, 0, max(chains, 100)
    while found < chains:
        if drawn >= _MOST_BATCHES * at_once:
            raise InputError(
                f"at least {chains} of {drawn} worlds of independent groups must be possible, but hard "
                f"formulas forbid all but {found}. Measure the model without the hard formulas.",
                kind="conflict",
            )
        values = start.draw(at_once, rng)
        possible = target.score(values)[0] > float("-inf")
        kept.append(values[:, possible])
        found, drawn = found + int(possible.sum()), drawn + at_once
    share = found / drawn
    return torch.cat(kept, 1)[:, :chains], log(share), ((1 - share) / (share * drawn)) ** 0.5


def _record(
    potential: BasePotential,
    kernel: Kernel,
    worlds: Integer[Tensor, "1 chains groups"],
    sweeps: int,
    rng: Generator,
    moves: int,
    phases: Phases,
    tick: Callable[[int], None],
) -> list[Values]:
    """Worlds of all levels, every second of the later half of the sweeps, the last one included.

    Chains that start at worlds annealed to the noisiest level converge sooner than from pure noise, and
    have not seen the data, so that they also find other worlds that are likely under the model.
    """
    burn_in, draws = sweeps // 2, []
    for sweep in sample(
        potential,
        kernel,
        worlds.expand(potential.levels, -1, -1).clone(),
        sweeps,
        rng,
        moves=moves,
        phases=phases,
        burn_in=burn_in,
    ):
        if (sweeps - sweep.number) % 2 == 0:
            draws.append(sweep.state.values.clone())
        tick(1 if sweep.number > burn_in + 1 else burn_in + 1)
    return draws


def _climb(potential: BasePotential, draws: list[Values]) -> list[tuple[float, float]]:
    """log Z of the target minus that of the noisiest level: best, from below and from above."""
    if potential.levels == 1:
        return [(0.0, 0.0)] * 3
    ratios, differences = stepping_stone(potential, draws), mbar(potential, draws)
    return [
        (float(differences.log_ratios[0, -1]), float(differences.errors[0, -1])),
        (ratios.forward_sum, ratios.forward_sum_error),
        (ratios.reverse_sum, ratios.reverse_sum_error),
    ]
