"""What every potential promises. A new one is added to CASES and passes all of this."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.language import Attribute, Language, predicate
from nmln.potentials.base import BasePotential, NeuralPotential, ScoreError
from nmln.potentials.bounded import BoundedPotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.fragment import DeepSetPotential, FragmentPotential
from nmln.potentials.function import OneHotPotential, TablePotential, ValuesPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.image import ImagePotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.pieces import PiecesPotential
from nmln.potentials.quantified import QuantifiedPotential
from nmln.potentials.rings import RingsPotential
from nmln.potentials.scaled import ScaledPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from nmln.types import Potential
from tests.strategies import random_worlds

LEVELS, CHAINS = 2, 5

MOLECULES = Space(
    Language(
        Attribute("atom", ("node",), tuple("CNO")),
        Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False),
    ),
    {"node": 4},
)
SORTS = Space(
    Language(
        predicate("p", "a"),
        Attribute("k", ("b",), ("x", "none", "y")),
        predicate("r", "a", "b"),
        predicate("s", "a", "a", symmetric=True),
        Attribute("t", ("b", "b"), ("u", "w"), reflexive=False, optional=True),
        predicate("rain"),
    ),
    {"a": 3, "b": 2},
)
TERNARY = Space(
    Language(predicate("p", "a"), predicate("between", "a", "a", "a", reflexive=False)), {"a": 4}
)
WEATHER = Space(Language(predicate("rain"), Attribute("wind", (), ("N", "E", "S"))), {})
BOARD = Space(Language(predicate("queen", "row", "column")), {"row": 4, "column": 3})
FORMULAS = [
    parse_formula("1.5 atom(x, C) ^ bond(x, y, single) => atom(y, +t)", MOLECULES.language),
    parse_formula("-0.7 EXIST y (bond(x, y, double) ^ !atom(y, C))", MOLECULES.language),
    parse_formula("0.3 FORALL y (bond(x, y, none) v atom(x, O) v x = y)", MOLECULES.language),
]
CONSTRAINT = [
    parse_formula("atom(x, O) ^ atom(y, O) => bond(x, y, none) v x = y.", MOLECULES.language)
]

Build = Callable[[Space, Generator], BasePotential]


@dataclass(frozen=True)
class Case:
    name: str
    space: Space
    build: Build
    invariant: bool = True


def formula_potential(space: Space, rng: Generator) -> BasePotential:
    potential = FormulaPotential(space, FORMULAS, LEVELS)
    with torch.no_grad():
        potential.weights.add_(torch.randn(potential.weights.shape, generator=rng))
    return potential


def cosines(onehot: Tensor) -> Tensor:
    return onehot.cos().sum(-1)


def squares(values: Tensor) -> Tensor:
    return (values.double() ** 2).sum(-1)


def total(space: Space, rng: Generator) -> BasePotential:
    parts = [
        DeepSetPotential(space, LEVELS, features=4, hidden=(8,), rng=rng),
        formula_potential(space, rng),
    ]
    result = TotalPotential(parts)
    with torch.no_grad():
        for beta in result.betas:
            beta += torch.randn(beta.shape, generator=rng)
    return result


def graph(layers: int = 3, hidden: int = 16, **options: Any) -> Build:
    return lambda space, rng: GraphPotential(space, LEVELS, layers, hidden, rng=rng, **options)


def fragment(width: int = 2, **options: Any) -> Build:
    return lambda space, rng: FragmentPotential(space, LEVELS, width, (8,), rng=rng, **options)


def deep_set(space: Space, rng: Generator) -> BasePotential:
    return DeepSetPotential(space, LEVELS, 2, 8, (8,), rng=rng)


def quantified(quantifiers: tuple[str, ...], sorts: tuple[str, ...] | None = None) -> Build:
    return lambda space, rng: QuantifiedPotential(space, LEVELS, quantifiers, sorts, (8,), rng=rng)


def image(space: Space, rng: Generator) -> BasePotential:
    return ImagePotential(space, LEVELS, channels=3, layers=2, hidden=8, rng=rng)


def bounded(space: Space, rng: Generator) -> BasePotential:
    return BoundedPotential(GraphPotential(space, LEVELS, 2, 8, rng=rng), 0.5)


def table(space: Space, rng: Generator) -> BasePotential:
    return TablePotential(space, torch.randn(LEVELS, space.number_of_worlds, generator=rng))


def independent(space: Space, rng: Generator) -> BasePotential:
    values = random_worlds(space, 40 * LEVELS, int(rng.initial_seed())).view(LEVELS, 40, -1)
    return IndependentPotential.fit(space, values)


def tempered(space: Space, rng: Generator) -> BasePotential:
    return TemperedPotential(GraphPotential(space, 1, 2, 8, rng=rng), (3.0, 1.0))


def scaled(space: Space, rng: Generator) -> BasePotential:
    return ScaledPotential(GraphPotential(space, LEVELS, 2, 8, rng=rng), (0.3, 2.0))


def local(space: Space, rng: Generator) -> BasePotential:
    return LocalPotential(space, LEVELS)


def pieces(space: Space, rng: Generator) -> BasePotential:
    return PiecesPotential(space, LEVELS)


def rings(space: Space, rng: Generator) -> BasePotential:
    return RingsPotential(space, lambda seen: GraphPotential(seen, LEVELS, 2, 8, rng=rng))


CASES = [
    Case("graph", MOLECULES, graph()),
    Case("graph wide", MOLECULES, graph(2, 96)),
    Case("graph of sorts", SORTS, graph()),
    Case("graph of sorts wide", SORTS, graph(2, 100)),
    Case("graph residual", MOLECULES, graph(residual=True, pool_scale=0.3)),
    Case("graph with none", MOLECULES, graph(include_null=True)),
    Case("graph of means", SORTS, graph(mean_messages=True)),
    Case("graph of one node", WEATHER, graph()),
    Case("fragment", MOLECULES, fragment()),
    Case("fragment of three", TERNARY, fragment(3)),
    Case("fragment of sorts", SORTS, fragment()),
    Case("fragment embedding", SORTS, fragment(embedding=3), invariant=False),
    Case("deep set", MOLECULES, deep_set),
    Case("deep set of sorts", SORTS, deep_set),
    Case("quantified min max", MOLECULES, quantified(("min", "max"))),
    Case(
        "quantified of sorts",
        SORTS,
        quantified(("sum", "max", "mean", "min"), ("a", "b", "a", "b")),
    ),
    Case("image", BOARD, image, invariant=False),
    Case("formula", MOLECULES, formula_potential),
    Case("one-hot function", BOARD, lambda space, _: OneHotPotential(space, cosines, LEVELS)),
    Case("values function", BOARD, lambda space, _: ValuesPotential(space, squares, LEVELS)),
    Case("table", WEATHER, table),
    Case("bounded", MOLECULES, bounded),
    Case("independent", SORTS, independent),
    Case("total", MOLECULES, total),
    Case("tempered", MOLECULES, tempered),
    Case("scaled", MOLECULES, scaled),
    Case("local", MOLECULES, local),
    Case("local of sorts", SORTS, local),
    Case("pieces", MOLECULES, pieces),
    Case("pieces of sorts", SORTS, pieces),
    Case("rings", MOLECULES, rings),
    Case("rings of sorts", SORTS, rings),
]
EXACT_SLOPES = {
    "local",
    "local of sorts",
    "pieces",
    "pieces of sorts",
    "formula",
    "values function",
    "table",
    "independent",
}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def build(case: Case, seed: int = 0) -> BasePotential:
    """In float64, with every bias away from zero so that nothing hides."""
    potential = case.build(case.space, Generator().manual_seed(seed)).double()
    rng = Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in potential.parameters():
            noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            parameter += 0.1 * noise
    return potential


def worlds(case: Case, seed: int = 0) -> Tensor:
    return random_worlds(case.space, LEVELS * CHAINS, seed).view(LEVELS, CHAINS, -1)


def score(potential: BasePotential, values: Tensor) -> Tensor:
    with torch.no_grad():
        return potential.score(values)


def test_it_keeps_the_protocol(case: Case) -> None:
    potential = build(case)
    assert isinstance(potential, Potential)
    assert potential.levels == LEVELS
    scores, slopes = potential.score_and_slopes(worlds(case))
    assert scores.shape == (LEVELS, CHAINS)
    assert slopes.shape == (LEVELS, CHAINS, case.space.entries)
    assert not scores.requires_grad
    assert torch.allclose(scores, score(potential, worlds(case)))


def test_relabelling_constants_changes_nothing_where_that_is_promised(case: Case) -> None:
    potential, values = build(case), worlds(case)
    before = score(potential, values)
    changed = 0.0
    for order in permutations(range(3)):
        orders = {
            s: [*order[: len(n)], *range(3, len(n))]
            for s, n in case.space.domain.items()
            if len(n) > 2
        }
        after = score(potential, case.space.relabel(values, orders))
        changed = max(changed, float((after - before).abs().max()))
    assert (
        changed < 1e-9
        if case.invariant or case.name in EXACT_SLOPES | {"one-hot function"}
        else changed > 1e-6
    )


def test_a_world_scores_the_same_in_any_company(case: Case) -> None:
    potential, values = build(case), worlds(case)
    together = score(potential, values)
    for chain in range(CHAINS):
        assert torch.allclose(
            score(potential, values[:, chain : chain + 1]), together[:, chain : chain + 1]
        )
    many = values.repeat(1, 150, 1)
    assert torch.allclose(score(potential, many), together.repeat(1, 150))
    strided = torch.stack([values, values], dim=-1)[..., 0]
    assert torch.allclose(score(potential, strided.long()), together)
    none = values[:, :0]
    groups = torch.zeros(LEVELS, 0, dtype=torch.int64)
    assert score(potential, none).shape == (LEVELS, 0)
    assert potential.score_and_slopes(none)[1].shape == (LEVELS, 0, case.space.entries)
    assert potential.score_alternatives(none, groups).shape[:2] == (LEVELS, 0)


def test_inference_mode_leaves_nothing_behind(case: Case) -> None:
    potential, values = build(case), worlds(case)
    with torch.inference_mode():
        inside, slopes = potential.score_and_slopes(values)
        assert torch.allclose(potential.score(values), inside)
    outside = potential.score_and_slopes(values)
    assert torch.allclose(outside[0], inside)
    assert torch.allclose(outside[1], slopes)
    if isinstance(potential, NeuralPotential | GraphPotential):
        onehot = case.space.one_hot(values, torch.float64).requires_grad_()
        torch.autograd.grad(potential(onehot).sum(), onehot)


def test_slopes_are_finite_differences(case: Case) -> None:
    potential, values = build(case), worlds(case)
    space = case.space
    if isinstance(potential, NeuralPotential | GraphPotential):
        rng = Generator().manual_seed(3)
        onehot = space.one_hot(values, torch.float64)
        inner = onehot + 0.2 * torch.rand(onehot.shape, generator=rng, dtype=torch.float64)
        inner.requires_grad_()
        (slopes,) = torch.autograd.grad(potential(inner).sum(), inner)
        for entry in range(0, space.entries, 3):
            step = torch.zeros(space.entries, dtype=torch.float64)
            step[entry] = 1e-6
            with torch.no_grad():
                difference = (potential(inner + step) - potential(inner - step)) / 2e-6
            assert torch.allclose(slopes[..., entry], difference, atol=1e-5)
        onehot.requires_grad_()
        (at_worlds,) = torch.autograd.grad(potential(onehot).sum(), onehot)
        assert torch.allclose(potential.score_and_slopes(values)[1], at_worlds)
        return
    if case.name in EXACT_SLOPES:
        scores, slopes = potential.score_and_slopes(values)
        for group in range(space.groups):
            first, size = int(space.offsets[group]), int(space.sizes[group])
            now = slopes.gather(2, first + values[..., group, None].long())
            for category in range(size):
                changed = values.clone()
                changed[..., group] = category
                difference = score(potential, changed) - scores
                assert torch.allclose(slopes[..., first + category] - now.squeeze(2), difference)


def test_gradients_by_parameters_are_finite_differences(case: Case) -> None:
    potential, values = build(case), worlds(case)
    parameters = [p for p in potential.parameters() if p.requires_grad]
    if not parameters:
        return
    weights = torch.randn(LEVELS, CHAINS, generator=Generator().manual_seed(4), dtype=torch.float64)
    (potential.score(values) * weights).sum().backward()
    rng = Generator().manual_seed(5)
    directions = [torch.randn(p.shape, generator=rng, dtype=torch.float64) for p in parameters]
    expected = sum(
        (p.grad * d).sum()
        for p, d in zip(parameters, directions, strict=True)
        if p.grad is not None
    )

    def along(step: float) -> Tensor:
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter += step * direction
            result = (potential.score(values) * weights).sum()
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter -= step * direction
        return result

    difference = (along(1e-7) - along(-1e-7)) / 2e-7
    assert torch.allclose(torch.as_tensor(expected), difference, rtol=1e-4, atol=1e-5)


def test_levels_have_parameters_of_their_own(case: Case) -> None:
    potential, values = build(case), worlds(case)
    if isinstance(potential, TemperedPotential):
        return
    parameters = [p for p in potential.parameters() if p.requires_grad]
    if parameters:
        potential.score(values)[1].sum().backward()
        for parameter in parameters:
            if parameter.grad is not None:
                assert len(parameter.grad) % LEVELS == 0
                assert not parameter.grad.view(LEVELS, -1)[0].any()


def test_every_category_of_a_group_is_scored_as_if_alone(case: Case) -> None:
    potential, values = build(case), worlds(case)
    rng = Generator().manual_seed(6)
    groups = torch.randint(case.space.groups, (LEVELS, CHAINS), generator=rng)
    with torch.no_grad():
        scores = potential.score_alternatives(values, groups)
    sizes = case.space.sizes[groups]
    for category in range(scores.shape[-1]):
        changed = values.clone()
        changed.scatter_(2, groups[..., None], category)
        exists = category < sizes
        assert (scores[..., category][~exists] == float("-inf")).all()
        changed[~exists] = values[~exists]
        assert torch.allclose(scores[..., category][exists], score(potential, changed)[exists])


def test_changes_of_many_groups_are_differences_of_scores(case: Case) -> None:
    potential, values = build(case), worlds(case)
    groups = torch.randperm(case.space.groups, generator=Generator().manual_seed(7))[:5]
    possible = score(potential, values) > float("-inf")
    changes = potential.score_changes(values, groups)
    for place, group in enumerate(groups):
        chosen = torch.full((LEVELS, CHAINS), int(group))
        with torch.no_grad():
            scores = potential.score_alternatives(values, chosen)
        expected = scores - scores.gather(2, values[..., group, None].long())
        assert torch.allclose(changes[:, :, place][possible], expected[possible])


def test_alternatives_pass_on_their_gradient(case: Case) -> None:
    potential, values = build(case), worlds(case)
    parameters = [p for p in potential.parameters() if p.requires_grad]
    if not parameters:
        return
    groups = torch.arange(LEVELS * CHAINS).remainder(case.space.groups).view(LEVELS, CHAINS)
    found = potential.score_alternatives(values, groups)
    found[found > float("-inf")].sum().backward()
    gradient = [p.grad for p in parameters]
    potential.zero_grad()
    for category in range(found.shape[-1]):
        exists = (category < case.space.sizes[groups]).double()
        changed = values.clone()
        chosen = torch.full_like(groups, category).minimum(case.space.sizes[groups] - 1)
        changed.scatter_(2, groups[..., None], chosen[..., None].to(values.dtype))
        (potential.score(changed) * exists).sum().backward()
    for parameter, expected in zip(parameters, gradient, strict=True):
        assert (parameter.grad is None) == (expected is None)
        if expected is not None and parameter.grad is not None:
            assert torch.allclose(parameter.grad, expected)


def test_it_moves_between_types_and_keeps_its_state(case: Case) -> None:
    potential, values = build(case), worlds(case)
    wanted = score(potential, values)
    other = case.build(case.space, Generator().manual_seed(99)).double()
    other.load_state_dict(potential.state_dict())
    if list(potential.parameters()):
        assert torch.allclose(score(other, values), wanted)
        single = potential.float()
        assert score(single, values).dtype == torch.float32
        assert torch.allclose(score(single, values).double(), wanted, rtol=1e-3, atol=1e-3)
        assert torch.allclose(
            score(single.to("cpu").double(), values), wanted, rtol=1e-3, atol=1e-3
        )


def test_wrong_shapes_are_refused(case: Case) -> None:
    potential, values = build(case), worlds(case)
    for wrong in (values[:1], values[..., :-1]):
        with pytest.raises(InputError, match="levels, chains, groups"):
            potential.score(wrong)
    outside = values.clone()
    outside[1, 2, 0] = 200
    with pytest.raises(InputError, match="but is 200 at level 1, chain 2"):
        potential.score(outside)
    with pytest.raises(InputError, match="must be chosen for every chain"):
        potential.score_alternatives(values, torch.full((LEVELS, CHAINS), case.space.groups))


def test_weights_that_are_not_numbers_are_named(case: Case) -> None:
    potential, values = build(case), worlds(case)
    parameters = dict(potential.named_parameters())
    if not parameters:
        return
    name, parameter = list(parameters.items())[-1]
    with torch.no_grad():
        parameter.fill_(float("nan"))
    with pytest.raises(
        ScoreError, match=rf"gives nan at level .*the parameter .*{name}.* is not finite"
    ) as caught:
        score(potential, values)
    assert caught.value.world.shape == (case.space.groups,)


def test_independent_groups_have_an_exact_log_z_and_draws() -> None:
    potential = independent(WEATHER, Generator().manual_seed(3))
    assert isinstance(potential, IndependentPotential)
    everything = WEATHER.enumerate()
    scores = score(potential.double(), everything.expand(LEVELS, -1, -1))
    assert torch.allclose(potential.log_z, scores.logsumexp(1))
    draws = potential.draw(40_000, Generator().manual_seed(4))
    for level in range(LEVELS):
        shares = (draws[level][:, None] == everything).all(-1).double().mean(0)
        assert torch.allclose(shares, scores[level].softmax(0), atol=0.012)
