"""Weights of formulas by likelihood, against models whose weights are known."""

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.formats.mln import parse_mln
from nmln.potentials.formula import FormulaPotential
from nmln.space import Space
from nmln.training.weights import Learned, Recipe, learn_weights
from tests.exact import distribution

pytestmark = pytest.mark.usefixtures("unchecked")

TEXT = """
smokes(person)
cancer(person)
friends(person, person) symmetric irreflexive
0.8 smokes(x) => cancer(x)
0.6 friends(x, y) => (smokes(x) <=> smokes(y))
-0.5 smokes(x)
!(smokes(x) ^ cancer(x) ^ friends(x, y) ^ cancer(y) ^ smokes(y)).
"""
PROGRAM = parse_mln(TEXT)
SPACE = Space(PROGRAM.language, {"person": ("A", "B", "C")})
TRUE = torch.tensor([0.8, 0.6, -0.5]).double()
QUICK = Recipe(updates=40, sweeps=2, chains=60, levels=3, hottest=3.0, final_sweeps=60)


def drawn(count: int, seed: int) -> Tensor:
    model = FormulaPotential(SPACE, PROGRAM.formulas, dtype=torch.float64)
    rng = Generator().manual_seed(seed)
    chosen = torch.multinomial(distribution(model), count, replacement=True, generator=rng)
    return SPACE.enumerate()[chosen]


def learned(worlds: Tensor, *, exactly: bool, seed: int = 0) -> Learned:
    fresh = [
        one if one.hard else type(one)(one.formula, None) for one in PROGRAM.formulas
    ]  # begins at 0
    return learn_weights(
        SPACE, fresh, worlds, Generator().manual_seed(seed), QUICK, exactly=exactly
    )


def test_known_weights_are_recovered_within_their_errors() -> None:
    scores = []
    for seed in range(30):
        found = learned(drawn(400, seed), exactly=True)
        scores.append((found.weights - TRUE) / found.errors)
        assert found.exact
        assert found.log_likelihood is not None
    squares = torch.stack(scores).square()
    assert squares.max() < 4.5**2
    assert 0.7 < squares.mean() < 1.4


def test_errors_that_are_too_small_fail_the_same_check() -> None:
    scores = [
        (found.weights - TRUE) / (found.errors / 1.5)
        for found in (learned(drawn(400, seed), exactly=True) for seed in range(30))
    ]
    assert torch.stack(scores).square().mean() > 1.4


def test_chains_find_the_weights_that_enumeration_finds() -> None:
    worlds = drawn(300, 5)
    exact, sampled = learned(worlds, exactly=True), learned(worlds, exactly=False)
    assert not sampled.exact
    noise = (sampled.errors**2 - exact.errors**2).clamp(min=1e-4).sqrt()
    assert ((sampled.weights - exact.weights).abs() < 5 * noise).all()
    assert (sampled.errors >= 0.8 * exact.errors).all()
    assert (sampled.errors < 2 * exact.errors).all()


def test_the_gradient_vanishes_at_the_learned_weights() -> None:
    worlds = drawn(200, 1)
    found = learned(worlds, exactly=True)
    model = FormulaPotential(SPACE, found.formulas, dtype=torch.float64)
    shares = distribution(model)
    counts = model.counts(SPACE.enumerate()[None])[0]
    data = model.counts(worlds[None])[0].mean(0)
    prior = found.weights / (QUICK.prior**2 * len(worlds))
    assert torch.allclose(shares @ counts + prior, data, atol=1e-6)


def test_the_same_seed_learns_the_same() -> None:
    worlds = drawn(50, 2)
    one, two = (learned(worlds, exactly=False, seed=3) for _ in range(2))
    assert torch.equal(one.weights, two.weights)


def test_weights_that_the_data_leave_open_are_named() -> None:
    program = parse_mln("up(site)\n1 up(x)\n1 up(x) v !up(x)")
    space = Space(program.language, {"site": 3})
    worlds = torch.ones(20, 3, dtype=space.dtype)
    found = learn_weights(space, program.formulas, worlds, Generator().manual_seed(0))
    assert "holds always in the data" in found.warnings[0]
    assert "holds equally often in every world" in found.warnings[1]
    assert found.weights.isfinite().all()


def test_what_cannot_be_learned_is_refused() -> None:
    hard = [one for one in PROGRAM.formulas if one.hard]
    rng = Generator().manual_seed(0)
    with pytest.raises(InputError, match="no weight to learn: every formula is hard"):
        learn_weights(SPACE, hard, drawn(3, 0), rng)
    with pytest.raises(InputError, match="no worlds to learn from"):
        learn_weights(SPACE, PROGRAM.formulas, drawn(3, 0)[:0], rng)
    with pytest.raises(InputError, match=r"world 0 of the data violates the hard formula"):
        learn_weights(SPACE, PROGRAM.formulas, torch.ones(1, SPACE.groups).to(SPACE.dtype), rng)
    with pytest.raises(InputError, match="standard deviation must be positive"):
        Recipe(prior=0)
