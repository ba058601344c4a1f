"""How far a grid is, by command."""

from collections.abc import Sequence
from dataclasses import dataclass

from nmln.reproduction.cells import EXPERIMENTS, Job
from nmln.reproduction.grid import ablations, compute, everything, jobs_of, levels, recall
from nmln.reproduction.work import Grid


@dataclass(frozen=True)
class Part:
    """The cells of a command: how many there are, and minutes of the processor."""

    command: str
    cells: int
    done: int
    begun: int
    failed: tuple[str, ...]
    spent: float
    left: float


def parts_of(grid: Grid) -> list[Part]:
    """What is done of every command; `all` is the last."""
    budget = grid.budget
    commands: dict[str, Sequence[Job]] = {
        "experiments without molecules": EXPERIMENTS,
        "ablations": jobs_of(ablations(budget)),
        "levels": jobs_of(levels(budget)),
        "compute": jobs_of(compute(budget)),
        "recall": jobs_of(recall(budget)),
        "all": jobs_of(everything(budget), experiments=True),
    }
    return [part_of(grid, name, jobs) for name, jobs in commands.items()]


def part_of(grid: Grid, command: str, jobs: Sequence[Job]) -> Part:
    """How far some cells are."""
    states = {one.name: grid.state(one) for one in jobs}
    counts = list(states.values())
    return Part(
        command,
        len(jobs),
        counts.count("done"),
        counts.count("begun"),
        tuple(name for name, state in states.items() if state == "failed"),
        sum(map(grid.minutes, jobs)),
        sum(grid.expected(jobs).values()),
    )
