"""Tracking a Boolean target with two wells whose barrier grows: parallel noising against tempering.

The target of x in {0,1}^d depends on its weight k = |x| alone, exp(-E_t(k)) with
E_t(k) = beta_t min(k, d - k) - h_t (2k - d). While beta_t rises, h_t turns from one well to the other.
The magnetisation (2k - d) / d of the cold chains is compared with its exact expectation.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import comb, pi
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.experiments.intervals import Interval, bootstrap
from nmln.files import write_lines
from nmln.kernels.metropolis import Metropolis
from nmln.ladders import Ladder, Temperatures
from nmln.language import Language, predicate
from nmln.potentials.base import BasePotential
from nmln.potentials.function import ValuesPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.report.figures import COLOURS, curve, draw
from nmln.sampler import sample
from nmln.space import Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Weights = Float64[Tensor, " weights"]
"""One number for every weight from 0 to d."""

Magnetisations = Float64[Tensor, "times seeds"]

NAMES = {"tempering": "PT", "noising": "PN"}
METHODS = tuple(NAMES)


@dataclass(frozen=True)
class TrackingSettings:
    """The fixed run of the figure. `last_betas` are swept; the largest is the main run."""

    bits: int = 20
    first_beta: float = 1.0
    last_betas: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
    tilt: float = 0.1  # h_t goes from minus this to plus this
    levels: int = 10
    hottest: float = 4.0
    times: int = 60
    sweeps: int = 20  # at every time, each of as many flips as there are bits
    seeds: int = 20  # independent replicas, drawn from one generator
    seed: int = 0

    def __post_init__(self) -> None:
        if self.times < 3:
            raise InputError(f"times must be at least 3, got {self.times}.", token="times")
        if self.seeds < 2 or self.sweeps < 1:
            raise InputError(
                f"intervals need at least 2 seeds and means at least 1 sweep, got {self.seeds} seeds "
                f"and {self.sweeps} sweeps."
            )

    @property
    def temperatures(self) -> Temperatures:
        """T_max^(l / (L - 1)), hottest first."""
        return Temperatures.geometric(self.hottest, self.levels)

    @property
    def ladder(self) -> Ladder:
        """(l / (L - 1))^2 / 2, noisiest first: from uniform to the target itself."""
        steps = range(self.levels - 1, -1, -1)
        return Ladder(tuple(0.5 * (step / (self.levels - 1)) ** 2 for step in steps))

    @property
    def ticks(self) -> int:
        """The number of progress reports of a run."""
        return len(self.last_betas) * len(METHODS) * self.times

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        changed = [
            f" --{name} {getattr(self, name)}"
            for name in ("times", "sweeps", "seeds")
            if getattr(self, name) != getattr(TrackingSettings, name)
        ]
        return f"nmln reproduce toy-tracking{''.join(changed)} --seed {self.seed}"


# The target and its noised versions, exactly.


def log_target(settings: TrackingSettings, last_beta: float) -> Float64[Tensor, "times weights"]:
    """-E_t(k): the score of a world of every weight, at every time."""
    beta = torch.linspace(settings.first_beta, last_beta, settings.times, dtype=torch.float64)
    tilt = torch.linspace(-settings.tilt, settings.tilt, settings.times, dtype=torch.float64)
    weight = torch.arange(settings.bits + 1, dtype=torch.float64)
    barrier = torch.minimum(weight, settings.bits - weight)
    return tilt[:, None] * (2 * weight - settings.bits) - beta[:, None] * barrier


def log_multiplicities(bits: int) -> Weights:
    """The logarithm of the number of worlds of every weight."""
    return torch.tensor([comb(bits, k) for k in range(bits + 1)], dtype=torch.float64).log()


def weight_channel(bits: int, rate: float) -> Float64[Tensor, "before after"]:
    """P(weight after | weight before) when every bit flips with probability `rate`.

    The ones that stay and the zeros that turn are two independent binomials; their sum is the weight.
    """
    rows = [[0.0] * (bits + 1) for _ in range(bits + 1)]
    for before, row in enumerate(rows):
        rising = _binomial(bits - before, rate)
        for kept, staying in enumerate(_binomial(before, 1 - rate)):
            for risen, probability in enumerate(rising):
                row[kept + risen] += staying * probability
    return torch.tensor(rows, dtype=torch.float64)


def _binomial(trials: int, chance: float) -> list[float]:
    """The probability of every number of successes."""
    return [comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]


def noised_scores(
    log_world: Weights, channels: Float64[Tensor, "levels before after"]
) -> Float64[Tensor, "levels weights"]:
    """The exact log-probability of a corrupted world of every weight, at every rate.

    In logarithms throughout, so that worlds of a sharp target that hardly ever occur keep their order.
    """
    multiplicities = log_multiplicities(len(log_world) - 1)
    weights = (log_world + multiplicities).log_softmax(0)
    corrupted = (weights[:, None] + channels.log()).logsumexp(1)
    return corrupted - multiplicities


def exact_magnetisation(
    log_world: Float64[Tensor, "times weights"],
) -> Float64[Tensor, " times"]:
    """The expectation of (2k - d) / d, by summing over the weights."""
    bits = log_world.shape[1] - 1
    probabilities = (log_world + log_multiplicities(bits)).softmax(1)
    return probabilities @ magnetisation(torch.arange(bits + 1), bits)


def magnetisation(weight: Tensor, bits: int) -> Tensor:
    """From -1, all bits zero, to 1, all bits one."""
    return (2 * weight.double() - bits) / bits


# The two samplers: one loop, two potentials.


def potentials(
    method: str, settings: TrackingSettings, space: Space
) -> Callable[[Weights], BasePotential]:
    """A function from the scores of a target to the potential with all levels of a method."""

    def by_weight(table: Float64[Tensor, "levels weights"]) -> BasePotential:
        return ValuesPotential(
            space, lambda values: table.gather(1, values.sum(-1)), len(table)
        ).double()

    if method == "tempering":
        temperatures = settings.temperatures
        return lambda log_world: TemperedPotential(
            by_weight(log_world[None]), temperatures
        ).double()
    channels = torch.stack([weight_channel(settings.bits, rate) for rate in settings.ladder])
    return lambda log_world: by_weight(noised_scores(log_world, channels))


class Track(NamedTuple):
    """Statistics of the cold chains of one method."""

    magnetisation: Magnetisations  # mean over the sweeps of a time
    swaps: list[float]  # mean probability of a swap in the last third, hottest pair first


def track(
    method: str,
    settings: TrackingSettings,
    last_beta: float,
    tick: Callable[[], None] = lambda: None,
) -> Track:
    """Follow the target through all times; the worlds of one time are the start of the next."""
    space = Space(Language(predicate("up", "bit")), {"bit": settings.bits})
    kernel, rng = Metropolis(space), Generator().manual_seed(settings.seed)
    make = potentials(method, settings, space)
    shape = (settings.levels, settings.seeds, settings.bits)
    values = torch.randint(2, shape, generator=rng, dtype=space.dtype)
    seen = torch.zeros(settings.times, settings.seeds, dtype=torch.float64)
    swaps = torch.zeros(settings.levels - 1, dtype=torch.float64)
    late = last_third(settings.times)
    for time, log_world in enumerate(log_target(settings, last_beta)):
        potential = make(log_world)
        for sweep in sample(potential, kernel, values, settings.sweeps, rng, moves=settings.bits):
            values = sweep.state.values
            seen[time] += magnetisation(values[-1].sum(-1), settings.bits) / settings.sweeps
            if time >= late.start:
                for phase in sweep.swaps:
                    swaps[list(phase.pairs)] += phase.probabilities.mean(1)
        tick()
    return Track(seen, (swaps / ((late.stop - late.start) * settings.sweeps)).tolist())


# Results.


def first_third(times: int) -> slice:
    return slice(0, times // 3)


def last_third(times: int) -> slice:
    return slice(times - times // 3, times)


def tracking_error(
    seen: Float64[Tensor, "draws seeds times"], exact: Float64[Tensor, " times"]
) -> Float64[Tensor, " draws"]:
    """|mean over the seeds - exact|, mean over the times."""
    return (seen.mean(1) - exact).abs().mean(1)


class Comparison(NamedTuple):
    """Both methods on one target, with intervals over the seeds."""

    last_beta: float
    exact: Float64[Tensor, " times"]
    tracks: dict[str, Track]
    first: dict[str, Interval]  # tracking error in the first third of the times
    last: dict[str, Interval]  # and in the last third
    ratio: Interval  # noising / tempering in the last third

    @property
    def tempering_as_good(self) -> bool:
        """Whether the interval of the ratio leaves room for tempering to be as good or better."""
        return self.ratio.high >= 1


def compare(
    settings: TrackingSettings, last_beta: float, tick: Callable[[], None] = lambda: None
) -> Comparison:
    """Run both methods on one target and measure their errors."""
    exact = exact_magnetisation(log_target(settings, last_beta))
    tracks = {method: track(method, settings, last_beta, tick) for method in METHODS}
    seen = {method: tracks[method].magnetisation.T for method in METHODS}

    def interval(method: str, part: slice) -> Interval:
        rng = Generator().manual_seed(settings.seed)
        return bootstrap(seen[method][:, part], lambda s: tracking_error(s, exact[part]), rng)

    def ratio(both: Float64[Tensor, "draws seeds methods times"]) -> Float64[Tensor, " draws"]:
        tempering, noising = (tracking_error(both[:, :, i], exact[late]) for i in range(2))
        return noising / tempering

    early, late = first_third(settings.times), last_third(settings.times)
    # The seeds of both methods share their first worlds, so they are drawn together.
    both = torch.stack([seen[method][:, late] for method in METHODS], dim=1)
    return Comparison(
        last_beta,
        exact,
        tracks,
        {method: interval(method, early) for method in METHODS},
        {method: interval(method, late) for method in METHODS},
        bootstrap(both, ratio, Generator().manual_seed(settings.seed)),
    )


class TrackingOutcome(NamedTuple):
    """The results and the files that were written; the last comparison is the main run."""

    comparisons: tuple[Comparison, ...]
    seconds: float
    written: tuple[Path, ...]


def run(
    settings: TrackingSettings, output: Path, tick: Callable[[], None] = lambda: None
) -> TrackingOutcome:
    """Reproduce the figure: write results.json, curves.csv, figure.png and figure.svg."""
    began = perf_counter()
    found = tuple(compare(settings, beta, tick) for beta in sorted(settings.last_betas))
    seconds = perf_counter() - began
    write_lines(output / "curves.csv", _table(settings, found))
    results = json.dumps(_results(settings, found, seconds), indent=1)
    write_lines(output / "results.json", [results])
    figures = draw(output / "figure", lambda figure: _paint(figure, settings, found))
    return TrackingOutcome(
        found, seconds, (output / "results.json", output / "curves.csv", *figures)
    )


def _half_band(seen: Magnetisations) -> Float64[Tensor, " times"]:
    """Half of a 95 % interval of the mean over the seeds."""
    return 1.96 * seen.std(1) / seen.shape[1] ** 0.5


def _noise_of_seeds(seen: Magnetisations) -> float:
    """The error in the last third that a sampler without bias would show with these seeds."""
    spread = seen[last_third(len(seen))].std(1) / seen.shape[1] ** 0.5
    return (2 / pi) ** 0.5 * spread.mean().item()


def _columns(settings: TrackingSettings, one: Comparison) -> dict[str, list[float]]:
    columns = {
        "beta": torch.linspace(settings.first_beta, one.last_beta, settings.times).double(),
        "tilt": torch.linspace(-settings.tilt, settings.tilt, settings.times).double(),
        "exact": one.exact,
    }
    for method, name in NAMES.items():
        seen = one.tracks[method].magnetisation
        columns |= {name: seen.mean(1), f"{name}_half_band": _half_band(seen)}
    return {name: [round(x, 5) for x in column.tolist()] for name, column in columns.items()}


def _table(settings: TrackingSettings, found: tuple[Comparison, ...]) -> Iterator[str]:
    for number, one in enumerate(found):
        columns = _columns(settings, one)
        if number == 0:
            yield ",".join(["last_beta", "time", *columns])
        for time, row in enumerate(zip(*columns.values(), strict=True)):
            yield ",".join(map(repr, (one.last_beta, time, *row)))


def _results(
    settings: TrackingSettings, found: tuple[Comparison, ...], seconds: float
) -> dict[str, Any]:
    main = found[-1]
    return {
        "experiment": "toy-tracking",
        "command": settings.command,
        "seed": settings.seed,
        "seconds": round(seconds, 1),
        "settings": asdict(settings),
        "temperatures": list(settings.temperatures),
        "rates": list(settings.ladder),
        "last_beta": main.last_beta,
        "error_first_third": {NAMES[m]: main.first[m]._asdict() for m in METHODS},
        "error_last_third": {NAMES[m]: main.last[m]._asdict() for m in METHODS},
        "ratio_last_third": main.ratio._asdict(),
        "error_last_third_by_seed_noise": {
            NAMES[m]: round(_noise_of_seeds(main.tracks[m].magnetisation), 4) for m in METHODS
        },
        "swap_probabilities_last_third": {
            NAMES[m]: [round(p, 4) for p in main.tracks[m].swaps] for m in METHODS
        },
        "tempering_as_good_at": [one.last_beta for one in found if one.tempering_as_good],
        "by_last_beta": [
            {
                "last_beta": one.last_beta,
                **{NAMES[m]: one.last[m]._asdict() for m in METHODS},
                "ratio": one.ratio._asdict(),
            }
            for one in found
        ],
        "curves": _columns(settings, main),
    }


def _paint(figure: "Figure", settings: TrackingSettings, found: tuple[Comparison, ...]) -> None:
    main = found[-1]
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    times = range(1, settings.times + 1)
    late = times[last_third(settings.times)]
    left.axvspan(late[0] - 0.5, late[-1] + 0.5, color="#F3F3F3", zorder=0)
    left.text(late[-1], -0.97, "last third", ha="right", color="#666666")
    left.plot(times, main.exact, color=COLOURS["exact"], linestyle="--", label="exact", zorder=3)
    for method, name in NAMES.items():
        seen = main.tracks[method].magnetisation
        middle, half = seen.mean(1), _half_band(seen)
        low, high = (middle - half).clamp(min=-1), (middle + half).clamp(max=1)
        curve(left, times, middle.tolist(), low.tolist(), high.tolist(), COLOURS[method], name)
    left.set(xlabel="time $t$", ylabel="cold magnetisation", ylim=(-1.05, 1.05))
    left.set_yticks((-1, -0.5, 0, 0.5, 1))
    left.set_title(rf"(a) tracking, $\beta_t$ from {settings.first_beta:g} to {main.last_beta:g}")
    left.legend(loc="upper left")
    betas = [one.last_beta for one in found]
    for (method, name), marker in zip(NAMES.items(), "so", strict=True):
        value, low, high = zip(*(one.last[method] for one in found), strict=True)
        curve(right, betas, value, low, high, COLOURS[method], name, marker)
    right.set(xlabel=r"final $\beta_t$", ylabel="mean |error|, last third", ylim=(0, None))
    right.set_xticks(betas)
    right.set_title("(b) error by final sharpness")
    right.legend(loc="upper left")
