"""How well a run mixes: numbers, and sentences that name problems."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, isnan
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from nmln.errors import InputError
from nmln.extras import load
from nmln.ladders import LadderLike, ladder_of_kind
from nmln.recording import Recorder, Recording

if TYPE_CHECKING:
    from arviz import InferenceData

GOOD_RHAT = 1.05


@dataclass(frozen=True)
class Mixing:
    """How one number mixes at one level."""

    mean: float
    ess: float  # NaN if it never changes
    rhat: float
    autocorrelation_time: float  # in sweeps
    ess_per_second: float
    ess_per_evaluation: float  # slopes count as one evaluation too

    @property
    def mixed(self) -> bool:
        return self.rhat < GOOD_RHAT and not isnan(self.ess)


@dataclass(frozen=True)
class Diagnostics:
    """Everything known about how well a run mixes; lists run from the noisiest level to the target."""

    levels: int
    chains: int
    sweeps: int
    seconds: float
    bookkeeping: float  # share of the time that is not evaluation of the potential
    score_evaluations: int
    slope_evaluations: int
    rates: tuple[float, ...] | None
    ladder: str  # "noise", "temperature", or "" if it is not known
    acceptance: dict[str, tuple[float, ...]]  # by kernel
    moved: tuple[float, ...]  # share of the moves that changed the world
    hops_per_second: tuple[float, ...]
    swap_probability: tuple[float, ...]  # by pair
    barrier: float
    suggested_levels: int
    round_trips: float  # of all walkers and replicas
    round_trip_rate: float  # per phase, of all walkers of a ladder
    predicted_round_trip_rate: float
    restarts: int
    mixing: dict[str, tuple[Mixing, ...]]  # by statistic
    autocorrelation: tuple[tuple[float, ...], ...]  # of the score, by level and lag
    stride: int  # sweeps between two draws of the traces, and so between two lags
    recording: Recording

    @property
    def rejections(self) -> tuple[float, ...]:
        return tuple(1 - probability for probability in self.swap_probability)

    @property
    def efficiency(self) -> float:
        """Observed over predicted round trips: low if the kernel does not mix within the levels."""
        predicted = self.predicted_round_trip_rate
        return self.round_trip_rate / predicted if predicted > 0 else float("nan")

    def findings(self) -> list[str]:
        """The problems of the run in words, the worst first; empty if there are none."""
        return findings(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the traces, ready for JSON."""
        content = {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("recording", "mixing", "autocorrelation")
        }
        mixing = {name: [asdict(one) for one in found] for name, found in self.mixing.items()}
        return {**content, "mixing": mixing, "findings": self.findings()}

    def to_arviz(self) -> "InferenceData":
        """The traces as ArviZ data: chains are replicas, every variable has the dimension `level`."""
        return to_arviz(self.recording)


def diagnose(recorded: Recorder | Recording, ladder: LadderLike | None = None) -> Diagnostics:
    """Diagnostics of a recorded run; with the ladder, sentences name rates to insert."""
    recording = recorded.recording() if isinstance(recorded, Recorder) else recorded
    levels, chains = recording.restarts.shape
    if ladder is not None and len(ladder) != levels:
        raise InputError(
            f"the run has {levels} levels, but the ladder has {len(ladder)}. "
            "Give the ladder of the run.",
            kind="conflict",
        )
    names = _unique(recording.kernels)
    swaps = tuple(recording.swap_probability.tolist())
    rejections = [1 - probability for probability in swaps]
    barrier = sum(rejections)
    trips = float(recording.round_trips.sum())
    hops = recording.moved * recording.moves * recording.sweeps * chains / recording.seconds
    lags = min(100, max(1, len(recording.walkers) // 4))
    functions = [
        autocorrelation(recording.traces["score"][:, level], lags) for level in range(levels)
    ]
    return Diagnostics(
        levels=levels,
        chains=chains,
        sweeps=recording.sweeps,
        seconds=recording.seconds,
        bookkeeping=max(0.0, 1 - recording.evaluations.seconds / recording.seconds),
        score_evaluations=recording.evaluations.scores,
        slope_evaluations=recording.evaluations.slopes,
        rates=None if ladder is None else ladder.rates,
        ladder="" if ladder is None else ladder.kind,
        acceptance={
            name: tuple(row.tolist()) for name, row in zip(names, recording.acceptance, strict=True)
        },
        moved=tuple(recording.moved.tolist()),
        hops_per_second=tuple(hops.tolist()),
        swap_probability=swaps,
        barrier=barrier,
        suggested_levels=suggested_levels(barrier) if levels > 1 else 1,
        round_trips=trips,
        round_trip_rate=trips / recording.phases / chains if recording.phases else 0.0,
        predicted_round_trip_rate=predicted_round_trips(rejections),
        restarts=int(recording.restarts.sum()),
        mixing={
            name: tuple(_mixing(trace[:, level], recording) for level in range(levels))
            for name, trace in recording.traces.items()
        },
        autocorrelation=tuple(tuple(found.tolist()) for found in functions),
        stride=recording.stride,
        recording=recording,
    )


def _unique(names: tuple[str, ...]) -> list[str]:
    return [
        f"{name} {names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def _mixing(trace: Float[ndarray, "draws chains"], recording: Recording) -> Mixing:
    size = effective_sample_size(trace)
    # At most one independent draw in every sweep: thinned traces lose nothing worth counting.
    worlds = recording.evaluations.scores + recording.evaluations.slopes
    levels = len(recording.restarts)
    return Mixing(
        mean=float(trace.mean()),
        ess=size,
        rhat=rank_rhat(trace),
        autocorrelation_time=_time(trace) * recording.stride,
        ess_per_second=size / recording.seconds,
        ess_per_evaluation=size * levels / worlds if worlds else float("nan"),
    )


def effective_sample_size(
    trace: Float[ndarray, "draws chains"], method: Literal["bulk", "mean"] = "bulk"
) -> float:
    """ArviZ's effective sample size; NaN for a trace that never changes or is too short.

    `bulk` is computed from ranks and shows how well chains mix; `mean` gives the error of a mean.
    """
    if len(trace) < 4 or np.ptp(trace) == 0:
        return float("nan")
    return float(
        _stats().ess(np.ascontiguousarray(trace.T), chain_axis=0, draw_axis=1, method=method)
    )


def rank_rhat(trace: Float[ndarray, "draws chains"]) -> float:
    """ArviZ's rank-normalised R-hat; infinite if every chain is constant, but not all at one value.

    The halves of a single chain are compared with each other, which is weak evidence: it says nothing
    about worlds that the chain has not visited.
    """
    if trace.shape[1] == 1:
        half = len(trace) // 2
        trace = np.concatenate([trace[:half], trace[half : 2 * half]], axis=1)
    if len(trace) < 4:
        return float("nan")
    if np.ptp(trace) == 0:
        return 1.0
    if (np.ptp(trace, axis=0) == 0).all():
        return float("inf")
    return float(
        _stats().rhat(np.ascontiguousarray(trace.T), chain_axis=0, draw_axis=1, method="rank")
    )


def _stats() -> Any:
    """ArviZ's statistics of arrays, imported when they are needed, without announcements."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from arviz_stats.base.array import array_stats

    return array_stats


def to_arviz(recording: Recording) -> "InferenceData":
    """Traces as ArviZ data with the dimensions chain, draw and level; needs the extra `report`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = load("arviz")
    arrays = {name: trace.transpose(2, 0, 1) for name, trace in recording.traces.items()}
    levels = list(range(len(recording.restarts)))
    return arviz.from_dict(
        posterior=arrays, dims={name: ["level"] for name in arrays}, coords={"level": levels}
    )


def autocorrelation(trace: Float[ndarray, "draws chains"], lags: int) -> Float[ndarray, " lags"]:
    """The mean autocorrelation over chains at lags 0 to `lags` - 1, about their common mean.

    Constant chains at different values have the autocorrelation 1 at every lag.
    """
    centred = trace - trace.mean()
    draws = len(trace)
    spectrum = np.fft.rfft(centred, 2 * draws, axis=0)
    products = np.fft.irfft(spectrum * spectrum.conj(), axis=0)[: min(lags, draws)].mean(1)
    variance = products[0] / draws
    if variance <= 1e-12 * (1 + trace.mean() ** 2):
        return np.ones(min(lags, draws))
    return products / (draws - np.arange(len(products))) / variance


def _time(trace: Float[ndarray, "draws chains"]) -> float:
    """The integrated autocorrelation time in draws, cut where pairs of lags stop being positive."""
    found = autocorrelation(trace, max(2, len(trace) // 2))
    pairs = found[: len(found) // 2 * 2].reshape(-1, 2).sum(1)
    stop = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    return max(1.0, float(2 * pairs[:stop].sum() - 1))


# Ladders.


def predicted_round_trips(rejections: Sequence[float]) -> float:
    """Round trips per phase, of all walkers of a ladder, if only rejected swaps slow them down.

    1 / (2 + 2 sum of r / (1 - r)) for alternating phases (Syed and others, 2022); an approximation if
    both phases follow one exploration.
    """
    if not rejections:
        return float("nan")
    if any(r >= 1 for r in rejections):
        return 0.0
    return 1 / (2 + 2 * sum(r / (1 - r) for r in rejections))


def suggested_levels(barrier: float) -> int:
    """About twice the barrier: more levels cost more than the swaps they add are worth."""
    return max(2, ceil(2 * barrier) + 1) if barrier > 0 else 2


def between(ladder: LadderLike, pair: int) -> float:
    """Where a level between a pair of neighbours belongs, if nothing is known of what lies between.

    The geometric mean of the two; next to a target without corruption, a quarter of the rate.
    """
    above, below = ladder.rates[pair], ladder.rates[pair + 1]
    return (above * below) ** 0.5 if below > 0 else above / 4


@dataclass(frozen=True)
class Gap:
    """A pair of levels that hardly exchange, and where a level between them belongs."""

    pair: int
    rejection: float
    rate: float | None  # None if the ladder is not known

    def __str__(self) -> str:
        where = "" if self.rate is None else f" near {self.rate:.2g}"
        return (
            f"levels {self.pair} and {self.pair + 1} hardly exchange ({1 - self.rejection:.0%}): "
            f"insert a level{where}"
        )


def gaps(
    rejections: Sequence[float],
    ladder: LadderLike | None = None,
    most: float = 0.85,
) -> list[Gap]:
    """The pairs that need a level between them, worst first.

    When every level has its own network, rates cannot be moved without new training: the gaps
    show where one more network is worth it.
    """
    found = [
        Gap(pair, rejection, None if ladder is None else between(ladder, pair))
        for pair, rejection in enumerate(rejections)
        if rejection > most
    ]
    return sorted(found, key=lambda gap: -gap.rejection)


def findings(found: Diagnostics) -> list[str]:
    """The problems of a run in words, the worst first."""
    result: list[str] = []
    target = found.levels - 1
    enough = len(found.recording.walkers) >= 4  # draws, to say anything at all
    for name, levels in found.mixing.items() if enough else ():
        if levels[target].rhat == float("inf") or (
            name == "score" and isnan(levels[target].ess) and found.moved[target] == 0
        ):
            result.append(f"the target does not move: {name} never changes in any chain")
        elif not isnan(levels[target].rhat) and levels[target].rhat >= GOOD_RHAT:
            result.append(
                f"the chains at the target have not mixed (R-hat of {name} {levels[target].rhat:.2f}): "
                "run longer, or take more moves per sweep"
            )
    result += [str(gap) for gap in gaps(found.rejections, _ladder(found))]
    if found.levels > 1:
        result += _journeys(found)
    for kernel, levels in found.acceptance.items():
        low = [level for level, rate in enumerate(levels) if rate < 0.05]
        if low:
            named, least = ", ".join(map(str, low)), min(levels[level] for level in low)
            result.append(
                f"{kernel} is accepted in {least:.1%} of its moves at level {named}: try "
                "another kernel there, or give this one a warm-up if it has a step size to find"
            )
    return result


def _journeys(found: Diagnostics) -> list[str]:
    expected = found.predicted_round_trip_rate * found.chains * found.recording.phases
    if expected < 5:
        if found.round_trips < 1 and not gaps(found.rejections):
            return [
                f"no walker has travelled the ladder ({expected:.1f} round trips were to be expected): "
                "run longer before you trust the target"
            ]
        return []
    if found.efficiency < 0.3:
        return [
            f"walkers make {found.efficiency:.0%} of the round trips that the swaps allow: the kernel "
            "mixes slowly within the levels; run longer, or try other kernels and numbers of moves and "
            "keep those that bring the most arrivals per second"
        ]
    if found.levels > 2 * found.suggested_levels and max(found.rejections) < 0.2:
        return [
            f"neighbours swap nearly always: about {found.suggested_levels} levels would do as well "
            f"as {found.levels}"
        ]
    return []


def _ladder(found: Diagnostics) -> LadderLike | None:
    return None if found.rates is None else ladder_of_kind(found.ladder, found.rates)
