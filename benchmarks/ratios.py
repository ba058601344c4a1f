"""Ratios measured in one run, printed with their targets and kept as JSON."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from nmln.files import write_lines

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Ratio:
    """One measured number with the bound that it should keep."""

    what: str
    value: float
    target: float | None = None  # None: only reported
    at_most: bool = True

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target

    def __str__(self) -> str:
        if self.target is None:
            return f"{self.what:<72} {self.value:9.3g}"
        bound = f"{'at most' if self.at_most else 'at least'} {self.target:g}"
        return f"{self.what:<72} {self.value:9.3g}   {bound:<14} {'ok' if self.met else 'MISSED'}"


def seconds(work: Callable[[], object]) -> float:
    """The time of one run."""
    start = time.perf_counter()
    result = work()
    taken = time.perf_counter() - start
    del result
    return taken


def interleaved(*works: Callable[[], object], rounds: int = 5) -> list[float]:
    """The fastest run of each piece of work, taken in turns so that noise affects all equally."""
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            best[index] = min(best[index], seconds(work))
    return best


def resident() -> int:
    """The memory that this process holds, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def report(name: str, ratios: list[Ratio], **facts: object) -> None:
    """Print the ratios and keep them in benchmarks/results/NAME.json."""
    print(f"{name}\n{'-' * len(name)}")
    for ratio in ratios:
        print(ratio)
    asked = [ratio for ratio in ratios if ratio.target is not None]
    print(f"{sum(ratio.met for ratio in asked)} of {len(asked)} targets met\n")
    content = {
        "command": f"python -m benchmarks.{name}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        **facts,
        "ratios": [{**asdict(ratio), "met": ratio.met} for ratio in ratios],
    }
    write_lines(RESULTS / f"{name}.json", [json.dumps(content, indent=2)])
