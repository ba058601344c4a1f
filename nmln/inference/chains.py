"""Answers by chains: means over worlds of the target level, with standard errors."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy import ndarray
from torch import Generator

from nmln.diagnostics import diagnose, effective_sample_size, rank_rhat
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.inference.answers import Answer, Answers, lost_digits, warnings_about
from nmln.inference.exact import Progress, Statistic, numbers, size_of
from nmln.inference.queries import Questions
from nmln.kernels.coloured import ColouredGibbs
from nmln.kernels.registry import KERNELS, kernel_named
from nmln.ladders import LadderLike
from nmln.noise import uniform
from nmln.potentials.base import BasePotential
from nmln.recording import Recorder
from nmln.sampler import sample
from nmln.types import Kernel, Sweep

COLOURED = "coloured"
_FIRST_LOOK = 100  # sweeps before the errors are checked for the first time
_MOVES = 10  # per sweep, of kernels that change one group at a time
_KEEP = 1000  # numbers kept per trace


@dataclass(frozen=True)
class Plan:
    """How long chains run. They stop as soon as every standard error is at most `error`.

    With `error` None they run for all `sweeps`. Without a `kernel`, Gibbs in classes is used where the
    potential knows which groups are independent, and a kernel that uses slopes otherwise.
    """

    chains: int = 40
    burn_in: int = 100
    sweeps: int = 20_000  # at most, after the burn-in
    error: float | None = 0.01
    moves: int | None = None  # per sweep; 1 for Gibbs in classes, else 10
    kernel: str | None = None

    def __post_init__(self) -> None:
        for name, number, least in (
            ("chains", self.chains, 1),
            ("burn_in", self.burn_in, 0),
            ("sweeps", self.sweeps, 4),
            ("moves", self.moves, 1),
        ):
            if number is not None and number < least:
                raise InputError(f"{name} must be at least {least}, got {number}.")
        if self.error is not None and not self.error > 0:
            raise InputError(f"the error to reach must be positive, got {self.error}.")
        names = (COLOURED, *KERNELS)
        if self.kernel is not None and self.kernel not in names:
            raise InputError(
                f"there is no kernel {self.kernel!r}. Available: {', '.join(names)}.",
                token=self.kernel,
                kind="unknown",
            )


class Traces:
    """Numbers of every chain, one row per draw; neighbours are averaged when there are too many.

    Averaging keeps every mean as it is and bounds the memory, whatever the length of the run.
    """

    def __init__(self, keep: int = _KEEP) -> None:
        self._keep, self._stride = keep, 1
        self._rows: list[ndarray] = []
        self._sum: ndarray | None = None
        self._pending = 0

    def add(self, row: ndarray) -> None:
        """One more draw: (chains, numbers)."""
        self._sum = row.copy() if self._sum is None else self._sum + row
        self._pending += 1
        if self._pending < self._stride:
            return
        self._rows.append(self._sum / self._stride)
        self._sum, self._pending = None, 0
        if len(self._rows) >= 2 * self._keep:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
            self._rows = [(one + other) / 2 for one, other in pairs]
            self._stride *= 2

    def array(self) -> ndarray:
        """(draws, chains, numbers)"""
        return np.stack(self._rows)


def kernel_for(potential: BasePotential, evidence: Evidence, name: str | None) -> Kernel:
    """The kernel of a name; without one, the cheapest that suits the potential."""
    if name is None:
        name = "gradients" if potential.ties(evidence.free) is None else COLOURED
    if name == COLOURED:
        return ColouredGibbs.of(potential, evidence, expects=True)
    return kernel_named(name, potential.space, evidence)


@torch.no_grad()
def sampled(
    potential: BasePotential,
    evidence: Evidence,
    ladder: LadderLike | None,
    questions: Questions,
    functions: Mapping[str, Statistic],
    rng: Generator,
    plan: Plan,
    progress: Progress | None = None,
) -> Answers:
    """Answers from chains at all levels of a potential, the target last, that start from pure noise.

    Where the kernel draws groups from their conditional distribution, atoms are answered by the mean of
    these probabilities, which varies less than the worlds do.
    """
    kernel = kernel_for(potential, evidence, plan.kernel)
    start = uniform(potential.space, potential.levels, plan.chains, rng, evidence)
    moves = plan.moves or (1 if isinstance(kernel, ColouredGibbs) else _MOVES)
    recorder, traces = Recorder(), Traces()
    total, look = plan.burn_in + plan.sweeps, _FIRST_LOOK
    texts = [*(query.text for query in questions.queries), *functions]
    answers: tuple[Answer, ...] = ()
    done = 0
    for sweep in sample(
        potential, kernel, start, total, rng,
        moves=moves, burn_in=plan.burn_in, recorder=recorder, progress=progress, rescue=None,
    ):  # fmt: skip
        traces.add(_row(sweep, questions, functions))
        done = sweep.number - plan.burn_in
        if done == plan.sweeps or (plan.error is not None and done == look):
            answers = _answers(texts, traces.array(), recorder)
            look *= 2
            if plan.error is not None and all(
                one.error <= plan.error and not one.doubtful for one in answers
            ):
                break
    found = diagnose(recorder, ladder)
    levels = "" if potential.levels == 1 else f" at {potential.levels} levels"
    how = (
        f"Sampled: {plan.chains} chains{levels}, {done:,} sweeps after {plan.burn_in:,} of burn-in."
    )
    warned = warnings_about(answers, found.findings(), plan.error)
    scores = torch.as_tensor(recorder.recording().traces["score"])
    warned += lost_digits(size_of(scores), potential.dtype)
    if plan.chains == 1:
        warned.append("a single chain cannot show that it has missed worlds. Take several.")
    return Answers(answers, how, tuple(warned), diagnostics=found)


def _row(sweep: Sweep, questions: Questions, functions: Mapping[str, Statistic]) -> ndarray:
    """The numbers of the chains at the target in one draw: (chains, queries and functions)."""
    worlds = sweep.state.values[-1].cpu()
    truths = questions.truths(worlds).double()
    expected = sweep.moves.expected
    if expected is not None and len(questions.entries):
        truths[:, questions.places] = expected[-1].cpu()[:, questions.entries].double()
    means = [numbers(name, function, worlds)[:, None] for name, function in functions.items()]
    return torch.cat([truths, *means], dim=1).numpy()


def _answers(texts: list[str], traces: ndarray, recorder: Recorder) -> tuple[Answer, ...]:
    return tuple(
        _answer(text, np.ascontiguousarray(traces[:, :, place]), recorder)
        for place, text in enumerate(texts)
    )


def _answer(text: str, trace: ndarray, recorder: Recorder) -> Answer:
    """The mean of a trace (draws, chains) with its diagnostics."""
    mean, spread = float(trace.mean()), float(trace.std(ddof=1))
    if np.ptp(trace) == 0:
        return _unmoved(text, mean, recorder)
    size = effective_sample_size(trace, method="mean")
    return Answer(text, mean, spread / size**0.5, size, rank_rhat(trace))


def _unmoved(text: str, mean: float, recorder: Recorder) -> Answer:
    """A number that was the same in every draw: it has the effective sample size of the score."""
    scores = recorder.recording().traces["score"][:, -1]
    alike = np.ptp(scores) == 0  # every chain, from its own start, has reached the same score
    size = float(scores.shape[1]) if alike else effective_sample_size(scores)
    return Answer(text, mean, 1 / size, size, rank_rhat(scores))
