"""The figures as lists of cells, and the commands as lists of figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nmln.reproduction.budgets import Budget
from nmln.reproduction.cells import EXPERIMENTS, Cell, Equal, Job, different
from nmln.reproduction.datasets import DATA_SETS, MAIN, DataSet, by_key
from nmln.reproduction.methods import ABLATION, LADDERS, OURS, PAPER, STAR, baselines

Layout = Literal["recall", "levels", "compute"]

LONGEST = 125.0
"""Minutes of the processor that a cell may take below full size: an hour each of training and sampling,
and what starting and evaluating take. A cell that takes longer is left out."""

PAPER_SIZE = 10
"""The largest molecules that the network of the paper learns below full size: with 20 atoms a minute
of a processor core is one or two updates."""

SEEDS = 3
"""Seeds of the methods between which one run cannot decide (C7)."""

_SEEDED = ("s3", "s4", "s5", "star")


@dataclass(frozen=True)
class Figure:
    """Cells that are compared with each other, at an equal number of samples.

    Args:
        name: the name of its files.
        title: what it shows.
        layout: how it is drawn.
        cells: its cells, in the order of the legend.
        left_out: methods whose cells would take too long.
    """

    name: str
    title: str
    layout: Layout
    cells: tuple[Cell, ...]
    left_out: tuple[str, ...] = ()


def ablations(
    budget: Budget, seeds: int = SEEDS, data: DataSet | None = None
) -> tuple[Figure, ...]:
    """s.1 to s.5 and NMLN*, at equal minutes and at equal numbers of updates."""
    data = data or by_key(MAIN)
    figures = []
    kinds: tuple[tuple[Equal, str], ...] = (
        ("minutes", "at equal CPU minutes"),
        ("updates", "at equal numbers of updates"),
    )
    for equal, what in kinds:
        wanted = [
            Cell(data, one, seed, equal)
            for one in ABLATION
            for seed in range(seeds if one.name in _SEEDED else 1)
        ]
        fitting = [one for one in wanted if budget.full or one.expected(budget) <= LONGEST]
        left_out = dict.fromkeys(one.method.title for one in wanted if one not in fitting)
        name = "ablations" if equal == "minutes" else "ablations-updates"
        title = f"Variants of NMLN on {data}, {what}"
        figures.append(Figure(name, title, "recall", tuple(fitting), tuple(left_out)))
    return tuple(figures)


def recall(budget: Budget, sets: Sequence[DataSet] = DATA_SETS) -> tuple[Figure, ...]:
    """NMLN* beside DiGress, and beside string models, for every data set."""
    figures = []
    for data in sets:
        rivals = baselines(data, budget)
        fitting = budget.full or data.size <= PAPER_SIZE
        ours = [Cell(data, one) for one in ((OURS, PAPER) if fitting else (OURS,))]
        for kind, what in (("graphs", "DiGress"), ("strings", "string models")):
            others = [Cell(data, one) for one in rivals if one.kind == kind]
            name, title = f"recall-{data.key}-{kind}", f"NMLN* beside {what} on {data}"
            figures.append(Figure(name, title, "recall", (*ours, *others)))
    return tuple(figures)


def levels(budget: Budget) -> tuple[Figure, ...]:
    """The levels of one NMLN*, at the rates of the paper and at ours."""
    data = by_key(MAIN)
    return (
        Figure("levels", f"The levels of NMLN* on {data}, rates of the paper", "levels",
               (Cell(data, STAR),)),
        Figure("levels-ours", f"The levels of NMLN* on {data}, preset molecules", "levels",
               (Cell(data, OURS),)),
    )  # fmt: skip


def compute(budget: Budget) -> tuple[Figure, ...]:
    """Validity and recall against energy evaluations, for several ladders and numbers of replicas."""
    data = by_key(MAIN)
    cells = tuple(Cell(data, one) for one in (STAR, *LADDERS))
    title = f"Ladders and replicas of NMLN* on {data}, against energy evaluations"
    return (Figure("compute", title, "compute", cells),)


def everything(budget: Budget, seeds: int = SEEDS) -> tuple[Figure, ...]:
    """All figures of the paper."""
    return (*ablations(budget, seeds), *levels(budget), *compute(budget), *recall(budget))


def jobs_of(figures: Sequence[Figure], experiments: bool = False) -> list[Job]:
    """The cells of some figures, each once; perhaps the experiments without molecules too."""
    cells: list[Job] = [cell for figure in figures for cell in figure.cells]
    return different([*(EXPERIMENTS if experiments else ()), *cells])
