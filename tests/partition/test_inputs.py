import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Generator

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.kernels.gibbs import Gibbs
from nmln.language import Language, predicate
from nmln.logic import Literal
from nmln.partition import (
    annealed,
    mbar,
    reverse_annealed,
    stepping_stone,
)
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.function import ValuesPotential
from nmln.potentials.scaled import ScaledPotential
from nmln.space import Space
from nmln.types import Potential
from tests.partition.models import (
    BOOLEAN,
    MIXED,
    coupled,
    independent,
    looked_up,
    recorded,
    steered,
)


def test_draws_may_come_as_tensors_or_one_by_one() -> None:
    potential = looked_up(BOOLEAN, coupled(BOOLEAN))
    draws = recorded(potential, Gibbs(BOOLEAN), chains=25, draws=4, moves=1)
    first = stepping_stone(potential, draws)
    for same in (iter(draws), torch.stack(draws)):
        again = stepping_stone(potential, same)
        assert torch.equal(first.forward, again.forward)
        assert torch.equal(first.reverse_error, again.reverse_error)
    assert torch.equal(
        stepping_stone(potential, draws[0]).forward, stepping_stone(potential, draws[:1]).forward
    )


def test_the_same_generator_gives_the_same_estimate_and_progress_is_reported() -> None:
    potential, kernel = looked_up(BOOLEAN, coupled(BOOLEAN)), Gibbs(BOOLEAN)
    told: list[tuple[int, int]] = []
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    one, other = (
        annealed(
            potential,
            kernel,
            10,
            4,
            Generator().manual_seed(20),
            progress=lambda *so: told.append(so),
        )
        for _ in range(2)
    )
    assert torch.equal(one.log_z, other.log_z)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)] * 2
    told.clear()
    draws = [independent(potential, 30, seed) for seed in (21, 22)]
    reverse_annealed(
        potential, kernel, draws, (0, 0.1, 1), Generator(), progress=lambda *so: told.append(so)
    )
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    mbar(potential, draws)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == str(np.random.get_state())  # noqa: NPY002


def test_in_a_space_too_large_for_numbers_a_flat_potential_is_counted_in_logs() -> None:
    space = Space(Language(predicate("linked", "node", "node")), {"node": 200})  # 2^40,000 worlds
    flat = ValuesPotential(space, lambda values: values.new_zeros(values.shape[:2]).double(), 2)
    found = annealed(flat, Gibbs(space), 3, 2, Generator().manual_seed(23))
    assert found.log_z.tolist() == pytest.approx([40_000 * np.log(2)] * 2)
    assert found.error.tolist() == pytest.approx([0, 0], abs=1e-12)
    assert found.effective_size.tolist() == pytest.approx([3, 3])


def test_a_scaled_potential_is_beta_times_the_potential_and_forbids_the_same_worlds() -> None:
    potential = steered((3,))
    betas = (0.1, 0.5, 0.7, 0.3)
    scaled, worlds = (
        ScaledPotential(potential, betas),
        independent(looked_up(BOOLEAN, coupled(BOOLEAN)), 50, 24),
    )
    beta = torch.tensor(betas, dtype=torch.float64)
    scores, slopes = potential.score_and_slopes(worlds)
    found, found_slopes = scaled.score_and_slopes(worlds)
    groups = torch.randint(12, (4, 50), generator=Generator().manual_seed(25))
    assert (scores[3] == float("-inf")).any()
    assert torch.equal(found, beta[:, None] * scores)
    assert torch.equal(scaled.score(worlds), found)
    assert torch.equal(found_slopes, beta[:, None, None] * slopes)
    assert torch.equal(
        scaled.score_alternatives(worlds, groups),
        beta[:, None, None] * potential.score_alternatives(worlds, groups),
    )


def test_pymbar_is_imported_late_and_quietly() -> None:
    script = """
import sys, torch
from nmln.language import Language, predicate
from nmln.potentials.function import ValuesPotential
from nmln.space import Space
import nmln.partition
assert "pymbar" not in sys.modules
space = Space(Language(predicate("up", "site")), {"site": 3})
potential = ValuesPotential(space, lambda values: values.sum(-1).double(), 2)
draws = space.enumerate().expand(2, -1, -1)
found = nmln.partition.mbar(potential, draws)
assert abs(float(found.log_ratios[0, 1])) < 1e-9
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# What is refused.


def one_world_only() -> FormulaPotential:
    formulas = [parse_formula("up(x).", BOOLEAN.language)]
    return FormulaPotential(BOOLEAN, formulas, dtype=torch.float64)


def never_together() -> ValuesPotential:
    """The first level wants A to be up, the second wants it down."""
    table = torch.zeros(2, 4096, dtype=torch.float64)
    up = BOOLEAN.enumerate()[:, 0] > 0
    table[0, ~up] = table[1, up] = float("-inf")
    return looked_up(BOOLEAN, table)


@pytest.mark.parametrize("estimate", [stepping_stone, mbar])
def test_draws_that_do_not_say_what_the_ratio_is_are_refused(estimate) -> None:
    apart, plain = never_together(), looked_up(BOOLEAN, coupled(BOOLEAN))
    cases: list[tuple[Potential, object, str]] = [
        (apart, independent(apart, 30, 26), "forbid.* all"),
        (apart, independent(apart, 30, 26).flip(0), "chain 0 at level 0"),
        (plain, independent(plain, 30, 27)[:2], r"\(4, 'any', 'any'\).*\(2, 30, 12\)"),
        (
            plain,
            [independent(plain, 3, 28), independent(plain, 4, 28)],
            "always of the same chains",
        ),
        (plain, [], "there are no draws"),
        (plain, independent(plain, 1, 28), "at least two blocks"),
        (one_world_only(), torch.ones(1, 3, 12, dtype=torch.uint8), "a ratio needs two levels"),
    ]
    for potential, draws, message in cases:
        with pytest.raises(InputError, match=message):
            estimate(potential, draws)
    with pytest.raises(InputError, match="in 5 batches"):
        estimate(plain, [independent(plain, 3, 28)] * 4, batches=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chains": 1}, "chains must be at least 2.* got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": (0, 0.5)}, "rise from 0 to 1"),
        ({"steps": (0, 0.5, 0.5, 1)}, "rise from 0 to 1"),
        ({"moves": 0}, "moves must be at least 1"),
        ({"evidence": Evidence.none(MIXED)}, "another space"),
        ({"evidence": Evidence.of(BOOLEAN, [Literal("up", ("A",))])}, "Gibbs was given other"),
        ({"potential": one_world_only()}, "at level 0 all 4 are forbidden"),
    ],
)
def test_annealing_that_cannot_be_is_refused(options, message: str) -> None:
    given = {"potential": looked_up(BOOLEAN, coupled(BOOLEAN)), "chains": 4, "steps": 2, **options}
    with pytest.raises(InputError, match=message):
        annealed(kernel=Gibbs(BOOLEAN), rng=Generator().manual_seed(29), **given)


def test_annealing_of_draws_that_cannot_be_is_refused() -> None:
    seen = Evidence.of(BOOLEAN, [Literal("up", ("A",))])
    only, plain, rng = one_world_only(), looked_up(BOOLEAN, coupled(BOOLEAN)), Generator()
    up, down = (torch.full((1, 3, 12), value, dtype=torch.uint8) for value in (1, 0))
    with pytest.raises(InputError, match="forbids the one of chain 0 at level 0"):
        reverse_annealed(only, Gibbs(BOOLEAN), down, 2, rng)
    with pytest.raises(InputError, match=r"forbid them all at level 0\. Raise"):
        reverse_annealed(only, Gibbs(BOOLEAN), up, 2, rng, uniform=5)
    with pytest.raises(InputError, match="uniform must be at least 1"):
        reverse_annealed(only, Gibbs(BOOLEAN), up, 2, rng, uniform=0)
    with pytest.raises(InputError, match="must agree with the evidence"):
        reverse_annealed(plain, Gibbs(BOOLEAN, seen), down.expand(4, -1, -1), 2, rng, evidence=seen)
    with pytest.raises(InputError, match="one positive number for each of the 4 levels"):
        ScaledPotential(plain, (1.0, 1.0, 0.0, 1.0))
