from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Generator

from nmln.adaptation import equal_rejection, start_tuning, tune, with_sizes
from nmln.diagnostics import between, diagnose, gaps, suggested_levels
from nmln.errors import InputError
from nmln.kernels.combined import Composition, Lazy
from nmln.kernels.gibbs import Gibbs, SystematicGibbs
from nmln.kernels.langevin import DiscreteLangevin
from nmln.kernels.path import PathAuxiliary
from nmln.ladders import Ladder, Temperatures
from nmln.language import Language, predicate
from nmln.noise import noised
from nmln.potentials.function import OneHotPotential, TablePotential
from nmln.potentials.tempered import TemperedPotential
from nmln.recording import Recorder
from nmln.sampler import sample
from nmln.space import Space
from nmln.types import Info

pytestmark = pytest.mark.usefixtures("unchecked")

SPACE = Space(Language(predicate("p", "a")), {"a": 8})


def accepted(*rates: float) -> Info:
    row = torch.tensor([rates])
    return Info(row[0], row[0], row)


def test_sizes_grow_where_too_much_is_accepted_and_shrink_where_too_little() -> None:
    kernel = Lazy(DiscreteLangevin(SPACE, alpha=1.0))
    tuning = start_tuning(kernel, 3)
    for _ in range(5):
        tuning = tune(kernel, tuning, accepted(0.9, 0.574, 0.1))
    sizes = tuning.log_sizes.exp()[0]
    assert sizes[0] > 1
    assert sizes[1] == pytest.approx(1)
    assert sizes[2] < 1
    tuned = with_sizes(kernel, tuning)
    assert isinstance(tuned, Lazy)
    assert isinstance(tuned.kernel, DiscreteLangevin)
    assert tuned.kernel.step_sizes == pytest.approx(sizes.tolist())


def test_lengths_of_paths_stay_within_the_free_groups() -> None:
    kernel = Composition((Gibbs(SPACE), PathAuxiliary(SPACE)))
    tuning = start_tuning(kernel, 2)
    always = torch.ones(2)
    info = Info(always, always, torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    for _ in range(200):
        tuning = tune(kernel, tuning, info)
    assert with_sizes(kernel, tuning).kernels[1].mean_length == (4, 1)  # pyright: ignore
    info = Info(always, always, torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    for _ in range(200):
        tuning = tune(kernel, tuning, info)
    assert with_sizes(kernel, tuning).kernels[1].mean_length == (1, 4)  # pyright: ignore


def test_a_kernel_without_a_turn_is_left_alone() -> None:
    kernel = DiscreteLangevin(SPACE, alpha=(1.0, 2.0))
    tuning = tune(kernel, start_tuning(kernel, 2), accepted(float("nan"), float("nan")))
    assert tuning.log_sizes.exp()[0].tolist() == pytest.approx([1, 2])
    with pytest.raises(InputError, match="2 step sizes for 3 levels"):
        start_tuning(kernel, 3)


def spins(strength: float, sites: int = 30) -> OneHotPotential:
    """Independent sites that like to be up: rejections between temperatures are known to be smooth."""
    space = Space(Language(predicate("up", "site")), {"site": sites})
    return OneHotPotential(space, lambda onehot: strength * onehot[..., 1::2].sum(-1))


def pilot(ladder: Temperatures) -> tuple[float, ...]:
    """A real run, short, with exact redraws of all sites."""
    potential = TemperedPotential(spins(3.0), ladder)
    recorder = Recorder()
    start = torch.ones(len(ladder), 100, 30, dtype=torch.uint8)
    kernel = SystematicGibbs(potential.space)
    for _ in sample(
        potential, kernel, start, 30, Generator().manual_seed(0), burn_in=2, recorder=recorder
    ):
        pass
    return diagnose(recorder, ladder).rejections


@pytest.mark.slow
def test_pilot_runs_lead_to_equal_rejections() -> None:
    ladder = Temperatures((20.0, 1.2, 1.1, 1.05, 1.0))
    before = pilot(ladder)
    assert max(before) > 5 * min(before)
    for _ in range(3):
        ladder = equal_rejection(ladder, pilot(ladder), levels=5).temperatures()
    after = pilot(ladder)
    assert max(after) < 1.25 * min(after)
    assert (ladder.rates[0], ladder.rates[-1]) == (20.0, 1.0)


def test_corruption_rates_are_placed_by_exact_rejections() -> None:
    """Exact noised distributions of a peaked target: rejections by summing over pairs of worlds."""
    space = Space(Language(predicate("p", "a")), {"a": 6})
    target = (5 * torch.randn(64, generator=Generator().manual_seed(1))).double().softmax(0)

    def rejections(ladder: Ladder) -> list[float]:
        levels = [noised(space, target, rate) for rate in ladder]
        found = []
        for one, other in pairwise(levels):
            joint = torch.outer(one, other)
            found.append(1 - float(torch.minimum(joint, joint.T).sum()))
        return found

    ladder = Ladder((0.5, 0.02, 0.01, 0.0))
    assert max(rejections(ladder)) > 5 * min(rejections(ladder))
    for _ in range(4):
        ladder = equal_rejection(ladder, rejections(ladder), levels=4).ladder()
    assert max(rejections(ladder)) < 1.1 * min(rejections(ladder))


def test_the_number_of_levels_follows_the_barrier() -> None:
    proposal = equal_rejection(Temperatures((8, 4, 2, 1)), (0.9, 0.8, 0.8))
    assert proposal.barrier == pytest.approx(2.5)
    assert proposal.suggested_levels == len(proposal.rates) == suggested_levels(2.5) == 6
    assert list(np.diff(proposal.rates) < 0) == [True] * 5


def test_the_pair_that_needs_a_level_is_named_with_a_rate() -> None:
    ladder = Ladder((0.3, 0.1, 0.01, 0.0))
    found = gaps((0.2, 0.99, 0.95), ladder)
    assert [str(gap) for gap in found] == [
        "levels 1 and 2 hardly exchange (1%): insert a level near 0.032",
        "levels 2 and 3 hardly exchange (5%): insert a level near 0.0025",
    ]
    assert str(gaps((0.95,))[0]).endswith("hardly exchange (5%): insert a level")
    assert between(Temperatures((4, 1)), 0) == 2


@pytest.mark.parametrize(
    ("rejections", "levels", "message"),
    [
        ((0.1,), None, "3 levels has 2 pairs, but 1 rejections"),
        ((0.1, 1.5), None, "probabilities"),
        ((0.1, 0.1), 1, "at least 2 levels, not 1"),
    ],
)
def test_what_cannot_be_adapted_is_refused(rejections, levels, message: str) -> None:
    with pytest.raises(InputError, match=message):
        equal_rejection(Ladder((0.3, 0.1, 0.01)), rejections, levels)


def test_a_table_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"each of the 256 worlds, but .* shape \(2, 3\)"):
        TablePotential(SPACE, torch.zeros(2, 3))
