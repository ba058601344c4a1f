"""Invariance does not show that every world is reached: on flat Boolean groups some alternate."""

import pytest
import torch
from torch import Tensor

from nmln.errors import InputError
from nmln.kernels.combined import Lazy
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.metropolis import Metropolis
from nmln.kernels.metropolised import MetropolisedGibbs
from nmln.kernels.path import PathAuxiliary
from nmln.kernels.registry import KERNELS, kernel_named
from nmln.kernels.structural import MOVES, Rewiring, Switch
from nmln.language import Language, predicate
from nmln.potentials.function import OneHotPotential
from nmln.space import Space
from nmln.types import Kernel

SPACE = Space(Language(predicate("p", "a")), {"a": 4})
GRAPHS = Space(
    Language(predicate("p", "a"), predicate("r", "a", "a", symmetric=True, reflexive=False)),
    {"a": 3},
)


def seen_moves(kernel: Kernel, space: Space = SPACE) -> Tensor:
    """Which of the transitions between all worlds happened in many steps: all are truly possible."""
    worlds = space.enumerate()
    flat = OneHotPotential(space, lambda onehot: 0 * onehot.sum(-1)).double()
    start = torch.arange(len(worlds)).repeat(4_000)
    state = kernel.init(flat, worlds[start][None])
    state, _ = kernel.step(flat, state, torch.Generator().manual_seed(0))
    matrix = torch.zeros(len(worlds), len(worlds))
    matrix[start, space.index(state.values[0])] = 1
    return matrix


def power(matrix: Tensor, exponent: int) -> Tensor:
    return (torch.linalg.matrix_power(matrix, exponent) > 0).float()


@pytest.mark.parametrize("name", KERNELS)
def test_some_power_of_each_default_sweep_is_positive_everywhere(name: str) -> None:
    space = GRAPHS if name == "structural" else SPACE
    assert power(seen_moves(kernel_named(name, space), space), 8).all()


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
def test_structural_moves_alone_keep_the_number_of_ties(move: type[Rewiring]) -> None:
    matrix = seen_moves(move(GRAPHS), GRAPHS)
    ties = GRAPHS.enumerate()[:, GRAPHS.block("r").groups].sum(1)
    assert not matrix[ties[:, None] != ties].any()
    assert move is Switch or (matrix - torch.eye(len(ties))).clamp(min=0).any()


@pytest.mark.parametrize(
    "kernel",
    [
        Metropolis(SPACE),
        MetropolisedGibbs(SPACE),
        GibbsWithGradients(SPACE),
        PathAuxiliary(SPACE, mean_length=1),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_alone_these_keep_the_parity_of_the_number_of_moves(kernel: Kernel) -> None:
    matrix = seen_moves(kernel)
    assert not any(power(matrix, exponent).all() for exponent in range(1, 40))
    assert power(seen_moves(Lazy(kernel)), 8).all()


def test_an_unknown_name_and_a_share_that_is_none_are_refused() -> None:
    with pytest.raises(InputError, match="no kernel 'gwg'"):
        kernel_named("gwg", SPACE)
    with pytest.raises(InputError, match="rest must be"):
        Lazy(GibbsWithGradients(SPACE), 1.0)
