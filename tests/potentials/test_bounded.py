"""The soft bound on the scores of a network."""

from math import pi

import pytest
import torch
from torch import Generator

from nmln.errors import InputError
from nmln.potentials.bounded import BoundedPotential
from nmln.potentials.graph import GraphPotential
from tests.potentials.test_contract import CASES, LEVELS, MOLECULES, worlds


def test_bounded_scores_bend_towards_their_bound_and_slopes_with_them() -> None:
    inner = GraphPotential(MOLECULES, LEVELS, 2, 8, rng=Generator().manual_seed(0)).double()
    potential = BoundedPotential(inner, 0.2)
    values = worlds(CASES[0])
    plain_scores, plain_slopes = inner.score_and_slopes(values)
    scores, slopes = potential.score_and_slopes(values)
    assert (scores.abs() < 0.2).all()
    assert torch.allclose(scores, 0.4 / pi * (pi / 0.4 * plain_scores).atan())
    bend = 1 / (1 + (pi / 0.4 * plain_scores) ** 2)
    assert torch.allclose(slopes, bend[..., None] * plain_slopes)
    with pytest.raises(InputError, match="positive number of nats"):
        BoundedPotential(inner, 0)
