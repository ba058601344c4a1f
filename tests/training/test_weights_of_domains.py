"""Weights of formulas from databases of several sizes, and what they say about another size.

Given who smokes, friendships and cancer are independent. So worlds of any size are drawn exactly, and
probabilities are sums over the smokers alone.
"""

from itertools import combinations, product
from math import exp

import pytest
import torch
from torch import Generator, Tensor

from nmln.buckets import Bucket
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.mln import parse_mln
from nmln.inference import Conditional
from nmln.logic import WeightedFormula
from nmln.potentials.formula import FormulaPotential
from nmln.space import Space
from nmln.training.weights import Learned, Recipe, learn_weights
from tests.exact import distribution

pytestmark = pytest.mark.usefixtures("unchecked")

PROGRAM = parse_mln("""
smokes(person)
cancer(person)
friends(person, person) symmetric irreflexive
0.9 smokes(x) => cancer(x)
0.5 friends(x, y) => (smokes(x) <=> smokes(y))
-0.6 friends(x, y)
-0.4 smokes(x)
""")
TRUE = torch.tensor([0.9, 0.5, -0.6, -0.4]).double()
QUICK = Recipe(updates=40, sweeps=2, chains=60, levels=3, hottest=2.0, final_sweeps=60)


def people(count: int) -> Space:
    return Space(PROGRAM.language, {"person": count})


class Factors:
    """The score of formulas in factors: of each person, and of each pair."""

    def __init__(self, formulas: tuple[WeightedFormula, ...]) -> None:
        def scores(count: int) -> dict[tuple[int, ...], float]:
            space = people(count)
            found = FormulaPotential(space, formulas, dtype=torch.float64)
            worlds = space.enumerate()
            numbers = found.score(worlds[None])[0].tolist()
            return dict(zip(map(tuple, worlds.tolist()), numbers, strict=True))

        one, two = scores(1), scores(2)
        self.person = {(s, c): one[s, c] - one[0, 0] for s in (0, 1) for c in (0, 1)}
        # Friendship adds so much, between two who are alike and between two who are not.
        self.pair = {
            alike: two[1, int(alike), 0, 0, 1] - two[1, int(alike), 0, 0, 0]
            for alike in (False, True)
        }

    def weight(self, smokers: tuple[int, ...]) -> float:
        """The sum of all worlds with these smokers, unnormalised."""
        found = 1.0
        for smokes in smokers:
            found *= exp(self.person[smokes, 0]) + exp(self.person[smokes, 1])
        for one, other in combinations(smokers, 2):
            found *= 1 + exp(self.pair[one == other])
        return found

    def draw(self, space: Space, number: int, rng: Generator) -> Tensor:
        """Independent worlds."""
        count = len(space.domain["person"])
        every = list(product((0, 1), repeat=count))
        chances = torch.tensor([self.weight(smokers) for smokers in every], dtype=torch.float64)
        rows = []
        for chosen in torch.multinomial(chances, number, replacement=True, generator=rng).tolist():
            smokers = every[chosen]
            odds = [self.person[s, 1] - self.person[s, 0] for s in smokers]
            odds += [self.pair[a == b] for a, b in combinations(smokers, 2)]
            chance = torch.tensor(odds, dtype=torch.float64).sigmoid()
            true = torch.rand(len(odds), generator=rng, dtype=torch.float64) < chance
            rows.append(torch.cat([torch.tensor(smokers), true.long()]))
        return torch.stack(rows).to(space.dtype)


def databases(sizes: dict[int, int], seed: int) -> list[Bucket]:
    rng, factors = Generator().manual_seed(seed), Factors(PROGRAM.formulas)
    return [
        Bucket(people(size), factors.draw(people(size), number, rng))
        for size, number in sizes.items()
    ]


def learned(data: list[Bucket], *, exactly: bool | None = None) -> Learned:
    fresh = [WeightedFormula(one.formula) for one in PROGRAM.formulas]
    return learn_weights(data, fresh, None, Generator().manual_seed(1), QUICK, exactly=exactly)


def test_the_factors_are_those_of_the_model() -> None:
    space, factors = people(3), Factors(PROGRAM.formulas)
    exact = distribution(FormulaPotential(space, PROGRAM.formulas, dtype=torch.float64))
    worlds = space.enumerate()[:, :3]
    every = list(product((0, 1), repeat=3))
    weights = torch.tensor([factors.weight(one) for one in every], dtype=torch.float64)
    for smokers, share in zip(every, weights / weights.sum(), strict=True):
        here = (worlds == torch.tensor(smokers)).all(1)
        assert float(exact[here].sum()) == pytest.approx(float(share))
    drawn = factors.draw(space, 4000, Generator().manual_seed(0)).double().mean(0)
    assert torch.allclose(drawn, exact @ space.enumerate().double(), atol=0.04)


def test_three_databases_of_4_6_and_9_people_give_the_weights_within_their_errors() -> None:
    """And the marginals of a fourth domain, of five people, are those of the weights."""
    found = learned(databases({4: 30, 6: 30, 9: 30}, seed=3))
    assert not found.exact
    away = (found.weights - TRUE) / found.errors
    assert float(away.abs().max()) < 3
    assert float(found.errors.max()) < 0.4, "the data are informative"
    assert float((TRUE / found.errors).abs().min()) > 1.5, "the weights differ from 0"
    asked = Conditional.of_formulas(people(5), found.formulas, Evidence.none(people(5)))
    answers = asked.marginals("smokes(0), cancer(0), friends(0, 1), smokes(0) ^ friends(0, 1)")
    assert "Exact" in answers.method
    factors = Factors(found.formulas)
    chance = dict.fromkeys(("smokes", "cancer", "friends", "both"), 0.0)
    for smokers in product((0, 1), repeat=5):
        weight = factors.weight(smokers)
        odds = [exp(factors.person[smokers[0], cancer]) for cancer in (0, 1)]
        friends = 1 / (1 + exp(-factors.pair[smokers[0] == smokers[1]]))
        chance["smokes"] += weight * smokers[0]
        chance["cancer"] += weight * odds[1] / sum(odds)
        chance["friends"] += weight * friends
        chance["both"] += weight * friends * smokers[0]
    total = sum(factors.weight(smokers) for smokers in product((0, 1), repeat=5))
    expected = [number / total for number in chance.values()]
    assert [one.value for one in answers] == pytest.approx(expected, abs=1e-9)


def test_errors_are_those_of_all_domains_together() -> None:
    """Over twenty sets of data; errors that count one of two domains fail the same check."""
    scores, alone = [], []
    for seed in range(20):
        data = databases({2: 150, 3: 150}, seed)
        found = learned(data)
        assert found.exact
        scores.append((found.weights - TRUE) / found.errors)
        alone.append((found.weights - TRUE) / learned(data[:1]).errors)
    squares = torch.stack(scores).square()
    assert squares.max() < 4.5**2
    assert 0.65 < squares.mean() < 1.45
    assert torch.stack(alone).square().mean() < 0.65


def test_the_joint_gradient_vanishes_and_one_bucket_is_the_same_as_its_worlds() -> None:
    data = databases({2: 40, 3: 20}, seed=5)
    found = learned(data)
    gradient = torch.zeros(4, dtype=torch.float64)
    for bucket in data:
        model = FormulaPotential(bucket.space, found.formulas, dtype=torch.float64)
        counts = model.counts(bucket.space.enumerate()[None])[0]
        own = model.counts(bucket.worlds[None])[0]
        gradient += own.sum(0) - len(own) * (distribution(model) @ counts)
    gradient -= found.weights / QUICK.prior**2
    assert float(gradient.abs().max()) < 1e-5
    one = data[0]
    rng = Generator()
    mine = learn_weights([one], PROGRAM.formulas, None, rng)
    assert torch.equal(
        mine.weights, learn_weights(one.space, PROGRAM.formulas, one.worlds, rng).weights
    )


def test_domains_without_worlds_and_weights_of_constants_are_refused() -> None:
    data = databases({2: 5, 3: 5}, seed=0)
    with pytest.raises(InputError, match="no worlds"):
        learn_weights([], PROGRAM.formulas, None, Generator())
    with pytest.raises(InputError, match="no worlds"):
        learn_weights(data[0].space, PROGRAM.formulas, None, Generator())
    language = "smokes(person)\ncancer(person)\nfriends(person, person) symmetric irreflexive\n"
    template = parse_mln(f"{language}1 smokes(+x)").formulas
    with pytest.raises(InputError, match="on only one of the two domains"):
        learn_weights(data, template, None, Generator())
    hard = parse_mln(f"{language}smokes(x).\n1 cancer(x)").formulas
    with pytest.raises(InputError, match="with 2 constants violates the hard formula"):
        learn_weights(data, hard, None, Generator())
