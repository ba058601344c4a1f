"""The time and memory of an epoch and of a full filtered ranking of a knowledge base.

Every set is measured in a separate process, on one core, so that the peaks of memory do not mix: the
CPU seconds of one training epoch, of the ranking of all test triples on both sides, and of all log-odds
that `nmln kb complete` looks at. Needs the triples: see `nmln kb train --help`.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Generator

from benchmarks.ratios import Ratio, report
from nmln.knowledge.completion import complete
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import rank, scorer
from nmln.knowledge.settings import expected_bytes, recommended
from nmln.knowledge.training import train

MEMORY = 4.0  # GiB that a ranking may take
CASES = (
    ("nations", 2), ("nations", 3), ("kinship", 2), ("kinship", 3), ("umls", 2), ("umls", 3),
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Time and memory of one set."""

    name: str
    width: int
    constants: int
    relations: int
    atoms: int
    epoch_seconds: float
    ranking_seconds: float
    completion_seconds: float | None  # not for width 3 on many constants: minutes
    peak_gib: float
    ranking_peak_gib: float
    expected_gib: float


def measure(name: str, width: int) -> Measured:
    """One epoch, one ranking of the test triples, one completion; the ranking goes first."""
    base = KnowledgeBase.read(name)
    wishes: dict[str, int] = {"epochs": 1}
    heavy = width == 3 and len(base.constants) > 50
    if heavy:
        wishes |= {"batch": 64, "negatives": 8}
    shape, settings = recommended(base, {} if width == 2 else {"width": 3, "hidden": 32}, wishes)
    potential = KnowledgePotential(base.space, shape, rng=Generator().manual_seed(0))

    def ranking() -> object:
        with torch.no_grad():
            return rank(scorer(potential, base), base.test, base.known)

    torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).step()  # its imports are not timed
    with torch.no_grad():
        rank(scorer(potential, base), base.test[:1], base.known)
    ranked, ranking_peak = seconds(ranking), _peak()
    without = KnowledgeBase(base.name, base.space, base.train, base.valid[:0], base.test)
    epoch = seconds(lambda: train(potential, without, settings))
    completed = None if heavy else seconds(lambda: complete(potential, base, top=10))
    expected = expected_bytes(base, shape, settings) / 2**30
    sizes = len(base.constants), len(base.relations), base.space.groups
    return Measured(
        name, width, *sizes, epoch, ranked, completed, _peak(), ranking_peak, expected
    )  # fmt: skip


def seconds(work: Callable[[], object]) -> float:
    """The CPU time of this process, which other work on the machine does not lengthen."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="Speed and memory of knowledge bases.")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "WIDTH"), help="one case, as JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(asdict(measure(chosen.one[0], int(chosen.one[1])))))
        return
    table: list[Measured] = []
    for name, width in CASES:
        command = [sys.executable, "-m", "benchmarks.knowledge", "--one", name, str(width)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        table.append(Measured(**json.loads(done.stdout)))
        print(json.dumps(asdict(table[-1])), flush=True)
    ratios = [
        Ratio(f"{one.name}, width {one.width}: GiB at the peak of a ranking", one.ranking_peak_gib,
              MEMORY)
        for one in table
    ]  # fmt: skip
    report("knowledge", ratios, table=[asdict(one) for one in table])


if __name__ == "__main__":
    main()
