"""Recorders that outlive their process, and one recording out of those of several blocks."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nmln.recording import Journeys, Recorder, Recording
from nmln.types import Evaluations

_SUMS = ("_acceptance", "_turns", "_moved", "_swapped", "_proposed")
_JOURNEYS = ("last_end", "restarts", "returns")


class KeptRecorder(Recorder):
    """A recorder whose state can be kept in a checkpoint and taken up again."""

    def tree(self) -> dict[str, Any]:
        """All it knows, as tensors, numbers and strings."""
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
        """A recorder that goes on where another one was kept; the time in between does not count."""
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
    """The recording of the chains of all blocks, which ran the same number of sweeps.

    Each process had every `processes`-th block, one after the other; the slowest one counts.
    """
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


def longest(seconds: Sequence[float], processes: int) -> float:
    """How long the slowest process took, if each has every so-many-th block."""
    return max(sum(seconds[rank::processes]) for rank in range(processes))
