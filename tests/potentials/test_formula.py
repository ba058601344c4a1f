from itertools import product
from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.formats.mln import parse_formula, parse_mln
from nmln.language import Language, predicate
from nmln.logic import WeightedFormula
from nmln.potentials.formula import FormulaPotential, constraint
from nmln.space import Space
from tests.exact import count_true, distribution
from tests.strategies import formulas, random_worlds, spaces

pytestmark = pytest.mark.usefixtures("unchecked")

SMOKERS = """
smokes(person)
cancer(person)
friends(person, person)
1.5 smokes(x) => cancer(x)
1.1 friends(x, y) => (smokes(x) <=> smokes(y))
"""


@settings(max_examples=200)
@given(st.data())
def test_counts_agree_with_brute_force_on_random_formulas(data: st.DataObject) -> None:
    space = data.draw(spaces())
    formula = data.draw(formulas(space))
    potential = FormulaPotential(space, [WeightedFormula(formula, 1.0)]).double()
    worlds = random_worlds(space, 3, data.draw(st.integers(0, 2**32)))
    expected = [count_true(formula, space, world) for world in worlds]
    assert potential.counts(worlds[None])[0, :, 0].tolist() == expected


@settings(max_examples=150)
@given(st.data())
def test_slopes_are_the_exact_changes_on_random_formulas(data: st.DataObject) -> None:
    space = data.draw(spaces())
    formula = data.draw(formulas(space))
    potential = FormulaPotential(space, [WeightedFormula(formula, 0.7)]).double()
    world = random_worlds(space, 1, data.draw(st.integers(0, 2**32)))
    scores, slopes = potential.score_and_slopes(world[None])
    group = data.draw(st.integers(0, space.groups - 1))
    first, now = int(space.offsets[group]), int(world[0, group])
    for category in range(int(space.sizes[group])):
        changed = world.clone()
        changed[0, group] = category
        difference = potential.score(changed[None]) - scores
        assert torch.isclose(slopes[0, 0, first + category] - slopes[0, 0, first + now], difference)


def test_friends_and_smokers_has_the_marginals_of_an_independent_sum() -> None:
    program = parse_mln(SMOKERS)
    space = Space(program.language, {"person": ("A", "B")})
    potential = FormulaPotential(space, program.formulas).double()
    worlds = space.enumerate().double()
    marginals = distribution(potential) @ worlds

    total, sums = 0.0, [0.0] * 8
    for bits in product((0, 1), repeat=8):
        smokes, cancer = bits[0:2], bits[2:4]
        friends = {(i, j): bits[4 + 2 * i + j] for i in (0, 1) for j in (0, 1)}
        weight = 1.5 * sum(not smokes[i] or cancer[i] for i in (0, 1))
        weight += 1.1 * sum(not friends[i, j] or smokes[i] == smokes[j] for i, j in friends)
        total += exp(weight)
        sums = [s + bit * exp(weight) for s, bit in zip(sums, bits, strict=True)]
    assert torch.allclose(marginals, torch.tensor([s / total for s in sums], dtype=torch.float64))


def test_a_hard_disjunction_leaves_three_worlds_of_four() -> None:
    program = parse_mln("H(s)\nS(s)\nH(A) v S(C).")
    space = Space(Language(predicate("H", "a"), predicate("S", "c")), {"a": ("A",), "c": ("C",)})
    formula = parse_formula(str(program.formulas[0]), space.language)
    potential = FormulaPotential(space, [formula])
    probabilities, worlds = distribution(potential), space.enumerate()
    h, s = worlds[:, 0] == 1, worlds[:, 1] == 1
    assert torch.allclose(probabilities[h].sum(), torch.tensor(2 / 3, dtype=torch.float64))
    assert torch.allclose(probabilities[s].sum(), torch.tensor(2 / 3, dtype=torch.float64))
    assert torch.allclose(probabilities[h & s].sum(), torch.tensor(1 / 3, dtype=torch.float64))
    assert potential.score(worlds[None, :1]) == float("-inf")
    assert potential.score_and_slopes(worlds[None])[1].isfinite().all()


def test_templates_get_a_weight_for_every_constant() -> None:
    program = parse_mln("k = {X, Y}\ntype(n, k!)\n0.5 type(x, +c)\ntype(x, X) => type(y, X)")
    space = Space(program.language, {"n": 2})
    potential = FormulaPotential(space, program.formulas, levels=3)
    assert potential.weights.shape == (3, 3)
    assert potential.weights[0].tolist() == [0.5, 0.5, 0.0]
    assert [str(one) for one in potential.soft][:2] == ["0.5 type(x, X)", "0.5 type(x, Y)"]


def test_a_constraint_is_strict_at_the_target_and_a_penalty_above() -> None:
    space = Space(Language(predicate("p", "a")), {"a": 2})
    formula = parse_formula("p(x).", space.language)
    potential = constraint(space, [formula], levels=2, penalty=4.0)
    worlds = space.enumerate().expand(2, -1, -1)
    scores, slopes = potential.score_and_slopes(worlds)
    assert scores[0].tolist() == [-4.0, -2.0, -2.0, 0.0]
    assert scores[1].tolist() == [float("-inf")] * 3 + [0.0]
    assert slopes[0, 0].tolist() == [0.0, 2.0, 0.0, 2.0]
    assert not slopes[1].any()


def test_bad_strengths_penalties_and_formulas_are_refused() -> None:
    space = Space(Language(predicate("p", "a")), {"a": 2})
    formula = parse_formula("p(x).", space.language)
    with pytest.raises(InputError, match="one number from 0 to 1 for each of the 2 levels"):
        FormulaPotential(space, [formula], 2, strengths=[1.0])
    with pytest.raises(InputError, match="penalty must be positive"):
        FormulaPotential(space, [formula], 1, penalty=0.0)
    other = parse_formula("q(x).", Language(predicate("q", "a")))
    with pytest.raises(InputError, match="unknown predicate q"):
        FormulaPotential(space, [other])
    large = Space(Language(predicate("r", "a", "a")), {"a": 700})
    wide = parse_formula("1 r(x, y) ^ r(y, z) => r(x, z)", large.language)
    with pytest.raises(InputError, match=r"has 343,000,000 groundings.*too many to hold"):
        FormulaPotential(large, [wide])
