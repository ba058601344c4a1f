"""Boards of n queens as pictures, learned by a convolutional network: noising against tempering.

Both have the same network, within-level kernel and number of steps. Noising trains one network for each
corruption rate; tempering trains one and scales it. Then both generate boards from random ones.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from nmln import checkpoint
from nmln.config import (
    ChainConfig,
    Config,
    LadderConfig,
    ModelConfig,
    OptimiserConfig,
    TrainingConfig,
)
from nmln.errors import InputError
from nmln.experiments.queens import (
    Boards,
    attacking_pairs,
    board_space,
    boards_of,
    queens,
    solved,
    solved_boards,
)
from nmln.files import write_json
from nmln.model import Model
from nmln.noise import uniform
from nmln.training import DivergenceError, Return, Trainer, train
from nmln.types import Sweep

RATES = (0.2, 0.1, 0.05, 0.02, 0.0)
TEMPERATURES = (1.360489, 1.259712, 1.1664, 1.08, 1.0)

Method = Literal["noising", "tempering"]
METHODS: tuple[Method, ...] = ("noising", "tempering")
MEASURES = ("attacks", "queens", "solved")
CROSSED = "crossed"
"""The network that noising trained for the target, sampled along the temperatures."""

SHOWN = 4  # boards of every level that are kept

LEARNING_RATES: dict[str, dict[Method, float]] = {
    "gradients": {"noising": 2e-3, "tempering": 5e-4},
    "gibbs": {"noising": 3e-3, "tempering": 2e-3},
}
"""What the search over `GRID` found for boards of 8 x 8 (see docs/explanation/experiments.md)."""

GRID = (3e-4, 5e-4, 1e-3, 2e-3, 3e-3)

BUDGETS: dict[str, dict[str, Any]] = {
    "quick": {},
    "full": {"steps": 5000, "runs": 8, "sweeps": 1000, "learning_rates": GRID},
}
"""The settings that depend on the available time: minutes, or hours."""


@dataclass(frozen=True)
class QueensSettings:
    """The settings of the comparison; only the levels differ between the methods."""

    n: int = 8
    kernels: tuple[str, ...] = ("gradients", "gibbs")
    rates: tuple[float, ...] = RATES
    temperatures: tuple[float, ...] = TEMPERATURES
    runs: int = 5
    seed: int = 0
    steps: int = 800  # of training
    moves: int = 10  # of every chain in a step
    replicas: int = 32
    batch: int = 64
    channels: int = 8
    layers: int = 2
    learning_rates: tuple[
        float, ...
    ] = ()  # each method uses its best one; empty: those known to be good
    boards: int = 32  # replicas that generate
    sweeps: int = 200
    moves_per_sample: int = 10
    most_solutions: int = 1000

    def __post_init__(self) -> None:
        if self.n < 4:
            raise InputError(f"a board must have at least 4 rows, got n = {self.n}.", token="n")
        if self.runs < 2 or self.sweeps < 1 or self.boards < 1:
            raise InputError(
                f"intervals need at least 2 runs, and a run at least one board and one sweep, got "
                f"{self.runs} runs of {self.boards} boards and {self.sweeps} sweeps."
            )
        for kernel in self.kernels:
            if kernel not in LEARNING_RATES and not self.learning_rates:
                raise InputError(
                    f"no good learning rate is known for the kernel {kernel!r}, only for "
                    f"{', '.join(LEARNING_RATES)}. Give several to search: learning_rates=(1e-3, 2e-3).",
                    token=kernel,
                    kind="missing",
                )

    @staticmethod
    def of(budget: str, **changes: Any) -> "QueensSettings":
        """The settings of a budget, with some of them changed; None leaves a value as it is."""
        if budget not in BUDGETS:
            raise InputError(
                f"there is no budget {budget!r}. Available: {', '.join(BUDGETS)}.",
                token=budget,
                kind="unknown",
            )
        given = {name: value for name, value in changes.items() if value is not None}
        return QueensSettings(**{**BUDGETS[budget], **given})

    @property
    def ticks(self) -> int:
        """The number of progress reports of a run: one per trained model."""
        return len(self.kernels) * len(METHODS) * (len(self.learning_rates) + self.runs)

    @property
    def late(self) -> slice:
        """The last quarter of the samples, in a list that starts with the random boards."""
        return slice(1 + self.sweeps - max(1, self.sweeps // 4), 1 + self.sweeps)

    def config(self, task: "Task", method: Method | None = None) -> Config:
        """The configuration of a training run."""
        return Config(
            ladder=LadderConfig(method or task.method, self.rates, self.temperatures),
            model=ModelConfig(
                "image", layers=self.layers, hidden=self.channels, bound=0, seed=task.seed
            ),
            chains=ChainConfig(
                task.kernel,
                replicas=self.replicas,
                sweeps=1,
                moves=self.moves,
                start="noise",
                weighted=False,
            ),
            optimiser=OptimiserConfig(
                "adam",
                task.learning_rate,
                common=0.0,
                trust=0.0,
                spread=0.0,
                schedule="cosine",
                warm_up=50,
                clip=1.0,
                average=0.99,
            ),
            training=TrainingConfig(steps=self.steps, batch=self.batch, seed=task.seed, retries=3),
        )


# One run.


class Task(NamedTuple):
    """A model to train and to generate with."""

    kernel: str
    method: Method
    learning_rate: float
    seed: int
    searching: bool = False  # for a learning rate

    @property
    def name(self) -> str:
        """The name of the file that keeps the run."""
        search = f"-search-{self.learning_rate:g}" if self.searching else ""
        return f"{self.kernel}-{self.method}-{self.seed}{search}"


@dataclass(frozen=True)
class GeneratedBoards:
    """Boards generated from random ones; the measures are means over the replicas."""

    curves: dict[str, list[float]]  # of the target after every sweep, the random boards first
    levels: dict[str, list[float]]  # the same measures at each level, mean of the late samples
    swaps: list[float]  # mean probability of each pair of neighbours in the late samples
    distinct: int  # different solutions among the late samples
    final: list[list[list[int]]]  # of each level some boards, as the squares of their queens
    evaluations: int
    cpu_seconds: float

    def late(self, settings: QueensSettings, measure: str) -> float:
        """The mean of the late samples."""
        found = self.curves[measure][settings.late]
        return sum(found) / len(found)


@dataclass(frozen=True)
class QueensRun:
    """The result of one task."""

    task: Task
    generated: dict[str, GeneratedBoards]  # by the method; noising's target network also crossed
    diverged: bool  # then the last good network generated
    returns: int  # to a good state, with half the learning rate
    gap: float  # at the target, mean score of the data less the chains, last tenth of training
    evaluations: int  # worlds scored in training, by chains and for gradients
    cpu_seconds: float  # of training

    @property
    def own(self) -> GeneratedBoards:
        return self.generated[self.task.method]


def play(settings: QueensSettings, task: Task) -> QueensRun:
    """Train a model and generate boards with it; the same task gives the same boards."""
    began = time.process_time()
    space = board_space(settings.n)
    worlds = solved_boards(space, settings.most_solutions, Generator().manual_seed(settings.seed))
    model = Model.build(space, worlds, settings.config(task))
    trainer = Trainer(model.potential, worlds, model.config)
    for_gradient = trainer.method.trained_levels * (settings.batch + settings.replicas)
    evaluations, before, returns, diverged, gaps = 0, 0, 0, False, [0.0]
    good: dict[str, Tensor] = _parameters(model)
    try:
        for metrics in train(trainer):
            if isinstance(metrics, Return):
                returns += 1
                before = trainer.evaluations.scores + trainer.evaluations.slopes
                good = _parameters(model.averaged(trainer))
                continue
            evaluations += metrics.evaluations - before + for_gradient
            before = metrics.evaluations
            gaps.append(metrics.gap[-1])
    except DivergenceError:
        diverged = True
    model = model.averaged(trainer)
    if diverged:
        model.potential.load_state_dict(good)
    late = gaps[-max(1, settings.steps // 10) :]
    cpu_seconds = time.process_time() - began
    generated = {str(task.method): generate(model, settings, task.seed)}
    if task.method == "noising" and not task.searching:
        target = Model.build(space, worlds, settings.config(task, "tempering"))
        target.potential.load_state_dict({k: v[-1:] for k, v in _parameters(model).items()})
        generated[CROSSED] = generate(target, settings, task.seed)
    gap = sum(late) / len(late)
    return QueensRun(task, generated, diverged, returns, gap, evaluations, cpu_seconds)


def _parameters(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.potential.state_dict().items()}


def generate(model: Model, settings: QueensSettings, seed: int) -> GeneratedBoards:
    """Chains at all levels with exchange, from random boards that are the same for all methods."""
    began = time.process_time()
    # `Model.sample` draws the same boards first from the same generator.
    levels_of_chains = model.method.chain_levels
    first = uniform(model.space, levels_of_chains, settings.boards, Generator().manual_seed(seed))
    rows = [measure(boards_of(model.space, first[-1]))]
    levels: list[Tensor] = []
    swaps: list[list[float]] = []
    seen: set[tuple[int, ...]] = set()
    boards, evaluations = first, 0
    for sweep in model.sample(
        settings.sweeps,
        Generator().manual_seed(seed),
        chains=settings.boards,
        burn_in=0,
        moves=settings.moves_per_sample,
        kernel=model.config.chains.kernel,
    ):
        boards = boards_of(model.space, sweep.state.values)
        rows.append(measure(boards[-1]))
        evaluations = sweep.evaluations.scores + sweep.evaluations.slopes
        if sweep.number >= settings.late.start:
            levels.append(torch.stack([measure(level) for level in boards]))
            swaps.append(_swap_probabilities(sweep))
            seen |= {tuple(board.flatten().tolist()) for board in boards[-1][solved(boards[-1])]}
    return GeneratedBoards(
        dict(zip(MEASURES, torch.stack(rows).T.tolist(), strict=True)),
        dict(zip(MEASURES, torch.stack(levels).mean(0).T.tolist(), strict=True)),
        torch.tensor(swaps, dtype=torch.float64).mean(0).tolist(),
        len(seen),
        [[_squares(board) for board in level[:SHOWN]] for level in boards],
        evaluations,
        time.process_time() - began,
    )


def measure(boards: Boards) -> Tensor:
    """Mean attacking pairs, mean queens, and the share that is solved."""
    found = attacking_pairs(boards), queens(boards), solved(boards)
    return torch.stack([one.double().mean() for one in found])


def _swap_probabilities(sweep: Sweep) -> list[float]:
    by_pair = {
        pair: float(probability)
        for phase in sweep.swaps
        for pair, probability in zip(phase.pairs, phase.probabilities.mean(1), strict=True)
    }
    return [by_pair[pair] for pair in sorted(by_pair)]


def _squares(board: Tensor) -> list[int]:
    return board.flatten().nonzero().flatten().tolist()


# All runs.


def searches(settings: QueensSettings) -> list[Task]:
    """The tasks of the search for learning rates, on a separate seed."""
    return [
        Task(kernel, method, rate, settings.seed, searching=True)
        for kernel in settings.kernels
        for method in METHODS
        for rate in settings.learning_rates
    ]


def comparisons(settings: QueensSettings, searched: Sequence[QueensRun]) -> list[Task]:
    """The runs that are compared, each method with its best learning rate."""
    tasks = []
    for number in range(settings.runs):
        for kernel in settings.kernels:
            for method in METHODS:
                tried = [
                    run
                    for run in searched
                    if (run.task.kernel, run.task.method) == (kernel, method)
                ]
                rate = (
                    min(tried, key=lambda run: rank(settings, run)).task.learning_rate
                    if tried
                    else LEARNING_RATES[kernel][method]
                )
                tasks.append(Task(kernel, method, rate, settings.seed + 1 + number))
    return tasks


def rank(settings: QueensSettings, run: QueensRun) -> tuple[bool, bool, float]:
    """Lower is better: runs that end well, with about n queens, and then the fewest attacks.

    Runs with other numbers of queens are ranked by the share of solved boards.
    """
    attacks, count, share = (run.own.late(settings, measure) for measure in MEASURES)
    off = abs(count - settings.n) > 0.5
    return run.diverged, off, -share if off else attacks


def play_all(
    settings: QueensSettings,
    tasks: Sequence[Task],
    folder: Path,
    tick: Callable[[], None],
    processes: int,
) -> list[QueensRun]:
    """The runs of all tasks, in their order; each is kept in a file, and one found there is taken."""
    found = {task: run for task in tasks if (run := load(settings, task, folder)) is not None}
    for _ in found:
        tick()
    missing = [task for task in tasks if task not in found]
    for run in _played(settings, missing, min(processes, len(missing))):
        found[run.task] = run
        keep(settings, run, folder)
        tick()
    return [found[task] for task in tasks]


def _played(settings: QueensSettings, tasks: Sequence[Task], processes: int) -> Iterator[QueensRun]:
    if processes <= 1:
        for task in tasks:
            yield play(settings, task)
        return
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        try:
            for done in as_completed([pool.submit(play, settings, task) for task in tasks]):
                yield done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # running tasks finish, no new ones start
            raise


def keep(settings: QueensSettings, run: QueensRun, folder: Path) -> None:
    """Write a run with the settings that it came from."""
    content = {"settings": _fingerprint(settings), "run": asdict(run)}
    content["run"]["task"] = run.task._asdict()
    write_json(folder / f"{run.task.name}.json", content, indent=None)


def load(settings: QueensSettings, task: Task, folder: Path) -> QueensRun | None:
    """A run that was kept, if it was made by the same task under the same settings."""
    path = folder / f"{task.name}.json"
    if not path.exists():
        return None
    content = checkpoint.read_json(path)
    try:
        if content["settings"] != _fingerprint(settings) or Task(**content["run"]["task"]) != task:
            return None
        generated = {
            name: GeneratedBoards(**one) for name, one in content["run"]["generated"].items()
        }
        return QueensRun(**{**content["run"], "task": task, "generated": generated})
    except checkpoint.FOREIGN:
        raise InputError(
            "this does not describe a run. Delete it.", str(path), kind="damaged"
        ) from None


def _fingerprint(settings: QueensSettings) -> dict[str, Any]:
    """The settings that one run depends on, as JSON gives them back."""
    left_out = ("runs", "kernels", "learning_rates")
    kept = {name: value for name, value in asdict(settings).items() if name not in left_out}
    return json.loads(json.dumps(kept))
