"""Answers that are known in closed form, exactly and by chains."""

from math import exp

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence, VirtualEvidence
from nmln.formats.db import parse_facts
from nmln.formats.mln import parse_mln
from nmln.inference import Answers, Conditional, Plan
from nmln.inference.chains import Traces
from nmln.logic import GroundAtom, Literal
from nmln.potentials.fragment import FragmentPotential
from nmln.space import Space
from tests.exact import distribution
from tests.inference.models import SPACE, network, random_case, weighted

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = Plan(chains=30, burn_in=50, sweeps=300, error=0.01)


def ask(
    text: str, query: str, evidence: str = "", constants: dict[str, list[str]] | None = None
) -> tuple[Answers, Answers]:
    """The answers of a program by enumeration and by chains."""
    program = parse_mln(text)
    space = Space(program.language, {**program.domain, **(constants or {})})
    facts = parse_facts(enumerate(evidence.split("\n"), 1), "text")[0]
    known = Evidence.of(space, facts.literals)
    asked = Conditional.of_formulas(space, program.formulas, known, levels=3)
    return asked.marginals(query), asked.marginals(query, plan=QUICK, exactly=False)


def near(answers: tuple[Answers, Answers], text: str, value: float) -> None:
    exact, sampled = (found[text] for found in answers)
    assert exact.value == pytest.approx(value, abs=1e-9)
    assert abs(sampled.value - value) < 5 * max(sampled.error, 1e-3)


def test_a_hard_disjunction_of_two_free_atoms_leaves_three_worlds() -> None:
    found = ask(
        "H(p)\nS(q)\nH(A) v S(C).", "H(A), S(C), H(A) ^ S(C)", constants={"p": ["A"], "q": ["C"]}
    )
    near(found, "H(A)", 2 / 3)
    near(found, "S(C)", 2 / 3)
    near(found, "H(A) ^ S(C)", 1 / 3)


def test_exactly_one_value_of_an_exclusive_group_holds() -> None:
    text = "city = {Oslo, Rome, Paris}\nlives(person, city!)\n1 lives(x, Oslo)\n"
    found = ask(text, "lives", constants={"person": ["Anna"]})
    e = exp(1)
    near(found, "lives(Anna, Oslo)", e / (e + 2))
    near(found, "lives(Anna, Rome)", 1 / (e + 2))
    assert sum(one.value for one in found[0]) == pytest.approx(1)


def test_a_formula_with_an_existential_counts_worlds_where_at_least_one_does() -> None:
    found = ask("smokes(p)\n2 EXIST x smokes(x)", "EXIST x smokes(x), smokes(A)",
                constants={"p": ["A", "B", "C"]})  # fmt: skip
    e = exp(2)
    near(found, "EXIST x smokes(x)", 7 * e / (7 * e + 1))
    near(found, "smokes(A)", 4 * e / (7 * e + 1))


def test_evidence_can_make_a_formula_decide() -> None:
    text = "smokes(p)\ncancer(p)\nsmokes(x) => cancer(x).\n0.5 cancer(x)"
    found = ask(text, "cancer, smokes", "smokes(A)\n!cancer(B)", {"p": ["A", "B"]})
    for atom, value in (("cancer(A)", 1), ("smokes(B)", 0), ("cancer(B)", 0), ("smokes(A)", 1)):
        near(found, atom, value)


def test_virtual_evidence_multiplies_the_odds_of_its_atom() -> None:
    space = random_case(0).conditional.space
    plain = Conditional.of_formulas(space, weighted(0))
    report = VirtualEvidence.of(space, [(Literal("mark", ("0",), False), 0.8)])
    prior = plain.marginals("mark(0)")["mark(0)"].value
    after = Conditional.of_formulas(space, weighted(0), None, report).marginals("mark(0)")
    odds = prior / (1 - prior) * 0.25
    assert after["mark(0)"].value == pytest.approx(odds / (1 + odds))
    sampled = Conditional.of_formulas(space, weighted(0), None, report).marginals(
        "mark(0)", plan=QUICK, exactly=False
    )["mark(0)"]
    assert abs(sampled.value - after["mark(0)"].value) < 5 * sampled.error


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        (
            [(GroundAtom("mark", ("0",)), 1.0)],
            r"between 0 and 1, but mark\(0\) has 1.*plain literal",
        ),
        ([(GroundAtom("mark", ("0",)), 0.7)] * 2, r"mark\(0\) is reported twice, with 0.7 and 0.7"),
        ([(GroundAtom("mark", ("1",)), 0.7)], "the evidence settles it already"),
        ([(GroundAtom("mark", ("9",)), 0.7)], "undeclared constant 9"),
    ],
)
def test_virtual_evidence_that_makes_no_sense_is_refused(reports: list, message: str) -> None:
    evidence = Evidence.of(SPACE, [GroundAtom("mark", ("1",))])
    with pytest.raises(InputError, match=message):
        VirtualEvidence.of(SPACE, reports, evidence)


def test_expectations_of_functions_agree_with_enumeration() -> None:
    def marks(values: Tensor) -> Tensor:
        return values[..., SPACE.block("mark").groups].double().sum(-1)

    for seed in (1, 3):
        asked = random_case(seed).conditional
        worlds = asked.evidence.enumerate()
        weights = asked.target.score(worlds[None])[0].detach().double().softmax(0)
        exact = asked.expectations({"marks": marks})["marks"]
        assert exact.value == pytest.approx(float(weights @ marks(worlds)))
        found = asked.expectations({"marks": marks}, plan=QUICK, exactly=False)["marks"]
        assert abs(found.value - exact.value) < 5 * found.error


def test_a_function_of_the_wrong_shape_is_named() -> None:
    asked = random_case(0).conditional
    with pytest.raises(InputError, match="the function 'bad' must give one number for every world"):
        asked.expectations({"bad": lambda values: values})
    with pytest.raises(InputError, match="no function to take the mean of"):
        asked.expectations({})


def test_evidence_that_no_world_satisfies_names_the_formula() -> None:
    text = "smokes(p)\ncancer(p)\nsmokes(x) => cancer(x).\n1 smokes(x)"
    for exactly in (True, False):
        program = parse_mln(text)
        space = Space(program.language, {"p": ["A", "B"]})
        known = Evidence.of(space, [Literal("smokes", ("A",)), Literal("cancer", ("A",), False)])
        asked = Conditional.of_formulas(space, program.formulas, known)
        with pytest.raises(InputError, match=r"smokes\(x\) => cancer\(x\)\."):
            asked.marginals("smokes", exactly=exactly, plan=QUICK)
        with pytest.raises(InputError, match=r"smokes\(x\) => cancer\(x\)\."):
            asked.most_probable(exactly=exactly, restarts=3, steps=5)


def test_the_most_probable_world_is_found_by_search_and_by_enumeration() -> None:
    for seed in range(6):
        asked = random_case(seed).conditional
        exact = asked.most_probable()
        found = asked.most_probable(
            Generator().manual_seed(seed), exactly=False, restarts=20, steps=60
        )
        assert exact.exact
        assert not found.exact
        assert found.score == pytest.approx(exact.score, abs=1e-5)
        assert bool(asked.evidence.allows(found.world))
        assert 0 < found.agreed <= 1


def test_a_search_keeps_to_hard_formulas_where_the_best_would_break_them() -> None:
    program = parse_mln("""
    q(row, column)
    3 q(x, y)
    q(x, y) ^ q(x, z) => y = z.
    q(x, y) ^ q(z, y) => x = z.
    """)
    places = tuple("012345")
    space = Space(program.language, {"row": places, "column": places})
    asked = Conditional.of_formulas(space, program.formulas)
    best = asked.most_probable(Generator().manual_seed(0), restarts=10, steps=100)
    assert not best.exact
    board = best.world.view(6, 6)
    assert (board.sum(0) <= 1).all()
    assert (board.sum(1) <= 1).all()
    assert best.score == pytest.approx(18)


def test_log_probabilities_are_exact_or_bracket_the_truth() -> None:
    for seed in (0, 1, 2):
        asked = random_case(seed).conditional
        worlds = asked.evidence.enumerate()[:50]
        exact = asked.log_probability(worlds)
        found = asked.log_probability(
            worlds, Generator().manual_seed(seed), exactly=False, chains=200, steps=60, sweeps=60
        )
        assert exact.exact
        assert not found.exact
        least, most = found.interval
        assert least - 0.05 < exact.log_z < most + 0.05
        assert most - least < 0.5
        assert torch.allclose(found.values, exact.values, atol=0.3)
        assert (found.least <= found.values).all()
        assert (found.values <= found.most).all()


def test_a_world_against_the_evidence_has_probability_zero() -> None:
    asked = random_case(1).conditional
    worlds = SPACE.enumerate()
    allowed = asked.evidence.allows(worlds)
    logs = asked.log_probability(worlds).values
    assert (logs[~allowed] == float("-inf")).all()
    assert float(logs[allowed].exp().sum()) == pytest.approx(1)


def test_a_potential_of_one_s_own_is_asked_like_any_other() -> None:
    potential = network(5)
    exact = distribution(potential)
    worlds = SPACE.enumerate()
    held = worlds[:, SPACE.block("mark").first_group] == 1
    found = Conditional.of_potential(potential).marginals("mark(0)")
    assert found["mark(0)"].value == pytest.approx(float(exact[held].sum()))


def test_without_a_free_group_nothing_is_sampled() -> None:
    world = SPACE.enumerate()[77]
    everything = Evidence.observe(SPACE, world, range(SPACE.groups))
    asked = Conditional.of_formulas(SPACE, weighted(0), everything)
    found = asked.marginals("mark", exactly=False)
    assert found.exact
    assert {one.value for one in found} <= {0.0, 1.0}


def test_networks_are_enumerated_only_where_few_worlds_are_left() -> None:
    program = parse_mln("edge(node, node) irreflexive\n1 edge(x, y)")
    space = Space(program.language, {"node": 5})  # 2^20 worlds
    assert Conditional.of_formulas(space, program.formulas).enumerable
    network = FragmentPotential(space, 1, 2, (4,))
    assert not Conditional.of_potential(network).enumerable


def test_evidence_about_another_space_is_refused() -> None:
    other = Space(SPACE.language, {"node": 2})
    with pytest.raises(InputError, match="evidence is about another space"):
        Conditional.of_formulas(SPACE, weighted(0), Evidence.none(other))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chains": 0}, "chains must be at least 1"),
        ({"sweeps": 2}, "sweeps must be at least 4"),
        ({"error": 0.0}, "error to reach must be positive"),
        ({"kernel": "walk"}, "no kernel 'walk'"),
    ],
)
def test_plans_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan(**options)


def test_long_traces_are_averaged_and_keep_their_means() -> None:
    rng = Generator().manual_seed(0)
    rows = torch.rand(64, 3, 2, generator=rng).double().numpy()
    traces = Traces(keep=8)
    for row in rows:
        traces.add(row)
    kept = traces.array()
    assert len(kept) <= 16
    assert kept.mean((0, 1)) == pytest.approx(rows.mean((0, 1)))


@pytest.mark.slow
def test_chains_stop_when_the_errors_are_small_enough() -> None:
    asked = random_case(0).conditional
    rough = asked.marginals("mark", plan=Plan(chains=20, error=0.05), exactly=False)
    assert "100 sweeps" in rough.method
    fine = asked.marginals("mark", plan=Plan(chains=20, error=0.006, sweeps=800), exactly=False)
    assert max(one.error for one in fine) <= 0.006
    assert "100 sweeps" not in fine.method
    short = asked.marginals("mark", plan=Plan(chains=4, error=1e-5, sweeps=20), exactly=False)
    assert any("above the 1e-05" in told or "cannot be trusted" in told for told in short.warnings)
