"""A cell of the grid: what it is made of, the commands that fill its folder, and what they cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nmln.reproduction.budgets import Budget
from nmln.reproduction.datasets import MAIN, DataSet
from nmln.reproduction.methods import FULL_NETWORK, Method

Equal = Literal["minutes", "updates"]

SAMPLING = ("--start", "noise", "--chains", "40", "--burn-in", "100", "--thin", "1")
"""How the models of the ablations are sampled: alike, and as long as the slowest of them can."""

RUN = "run"  # in the folder of a cell: the folder of the run
_OVERHEAD = 1.0  # minutes that starting, mixing and evaluating take
_REFERENCE = 10  # atoms at which the speeds of methods are stated


class Step(NamedTuple):
    """One command of a cell, and the one that continues it once a file in the folder exists."""

    name: str
    words: tuple[str, ...]
    again: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()  # files of which one exists as soon as `again` is the one to take


@dataclass(frozen=True)
class Cell:
    """One method on one data set with one seed.

    Args:
        data: the molecules.
        method: what learns from them.
        seed: of training and sampling; the split is the same for all.
        equal: whether all methods have the same minutes or the same number of updates.
    """

    data: DataSet
    method: Method
    seed: int = 0
    equal: Equal = "minutes"

    @property
    def name(self) -> str:
        """Its name on the command line, which is its place in the grid too."""
        updates = "-updates" if self.equal == "updates" else ""
        seed = f"-seed-{self.seed}" if self.seed else ""
        return f"{self.data.key}/{self.method.name}{updates}{seed}"

    @property
    def all_levels(self) -> bool:
        """Whether the samples of every level are kept, for the figures of levels."""
        fitting = self.equal == "minutes" and self.seed == 0
        return self.method.has_ladder and fitting and self.data.key == MAIN

    def described(self, budget: Budget) -> dict[str, Any]:
        """What the cell is, for its folder; a file of data by its name, wherever it is."""
        named = replace(self, data=replace(self.data, source=self.data.source_name))
        return {
            "cell": self.name,
            "data": {"name": self.data.key, "source": named.data.source, "size": self.data.size},
            "method": self.method.name,
            "seed": self.seed,
            "equal": self.equal,
            "budget": budget.described(),
            "commands": [" ".join(("nmln", *step.words)) for step in named.steps(budget, Path())],
        }

    def steps(self, budget: Budget, folder: Path) -> list[Step]:
        """The commands that fill the folder of the cell, in order."""
        run = str(folder / RUN)
        most = ["--num-samples", str(budget.samples)]
        if budget.sampling:
            most += ["--minutes", f"{budget.sampling:g}"]
        seeded = ["--seed", str(self.seed)]
        if self.method.kind == "nmln":
            one = ["--processes", "1"]
            train = ["train", *self.data.words, *self.settings(budget), *self._length(budget)]
            like = list(SAMPLING) if self.method.like_others else []
            levels = ["--all-levels"] if self.all_levels else []
            sample = ["sample", run, *most, *like, *levels, *seeded, *one]
            again = ["train", "--resume", run, *one]
            evaluate = ["evaluate", run, "--no-fcd"]
            train += [*seeded, *one, "--output", run]
        else:
            train = ["baseline", "train", self.method.name, *self.data.words]
            train += ["--minutes", f"{budget.minutes:g}", *seeded, "--output", run]
            sample = ["baseline", "sample", run, *most, *seeded]
            again = ["baseline", "train", "--resume", run]
            evaluate = ["evaluate", run, "--no-fcd", "--no-probability"]
        heads = (f"{RUN}/config.json", f"{RUN}/baseline.json")
        return [
            Step("training", tuple(train), tuple(again), heads),
            Step("sampling", tuple(sample)),
            Step("evaluation", tuple(evaluate)),
        ]

    def settings(self, budget: Budget) -> list[str]:
        """The preset and its changes, as `nmln train` takes them."""
        changes = list(self.method.settings)
        if budget.full and self.method.preset in ("s3", "s4", "s5", "star"):
            changes += FULL_NETWORK
        if self.equal == "minutes":
            changes.append(f"training.clock={budget.clock}")
        return [
            "--preset",
            self.method.preset,
            *(word for one in changes for word in ("--set", one)),
        ]

    def _length(self, budget: Budget) -> list[str]:
        if self.equal == "updates":
            return ["--steps", str(budget.updates)]
        return ["--minutes", f"{budget.minutes:g}"]

    def expected(self, budget: Budget) -> float:
        """About how many minutes of the processor the cell takes; schedules may end earlier."""
        size = (self.data.size / _REFERENCE) ** 2
        full = 20 if budget.full and self.method.preset in ("s3", "s4", "s5", "star") else 1
        training = budget.minutes
        if self.equal == "updates":
            training = budget.updates * self.method.update * size * full / 60
        sampling = budget.samples * size * full / self.method.per_second / 60
        return training + min(sampling, budget.sampling or sampling) + _OVERHEAD


@dataclass(frozen=True)
class Experiment:
    """An experiment without molecules, which is one command."""

    verb: str
    minutes: float
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"experiments/{self.verb}"

    def described(self, budget: Budget) -> dict[str, Any]:
        [step] = self.steps(budget, Path())
        return {"cell": self.name, "commands": [" ".join(("nmln", *step.words))]}

    def steps(self, budget: Budget, folder: Path) -> list[Step]:
        output = ("--output", str(folder / RUN))
        return [Step("experiment", ("reproduce", self.verb, *self.options, *output))]

    def expected(self, budget: Budget) -> float:
        return self.minutes


Job = Cell | Experiment
"""What fills a folder of the grid."""

EXPERIMENTS = (
    Experiment("exactness", 0.1),
    Experiment("toy-tracking", 1.5),
    Experiment("two-peaks", 1),
    Experiment("matching", 19),
    Experiment("n-queens", 17, ("--processes", "1")),
)
"""The experiments without molecules, at every budget the same."""


def different(jobs: Sequence[Job]) -> list[Job]:
    """Every job once, in order."""
    return list({one.name: one for one in jobs}.values())
