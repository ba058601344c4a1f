"""A potential on another domain: shared weights, and the scores of one that was built there."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.language import Attribute, Language, predicate
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from tests.potentials.test_contract import CASES, LEVELS, MOLECULES, Case, build
from tests.strategies import random_worlds

BOUND = {"fragment embedding", "image", "one-hot function", "values function", "table"}
"""Cases that belong to the constants that they were built with."""

FREE = [case for case in CASES if case.name not in BOUND and case.space.domain]
LEARNED = [case for case in FREE if case.name != "independent"]  # its numbers depend on the domain


def larger(space: Space, more: int = 2) -> Space:
    """The same language over more constants of every sort, in another order than by size."""
    counts = {
        sort: len(names) + more + place for place, (sort, names) in enumerate(space.domain.items())
    }
    return Space(space.language, counts)


def smaller(space: Space) -> Space:
    """The same language with one constant less of every sort that has more than two."""
    counts = {sort: max(min(2, len(n)), len(n) - 1) for sort, n in space.domain.items()}
    return Space(space.language, counts)


def values_on(space: Space, seed: int, chains: int = 6) -> Tensor:
    values = random_worlds(space, LEVELS * chains, seed).view(LEVELS, chains, -1)
    values[:, 0] = 0  # without links, so that there are pieces to count
    return values


def built_there(case: Case, space: Space, template: BasePotential) -> BasePotential:
    """A potential that was built on a space and then given the weights of a template."""
    potential = case.build(space, Generator().manual_seed(7)).double()
    names = dict(template.named_parameters())
    with torch.no_grad():
        for name, parameter in potential.named_parameters():
            parameter.copy_(names[name])
    return potential


@pytest.fixture(params=FREE, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.mark.parametrize("resized", [larger, smaller])
@pytest.mark.parametrize("case", LEARNED, ids=lambda case: case.name)
def test_it_scores_as_one_that_was_built_there(
    case: Case, resized: Callable[[Space], Space]
) -> None:
    space, template = resized(case.space), build(case)
    here, there = template.on(space), built_there(case, space, template)
    assert here.space == space
    assert here.levels == template.levels
    values = values_on(space, 3)
    assert torch.allclose(here.score(values), there.score(values), atol=1e-10)
    for mine, theirs in zip(
        here.score_and_slopes(values), there.score_and_slopes(values), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-10)
    groups = torch.randint(space.groups, values.shape[:2], generator=Generator().manual_seed(1))
    mine = here.score_alternatives(values, groups)
    assert torch.allclose(mine, there.score_alternatives(values, groups), atol=1e-10)


def test_the_template_stays_as_it_was(case: Case) -> None:
    template = build(case)
    values = values_on(case.space, 5)
    before = template.score(values)
    other = template.on(larger(case.space))
    other.score(values_on(other.space, 5))
    assert torch.equal(template.score(values), before)
    assert template.space == case.space
    assert template.on(case.space) is template


@pytest.mark.parametrize("case", LEARNED, ids=lambda case: case.name)
def test_parameters_are_shared_and_gradients_flow_to_them(case: Case) -> None:
    template = build(case)
    space = larger(case.space)
    other, alone = template.on(space), built_there(case, space, template)
    values = values_on(space, 9)
    for one in (other, alone):
        one.zero_grad()
        (one.score(values) * torch.linspace(-1, 1, values.shape[1])).sum().backward()
    mine = {name: p.grad for name, p in template.named_parameters()}
    for name, parameter in alone.named_parameters():
        expected, found = parameter.grad, mine[name]
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert torch.allclose(found, expected, atol=1e-9), name
    before = other.score(values).detach()
    with torch.no_grad():
        for parameter in template.parameters():
            parameter.mul_(1.1)
    assert not torch.allclose(other.score(values), before)


def test_levels_can_be_taken_on_either_domain(case: Case) -> None:
    template, space = build(case), larger(case.space)
    values = values_on(space, 2)
    one = template.on(space).at_levels([1]).score(values[1:])
    other = template.at_levels([1]).on(space).score(values[1:])
    assert torch.allclose(one, template.on(space).score(values)[1:])
    assert torch.allclose(other, one)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in BOUND], ids=lambda case: case.name
)
def test_what_belongs_to_its_constants_is_refused_by_name(case: Case) -> None:
    template = build(case)
    space = larger(case.space) if case.space.domain else Space(MOLECULES.language, {"node": 3})
    with pytest.raises(InputError) as error:
        template.on(space)
    expected = type(template).__name__ if case.space.domain else "another language"
    assert expected in str(error.value)


def test_a_total_names_the_part_that_is_refused() -> None:
    parts = [
        GraphPotential(MOLECULES, LEVELS, 1, 4),
        FragmentPotential(MOLECULES, LEVELS, embedding=2),
    ]
    with pytest.raises(InputError, match="FragmentPotential"):
        TotalPotential(parts).on(larger(MOLECULES))


def test_another_language_is_refused_with_its_difference() -> None:
    other = Language(*MOLECULES.language, predicate("charged", "node"))
    with pytest.raises(InputError, match=r"only the space has charged\(node\)") as error:
        GraphPotential(MOLECULES, LEVELS, 1, 4).on(Space(other, {"node": 4}))
    assert error.value.kind == "conflict"


def test_fragments_that_a_small_domain_lacks_are_refused() -> None:
    potential = FragmentPotential(MOLECULES, LEVELS, 3)
    with pytest.raises(InputError, match="need as many constants"):
        potential.on(Space(MOLECULES.language, {"node": 2}))


def test_a_weight_per_constant_is_refused_and_named() -> None:
    language = Language(predicate("smokes", "person"))
    template = FormulaPotential(
        Space(language, {"person": ["Anna", "Bob"]}), [parse_formula("1 smokes(+x)", language)]
    )
    with pytest.raises(InputError, match="a formula with") as error:
        template.on(Space(language, {"person": ["Anna", "Bob", "Carl"]}))
    assert "Carl" in str(error.value)


# The marginals of the base term.

LANGUAGE = Language(
    Attribute("atom", ("node",), tuple("CNO")),
    Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False),
)


def base_of(chances: dict[int, float]) -> IndependentPotential:
    """The base term of graphs of several sizes, whose pairs are linked with a chance each."""
    spaces = [Space(LANGUAGE, {"node": size}) for size in chances]
    values = []
    for space, chance in zip(spaces, chances.values(), strict=True):
        rng = Generator().manual_seed(len(values))
        some = torch.zeros(2, 4000, space.groups, dtype=space.dtype)
        block = space.block("bond").groups
        linked = torch.rand(some[..., block].shape, generator=rng) < chance
        some[..., block] = linked.to(space.dtype)
        values.append(some)
    return IndependentPotential.fit_all(spaces, values)


def chance_of(potential: BasePotential, size: int) -> float:
    space = Space(LANGUAGE, {"node": size})
    grounded = potential.on(space)
    block = space.block("bond")
    numbers = space.entries_of(grounded.score_and_slopes(values_on(space, 1))[1], block)
    return float(numbers[0, 0].reshape(-1, 3)[0].softmax(-1)[1])


def test_known_sizes_have_their_own_marginals() -> None:
    potential = base_of({4: 0.5, 9: 0.2})
    assert chance_of(potential, 4) == pytest.approx(0.5, abs=0.01)
    assert chance_of(potential, 9) == pytest.approx(0.2, abs=0.01)
    there = potential.on(Space(LANGUAGE, {"node": 9}))
    assert chance_of(there, 4) == pytest.approx(chance_of(potential, 4))


def test_sizes_between_are_interpolated_in_log_odds() -> None:
    potential = base_of({4: 0.5, 16: 0.1})
    middle = chance_of(potential, 8)  # half way in the logarithm
    odds = [chance_of(potential, size) / (1 - chance_of(potential, size)) for size in (4, 16)]
    assert middle / (1 - middle) == pytest.approx((odds[0] * odds[1]) ** 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("known", "size"), [({5: 0.4}, 50), ({5: 0.4, 10: 0.18}, 100), ({10: 0.1}, 5)]
)
def test_beyond_the_known_sizes_links_per_node_stay(known: dict[int, float], size: int) -> None:
    potential = base_of(known)
    nearest = min(known, key=lambda one: abs(one - size))
    chances = [chance_of(potential, one) for one in (nearest, size)]
    odds = [chance / (1 - chance) for chance in chances]
    assert odds[1] / odds[0] == pytest.approx(nearest / size, rel=1e-4)


def test_a_size_without_pairs_shows_nothing_about_links() -> None:
    with_single, without = base_of({1: 0.0, 3: 0.6, 4: 0.4}), base_of({3: 0.6, 4: 0.4})
    for size in (2, 3, 4, 6):
        wanted = chance_of(without, size)
        assert chance_of(with_single, size) == pytest.approx(wanted, abs=0.02)
    assert chance_of(base_of({1: 0.0}), 3) == pytest.approx(
        0.2
    )  # odds of 1/3 for both kinds of link


def test_domains_of_one_size_have_the_mean_of_their_marginals() -> None:
    people = Language(predicate("smokes", "person"))
    domains = (["Anna", "Bob"], ["X", "Y"], ["a", "b", "c"])
    spaces = [Space(people, {"person": names}) for names in domains]
    values = []
    for number, (space, chance) in enumerate(zip(spaces, (0.1, 0.9, 0.5), strict=True)):
        drawn = torch.rand(1, 4000, space.groups, generator=Generator().manual_seed(number))
        values.append((drawn < chance).to(space.dtype))

    def chances(potential: BasePotential) -> list[float]:
        found = [
            potential.on(space).score_and_slopes(space.enumerate()[None])[1] for space in spaces
        ]
        return [float(one[0, 0, :2].softmax(-1)[1]) for one in found]

    weighted = IndependentPotential.fit_all(spaces, values, shares=(0.2, 0.6, 0.2))
    assert chances(weighted) == pytest.approx([0.7, 0.7, 0.5], abs=0.02)
    by_number = IndependentPotential.fit_all(spaces, [values[0], values[1][:, :2000], values[2]])
    assert chances(by_number) == pytest.approx([1.1 / 3, 1.1 / 3, 0.5], abs=0.02)


def test_one_domain_is_enough() -> None:
    space = Space(LANGUAGE, {"node": 5})
    values = torch.zeros(1, 50, space.groups, dtype=space.dtype)
    values[..., 0] = 1
    potential = IndependentPotential.fit(space, values)
    other = potential.on(Space(LANGUAGE, {"node": 7}))
    assert set(other.state_dict()) == set(potential.state_dict()) == {"table"}
    back = other.on(space)
    assert isinstance(back, IndependentPotential)
    assert torch.allclose(back.table, potential.table, atol=1e-6)


def test_the_marginals_of_all_domains_are_saved() -> None:
    potential = base_of({4: 0.5, 9: 0.2})
    empty = IndependentPotential(potential.space, torch.zeros_like(potential.table), 2)
    empty.load_state_dict(potential.state_dict())
    assert chance_of(empty, 9) == chance_of(potential, 9)


def test_groundings_of_a_model_draw_and_normalise() -> None:
    there = base_of({4: 0.5, 9: 0.2}).on(Space(LANGUAGE, {"node": 6}))
    assert isinstance(there, IndependentPotential)
    assert torch.allclose(there.log_z, torch.zeros(2, dtype=torch.float64), atol=1e-5)
    assert there.draw(10, Generator().manual_seed(0)).shape == (2, 10, there.space.groups)


def test_levels_of_marginals_of_as_many_domains_as_levels_are_taken() -> None:
    potential = base_of({4: 0.5, 9: 0.2})  # two domains, two levels
    with torch.no_grad():
        potential.known_numbers[:, 1] -= 1.0 * torch.arange(6)
    values = values_on(Space(LANGUAGE, {"node": 9}), 4)
    whole, part = potential.on(Space(LANGUAGE, {"node": 9})), potential.at_levels([1])
    there = part.on(Space(LANGUAGE, {"node": 9}))
    assert torch.allclose(there.score(values[1:]), whole.score(values)[1:])
