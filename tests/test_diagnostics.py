import json
from math import isnan

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from nmln.diagnostics import (
    Diagnostics,
    autocorrelation,
    diagnose,
    effective_sample_size,
    predicted_round_trips,
    rank_rhat,
)
from nmln.errors import InputError
from nmln.exchange import exchange, partners, start_walkers
from nmln.kernels.combined import Mixture
from nmln.kernels.gibbs import Gibbs, SystematicGibbs
from nmln.kernels.metropolised import MetropolisedGibbs
from nmln.ladders import Ladder
from nmln.language import Attribute, Language, predicate
from nmln.noise import noised
from nmln.potentials.function import OneHotPotential, TablePotential
from nmln.recording import Journeys, Recorder
from nmln.report.summary import write_summary
from nmln.sampler import sample
from nmln.space import Space
from nmln.types import Evaluations, Info, Kernel, State, Sweep, Tuning

pytestmark = pytest.mark.usefixtures("unchecked")

SPACE = Space(Language(Attribute("k", ("a",), tuple("xyz"))), {"a": 3})


def run(
    potential, kernel: Kernel, sweeps: int, recorder: Recorder, seed: int = 0, chains: int = 40
) -> Recorder:
    rng = Generator().manual_seed(seed)
    space = potential.space
    draws = torch.rand(potential.levels, chains, space.groups, generator=rng)
    start = (draws * space.sizes).to(space.dtype)
    for _ in sample(potential, kernel, start, sweeps, rng, burn_in=10, recorder=recorder):
        pass
    return recorder


def noised_levels(ladder: Ladder, sharpness: float = 2.0) -> TablePotential:
    scores = sharpness * torch.randn(27, generator=Generator().manual_seed(5), dtype=torch.float64)
    return TablePotential(
        SPACE, torch.stack([noised(SPACE, scores.softmax(0), rate) for rate in ladder]).log()
    )


# Journeys.


@pytest.mark.parametrize("levels", [2, 3, 5, 6])
def test_with_equal_potentials_every_walker_makes_one_round_trip_in_2n_phases(levels: int) -> None:
    potential = TablePotential(SPACE, torch.zeros(levels, 27).double())
    values = torch.zeros(levels, 3, 3, dtype=SPACE.dtype)
    state, walkers = State(values, potential.score(values)), start_walkers(values)
    journeys = Journeys(walkers)
    trips = []
    for phase in range(1, 6 * levels + 1):
        state, walkers, _ = exchange(potential, state, walkers, phase % 2, Generator())
        journeys.see(walkers)
        if phase % (2 * levels) == 0:
            trips.append(journeys.round_trips.clone())
    # In the first period a walker must come to an end before its journeys can be told.
    assert (trips[1] - trips[0] == 1).all()
    assert (trips[2] - trips[1] == 1).all()


def observed_round_trips(rejections: list[float], alternate: bool = True) -> float:
    """The rate of round trips when swaps are accepted independently of everything."""
    levels, chains, phases, skipped = len(rejections) + 1, 400, 6_000, 500
    rng = Generator().manual_seed(0)
    accept = 1 - torch.tensor(rejections)
    walkers = start_walkers(torch.zeros(levels, chains, 1, dtype=torch.uint8))
    journeys, before = Journeys(walkers), 0.0
    for phase in range(phases):
        if phase == skipped:
            before = float(journeys.round_trips.sum())
        parity = phase % 2 if alternate else int(torch.randint(2, (), generator=rng))
        order = partners(levels, parity)
        swapped = torch.rand(levels - 1, chains, generator=rng) < accept[:, None]
        moved = torch.zeros(levels, chains, dtype=torch.bool)
        for upper in range(parity, levels - 1, 2):
            moved[upper] = moved[upper + 1] = swapped[upper]
        walkers = torch.where(moved, walkers[order], walkers)
        journeys.see(walkers)
    return (float(journeys.round_trips.sum()) - before) / (phases - skipped) / chains


@pytest.mark.parametrize("rejections", [[0.3, 0.5, 0.2, 0.6], [0.1, 0.1], [0.7] * 3])
def test_independent_swaps_agree_with_the_predicted_round_trips(rejections: list[float]) -> None:
    predicted = predicted_round_trips(rejections)
    assert observed_round_trips(rejections) == pytest.approx(predicted, rel=0.03)
    assert observed_round_trips(rejections, alternate=False) < 0.9 * predicted, "a twin must fail"


def test_predictions_at_the_ends() -> None:
    assert predicted_round_trips([0, 0, 0]) == 0.5
    assert predicted_round_trips([0.5, 1.0]) == 0
    assert isnan(predicted_round_trips([]))


# Numbers of traces.


def autoregressive(phi: float, draws: int = 4_000, chains: int = 8) -> np.ndarray:
    noise = np.random.default_rng(0).normal(size=(draws, chains))
    trace = noise.copy()
    for i in range(1, draws):
        trace[i] = phi * trace[i - 1] + noise[i] * (1 - phi**2) ** 0.5
    return trace


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_autocorrelation_and_size_of_a_known_process(phi: float) -> None:
    trace = autoregressive(phi)
    assert autocorrelation(trace, 10) == pytest.approx(phi ** np.arange(10), abs=0.05)
    expected = trace.size * (1 - phi) / (1 + phi)
    assert effective_sample_size(trace) == pytest.approx(expected, rel=0.15)
    assert rank_rhat(trace) < 1.02


def test_chains_that_stand_still_are_no_win() -> None:
    still = np.broadcast_to(np.arange(5.0), (100, 5))
    assert rank_rhat(still) == float("inf")
    assert autocorrelation(still, 5) == pytest.approx(np.ones(5))
    assert isnan(effective_sample_size(np.zeros((100, 5))))
    assert isnan(effective_sample_size(np.zeros((2, 5))))


def test_chains_apart_are_not_mixed() -> None:
    trace = autoregressive(0.0)
    trace[:, 0] += 3
    assert rank_rhat(trace) > 1.05


# Recorders.


def test_traces_stay_within_bounds_and_sums_see_every_sweep() -> None:
    ladder = Ladder((0.4, 0.1, 0.0))
    recorder = run(noised_levels(ladder), Gibbs(SPACE), 510, Recorder(keep=64), chains=4)
    recording = recorder.recording()
    assert recording.sweeps == 500
    assert recording.phases == 1000
    assert recording.stride == 8
    assert len(recording.traces["score"]) == len(recording.walkers) == 63
    whole = run(noised_levels(ladder), Gibbs(SPACE), 510, Recorder(), chains=4).recording()
    assert len(whole.traces["score"]) == 500
    assert (whole.traces["score"][::8] == recording.traces["score"]).all()
    assert torch.equal(whole.swap_probability, recording.swap_probability)
    assert torch.equal(whole.restarts, recording.restarts)
    assert recording.restarts.sum() > 0


def sweep_of(number: int, walkers: Tensor) -> Sweep:
    levels, chains = walkers.shape
    scores = torch.zeros(levels, chains)
    info = Info(torch.ones(levels), torch.ones(levels))
    tuning = Tuning(torch.zeros(1, levels).double(), torch.zeros(1, dtype=torch.int64))
    state = State(torch.zeros(levels, chains, 2, dtype=torch.uint8), scores)
    worlds = Evaluations(10 * number, number)
    return Sweep(number, state, walkers, info, (), worlds, tuning, ("Gibbs",))


def test_evaluations_of_the_first_sweep_are_counted_by_the_others() -> None:
    recorder = Recorder()
    for number in range(5, 11):
        recorder.record(sweep_of(number, torch.arange(3)[:, None]))
    assert recorder.recording().evaluations[:2] == (60, 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recorder(keep=3), "at least 10 draws, but keep is 3"),
        (lambda: Recorder({"score": lambda v: v}), "Give the statistic another name"),
        (lambda: Recorder().recording(), "0 sweeps were recorded"),
        (
            lambda: run(
                noised_levels(Ladder((0.1,))), Gibbs(SPACE), 12, Recorder({"a": Tensor.sum})
            ),
            r"statistic 'a' must give .* \(1, 40\), but it gave \(\)",
        ),
        (
            lambda: diagnose(
                run(noised_levels(Ladder((0.1,))), Gibbs(SPACE), 20, Recorder()), Ladder((0.2, 0.1))
            ),
            "the run has 1 levels, but the ladder has 2",
        ),
    ],
)
def test_recorders_that_cannot_work_are_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# Sentences.


@pytest.fixture(scope="module")
def good() -> Diagnostics:
    ladder = Ladder((0.4, 0.1, 0.0))
    statistics = {"x": lambda values: (values == 0).sum(-1)}
    kernel = Mixture((SystematicGibbs(SPACE), MetropolisedGibbs(SPACE)))
    return diagnose(run(noised_levels(ladder), kernel, 800, Recorder(statistics)), ladder)


def test_a_run_that_mixes_has_no_complaints(good: Diagnostics) -> None:
    assert good.findings() == []
    assert good.efficiency > 0.5
    assert good.mixing["score"][-1].mixed
    assert good.mixing["x"][-1].mixed
    assert set(good.acceptance) == {"SystematicGibbs", "MetropolisedGibbs"}
    assert 0 <= good.bookkeeping < 1
    assert good.barrier == pytest.approx(sum(good.rejections))
    json.dumps(good.to_dict())


def test_numbers_are_those_of_the_exact_distribution(good: Diagnostics) -> None:
    table = noised_levels(Ladder((0.4, 0.1, 0.0))).table
    levels = table.softmax(1)
    for pair, probability in enumerate(good.swap_probability):
        joint = torch.outer(levels[pair], levels[pair + 1])
        assert probability == pytest.approx(float(torch.minimum(joint, joint.T).sum()), abs=0.02)
    means = (levels * table).sum(1)
    for level, found in enumerate(good.mixing["score"]):
        assert found.mean == pytest.approx(float(means[level]), abs=0.1)


def test_arviz_takes_the_traces(good: Diagnostics) -> None:
    traces = good.to_arviz()["posterior"]
    assert dict(traces.sizes) == {"chain": 40, "draw": 790, "level": 3}
    assert set(traces) == {"score", "x"}
    assert float(traces["x"].max()) == 3


def test_a_gap_in_the_ladder_is_named_with_a_rate() -> None:
    """Far apart levels of a sharp target: they never meet."""
    space = Space(Language(predicate("p", "a")), {"a": 14})
    one = torch.full((2**14,), -60.0).double()
    one[77] = 0
    ladder = Ladder((0.5, 0.0001))
    table = torch.stack([noised(space, one.softmax(0), rate) for rate in ladder]).log()
    found = diagnose(run(TablePotential(space, table), Gibbs(space), 100, Recorder()), ladder)
    assert any("levels 0 and 1 hardly exchange (0%)" in text for text in found.findings())
    assert any("insert a level near 0.0071" in text for text in found.findings())


def test_a_target_that_stands_still_is_reported() -> None:
    space = Space(Language(predicate("p", "a")), {"a": 10})
    steep = OneHotPotential(space, lambda onehot: 80 * (onehot[..., 1::2].sum(-1) - 5).abs())
    statistics = {"up": lambda values: values.sum(-1)}
    found = diagnose(run(steep, SystematicGibbs(space), 100, Recorder(statistics)))
    assert any(text.startswith("the target does not move: up") for text in found.findings())
    assert not found.mixing["up"][-1].mixed


def test_neighbours_that_never_swap_still_have_a_page(tmp_path) -> None:
    worlds = SPACE.enumerate()
    table = -400.0 * torch.stack([(worlds != kind).double().sum(1) for kind in (0, 2)])
    found = diagnose(run(TablePotential(SPACE, table), SystematicGibbs(SPACE), 40, Recorder()))
    assert found.predicted_round_trip_rate == 0
    assert isnan(found.efficiency)
    assert write_summary(tmp_path / "page.html", found)


def test_a_flat_target_does_not_stand_still() -> None:
    flat = TablePotential(SPACE, torch.zeros(1, 27).double())
    assert diagnose(run(flat, Gibbs(SPACE), 100, Recorder())).findings() == []


def test_one_level_has_neither_pairs_nor_journeys() -> None:
    found = diagnose(run(noised_levels(Ladder((0.1,))), SystematicGibbs(SPACE), 300, Recorder()))
    assert found.swap_probability == ()
    assert found.suggested_levels == 1
    assert found.findings() == []
