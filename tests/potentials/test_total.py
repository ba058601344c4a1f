import pytest
import torch
from torch import Generator

from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.language import Attribute, Language, predicate
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential, constraint
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.function import OneHotPotential, ValuesPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.image import ImagePotential
from nmln.potentials.tempered import TemperedPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from tests.exact import distribution

SPACE = Space(
    Language(
        Attribute("atom", ("node",), ("C", "O")),
        predicate("bond", "node", "node", symmetric=True, reflexive=False),
    ),
    {"node": 3},
)
NO_PEROXIDE = [parse_formula("atom(x, O) ^ atom(y, O) => !bond(x, y).", SPACE.language)]


def trained(levels: int = 3) -> TotalPotential:
    network = GraphPotential(SPACE, levels, 2, 8, rng=Generator().manual_seed(1))
    return TotalPotential([network]).double()


def test_a_formula_added_afterwards_conditions_the_target_exactly() -> None:
    before = trained()
    after = before.add(constraint(SPACE, NO_PEROXIDE, 3).double())
    worlds = SPACE.enumerate()
    allowed = after.score(worlds.expand(3, -1, -1))[2] > float("-inf")
    assert 0 < int(allowed.sum()) < len(worlds)
    plain = distribution(before, level=2) * allowed
    assert torch.allclose(distribution(after, level=2), plain / plain.sum())
    assert (distribution(after, level=0) > 0).all(), "noisier levels can still cross"
    assert (
        distribution(after, level=0)[~allowed].sum() < distribution(before, level=0)[~allowed].sum()
    )


def test_a_part_acts_only_at_its_levels_and_shares_the_old_parameters() -> None:
    before = trained()
    after = before.add(OneHotPotential(SPACE, lambda x: x[..., 0]).double(), levels=[1], beta=2.0)
    worlds = SPACE.enumerate().expand(3, -1, -1)
    change = (after.score(worlds) - before.score(worlds)).detach()
    assert not change[0].any()
    assert not change[2].any()
    assert torch.allclose(change[1], 2.0 * SPACE.one_hot(worlds[1], torch.float64)[:, 0])
    assert after.parts[0] is before.parts[0]
    assert [beta.requires_grad for beta in after.betas] == [True, False]


def test_scores_and_slopes_are_the_weighted_sums_of_the_parts() -> None:
    rng = Generator().manual_seed(3)
    parts: list[BasePotential] = [
        GraphPotential(SPACE, 2, 2, 8, rng=rng).double(),
        FragmentPotential(SPACE, 2, rng=rng).double(),
    ]
    total = TotalPotential(parts)
    weights = torch.randn(2, 2, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        for beta, weight in zip(total.betas, weights, strict=True):
            beta.copy_(weight)
    values = SPACE.enumerate().expand(2, -1, -1)
    onehot = SPACE.one_hot(values, torch.float64).requires_grad_()
    sums = sum(
        (w[:, None] * part(onehot) for w, part in zip(weights, parts, strict=True)), torch.zeros(())
    )
    (slopes,) = torch.autograd.grad(sums.sum(), onehot)
    found = total.score_and_slopes(values)
    assert torch.allclose(found[0], sums)
    assert torch.allclose(found[1], slopes)


def test_tempering_divides_scores_slopes_and_alternatives() -> None:
    network = GraphPotential(SPACE, 1, 2, 8).double()
    tempered = TemperedPotential(network, (3.0, 1.0))
    values = SPACE.enumerate()[:20].view(2, 10, -1)
    scores, slopes = tempered.score_and_slopes(values)
    groups = torch.arange(20).remainder(SPACE.groups).view(2, 10)
    alternatives = tempered.score_alternatives(values, groups)
    for level, temperature in enumerate((3.0, 1.0)):
        onehot = SPACE.one_hot(values[level : level + 1], torch.float64).requires_grad_()
        plain = network(onehot)
        (plain_slopes,) = torch.autograd.grad(plain.sum(), onehot)
        assert torch.allclose(scores[level], plain[0] / temperature)
        assert torch.allclose(slopes[level], plain_slopes[0] / temperature)
        expected = network.score_alternatives(values[level : level + 1], groups[level : level + 1])
        assert torch.allclose(alternatives[level], expected[0] / temperature)


def test_parts_of_different_precision_add_up_in_that_of_the_first() -> None:
    single = GraphPotential(SPACE, 1, 2, 8)
    double = ValuesPotential(SPACE, lambda values: values.double().sum(-1))
    total = TotalPotential([single]).add(double)
    values = SPACE.enumerate()[None]
    assert total.score(values).dtype == total.score_and_slopes(values)[0].dtype == torch.float32
    assert TotalPotential([single.double()]).add(double).score(values).dtype == torch.float64


def test_formulas_can_be_exact_in_double_precision() -> None:
    formula = parse_formula("0.7 atom(x, O)", SPACE.language)
    potential = FormulaPotential(SPACE, [formula], dtype=torch.float64)
    assert potential.score(SPACE.enumerate()[None]).max().item() == pytest.approx(2.1, abs=1e-15)


def test_forbidden_worlds_stay_forbidden_whatever_beta() -> None:
    total = TotalPotential([constraint(SPACE, NO_PEROXIDE, 1)])
    worlds = SPACE.enumerate()[None]
    wanted = total.score(worlds) == float("-inf")
    with torch.no_grad():
        for beta in (0.0, -1.0):
            total.betas[0].fill_(beta)
            assert torch.equal(total.score(worlds) == float("-inf"), wanted)


def test_the_betas_learn() -> None:
    total = trained(1)
    values = SPACE.enumerate()[None, 5:6]
    total.score(values).sum().backward()
    grad = total.betas[0].grad
    assert grad is not None
    assert torch.isclose(grad[0], total.parts[0].score(values)[0, 0])  # pyright: ignore


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TotalPotential([]), "at least one part"),
        (lambda: trained().add(GraphPotential(SPACE, 2)), "has 2 levels, but is to act at 3"),
        (
            lambda: trained().add(GraphPotential(SPACE, 1), levels=[7]),
            "different numbers from 0 to 2",
        ),
        (
            lambda: trained().add(GraphPotential(Space(SPACE.language, {"node": 2}), 3)),
            "is over another space",
        ),
        (
            lambda: TemperedPotential(GraphPotential(SPACE, 2), (1.0,)),
            "takes a potential of one level",
        ),
        (lambda: TemperedPotential(GraphPotential(SPACE, 1), (0.0,)), "positive and finite"),
        (lambda: ImagePotential(SPACE, 1, "bond", layers=0), "at least one channel, layer"),
        (
            lambda: OneHotPotential(SPACE, lambda x: x.argmax(-1).float()).score_and_slopes(
                SPACE.enumerate()[None]
            ),
            "cannot be differentiated by the one-hot entries. Make a ValuesPotential",
        ),
        (
            lambda: OneHotPotential(SPACE, lambda x: x.sum(-1) / 0).score(SPACE.enumerate()[None]),
            "gives inf at level 0, chain 0; .*it is the function itself that fails here",
        ),
        (lambda: ImagePotential(SPACE, 1), "say which predicate is the picture"),
        (lambda: ImagePotential(SPACE, 1, "atom"), "a picture needs a binary predicate"),
        (
            lambda: ValuesPotential(SPACE, lambda v: v.sum(-1)).score(SPACE.enumerate()[None]),
            r"must return floating-point scores of shape \(levels, chains\) = \(1, 64\), but .*int64",
        ),
        (
            lambda: OneHotPotential(SPACE, lambda x: x).score(SPACE.enumerate()[None]),
            r"of shape \(1, 64, 12\)",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
