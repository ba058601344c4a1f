"""The contract of `at_levels`: some levels alone, for every potential in CASES."""

import pytest
import torch

from nmln.errors import InputError
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.total import TotalPotential
from tests.potentials.test_contract import (
    CASES,
    CHAINS,
    CONSTRAINT,
    FORMULAS,
    LEVELS,
    MOLECULES,
    Case,
    build,
    score,
    worlds,
)
from tests.strategies import random_worlds


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("chosen", [[0], [1], [-1], [0, 1]], ids=str)
def test_some_levels_alone_score_as_the_whole_does_there(case: Case, chosen: list[int]) -> None:
    whole, values = build(case), worlds(case)
    some, own = whole.at_levels(chosen), values[chosen]
    groups = torch.arange(LEVELS * CHAINS).remainder(case.space.groups).view(LEVELS, CHAINS)
    scores, slopes = whole.score_and_slopes(values)
    assert some.levels == len(chosen)
    assert whole.levels == LEVELS
    with torch.no_grad():
        assert torch.allclose(some.score(own), scores[chosen])
        found = some.score_alternatives(own, groups[chosen])
        assert torch.allclose(found, whole.score_alternatives(values, groups)[chosen])
    found_scores, found_slopes = some.score_and_slopes(own)
    assert torch.allclose(found_scores, scores[chosen])
    assert torch.allclose(found_slopes, slopes[chosen])
    few = torch.arange(case.space.groups)[:3]
    changes = whole.score_changes(values, few)[chosen]
    assert torch.allclose(some.score_changes(own, few), changes)
    assert torch.allclose(some.violations_of(own), whole.violations_of(values)[chosen])
    with torch.no_grad():  # what is changed in the one is not changed in the other
        for parameter in some.parameters():
            parameter += 1
    assert torch.allclose(score(whole, values), scores)


@pytest.mark.parametrize("wrong", [[], [LEVELS], [-LEVELS - 1], [1, 0], [1, 1], [1, -1]], ids=str)
def test_levels_that_do_not_exist_or_do_not_rise_are_refused(wrong: list[int]) -> None:
    with pytest.raises(InputError, match="rising numbers from 0 to 1"):
        build(CASES[0]).at_levels(wrong)


def test_some_levels_of_a_total_leave_out_the_parts_that_act_elsewhere() -> None:
    hard = FormulaPotential(MOLECULES, CONSTRAINT, 1).double()
    whole = TotalPotential([build(CASES[0])]).add(hard, levels=[1], beta=0.7)
    values = worlds(CASES[0])
    for level in range(LEVELS):
        some = whole.at_levels([level])
        assert isinstance(some, TotalPotential)
        assert len(some.parts) == 1 + level
        assert torch.allclose(score(some, values[[level]]), score(whole, values)[[level]])
        world = values[level, 0]
        assert some.forbidden_by(0, world) == whole.forbidden_by(level, world)


def test_some_levels_of_formulas_keep_their_strengths() -> None:
    whole = FormulaPotential(MOLECULES, [*FORMULAS, *CONSTRAINT], 2, strengths=(0.5, 1.0)).double()
    values = random_worlds(MOLECULES, 60, 1).view(2, 30, -1)
    scores = score(whole, values)
    assert (scores[1] == float("-inf")).any()
    for level in range(2):
        assert torch.equal(score(whole.at_levels([level]), values[[level]]), scores[[level]])
