"""Recorders keep statistics of a run while it continues, in bounded memory."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy import ndarray
from torch import Tensor

from nmln.errors import InputError
from nmln.types import Evaluations, Sweep, Values, Walkers

Statistic = Callable[[Values], Tensor]
"""A number for every world: (levels, chains, groups) to (levels, chains)."""

_HOT, _COLD = 1, 2


class Journeys:
    """Counts how often walkers travel between the ends of the ladder.

    A restart is the arrival at the target of a walker that was at the noisiest level since it was last
    at the target. Half of all journeys, up and down, are the round trips.
    """

    def __init__(self, walkers: Walkers) -> None:
        self.last_end = torch.zeros_like(walkers)
        self.restarts = torch.zeros_like(walkers)  # by walker and replica
        self.returns = torch.zeros_like(walkers)
        self.see(walkers)

    def see(self, walkers: Walkers) -> None:
        """Count the journeys that end at the present positions of the walkers."""
        if len(walkers) < 2:
            return
        hot, cold = walkers[:1], walkers[-1:]
        self.returns.scatter_add_(0, hot, (self.last_end.gather(0, hot) == _COLD).long())
        self.last_end.scatter_(0, hot, _HOT)
        self.restarts.scatter_add_(0, cold, (self.last_end.gather(0, cold) == _HOT).long())
        self.last_end.scatter_(0, cold, _COLD)

    @property
    def round_trips(self) -> Float64[Tensor, "walkers chains"]:
        return (self.restarts + self.returns).double() / 2


class Recording(NamedTuple):
    """The content of a recorder. Traces have the axes draws, levels, chains."""

    sweeps: int
    phases: int
    moves: int  # per sweep
    seconds: float
    evaluations: Evaluations
    kernels: tuple[str, ...]
    acceptance: Float64[Tensor, "kernels levels"]
    moved: Float64[Tensor, " levels"]
    swap_probability: Float64[Tensor, " pairs"]
    restarts: Int64[Tensor, "walkers chains"]
    round_trips: Float64[Tensor, "walkers chains"]
    stride: int  # sweeps from one draw of the traces to the next
    traces: dict[str, ndarray]  # the score first, then the statistics
    walkers: ndarray  # (draws, levels): the labels in the first replica


class Recorder:
    """Sees every sweep of a run and keeps sums, and traces of at most `keep` draws.

    When a trace is full every second draw is dropped and from then on half as many are kept: memory
    does not grow with the length of a run. `statistics` are numbers of your own to follow beside the
    score, for example `{"bonds": lambda values: (values[..., 9:] > 0).sum(-1)}`.
    """

    def __init__(
        self, statistics: Mapping[str, Statistic] | None = None, *, keep: int = 2000
    ) -> None:
        if keep < 10:
            raise InputError(
                f"a trace must keep at least 10 draws, but keep is {keep}.", token="keep"
            )
        self.statistics = dict(statistics or {})
        if "score" in self.statistics:
            raise InputError(
                "the score is always recorded. Give the statistic another name.",
                token="score",
                kind="twice",
            )
        self.keep, self.stride, self.seen = keep, 1, 0
        self._draws: list[dict[str, ndarray]] = []
        self._walkers: list[ndarray] = []
        self._times: list[tuple[float, Evaluations]] = []

    def record(self, sweep: Sweep) -> None:
        """Record one more sweep."""
        if not self.seen:
            self._begin(sweep)
        self.seen += 1
        now = (time.perf_counter(), sweep.evaluations)
        self._times = [self._times[0], now] if self._times else [now]
        parts = sweep.moves.by_kernel.double().cpu()
        had_turn = ~parts.isnan()
        self._acceptance += torch.where(had_turn, parts, 0.0)
        self._turns += had_turn
        self._moved += sweep.moves.moved.double().cpu()
        for swap in sweep.swaps:
            self._phases += 1
            pairs = list(swap.pairs)
            self._swapped[pairs] += swap.probabilities.double().mean(1).cpu()
            self._proposed[pairs] += 1
        self._journeys.see(sweep.walkers.cpu())
        if (self.seen - 1) % self.stride == 0:
            self._keep(sweep)

    def _begin(self, sweep: Sweep) -> None:
        levels, _ = sweep.walkers.shape
        kernels = len(sweep.moves.by_kernel)
        self._acceptance = torch.zeros(kernels, levels, dtype=torch.float64)
        self._turns = torch.zeros(kernels, levels, dtype=torch.float64)
        self._moved = torch.zeros(levels, dtype=torch.float64)
        self._swapped = torch.zeros(levels - 1, dtype=torch.float64)
        self._proposed = torch.zeros(levels - 1, dtype=torch.float64)
        self._phases, self._moves, self._kernels = 0, sweep.moves.moves, sweep.kernels
        self._journeys = Journeys(sweep.walkers.cpu())

    def _keep(self, sweep: Sweep) -> None:
        values, shape = sweep.state.values, sweep.state.scores.shape
        draw = {"score": _array(sweep.state.scores)}
        for name, statistic in self.statistics.items():
            found = torch.as_tensor(statistic(values))
            if found.shape != shape:
                raise InputError(
                    f"the statistic {name!r} must give one number for every world, shape (levels, "
                    f"chains) = {tuple(shape)}, but it gave {tuple(found.shape)}.",
                    token=name,
                )
            draw[name] = _array(found)
        self._draws.append(draw)
        self._walkers.append(sweep.walkers[:, 0].cpu().numpy().astype(np.int16))
        if len(self._draws) >= self.keep:
            self._draws, self._walkers = self._draws[::2], self._walkers[::2]
            self.stride *= 2

    def recording(self) -> Recording:
        """Everything that was recorded so far."""
        if self.seen < 2:
            raise InputError(
                f"{self.seen} sweeps were recorded, too few to say anything. Hand the recorder to "
                "sample(..., recorder=recorder) and run more sweeps after the burn-in.",
                kind="empty",
            )
        (start, before), (end, after) = self._times
        whole = self.seen / (self.seen - 1)  # the first sweep started before it was recorded
        evaluations = Evaluations(
            round((after.scores - before.scores) * whole),
            round((after.slopes - before.slopes) * whole),
            (after.seconds - before.seconds) * whole,
        )
        names = self._draws[0]
        return Recording(
            sweeps=self.seen,
            phases=self._phases,
            moves=self._moves,
            seconds=(end - start) * whole,
            evaluations=evaluations,
            kernels=self._kernels,
            acceptance=self._acceptance / self._turns,
            moved=self._moved / self.seen,
            swap_probability=self._swapped / self._proposed,
            restarts=self._journeys.restarts.clone(),
            round_trips=self._journeys.round_trips,
            stride=self.stride,
            traces={name: np.stack([draw[name] for draw in self._draws]) for name in names},
            walkers=np.stack(self._walkers),
        )


def _array(numbers: Tensor) -> ndarray:
    return numbers.detach().double().cpu().numpy()


# Recorders that outlive their process.

_SUMS = ("_acceptance", "_turns", "_moved", "_swapped", "_proposed")
_JOURNEYS = ("last_end", "restarts", "returns")


class KeptRecorder(Recorder):
    """A recorder whose state can be saved in a checkpoint and restored."""

    def tree(self) -> dict[str, Any]:
        """The whole state, as tensors, numbers and strings."""
        if not self.seen:
            return {"keep": self.keep, "seen": 0}
        (start, first), (end, last) = self._times[0], self._times[-1]
        return {
            "keep": self.keep,
            "seen": self.seen,
            "stride": self.stride,
            "traces": {
                name: torch.from_numpy(np.stack([draw[name] for draw in self._draws]))
                for name in self._draws[0]
            },
            "walkers": torch.from_numpy(np.stack(self._walkers)),
            "seconds": end - start,
            "evaluations": [tuple(first), tuple(last)],
            "sums": {name: vars(self)[name] for name in _SUMS},
            "journeys": {name: vars(self._journeys)[name] for name in _JOURNEYS},
            "phases": self._phases,
            "moves": self._moves,
            "kernels": list(self._kernels),
        }

    @staticmethod
    def restored(tree: dict[str, Any]) -> "KeptRecorder":
        """A recorder that continues from a saved one; the time in between does not count."""
        recorder = KeptRecorder(keep=tree["keep"])
        if not tree["seen"]:
            return recorder
        recorder.seen, recorder.stride = tree["seen"], tree["stride"]
        traces = {name: trace.numpy() for name, trace in tree["traces"].items()}
        recorder._walkers = list(tree["walkers"].numpy())
        recorder._draws = [
            {name: trace[row] for name, trace in traces.items()}
            for row in range(len(recorder._walkers))
        ]
        now = time.perf_counter()
        first, last = (Evaluations(*numbers) for numbers in tree["evaluations"])
        recorder._times = [(now - tree["seconds"], first), (now, last)]
        if tree["seen"] == 1:
            recorder._times = recorder._times[:1]
        for name, value in tree["sums"].items():
            setattr(recorder, name, value)
        recorder._journeys = Journeys(torch.zeros_like(tree["journeys"]["restarts"]))
        for name, value in tree["journeys"].items():
            setattr(recorder._journeys, name, value)
        recorder._phases, recorder._moves = tree["phases"], tree["moves"]
        recorder._kernels = tuple(tree["kernels"])
        return recorder


def joined(recordings: Sequence[Recording], processes: int = 1) -> Recording:
    """The recording of the chains of all blocks; traces are as long as those of the shortest one.

    Each process had every `processes`-th block, one after the other; the slowest one counts.
    """
    recordings = _aligned(recordings)
    first = recordings[0]
    chains = torch.tensor([one.restarts.shape[1] for one in recordings], dtype=torch.float64)
    share = chains / chains.sum()

    def mean(name: str) -> torch.Tensor:
        found = torch.stack([getattr(one, name) for one in recordings])
        return (found * share.view(-1, *[1] * (found.ndim - 1))).sum(0)

    counts = [one.evaluations for one in recordings]
    return first._replace(
        seconds=longest([one.seconds for one in recordings], processes),
        evaluations=Evaluations(
            sum(one.scores for one in counts),
            sum(one.slopes for one in counts),
            longest([one.seconds for one in counts], processes),
        ),
        acceptance=mean("acceptance"),
        moved=mean("moved"),
        swap_probability=mean("swap_probability"),
        restarts=torch.cat([one.restarts for one in recordings], dim=1),
        round_trips=torch.cat([one.round_trips for one in recordings], dim=1),
        traces={
            name: np.concatenate([one.traces[name] for one in recordings], axis=2)
            for name in first.traces
        },
    )


def _aligned(recordings: Sequence[Recording]) -> list[Recording]:
    """The same recordings with traces of the same sweeps, where some ended earlier than others."""
    stride = max(one.stride for one in recordings)
    length = min(len(one.walkers[:: stride // one.stride]) for one in recordings)

    def cut(one: Recording, trace: ndarray) -> ndarray:
        return trace[:: stride // one.stride][:length]

    sweeps = min(one.sweeps for one in recordings)
    return [
        one._replace(
            sweeps=sweeps,
            stride=stride,
            traces={name: cut(one, trace) for name, trace in one.traces.items()},
            walkers=cut(one, one.walkers),
        )
        for one in recordings
    ]


def longest(seconds: Sequence[float], processes: int) -> float:
    """How long the slowest process took, if each has every so-many-th block."""
    return max(sum(seconds[rank::processes]) for rank in range(processes))
