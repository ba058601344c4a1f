"""A density with two peaks, sampled by one chain and by parallel tempering.

The chain moves by one cell at a time and stays in the peak where it started; a ladder of temperatures
carries worlds across the region of low density.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.experiments.intervals import Interval, bootstrap, mean
from nmln.files import write_lines
from nmln.kernels.moves import accept
from nmln.ladders import Temperatures
from nmln.language import Attribute, Language
from nmln.potentials.function import ValuesPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.report.figures import COLOURS, draw
from nmln.sampler import sample
from nmln.space import Space
from nmln.types import Groups, Info, Potential, State, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Density = Float64[Tensor, " cells"]
Trace = Int64[Tensor, "sweeps seeds"]

NAMES = {"single": "one chain", "tempering": "parallel tempering"}
METHODS = tuple(NAMES)


@dataclass(frozen=True)
class TwoPeaksSettings:
    """The fixed run of the figure. All chains start on top of the first peak."""

    cells: int = 200
    peaks: tuple[int, int] = (60, 140)
    width: float = 8.0  # standard deviation of a peak, in cells
    share: float = 0.4  # of the first peak
    levels: int = 6
    hottest: float = 16.0
    sweeps: int = 4000
    moves: int = 25  # of every chain in a sweep
    seeds: int = 20  # independent replicas, drawn from one generator
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seeds < 2 or self.sweeps < 1:
            raise InputError(
                f"intervals need at least 2 seeds and histograms at least 1 sweep, got {self.seeds} "
                f"seeds and {self.sweeps} sweeps."
            )

    def temperatures(self, method: str) -> Temperatures:
        """One level at temperature 1, or a geometric ladder down to it."""
        levels = 1 if method == "single" else self.levels
        return Temperatures.geometric(self.hottest, levels)

    @property
    def ticks(self) -> int:
        """The number of progress reports of a run."""
        return len(METHODS) * self.sweeps

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        changed = [
            f" --{name} {getattr(self, name)}"
            for name in ("sweeps", "seeds")
            if getattr(self, name) != getattr(TwoPeaksSettings, name)
        ]
        return f"nmln reproduce two-peaks{''.join(changed)} --seed {self.seed}"


@dataclass(frozen=True)
class Neighbours:
    """Propose the left or the right cell with equal probability; nothing is proposed beyond the ends.

    For a space of one group. One score per move.
    """

    space: Space

    def init(self, potential: Potential, values: Values) -> State:
        return State(values, potential.score(values))

    @torch.no_grad()
    def step(self, potential: Potential, state: State, rng: Generator) -> tuple[State, Info]:
        right = torch.randint(2, state.scores.shape, generator=rng, device=state.scores.device)
        values, exists = self.change(state.values, 2 * right - 1)
        proposed = State(values, potential.score(values))
        ratio = (proposed.scores - state.scores).masked_fill(~exists, float("-inf"))
        return accept(state, proposed, ratio, rng)

    def change(self, values: Values, by: Groups) -> tuple[Values, Tensor]:
        """The neighbouring cells, and whether they exist: beyond an end, the cell itself is returned."""
        last = int(self.space.sizes[0]) - 1
        wanted = values.long() + by[..., None]
        found = wanted.clamp(0, last)
        return found.to(values.dtype), (found == wanted).squeeze(2)


def log_density(settings: TwoPeaksSettings) -> Density:
    """Two discretised normal peaks, normalised over the cells."""
    cell = torch.arange(settings.cells, dtype=torch.float64)
    first, second = (-0.5 * ((cell - peak) / settings.width) ** 2 for peak in settings.peaks)
    share = torch.tensor([settings.share, 1 - settings.share], dtype=torch.float64).log()
    return torch.logaddexp(first + share[0], second + share[1]).log_softmax(0)


def trace(
    method: str, settings: TwoPeaksSettings, tick: Callable[[], None] = lambda: None
) -> Trace:
    """The cells of the cold chains after every sweep."""
    values = tuple(map(str, range(settings.cells)))
    space = Space(Language(Attribute("cell", (), values)), {})
    table = log_density(settings)
    target = ValuesPotential(space, lambda values: table[values.squeeze(2).long()]).double()
    potential = TemperedPotential(target, settings.temperatures(method)).double()
    start = torch.full((potential.levels, settings.seeds, 1), settings.peaks[0], dtype=space.dtype)
    seen, rng = [], Generator().manual_seed(settings.seed)
    kernel = Neighbours(space)
    for sweep in sample(potential, kernel, start, settings.sweeps, rng, moves=settings.moves):
        seen.append(sweep.state.values[-1, :, 0].long())
        tick()
    return torch.stack(seen)


def histogram(cells: Trace, size: int) -> Float64[Tensor, "seeds cells"]:
    """The share of the sweeps that every seed spent in each cell."""
    counts = torch.zeros(cells.shape[1], size, dtype=torch.float64)
    counts.scatter_add_(1, cells.T, torch.ones_like(cells.T, dtype=torch.float64))
    return counts / len(cells)


def total_variation(
    shares: Float64[Tensor, "seeds cells"], density: Density
) -> Float64[Tensor, " seeds"]:
    """Half of the summed absolute differences, for every seed."""
    return (shares - density).abs().sum(1) / 2


def crossings(cells: Trace, settings: TwoPeaksSettings) -> Int64[Tensor, " seeds"]:
    """The number of crossings from one peak to the other, per seed.

    A chain is in a peak within two of its widths, and counts as there until it reaches the other.
    """
    place = torch.zeros_like(cells[0])  # the last peak seen: 0 none yet, 1 the first, 2 the second
    count = torch.zeros_like(place)
    for row in cells:
        near = [(row - peak).abs() <= 2 * settings.width for peak in settings.peaks]
        now = torch.where(near[0], 1, torch.where(near[1], 2, place))
        count += (place > 0) & (now != place)
        place = now
    return count


class SampledMethod(NamedTuple):
    """Statistics of the cold chains of one method, with intervals over the seeds."""

    trace: Trace
    distance: Interval  # total variation between a seed's histogram and the density
    crossings: Interval


class TwoPeaksOutcome(NamedTuple):
    """The results and the files that were written."""

    sampled: dict[str, SampledMethod]
    seconds: float
    written: tuple[Path, ...]


def run(
    settings: TwoPeaksSettings, output: Path, tick: Callable[[], None] = lambda: None
) -> TwoPeaksOutcome:
    """Reproduce the illustration: write results.json, figure.png and figure.svg."""
    began = perf_counter()
    sampled = {method: _sample(method, settings, tick) for method in METHODS}
    seconds = perf_counter() - began
    results = json.dumps(_results(settings, sampled, seconds), indent=1)
    write_lines(output / "results.json", [results])
    figures = draw(
        output / "figure", lambda figure: _paint(figure, settings, sampled), size=(7.2, 3.8)
    )
    return TwoPeaksOutcome(sampled, seconds, (output / "results.json", *figures))


def _sample(method: str, settings: TwoPeaksSettings, tick: Callable[[], None]) -> SampledMethod:
    cells = trace(method, settings, tick)
    density = log_density(settings).exp()
    distance = total_variation(histogram(cells, settings.cells), density)
    count = crossings(cells, settings).double()
    return SampledMethod(
        cells,
        bootstrap(distance, mean, Generator().manual_seed(settings.seed)),
        bootstrap(count, mean, Generator().manual_seed(settings.seed)),
    )


def _results(
    settings: TwoPeaksSettings, sampled: dict[str, SampledMethod], seconds: float
) -> dict[str, Any]:
    shares = {m: histogram(sampled[m].trace, settings.cells)[0].tolist() for m in METHODS}
    return {
        "experiment": "two-peaks",
        "command": settings.command,
        "seed": settings.seed,
        "seconds": round(seconds, 1),
        "settings": asdict(settings),
        "temperatures": list(settings.temperatures("tempering")),
        "total_variation": {m: sampled[m].distance._asdict() for m in METHODS},
        "crossings": {m: sampled[m].crossings._asdict() for m in METHODS},
        "curves": {
            "density": [round(p, 7) for p in log_density(settings).exp().tolist()],
            **{f"{m}_first_seed": [round(p, 5) for p in shares[m]] for m in METHODS},
        },
    }


def _paint(figure: "Figure", settings: TwoPeaksSettings, sampled: dict[str, SampledMethod]) -> None:
    """The first seed of each method: where it was, and its histogram; the titles are means of all."""
    density = log_density(settings).exp()
    panels = figure.subplots(2, 2, sharex="col", sharey="row", width_ratios=(2.4, 1))
    cells = torch.arange(settings.cells).tolist()
    for row, method, letter in zip(panels, METHODS, "ab", strict=True):
        path, side = row
        one = sampled[method]
        path.plot(
            range(1, settings.sweeps + 1), one.trace[:, 0].tolist(),
            color=COLOURS[method], linestyle="none", marker=".", markersize=1.6,
            rasterized=True,  # thousands of dots would make a large SVG
        )  # fmt: skip
        share = histogram(one.trace, settings.cells)[0].tolist()
        colour = COLOURS[method]
        side.fill_betweenx(cells, share, step="mid", color=colour, alpha=0.5, lw=0, label="sampled")
        side.plot(density.tolist(), cells, color=COLOURS["exact"], linewidth=1.2, label="exact")
        side.set_xlim(0, None)
        path.set(ylabel="cell", ylim=(0, settings.cells - 1))
        path.set_title(
            f"({letter}) {NAMES[method]}: on average {one.crossings.value:,.0f} crossings, total "
            f"variation {one.distance.value:.2f}"
        )
    panels[1, 0].set_xlabel(f"sweep ({settings.moves} moves)")
    panels[1, 1].set_xlabel("share of the sweeps")
    panels[0, 1].legend(loc="upper right")
