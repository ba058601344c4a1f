"""Invariance does not show that every world is reached: on flat Boolean groups some alternate."""

import pytest
import torch
from torch import Tensor

from nmln.kernels.combined import Mixture
from nmln.kernels.gibbs import Gibbs
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.kernels.metropolised import MetropolisedGibbs
from nmln.kernels.path import PathAuxiliary
from nmln.language import Language, predicate
from nmln.potentials.function import OneHotPotential
from nmln.space import Space
from nmln.types import Kernel

SPACE = Space(Language(predicate("p", "a")), {"a": 4})
FLAT = OneHotPotential(SPACE, lambda onehot: 0 * onehot.sum(-1)).double()


def reached(kernel: Kernel, steps: int) -> Tensor:
    """How many of 16 worlds are seen after so many steps from one world, in many chains."""
    values = torch.zeros(1, 8_000, SPACE.groups, dtype=SPACE.dtype)
    state = kernel.init(FLAT, values)
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        state, _ = kernel.step(FLAT, state, rng)
    return SPACE.index(state.values[0]).unique()


ERGODIC: list[Kernel] = [
    Gibbs(SPACE),
    DiscreteLangevin(SPACE, alpha=2.0),
    PathAuxiliary(SPACE),
    Mixture((MetropolisedGibbs(SPACE), Gibbs(SPACE))),
    Mixture((GibbsWithGradients(SPACE), Gibbs(SPACE))),
]


@pytest.mark.parametrize("kernel", ERGODIC, ids=lambda kernel: type(kernel).__name__)
def test_every_world_is_reached_after_a_fixed_number_of_steps(kernel: Kernel) -> None:
    if isinstance(
        kernel, Mixture
    ):  # one draw of the kernel serves all chains: look at several runs
        seen = {int(i) for steps in (11, 12, 13, 14) for i in reached(kernel, steps)}
        assert len(seen) == 16
    else:
        assert len(reached(kernel, 12)) == len(reached(kernel, 13)) == 16


@pytest.mark.parametrize("kernel", [MetropolisedGibbs(SPACE), GibbsWithGradients(SPACE)])
def test_alone_these_keep_the_parity_of_the_number_of_moves(kernel: Kernel) -> None:
    parities = SPACE.enumerate().sum(1)[reached(kernel, 12)] % 2
    assert not parities.any()
