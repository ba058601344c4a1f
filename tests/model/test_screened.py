"""Screened moves in models: chosen by the settings, by the local part of each domain."""

import pytest
import torch

from nmln.config import override
from nmln.kernels.combined import simple_kernels
from nmln.kernels.screened import Screened
from nmln.model import Model
from tests.model.test_domains import CONFIG, QUICK, buckets

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def model(unchecked: None) -> Model:
    changes = {"chains.kernel": "screened", "sampling.kernel": "screened", "model.local": True}
    return Model.fit(buckets(), config=override(CONFIG, changes))


def test_the_settings_name_screened_moves(model: Model) -> None:
    assert isinstance(model.on(model.domains[0].space).chains().kernel, Screened)
    (other,) = simple_kernels(model.on(model.domains[0].space).chains(kernel="balanced").kernel)
    assert not isinstance(other, Screened)


def test_a_model_of_several_domains_walks_by_the_local_part_of_each(model: Model) -> None:
    for domain in model.domains:
        there = model.on(domain.space)
        stand_in = there.potential.stand_in()
        assert stand_in is not None
        assert stand_in.space == domain.space
        assert stand_in.local
        rng = torch.Generator().manual_seed(0)
        *_, sweep = there.sample(3, rng, chains=5, burn_in=1)
        assert sweep.kernels == ("Screened",)
        assert not sweep.tuning.log_sizes.isnan().any(), "lengths are tuned"


@pytest.mark.parametrize("sharpen", [1.0, 2.0])
def test_molecules_are_drawn_by_screened_moves(model: Model, sharpen: float) -> None:
    assert len(model.generate(6, sharpen=sharpen, **QUICK)) == 6
