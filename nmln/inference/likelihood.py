"""log P(world), with the interval in which log Z lies."""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.inference.chains import kernel_for
from nmln.inference.exact import Progress
from nmln.noise import uniform
from nmln.partition import annealed, reverse_annealed
from nmln.potentials.base import BasePotential
from nmln.sampler import sample


@dataclass(frozen=True)
class LogProbabilities:
    """The log-probability of worlds, given the evidence: their scores less log Z.

    `low` and `high` are estimates of log Z from below and from above with their standard errors; where
    every world could be enumerated both are exact. Then `best` is the largest score of all worlds and
    `log_sum` is log Z less it, so that log P keeps its digits where scores are very large.
    """

    scores: Float64[Tensor, " worlds"]
    low: float
    high: float
    low_error: float = 0.0
    high_error: float = 0.0
    exact: bool = True
    best: float = 0.0
    log_sum: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def log_z(self) -> float:
        return (self.low + self.high) / 2

    @property
    def interval(self) -> tuple[float, float]:
        """Where log Z lies: from two errors below the low estimate to two above the high one."""
        least = min(self.low - 2 * self.low_error, self.high - 2 * self.high_error)
        most = max(self.high + 2 * self.high_error, self.low + 2 * self.low_error)
        return least, most

    @property
    def values(self) -> Float64[Tensor, " worlds"]:
        """log P of every world."""
        if self.log_sum is not None:
            return self.scores - self.best - self.log_sum
        return self.scores - self.log_z

    @property
    def least(self) -> Float64[Tensor, " worlds"]:
        """The lower ends of the intervals of log P."""
        return self.values if self.exact else self.scores - self.interval[1]

    @property
    def most(self) -> Float64[Tensor, " worlds"]:
        """The upper ends of the intervals of log P."""
        return self.values if self.exact else self.scores - self.interval[0]

    @property
    def method(self) -> str:
        if self.exact:
            return f"Exact: log Z is {self.log_z:.4f}."
        least, most = self.interval
        return (
            f"Annealed: log Z is between {least:.3f} and {most:.3f} (from below {self.low:.3f} +- "
            f"{self.low_error:.3f}, from above {self.high:.3f} +- {self.high_error:.3f})."
        )


@torch.no_grad()
def estimated(
    target: BasePotential,
    potential: BasePotential,
    evidence: Evidence,
    rng: Generator,
    *,
    chains: int = 100,
    steps: int = 300,
    sweeps: int = 200,
    progress: Progress | None = None,
) -> tuple[float, float, float, float]:
    """log Z of the target from below and from above, with standard errors.

    From below by annealing from uniform worlds, from above by annealing back the worlds where the chains
    of `potential`, which has all levels, end.
    """
    kernel = kernel_for(target, evidence, None)
    total = sweeps + 2 * steps

    def shifted(offset: int) -> Progress:
        def tell(done: int, _: int) -> None:
            if progress is not None:
                progress(offset + done, total)

        return tell

    start = uniform(potential.space, potential.levels, chains, rng, evidence)
    walk = kernel_for(potential, evidence, None)
    last = start
    for sweep in sample(
        potential, walk, start, sweeps, rng, burn_in=sweeps - 1, progress=shifted(0), rescue=None
    ):
        last = sweep.state.values
    low = annealed(target, kernel, chains, steps, rng, evidence=evidence, progress=shifted(sweeps))
    high = reverse_annealed(
        target, kernel, last[-1:], steps, rng, evidence=evidence, progress=shifted(sweeps + steps)
    )
    return float(low.log_z[0]), float(high.log_z[0]), float(low.error[0]), float(high.error[0])
