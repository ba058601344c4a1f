import json
from dataclasses import replace
from inspect import signature
from math import log
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from nmln.cli.reproduce import toy_tracking
from nmln.errors import InputError
from nmln.experiments.intervals import bootstrap, mean
from nmln.experiments.toy_tracking import (
    METHODS,
    TrackingSettings,
    compare,
    exact_magnetisation,
    first_third,
    last_third,
    log_multiplicities,
    log_target,
    magnetisation,
    noised_scores,
    potentials,
    run,
    track,
    tracking_error,
    weight_channel,
)
from nmln.kernels.metropolis import Metropolis
from nmln.language import Language, predicate
from nmln.noise import channel_matrix, noised
from nmln.potentials.function import ValuesPotential
from nmln.sampler import sample
from nmln.space import Space
from tests.exact import distribution
from tests.test_cli import nmln

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = TrackingSettings(times=3, sweeps=2, seeds=3, last_betas=(2.0, 16.0))
SMALL = TrackingSettings(bits=6, times=5)


def space_of(settings: TrackingSettings) -> Space:
    return Space(Language(predicate("up", "bit")), {"bit": settings.bits})


def worlds_and_probabilities(settings: TrackingSettings, time: int) -> tuple[Tensor, Tensor]:
    worlds = space_of(settings).enumerate()
    weights = worlds.sum(1)
    return weights, log_target(settings, 5.0)[time][weights].softmax(0)


def test_the_ladders_are_those_of_the_paper() -> None:
    temperatures, rates = TrackingSettings().temperatures.rates, TrackingSettings().ladder.rates
    assert len(temperatures) == len(rates) == 10
    assert temperatures == pytest.approx([4 ** (level / 9) for level in range(9, -1, -1)])
    assert rates == pytest.approx([0.5 * (level / 9) ** 2 for level in range(9, -1, -1)])
    assert (temperatures[-1], rates[-1]) == (1.0, 0.0)


def test_the_energy_is_that_of_the_paper() -> None:
    scores = log_target(TrackingSettings(), 16.0)
    assert scores.shape == (60, 21)
    assert scores[0, 3].item() == pytest.approx(-(1 * 3 + 0.1 * (2 * 3 - 20)))
    assert scores[-1, 14].item() == pytest.approx(-(16 * 6 - 0.1 * (2 * 14 - 20)))


def test_weights_are_corrupted_as_worlds_are() -> None:
    space = space_of(SMALL)
    weights = space.enumerate().sum(1)
    for rate in (0.0, 0.013, 0.3, 0.5):
        matrix = channel_matrix(space, rate)
        exact = weight_channel(SMALL.bits, rate)
        for before in range(SMALL.bits + 1):
            row = matrix[torch.nonzero(weights == before)[0, 0]]
            by_weight = torch.zeros(SMALL.bits + 1).double().index_add(0, weights, row)
            assert torch.allclose(exact[before], by_weight, atol=1e-15, rtol=1e-13)


@pytest.mark.parametrize("time", [0, 2, 4])
def test_noised_scores_are_the_noised_distribution(time: int) -> None:
    weights, probabilities = worlds_and_probabilities(SMALL, time)
    rates = (0.5, 0.2, 0.01, 0.0)
    channels = torch.stack([weight_channel(SMALL.bits, rate) for rate in rates])
    scores = noised_scores(log_target(SMALL, 5.0)[time], channels)
    for level, rate in enumerate(rates):
        exact = noised(space_of(SMALL), probabilities, rate)
        assert (scores[level][weights].exp() - exact).abs().max() < 1e-14


def test_a_corrupted_sharp_target_keeps_its_smallest_probabilities() -> None:
    settings = TrackingSettings()
    channels = torch.stack([weight_channel(settings.bits, rate) for rate in settings.ladder])
    scores = noised_scores(log_target(settings, 16.0)[-1], channels)
    assert scores.isfinite().all()
    assert scores[0].tolist() == pytest.approx([-20 * log(2)] * 21), "the noisiest is uniform"
    total = (scores + log_multiplicities(settings.bits)).logsumexp(1)
    assert total.abs().max() < 1e-12
    target = log_target(settings, 16.0)[-1]
    assert torch.allclose(scores[-1] - scores[-1, 0], target - target[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_last_level_of_both_ladders_is_the_target(method: str) -> None:
    _, probabilities = worlds_and_probabilities(SMALL, 3)
    potential = potentials(method, SMALL, space_of(SMALL))(log_target(SMALL, 5.0)[3])
    assert potential.levels == SMALL.levels
    assert torch.allclose(distribution(potential, SMALL.levels - 1), probabilities)


def test_the_first_level_is_hot_or_noisy() -> None:
    _, probabilities = worlds_and_probabilities(SMALL, 3)
    log_world = log_target(SMALL, 5.0)[3]
    tempered, noisy = (
        distribution(potentials(method, SMALL, space_of(SMALL))(log_world)) for method in METHODS
    )
    assert torch.allclose(tempered, (probabilities.log() / 4).softmax(0))
    assert torch.allclose(noisy, torch.full_like(noisy, 1 / len(noisy)))


def test_the_exact_magnetisation_is_that_of_enumeration() -> None:
    exact = exact_magnetisation(log_target(SMALL, 5.0))
    for time in range(SMALL.times):
        weights, probabilities = worlds_and_probabilities(SMALL, time)
        expected = (probabilities * magnetisation(weights, SMALL.bits)).sum()
        assert exact[time].item() == pytest.approx(expected.item(), abs=1e-14)


def test_both_methods_find_the_exact_magnetisation_of_an_easy_target() -> None:
    settings = TrackingSettings(bits=4, times=3, sweeps=30, seeds=300, levels=4)
    exact = exact_magnetisation(log_target(settings, 1.0))
    for method in METHODS:
        seen = track(method, settings, 1.0).magnetisation
        deviation = (seen.mean(1) - exact) / (seen.std(1) / settings.seeds**0.5)
        assert deviation.abs().max() < 4
        wrong = (seen.mean(1) - exact.flip(0)) / (seen.std(1) / settings.seeds**0.5)
        assert wrong.abs().max() > 4, "the check must reject another target"


def test_thirds_and_errors() -> None:
    assert (first_third(60), last_third(60)) == (slice(0, 20), slice(40, 60))
    assert last_third(4) == slice(3, 4)
    seen = torch.tensor([[[0.0, 1.0], [1.0, 1.0]]]).double()
    assert tracking_error(seen, torch.tensor([0.0, 0.5]).double()).tolist() == [0.5]


def test_a_quick_run_writes_everything_and_repeats(tmp_path: Path) -> None:
    ticks: list[int] = []
    outcome = run(QUICK, tmp_path / "a", lambda: ticks.append(1))
    assert len(ticks) == QUICK.ticks
    assert [path.name for path in outcome.written] == [
        "results.json", "curves.csv", "figure.png", "figure.svg",
    ]  # fmt: skip
    run(QUICK, tmp_path / "b")
    first, second = (json.loads((tmp_path / n / "results.json").read_text()) for n in "ab")
    assert first.pop("seconds") >= 0 <= second.pop("seconds")
    assert first == second
    for name in ("curves.csv", "figure.png", "figure.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    table = (tmp_path / "a" / "curves.csv").read_text().splitlines()
    assert len(table) == 1 + 2 * 3
    assert first["last_beta"] == 16
    assert first["error_last_third"]["PN"] == first["by_last_beta"][-1]["PN"]
    assert first["command"] == "nmln reproduce toy-tracking --times 3 --sweeps 2 --seeds 3 --seed 0"
    assert "Date" not in (tmp_path / "a" / "figure.svg").read_text()


def test_another_seed_gives_another_run_and_the_main_run_is_part_of_the_sweep() -> None:
    one = compare(QUICK, 16.0)
    alone = compare(replace(QUICK, last_betas=(16.0,)), 16.0)
    other = compare(replace(QUICK, seed=1), 16.0)
    for method in METHODS:
        seen = one.tracks[method].magnetisation
        assert torch.equal(seen, alone.tracks[method].magnetisation)
        assert not torch.equal(seen, other.tracks[method].magnetisation)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3, got 2"):
        TrackingSettings(times=2)
    with pytest.raises(InputError, match="at least 2 seeds"):
        TrackingSettings(seeds=1)


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    quick = ("--times", "3", "--sweeps", "1", "--seeds", "2")
    done = nmln("reproduce", "toy-tracking", *quick, "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "Written: out/results.json, out/curves.csv" in done.stdout
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert f"{found['error_last_third']['PN']['value']:.3f}" in done.stdout


def test_the_command_has_the_defaults_of_the_experiment() -> None:
    for name, parameter in signature(toy_tracking).parameters.items():
        assert name == "output" or parameter.default == getattr(TrackingSettings, name)


def test_the_bootstrap_of_an_average_is_the_textbook_interval() -> None:
    values = torch.randn(400, generator=Generator().manual_seed(0), dtype=torch.float64) * 3 + 5
    found = bootstrap(values, mean, Generator().manual_seed(1), draws=20_000)
    half = 1.96 * values.std().item() / 20
    assert found.value == pytest.approx(values.mean().item())
    assert found.low == pytest.approx(found.value - half, abs=0.05 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.05 * half)
    narrow = bootstrap(values, mean, Generator().manual_seed(1), draws=20_000, confidence=0.5)
    assert narrow.high - narrow.low == pytest.approx(2 * half * 0.6745 / 1.96, rel=0.05)


def test_the_bootstrap_of_two_seeds_reaches_from_one_to_the_other() -> None:
    found = bootstrap(torch.tensor([0.0, 1.0]), mean, Generator().manual_seed(0))
    assert found == pytest.approx((0.5, 0.0, 1.0), abs=0.02)
    same = bootstrap(torch.full((5,), 2.0), mean, Generator().manual_seed(0))
    assert same == (2.0, 2.0, 2.0)


def test_the_interval_of_an_absolute_error_holds_the_error() -> None:
    seen = torch.randn(20, 60, generator=Generator().manual_seed(2), dtype=torch.float64)
    exact = torch.zeros(60, dtype=torch.float64)
    found = bootstrap(seen, lambda drawn: tracking_error(drawn, exact), Generator().manual_seed(0))
    assert found.low < found.value < found.high


def test_a_bootstrap_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="at least two"):
        bootstrap(torch.zeros(1), mean, Generator())
    with pytest.raises(InputError, match="confidence must"):
        bootstrap(torch.zeros(3), mean, Generator(), confidence=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("last_beta", "least", "most"), [(4.0, 0.9, 1.0), (16.0, 0.0, 0.0)])
def test_the_hottest_temperature_leaves_a_well_only_while_the_barrier_is_low(
    last_beta: float, least: float, most: float
) -> None:
    """All times of the last third, the hottest chains alone, from the well of zeros."""
    settings, space = TrackingSettings(), space_of(TrackingSettings())
    kernel, rng = Metropolis(space), Generator().manual_seed(0)
    values = torch.zeros(1, 200, settings.bits, dtype=space.dtype)
    crossed = torch.zeros(200, dtype=torch.bool)
    for log_world in log_target(settings, last_beta)[last_third(settings.times)]:
        target = ValuesPotential(space, lambda v, row=log_world / 4: row[v.sum(-1)]).double()
        moves = settings.sweeps * settings.bits
        for sweep in sample(target, kernel, values, moves, rng):
            values = sweep.state.values
            crossed |= values[0].sum(-1) > settings.bits // 2
    assert least <= crossed.double().mean().item() <= most


@pytest.mark.slow
def test_at_the_fixed_defaults_noising_is_off_by_at_most_half_as_much_as_tempering() -> None:
    settings = TrackingSettings()
    found = compare(settings, max(settings.last_betas))
    assert found.last["noising"].value <= 0.5 * found.last["tempering"].value
    assert found.ratio.high <= 0.5
