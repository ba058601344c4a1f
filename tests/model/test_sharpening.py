"""Chains whose target has its scores multiplied: exactly that distribution, and nothing else changed."""

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Generator

from nmln.config import configure
from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.model import Model
from nmln.model.chains import sharpened
from nmln.molecules.chemistry import encode_all, space_for
from nmln.potentials.formula import FormulaPotential, constraint
from nmln.potentials.scaled import ScaledPotential
from tests.exact import distribution

TWO = space_for(("C", "O"), 2)
CHAINS = 300


@pytest.fixture(scope="module")
def model() -> Model:
    """A model of pairs of atoms with scores that differ a good deal."""
    worlds = encode_all(TWO, ["CO", "CO", "C=O", "CC", "C=C", "C#C"]).worlds
    config = configure(
        {
            "ladder": {"rates": [0.3, 0.05]},
            "model": {"layers": 1, "hidden": 4},
            "sampling": {"kernel": "gibbs", "moves": 3},
        }
    )
    found = Model.build(TWO, worlds, config)
    rng = Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in found.potential.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=rng)
    return found


def test_only_the_target_is_multiplied_and_added_potentials_are_not(model: Model) -> None:
    (formula,) = [parse_formula("0.8 bond(x, y, double)", TWO.language)]
    added = constraint(TWO, [formula], levels=2)
    worlds = TWO.enumerate().expand(2, -1, -1)
    with torch.no_grad():
        own = model.potential.score(worlds).double()
        extra = added.score(worlds)
        found = model.chains(sharpen=1.7, added=added).potential.score(worlds).double()
    wanted = torch.stack([own[0] + extra[0], 1.7 * own[1] + extra[1]])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert extra[1].std() > 0.3


def p_value(model: Model, wanted_sharpness: float, **options: Any) -> float:
    """Of the worlds of chains against exp(sharpen * score), by chi-square; chains are independent."""
    exact = (distribution(model.potential, 1).log() * wanted_sharpness).softmax(0)
    last = list(model.sample(40, Generator().manual_seed(1), chains=CHAINS, burn_in=39, **options))[
        -1
    ]
    places = (last.state.values[-1][:, None] == TWO.enumerate()).all(2).nonzero()[:, 1]
    counts = torch.bincount(places, minlength=len(exact)).double()
    expected = CHAINS * exact
    order = expected.argsort(descending=True)
    few = int((expected > 5).sum())
    cells = [*order[:few].tolist()]
    seen = torch.tensor([*counts[cells].tolist(), CHAINS - float(counts[cells].sum())])
    wanted = torch.tensor([*expected[cells].tolist(), CHAINS - float(expected[cells].sum())])
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return float(torch.special.gammaincc(torch.tensor(few / 2), torch.tensor(statistic / 2)))


def test_chains_at_the_target_have_the_sharpened_distribution(model: Model) -> None:
    assert p_value(model, 1.7, sharpen=1.7) > 1e-4


def test_the_check_rejects_chains_of_another_sharpness(model: Model) -> None:
    assert p_value(model, 1.7) < 1e-4
    assert p_value(model, 1.0, sharpen=1.7) < 1e-4


def test_at_one_nothing_is_wrapped_and_the_results_are_the_same(model: Model) -> None:
    assert model.chains(sharpen=1.0).potential is model.chains().potential
    options: dict[str, Any] = {"chains": 5, "burn_in": 2, "seed": 3}
    plain = model.generate(12, **options)
    assert model.generate(12, sharpen=1.0, **options) == plain
    assert model.generate(12, sharpen=4.0, **options) != plain


@pytest.mark.parametrize("sharpen", [0.0, -1.4, inf, nan])
def test_numbers_that_scores_cannot_be_multiplied_by_are_refused(
    model: Model, sharpen: float
) -> None:
    with pytest.raises(InputError, match="sharpen must be a positive finite number"):
        model.generate(1, sharpen=sharpen)


def test_hard_formulas_of_a_sharpened_model_are_still_named() -> None:
    hard = parse_formula("bond(x, y, none).", TWO.language)
    formulas = FormulaPotential(TWO, [hard], 2, strengths=[0.5, 1.0])
    found = sharpened(formulas, 2.0)
    assert isinstance(found, ScaledPotential)
    worlds = TWO.enumerate()
    bad = worlds[(worlds[:, 2] == 2).nonzero()[0, 0]]
    both = bad.expand(2, 1, -1)
    assert found.forbidden_by(1, bad) == formulas.forbidden_by(1, bad) != []
    assert torch.equal(found.violations_of(both), formulas.violations_of(both))
    assert float(found.violations_of(both)[1]) > 0
