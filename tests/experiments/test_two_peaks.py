import json
from inspect import signature
from pathlib import Path

import pytest
import torch

from nmln.cli.reproduce import two_peaks
from nmln.errors import InputError
from nmln.experiments.two_peaks import (
    METHODS,
    Neighbours,
    TwoPeaksSettings,
    crossings,
    histogram,
    log_density,
    run,
    total_variation,
    trace,
)
from nmln.language import Attribute, Language
from nmln.potentials.function import ValuesPotential
from nmln.space import Space
from nmln.types import Kernel
from tests.test_cli import nmln

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = TwoPeaksSettings(sweeps=30, moves=4, seeds=3)
SMALL = TwoPeaksSettings(
    cells=12, peaks=(3, 8), width=1.3, sweeps=120, moves=8, levels=3, seeds=200
)


def line(cells: int) -> Space:
    return Space(Language(Attribute("cell", (), tuple(map(str, range(cells))))), {})


def test_the_density_has_two_peaks_and_hardly_anything_between() -> None:
    density = log_density(TwoPeaksSettings()).exp()
    assert density.sum().item() == pytest.approx(1)
    assert density[:100].sum().item() == pytest.approx(0.4, abs=1e-4)
    first, second = TwoPeaksSettings().peaks
    assert density[first] > density[first - 1]
    assert density[first] > density[first + 1]
    assert density[second] > density[second + 1]
    assert density[100] < 1e-4 * density[first]


def test_the_moves_keep_the_exact_density() -> None:
    """The matrix is built from the change that `step` proposes, with the ends where nothing is."""
    density = log_density(SMALL)
    kernel = Neighbours(line(12))
    cells = kernel.space.enumerate()[None]
    matrix = torch.zeros(12, 12, dtype=torch.float64)
    for by in (-1, 1):
        moved, exists = kernel.change(cells, torch.full((1, 12), by))
        to = moved[0, :, 0].long()
        rate = (density[to] - density).clamp(max=0).exp() * exists[0] / 2
        matrix[torch.arange(12), to] += rate
    matrix += torch.diag(1 - matrix.sum(1))
    assert (density.exp() @ matrix - density.exp()).abs().max() < 1e-15
    potential = ValuesPotential(kernel.space, lambda v: density[v.squeeze(2).long()]).double()
    assert isinstance(kernel, Kernel)
    for cell in (0, 4, 11):
        start = torch.full((1, 20_000, 1), cell, dtype=kernel.space.dtype)
        state, _ = kernel.step(
            potential, kernel.init(potential, start), torch.Generator().manual_seed(cell)
        )
        shares = torch.bincount(state.values.flatten().long(), minlength=12) / 20_000
        assert (shares - matrix[cell]).abs().max() < 0.015
        assert torch.equal(state.scores, potential.score(state.values))


@pytest.mark.parametrize("method", METHODS)
def test_both_methods_find_an_easy_density(method: str) -> None:
    shares = histogram(trace(method, SMALL), SMALL.cells)
    density = log_density(SMALL).exp()
    assert total_variation(shares.mean(0, keepdim=True), density).item() < 0.05
    assert total_variation(shares.mean(0, keepdim=True), density.flip(0)).item() > 0.1


def test_a_histogram_counts_and_its_distance_is_the_total_variation() -> None:
    shares = histogram(torch.tensor([[0, 2], [1, 2], [1, 2], [0, 2]]), 3)
    assert shares.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    density = torch.tensor([0.5, 0.5, 0.0]).double()
    assert total_variation(shares, density).tolist() == [0.0, 1.0]


def test_a_crossing_ends_in_the_other_peak() -> None:
    walk = torch.tensor([[60], [75], [90], [100], [124], [139], [100], [123], [60], [100], [61]])
    assert crossings(walk, TwoPeaksSettings()).tolist() == [2]
    assert crossings(torch.tensor([[100], [140], [100]]), TwoPeaksSettings()).tolist() == [0]


def test_a_quick_run_writes_everything_and_repeats(tmp_path: Path) -> None:
    ticks: list[int] = []
    outcome = run(QUICK, tmp_path / "a", lambda: ticks.append(1))
    assert len(ticks) == QUICK.ticks
    assert [path.name for path in outcome.written] == ["results.json", "figure.png", "figure.svg"]
    run(QUICK, tmp_path / "b")
    first, second = (json.loads((tmp_path / n / "results.json").read_text()) for n in "ab")
    assert first.pop("seconds") >= 0 <= second.pop("seconds")
    assert first == second
    for name in ("figure.png", "figure.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert first["command"] == "nmln reproduce two-peaks --sweeps 30 --seeds 3 --seed 0"
    assert len(first["temperatures"]) == 6


def test_one_chain_is_a_ladder_of_one_level_with_as_many_cold_moves() -> None:
    assert TwoPeaksSettings().temperatures("single").rates == (1.0,)
    assert trace("single", QUICK).shape == trace("tempering", QUICK).shape == (30, 3)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 seeds"):
        TwoPeaksSettings(seeds=1)


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    quick = ("--sweeps", "20", "--seeds", "2")
    done = nmln("reproduce", "two-peaks", *quick, "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "Written: out/results.json, out/figure.png, out/figure.svg" in done.stdout
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert f"{found['total_variation']['single']['value']:.3f}" in done.stdout


def test_the_commands_explain_themselves() -> None:
    assert "Examples:" in nmln("reproduce", "two-peaks", "--help").stdout


def test_the_command_has_the_defaults_of_the_experiment() -> None:
    for name, parameter in signature(two_peaks).parameters.items():
        assert name == "output" or parameter.default == getattr(TwoPeaksSettings, name)


@pytest.mark.slow
def test_one_chain_stays_and_tempering_crosses(tmp_path: Path) -> None:
    sampled = run(TwoPeaksSettings(sweeps=1000), tmp_path).sampled
    assert sampled["single"].crossings.value == 0
    assert sampled["single"].distance.low > 0.55
    assert sampled["tempering"].crossings.low > 50
    assert sampled["tempering"].distance.high < 0.45
