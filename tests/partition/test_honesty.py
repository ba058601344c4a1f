"""Whether the errors are honest: the mean square of (estimate - truth) / error over repeats."""

import pytest
import torch
from torch import Generator, Tensor

from nmln.kernels.gibbs import Gibbs
from nmln.partition import (
    annealed,
    mbar,
    reverse_annealed,
    stepping_stone,
)
from nmln.potentials.base import BasePotential
from tests.partition.models import BOOLEAN, coupled, exact, looked_up, recorded

pytestmark = pytest.mark.usefixtures("unchecked")


def repeats(
    potential: BasePotential, number: int, chains: int, draws: int, moves: int = 1
) -> list[Tensor]:
    """Draws (draws, levels, chains, groups) of independent runs of slowly moving chains."""
    run = torch.stack(recorded(potential, Gibbs(BOOLEAN), number * chains, draws, moves, seed=18))
    return list(run.split(chains, dim=2))


def as_if_independent(draws: Tensor) -> Tensor:
    """The broken twin: every draw of a chain is made a chain of its own."""
    return torch.cat(list(draws), dim=1)


@pytest.mark.parametrize(
    ("chains", "length", "moves"),
    # Batches must be longer than the chains remember: 100 draws, 200 moves of one of 12 groups.
    [(24, 30, 1), pytest.param(2, 1000, 2, marks=pytest.mark.slow)],
    ids=["by chains", "by batches"],
)
def test_errors_of_ratios_are_honest_and_would_not_be_without_blocks(
    chains: int, length: int, moves: int
) -> None:
    potential = looked_up(BOOLEAN, coupled(BOOLEAN, (0.5, 0.6, 0.7)))
    truth = exact(potential).diff()
    honest, naive = [], []
    for draws in repeats(potential, 60, chains, length, moves):
        for found, into in (
            (stepping_stone(potential, draws), honest),
            (stepping_stone(potential, as_if_independent(draws)), naive),
        ):
            whole = float(truth.sum())
            into.append(
                torch.cat(
                    [
                        (found.forward - truth) / found.forward_error,
                        (found.reverse - truth) / found.reverse_error,
                        torch.tensor([(found.forward_sum - whole) / found.forward_sum_error]),
                        torch.tensor([(found.reverse_sum - whole) / found.reverse_sum_error]),
                    ]
                )
            )
    squares = torch.stack(honest).square().mean(0)
    assert ((squares > 0.5) & (squares < 1.9)).all(), squares
    assert (torch.stack(naive).square().mean(0) > 2).all()


def test_errors_of_mbar_are_honest_and_pymbar_alone_is_too_sure() -> None:
    potential = looked_up(BOOLEAN, coupled(BOOLEAN, (0.5, 0.6, 0.7)))
    log_z = exact(potential)
    truth = (log_z - log_z[:, None])[[0, 0, 1], [1, 2, 2]]
    honest, naive = [], []
    for draws in repeats(potential, 60, 24, 20):
        found = mbar(potential, draws)
        off = found.log_ratios[[0, 0, 1], [1, 2, 2]] - truth
        honest.append(off / found.errors[[0, 0, 1], [1, 2, 2]])
        naive.append(off / found.independent_errors[[0, 0, 1], [1, 2, 2]])
    squares = torch.stack(honest).square().mean(0)
    assert ((squares > 0.5) & (squares < 1.9)).all(), squares
    assert (torch.stack(naive).square().mean(0) > 2).all()


def test_errors_of_annealing_are_honest_and_would_not_be_without_blocks() -> None:
    potential, kernel = looked_up(BOOLEAN, 0.3 * coupled(BOOLEAN, (0.3, 0.4))), Gibbs(BOOLEAN)
    log_z, rng = exact(potential), Generator().manual_seed(19)
    up, down, naive = [], [], []
    for draws in repeats(potential, 60, 24, 10):
        found = annealed(potential, kernel, 100, 8, rng)
        up.append((found.log_z - log_z) / found.error)
        found = reverse_annealed(potential, kernel, draws, 2, rng, uniform=64)
        down.append((found.log_z - log_z) / found.error)
        found = reverse_annealed(potential, kernel, as_if_independent(draws), 2, rng, uniform=64)
        naive.append((found.log_z - log_z) / found.error)
    for scaled in (up, down):
        squares = torch.stack(scaled).square().mean(0)
        assert ((squares > 0.5) & (squares < 1.9)).all(), squares
    assert (torch.stack(naive).square().mean(0) > 2).all()
