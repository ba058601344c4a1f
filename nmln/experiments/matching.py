"""A deterministic constraint learned from clean data: every node has exactly one partner.

Parallel noising against plain multi-chain Gibbs training, at equal numbers of potential evaluations and
after the same search for a learning rate.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.config import Config, configure
from nmln.errors import InputError
from nmln.experiments.intervals import Interval, bootstrap, mean
from nmln.files import write_json
from nmln.language import Language, predicate
from nmln.model import Model
from nmln.space import Space
from nmln.training import DivergenceError, Metrics, Trainer, train

METHODS = {"noising": "parallel noising", "single": "plain Gibbs"}
RATES = (0.2, 0.1, 0.05, 0.02, 0.0)


@dataclass(frozen=True)
class MatchingSettings:
    """The settings of the comparison; only the levels differ between the methods."""

    nodes: int = 8
    evaluations: int = 3_000_000  # worlds scored in training, by chains and for gradients
    chains: int = 150  # over all levels together
    moves: int = 5
    sampling_chains: int = 50  # for both methods
    sweeps: int = 40  # of these, each giving a sample
    burn_in: int = 200  # sweeps from noise before the first of them
    runs: int = 5
    seed: int = 0
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)

    def __post_init__(self) -> None:
        if self.nodes % 2:
            raise InputError(
                f"nodes must be an even number, because they form pairs, got {self.nodes}.",
                token="nodes",
            )

    @property
    def ticks(self) -> int:
        return len(METHODS) * (len(self.learning_rates) + self.runs)


@dataclass(frozen=True)
class Trained:
    """One run: the share of samples that obey, the share of chains that still move, and the cost."""

    method: str
    learning_rate: float
    seed: int
    satisfied: float
    changed: float  # share of the chains whose last sample is another world than their first
    steps: int
    seconds: float
    diverged: bool = False


@dataclass(frozen=True)
class MatchingOutcome:
    """Both methods side by side."""

    satisfied: dict[str, Interval]
    changed: dict[str, Interval]
    difference: Interval
    learning_rates: dict[str, float]
    tuning: tuple[Trained, ...]
    runs: tuple[Trained, ...]
    seconds: float
    written: tuple[Path, ...]


def run(
    settings: MatchingSettings, output: Path, tick: Callable[[], None] | None = None
) -> MatchingOutcome:
    """Choose a learning rate for each method on one seed, then repeat with others."""
    start = time.perf_counter()
    tuning: list[Trained] = []
    chosen: dict[str, float] = {}
    for method in METHODS:
        tried = [
            _ticked(fit_and_sample(settings, method, rate, settings.seed), tick)
            for rate in settings.learning_rates
        ]
        tuning += tried
        chosen[method] = max(tried, key=lambda one: one.satisfied).learning_rate
    runs = [
        _ticked(fit_and_sample(settings, method, chosen[method], settings.seed + 1 + number), tick)
        for number in range(settings.runs)
        for method in METHODS
    ]
    shares = {m: torch.tensor([one.satisfied for one in runs if one.method == m]) for m in METHODS}
    rng = Generator().manual_seed(settings.seed)
    satisfied = {method: bootstrap(found, mean, rng) for method, found in shares.items()}
    changed = {
        method: bootstrap(
            torch.tensor([one.changed for one in runs if one.method == method]), mean, rng
        )
        for method in METHODS
    }
    difference = bootstrap(shares["noising"] - shares["single"], mean, rng)
    seconds = time.perf_counter() - start
    outcome = MatchingOutcome(
        satisfied,
        changed,
        difference,
        chosen,
        tuple(tuning),
        tuple(runs),
        seconds,
        (output / "results.json",),
    )
    content = {
        "command": "nmln reproduce matching",
        "settings": asdict(settings),
        "rates": RATES,
        **{k: v for k, v in asdict(outcome).items() if k != "written"},
    }
    write_json(output / "results.json", content)
    return outcome


def _ticked(found: Trained, tick: Callable[[], None] | None) -> Trained:
    if tick is not None:
        tick()
    return found


def space_of(nodes: int) -> Space:
    language = Language(predicate("partner", "node", "node", symmetric=True, reflexive=False))
    return Space(language, {"node": nodes})


def matchings(space: Space) -> Integer[Tensor, "worlds groups"]:
    """All worlds in which every node has exactly one partner."""
    table = space.table("partner")
    nodes = len(space.domain["node"])

    def pair_up(left: tuple[int, ...]) -> Iterator[list[int]]:
        if not left:
            yield []
            return
        first, *others = left
        for other in others:
            rest = tuple(node for node in others if node != other)
            for pairs in pair_up(rest):
                yield [int(table[first, other]), *pairs]

    found = list(pair_up(tuple(range(nodes))))
    worlds = torch.zeros(len(found), space.groups, dtype=space.dtype)
    for world, pairs in zip(worlds, found, strict=True):
        world[pairs] = 1
    return worlds


def obeys(space: Space, worlds: Integer[Tensor, "worlds groups"]) -> Tensor:
    """Whether every node has exactly one partner."""
    nodes = len(space.domain["node"])
    table = torch.from_numpy(space.table("partner").copy())
    one, other = torch.triu_indices(nodes, nodes, 1)
    pairs = worlds[:, table[one, other]].long()
    degrees = torch.zeros(len(worlds), nodes, dtype=torch.int64)
    for ends in (one, other):
        degrees.index_add_(1, ends, pairs)
    return (degrees == 1).all(1)


def settings_of(settings: MatchingSettings, method: str, rate: float, seed: int) -> Config:
    """The same network, kernel and optimiser; the chains are divided among the levels."""
    levels = len(RATES) if method == "noising" else 1
    return configure(
        {
            "ladder": {"method": method, "rates": list(RATES)},
            "model": {"layers": 2, "hidden": 32, "bound": 0, "seed": seed},
            "chains": {
                "kernel": "gibbs",
                "replicas": settings.chains // levels,
                "sweeps": 1,
                "moves": settings.moves,
                "start": "noise",
                "weighted": False,
            },
            "optimiser": {
                "learning_rate": rate,
                "common": 0.0,
                "trust": 0.0,
                "spread": 0.0,
                "average": 0.99,
            },
            "training": {"batch": settings.chains // levels, "seed": seed, "steps": 10**9},
        }
    )


def fit_and_sample(settings: MatchingSettings, method: str, rate: float, seed: int) -> Trained:
    """Train until the evaluations are used up, then sample from noise."""
    start = time.perf_counter()
    space = space_of(settings.nodes)
    worlds = matchings(space)
    config = settings_of(settings, method, rate, seed)
    steps = settings.evaluations // _evaluations_per_step(space, worlds, config)
    config = configure(
        {**config.to_dict(), "training": {**config.to_dict()["training"], "steps": steps}}
    )
    model = Model.build(space, worlds, config)
    trainer = Trainer(model.potential, worlds, config)
    try:
        for _ in train(trainer):
            pass
    except DivergenceError:
        taken = time.perf_counter() - start
        return Trained(method, rate, seed, 0.0, 0.0, trainer.step_number, taken, diverged=True)
    found = [
        sweep.state.values[-1]
        for sweep in model.averaged(trainer).sample(
            settings.burn_in + settings.sweeps,
            Generator().manual_seed(seed),
            burn_in=settings.burn_in,
            chains=settings.sampling_chains,
            moves=config.chains.moves,
            kernel=config.chains.kernel,
        )
    ]
    share = float(obeys(space, torch.cat(found)).double().mean())
    changed = float((found[0] != found[-1]).any(1).double().mean())
    return Trained(method, rate, seed, share, changed, steps, time.perf_counter() - start)


def _evaluations_per_step(space: Space, worlds: Tensor, config: Config) -> int:
    """The number of worlds that one step scores, for chains and gradient, measured on two steps."""
    model = Model.build(space, worlds, config)
    trainer = Trainer(model.potential, worlds, config)
    first, second = (trainer.step() for _ in range(2))
    assert isinstance(second, Metrics)
    levels = trainer.method.trained_levels
    gradient = levels * (config.training.batch + config.chains.replicas)
    return second.evaluations - first.evaluations + gradient
