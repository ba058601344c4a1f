"""Large weights: probabilities stay probabilities, and lost digits are told."""

from math import exp
from pathlib import Path

import pytest
import torch
from torch import Generator

from nmln.config import Config, override
from nmln.counting import count_up, log_number_of, more_than, number_of, worlds_text
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula, parse_mln
from nmln.inference import Conditional, Plan
from nmln.inference.answers import lost_digits
from nmln.language import Language, predicate
from nmln.memory import in_digits
from nmln.model import Model
from nmln.noise import channel_matrix, noised
from nmln.potentials.formula import FormulaPotential, constraint
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.function import TablePotential
from nmln.potentials.total import TotalPotential
from nmln.runs.conditions import Conditions
from nmln.runs.infer import pose
from nmln.space import Space

LANGUAGE = Language(predicate("p", "n"), predicate("q", "n"))
SPACE = Space(LANGUAGE, {"n": 2})


def posed(weight: float) -> Conditional:
    return Conditional.of_formulas(SPACE, [parse_formula(f"{weight} p(x)", LANGUAGE)], levels=2)


@pytest.mark.parametrize("weight", [1e15, -1e15, 1e16, 1e17, 1e20])
def test_probabilities_sum_to_one_whatever_the_weights(weight: float) -> None:
    answers = posed(weight).marginals("p, q, p(0) ^ q(0), p(0) ^ !q(0), !p(0)")
    assert all(0 <= one.value <= 1 for one in answers)
    parts = [answers[text].value for text in ("p(0) ^ q(0)", "p(0) ^ !q(0)", "!p(0)")]
    assert sum(parts) == pytest.approx(1, abs=1e-12)
    assert answers["q(0)"].value == pytest.approx(0.5, abs=1e-12)
    assert answers["p(0)"].value == pytest.approx(float(weight > 0), abs=1e-12)
    (warning,) = answers.warnings
    assert "Make formulas with very large weights hard" in warning


def test_log_probabilities_and_the_best_world_keep_their_digits() -> None:
    asked = posed(1e16)
    found = asked.log_probability(SPACE.enumerate())
    assert float(found.values.exp().sum()) == pytest.approx(1, abs=1e-12)
    assert torch.equal(found.values, found.least)
    assert found.warnings == asked.most_probable().warnings != ()


def test_sampled_answers_warn_too() -> None:
    plan = Plan(chains=4, burn_in=5, sweeps=20, error=None)
    found = posed(1e16).marginals("p", plan=plan, exactly=False)
    assert any("differences between worlds are lost" in one for one in found.warnings)
    assert not any("are lost" in one for one in posed(2.0).marginals("p").warnings)


def test_the_warning_comes_where_rounding_begins_to_show() -> None:
    assert not lost_digits(1e12, torch.float64)
    assert lost_digits(1e13, torch.float64)
    assert not lost_digits(5e3, torch.float32)
    assert lost_digits(1e4, torch.float32)


def network() -> TotalPotential:
    """A network of single precision, whose scores differ by a few nats."""
    part = FragmentPotential(SPACE, 1, 1, (8,), rng=Generator().manual_seed(1))
    with torch.no_grad():
        part.networks[0].layers[-1].weight.mul_(8)  # pyright: ignore
    return TotalPotential([part])


@pytest.mark.parametrize("weight", [1e5, 1e6, 1e7])
@pytest.mark.parametrize("build", [constraint, FormulaPotential], ids=["constraint", "formula"])
def test_a_large_weight_leaves_a_network_of_single_precision_its_digits(
    weight: float, build: type[FormulaPotential]
) -> None:
    added = build(SPACE, [parse_formula(f"{weight} p(x)", LANGUAGE)], 1)
    worlds = SPACE.enumerate()[None]
    alone, both = network().score(worlds), network().add(added).score(worlds)
    rest = both - added.score(worlds)
    assert both.dtype == torch.float64
    assert (rest - alone).abs().max() < 1e-6
    broken = (alone + added.score(worlds).float()) - added.score(worlds)
    assert (broken - alone).abs().max() > 1e-3, "the check rejects a sum in single precision"


def test_a_model_with_formulas_is_asked_in_double_precision() -> None:
    config = override(Config(), {"model.hidden": 4, "model.layers": 1, "ladder.rates": [0.1, 0.01]})
    model = Model.build(SPACE, SPACE.enumerate(), config)
    assert model.potential.dtype == torch.float32
    alone = model.given().marginals("q")
    # A weight that holds in every world changes nothing, however large it is.
    tautology = parse_formula("1e7 q(x) v !q(x)", LANGUAGE)
    given = model.given(formulas=[tautology])
    assert given.target.dtype == given.potential.dtype == torch.float64
    for one, other in zip(alone, given.marginals("q"), strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-6)


def test_formulas_that_steer_samples_warn_where_their_weights_take_the_digits() -> None:
    config = override(Config(), {"model.hidden": 4, "model.layers": 1, "ladder.rates": [0.1]})
    model = Model.build(SPACE, SPACE.enumerate(), config)
    with pytest.warns(UserWarning, match="smaller differences between worlds are lost"):
        Conditions(formulas=(parse_formula("1e15 p(x)", LANGUAGE),)).added(model)
    Conditions(formulas=(parse_formula("1e6 p(x)", LANGUAGE),)).added(model)  # no warning


# How many worlds there are, where the number itself cannot be printed.


def test_inference_over_more_worlds_than_python_prints(tmp_path: Path) -> None:
    model = tmp_path / "large.mln"
    model.write_text("n = {1, ..., 15000}\np(n)\n0.5 p(x)\n")
    asked = pose([model])
    assert "15,000 groups are free, about 10^4,515 worlds." in str(asked)
    assert not asked.conditional.enumerable
    with pytest.raises(InputError, match=r"about 10\^4,515 worlds, too many to enumerate"):
        asked.conditional.marginals("p(1)", exactly=True)
    plan = Plan(chains=4, burn_in=0, sweeps=4, error=None)
    found = asked.conditional.marginals("p(1)", plan=plan)
    assert found["p(1)"].value == pytest.approx(exp(0.5) / (1 + exp(0.5)), abs=1e-6)


def test_other_messages_about_astronomical_numbers_of_worlds() -> None:
    space = Space(LANGUAGE, {"n": 10_000})
    for act in (
        lambda: channel_matrix(space, 0.1),
        lambda: noised(space, torch.ones(3), 0.1),
        lambda: TablePotential(space, torch.zeros(1, 4)),
        lambda: space.enumerate(),
        lambda: space.index(torch.zeros(space.groups, dtype=torch.uint8)),
        lambda: Evidence.none(space).enumerate(),
    ):
        with pytest.raises(InputError, match=r"about 10\^6,020"):
            act()


def test_an_arity_that_makes_numbers_of_many_digits_is_refused() -> None:
    sorts = ", ".join(["n"] * 32)
    program = parse_mln(f"n = {{1, ..., 100}}\np({sorts})\n")
    with pytest.raises(InputError, match=r"too large: about 10\^"):
        Space(program.language, program.domain)


def test_numbers_of_worlds_in_words_and_by_logarithms() -> None:
    assert in_digits(-12_345) == "-12,345"
    assert in_digits(10**15) == "about 10^15"
    assert in_digits(10**15 - 1) == "999,999,999,999,999"
    assert in_digits(10**20_000) == "about 10^20,000"
    radices = torch.tensor([2, 3, 2, 5])
    assert number_of(radices) == 60 == len(count_up(radices, 60, torch.uint8))
    assert exp(log_number_of(radices)) == pytest.approx(60)
    assert more_than(radices, 59)
    assert not more_than(radices, 60)
    assert worlds_text(radices) == "60"
    assert worlds_text(torch.tensor([0, 3])) == "0"
