"""Estimates against enumeration: 4,096 worlds, four levels."""

import pytest
import torch
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.kernels.combined import Mixture
from nmln.kernels.gibbs import Gibbs, SystematicGibbs
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.logic import Literal
from nmln.partition import (
    annealed,
    mbar,
    reverse_annealed,
    stepping_stone,
)
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.function import OneHotPotential
from nmln.space import Space
from nmln.types import Kernel
from tests.partition.models import (
    BOOLEAN,
    CLAUSES,
    MIXED,
    SPACES,
    assert_close,
    assert_ratios,
    coupled,
    exact,
    independent,
    looked_up,
    recorded,
    steered,
)

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("space", SPACES, ids=["boolean", "categories"])
def test_ratios_from_recorded_chains_are_those_of_enumeration(space: Space) -> None:
    potential = looked_up(space, coupled(space))
    draws = recorded(potential, Gibbs(space), chains=1000, draws=80, moves=5)  # 80,000 a level
    log_z = exact(potential)
    assert_ratios(stepping_stone(potential, draws), log_z)
    found = mbar(potential, draws[::4])
    assert_close(found.log_ratios, found.errors, log_z - log_z[:, None])


@pytest.mark.parametrize("space", SPACES, ids=["boolean", "categories"])
def test_annealing_finds_the_log_z_of_enumeration(space: Space) -> None:
    potential, kernel = looked_up(space, coupled(space)), SystematicGibbs(space)
    rng = Generator().manual_seed(2)
    up = annealed(potential, kernel, 2500, 40, rng)
    assert_close(up.log_z, up.error, exact(potential))
    down = reverse_annealed(potential, kernel, independent(potential, 2500, 3), 40, rng)
    assert_close(down.log_z, down.error, exact(potential))
    for found in (up, down):
        assert (found.effective_size > 1000).all()
        assert (found.effective_size < 2500).all()


def test_a_noisy_level_and_the_ratios_below_it_give_the_log_z_of_the_target() -> None:
    potential = looked_up(BOOLEAN, coupled(BOOLEAN))
    draws = independent(potential, 60_000, 4)
    found = stepping_stone(potential, draws)
    start = annealed(potential, Gibbs(BOOLEAN), 4000, 100, Generator().manual_seed(4))
    for total, error in (
        (found.forward_sum, found.forward_sum_error),
        (found.reverse_sum, found.reverse_sum_error),
    ):
        both = (start.error[:1] ** 2 + error**2).sqrt()
        assert_close(start.log_z[:1] + total, both, exact(potential)[-1:])


@pytest.mark.parametrize(
    "kernel",
    [
        Mixture((GibbsWithGradients(BOOLEAN), Gibbs(BOOLEAN))),
        DiscreteLangevin(BOOLEAN),
    ],
    ids=["mixture", "langevin"],
)
def test_kernels_with_slopes_anneal_too(kernel: Kernel) -> None:
    weights = torch.randn(2, 24, generator=Generator().manual_seed(5), dtype=torch.float64)

    def score(onehot: Tensor) -> Tensor:
        return torch.einsum("lce,le->lc", onehot + onehot.roll(1, 2) * onehot.roll(3, 2), weights)

    potential = OneHotPotential(BOOLEAN, score, 2).double()
    up = annealed(potential, kernel, 800, 20, Generator().manual_seed(6), moves=2)
    assert_close(up.log_z, up.error, exact(potential), 0.1)
    draws = independent(potential, 800, 7)
    down = reverse_annealed(potential, kernel, draws, 20, Generator().manual_seed(6), moves=2)
    assert_close(down.log_z, down.error, exact(potential), 0.1)


# Evidence and hard formulas.


def test_with_evidence_worlds_that_disagree_do_not_count() -> None:
    evidence = Evidence.of(MIXED, [Literal("k", ("0", "y")), Literal("k", ("1", "z"), False)])
    potential, kernel = looked_up(MIXED, coupled(MIXED)), SystematicGibbs(MIXED, evidence)
    log_z = exact(potential, evidence)
    assert (exact(potential) - log_z > 0.5).all()
    draws = independent(potential, 30_000, 8, evidence)
    assert_ratios(stepping_stone(potential, draws), log_z)
    found = mbar(potential, draws[:, :5000])
    assert_close(found.log_ratios, found.errors, log_z - log_z[:, None])
    rng = Generator().manual_seed(9)
    up = annealed(potential, kernel, 2000, 25, rng, evidence=evidence)
    assert_close(up.log_z, up.error, log_z)
    down = reverse_annealed(potential, kernel, draws[:, :2000], 25, rng, evidence=evidence)
    assert_close(down.log_z, down.error, log_z)


@pytest.mark.parametrize(
    "hard",
    [(3,), *(pytest.param(more, marks=pytest.mark.slow) for more in ((0,), (1, 2), (0, 1, 2, 3)))],
)
def test_hard_formulas_cut_worlds_out_of_the_levels_where_they_hold(hard: tuple[int, ...]) -> None:
    potential = steered(hard)
    log_z = exact(potential)
    assert (coupled(BOOLEAN).logsumexp(1) - log_z)[list(hard)].min() > 0.3
    draws = independent(potential, 40_000, 10)
    assert_ratios(stepping_stone(potential, draws), log_z)
    found = mbar(potential, draws[:, :5000])
    assert_close(found.log_ratios, found.errors, log_z - log_z[:, None])
    kernel, rng = SystematicGibbs(BOOLEAN), Generator().manual_seed(11)
    up = annealed(potential, kernel, 1000, 12, rng)
    assert_close(up.log_z, up.error, log_z, 0.15)
    down = reverse_annealed(potential, kernel, draws[:, :1000], 12, rng)
    assert_close(down.log_z, down.error, log_z, 0.15)


def test_a_flat_potential_with_a_hard_formula_counts_the_worlds_that_are_left() -> None:
    formulas = [parse_formula(clause, BOOLEAN.language) for clause in CLAUSES]
    potential = FormulaPotential(BOOLEAN, formulas, dtype=torch.float64)
    truth = exact(potential)
    assert truth.exp().round().item() == 4096 * 9 / 16
    kernel = Mixture((GibbsWithGradients(BOOLEAN), Gibbs(BOOLEAN)))
    up = annealed(potential, kernel, 20_000, 3, Generator().manual_seed(13))
    assert_close(up.log_z, up.error, truth)
    assert up.effective_size.item() == pytest.approx(20_000 * 9 / 16, rel=0.05)
    draws = independent(potential, 100, 14)
    down = reverse_annealed(potential, kernel, draws, 3, Generator().manual_seed(15))
    assert_close(down.log_z, down.error, truth, 0.06)
    assert down.effective_size.item() == pytest.approx(100)


# Which side an estimate errs on.


def mean_and_error(found: list[Tensor]) -> tuple[Tensor, Tensor]:
    column = torch.stack(found)
    return column.mean(0), column.std(0) / len(found) ** 0.5


def test_forward_is_low_and_reverse_is_high_on_average() -> None:
    potential = looked_up(BOOLEAN, coupled(BOOLEAN, (0.25, 0.75, 1.5)))
    log_z, kernel, rng = exact(potential), Gibbs(BOOLEAN), Generator().manual_seed(16)
    draws = independent(potential, 2 * 400, 17).split(2, dim=1)
    ratios = [stepping_stone(potential, few) for few in draws]
    up, down = [], []
    for few in draws[:100]:
        up.append(annealed(potential, kernel, 2, 5, rng).log_z - log_z)
        down.append(reverse_annealed(potential, kernel, few, 5, rng, uniform=4).log_z - log_z)
    for low in (up, [ratio.forward - log_z.diff() for ratio in ratios]):
        mean, error = mean_and_error(low)
        assert (mean < -3 * error).all()
    for high in (down, [ratio.reverse - log_z.diff() for ratio in ratios]):
        mean, error = mean_and_error(high)
        assert (mean > 3 * error).all()
