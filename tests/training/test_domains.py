"""Several domains learned together, held against enumeration on spaces of three sizes."""

from math import isclose

import pytest
import torch
from torch import Generator, Tensor

from nmln.buckets import Bucket, deal, shares_of
from nmln.config import Config, configure
from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.model.assembly import new_potential
from nmln.noise import noised
from nmln.potentials.base import BasePotential
from nmln.potentials.fragment import DeepSetPotential
from nmln.potentials.graph import GraphPotential
from nmln.space import Space
from nmln.training import Trainer, train
from nmln.training.blocks import DomainBlock
from nmln.training.objective import accumulate_gradient
from nmln.training.sizes import dealt, step_worlds

LANGUAGE = Language(
    Attribute("type", ("node",), tuple("AB")),
    predicate("bond", "node", "node", symmetric=True, reflexive=False),
)
SPACES = [Space(LANGUAGE, {"node": size}) for size in (2, 3, 4)]  # 8, 64 and 1,024 worlds
RATES = (0.2, 0.05, 0.01)
COUNTS = (4_000, 6_000, 10_000)


def settings(**tables: dict) -> Config:
    made: dict[str, dict] = {
        "ladder": {"rates": list(RATES)},
        "model": {"layers": 2, "hidden": 24},
        "chains": {"moves": 5, "replicas": 60},
        "optimiser": {"learning_rate": 5e-3, "average": 0.99},
        "training": {"steps": 500, "batch": 150},
    }
    return configure({name: made.get(name, {}) | tables.get(name, {}) for name in made | tables})


def targets() -> list[Tensor]:
    """The exact distributions of one random network on all sizes, sharper than its start."""
    network = GraphPotential(SPACES[0], 1, 2, 16, rng=Generator().manual_seed(5))
    with torch.no_grad():
        network.readout.layers[-1].weight.mul_(60)  # pyright: ignore
        return [
            network.on(space).score(space.enumerate()[None])[0].double().softmax(0)
            for space in SPACES
        ]


def buckets(chances: list[Tensor]) -> list[Bucket]:
    found = []
    for space, chance, count in zip(SPACES, chances, COUNTS, strict=True):
        rng = Generator().manual_seed(count)
        draws = torch.multinomial(chance, count, replacement=True, generator=rng)
        found.append(Bucket(space, space.enumerate()[draws]))
    return found


def divergences(potential: BasePotential, chances: list[Tensor]) -> list[float]:
    """KL(target || model) at every level and size."""
    found = []
    for space, chance in zip(SPACES, chances, strict=True):
        worlds = space.enumerate().expand(potential.levels, -1, -1)
        with torch.no_grad():
            scores = potential.on(space).score(worlds).double().log_softmax(1)
        for rate, level in zip(RATES, scores, strict=True):
            exact = noised(space, chance, rate)
            found.append(float((exact * (exact.log() - level)).sum()))
    return found


def unlike() -> list[Bucket]:
    """Shares of 1/8, 1/2 and 3/8."""
    return [
        Bucket(space, space.enumerate()[3 : 3 + number])
        for space, number in zip(SPACES, (5, 20, 15), strict=True)
    ]


def gradient_of(potential: BasePotential) -> Tensor:
    """The gradient of all parameters, which is set to zero."""
    found = torch.cat([p.grad.flatten() for p in potential.parameters() if p.grad is not None])
    potential.zero_grad()
    return found


def error_of_the_gradient(shares: tuple[float, ...] | None = None) -> float:
    """How far the gradient of training is from that of the joint likelihood, as a share of it.

    `shares` replace those of the data in training.
    """
    data, config = unlike(), settings(optimiser={"spread": 0.0, "average": 0.0})
    potential = DeepSetPotential(SPACES[0], len(RATES), features=4, hidden=(6,)).double()
    trainer = Trainer(potential, data, config)
    (block,) = trainer.blocks
    draws = 40_000
    for part in block.parts:  # exact draws in the place of chains, all data in that of a minibatch
        worlds = part.space.enumerate()
        with torch.no_grad():
            scores = part.domain.potential.score(worlds.expand(len(RATES), -1, -1))
        rng = Generator().manual_seed(part.domain.number)
        chosen = torch.multinomial(scores.softmax(1), draws, replacement=True, generator=rng)
        part.chains.values = torch.stack([worlds[row] for row in chosen])
        give_all(part)
        if shares is not None:
            part.domain = part.domain._replace(share=shares[part.domain.number])
    trainer._accumulate()
    found = gradient_of(potential)
    joint = torch.zeros((), dtype=torch.float64)
    for bucket, share in zip(data, (5 / 40, 20 / 40, 15 / 40), strict=True):
        there = potential.on(bucket.space)
        everything = there.score(bucket.space.enumerate().expand(len(RATES), -1, -1))
        scores = there.score(bucket.worlds.expand(len(RATES), -1, -1))
        joint = joint + share * (everything.logsumexp(1) - scores.mean(1)).sum()
    joint.backward()
    wanted = gradient_of(potential)
    return float((found - wanted).norm() / wanted.norm())


def give_all(part: DomainBlock) -> None:
    """Take all data of a domain, uncorrupted, in the place of a minibatch."""
    clean = part.worlds.expand(len(RATES), -1, -1)
    part.minibatch = lambda step: clean  # pyright: ignore


def test_the_gradient_is_that_of_the_joint_likelihood() -> None:
    assert error_of_the_gradient() < 0.02


def test_the_check_rejects_equal_shares() -> None:
    assert error_of_the_gradient(shares=(1 / 3, 1 / 3, 1 / 3)) > 0.1


@pytest.mark.parametrize("equal", [False, True])
def test_spread_and_penalty_of_a_domain_count_by_its_share(equal: bool) -> None:
    data, terms = unlike(), {"spread": 0.05, "energy_penalty": 0.3}
    config = settings(optimiser={**terms, "average": 0.0})
    rng = Generator().manual_seed(2)
    potential = DeepSetPotential(SPACES[0], len(RATES), features=4, hidden=(6,), rng=rng).double()
    trainer = Trainer(potential, data, config)
    parts = trainer.blocks[0].parts
    for part in parts:
        give_all(part)
    trainer._accumulate()
    found, each = gradient_of(potential), {}
    for spread, penalty in ((0.05, 0.3), (0.0, 0.3), (0.05, 0.0)):
        wanted = torch.zeros_like(found)
        for part in parts:
            accumulate_gradient(
                part.domain.potential,
                part.minibatch(0),
                trainer.method.negative(part.chains.values),
                penalty=penalty,
                spread=spread,
            )
            share = 1 / 3 if equal else part.domain.share
            wanted += share * gradient_of(potential)
        each[spread, penalty] = float((found - wanted).norm() / wanted.norm())
    assert (each.pop((0.05, 0.3)) < 1e-9) is not equal
    assert min(each.values()) > 1e-3, "both terms must act"


@pytest.mark.slow
def test_training_reaches_the_noised_target_at_every_level_and_size() -> None:
    chances = targets()
    assert all(chance.max() > 1.5 / len(chance) for chance in chances), "flat targets show nothing"
    data, config = buckets(chances), settings()
    potential = new_potential(data, config, ())
    assert max(divergences(potential, chances)) > 0.1
    trainer = Trainer(potential, data, config)
    for _ in train(trainer):
        pass
    assert trainer.average is not None
    assert max(divergences(trainer.average, chances)) < 0.02


def test_a_run_continues_from_its_tree_bit_for_bit() -> None:
    data = buckets(targets())
    config = settings(training={"steps": 6, "batch": 30}, chains={"replicas": 20})

    def new() -> Trainer:
        return Trainer(new_potential(data, config, ()), data, config)

    whole, first = new(), new()
    expected = [whole.step() for _ in range(6)]
    for _ in range(3):
        first.step()
    second = new()
    second.restore(first.tree())
    assert [second.step() for _ in range(3)] == expected[3:]
    for one, other in zip(whole.potential.parameters(), second.potential.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "chains",
    [
        {},
        {"phases": "alternate", "sweeps": 3},
        {"kernel": "gradients", "renewal": 0.1},
        {"kernel": "systematic", "moves": 1},
    ],
    ids=str,
)
def test_the_worlds_of_a_step_are_counted_before_it(chains: dict) -> None:
    data = buckets(targets())
    config = settings(chains={"replicas": 20, **chains}, training={"batch": 30})
    trainer = Trainer(new_potential(data, config, ()), data, config)
    told = step_worlds(dealt(data, config, 1), config)
    gradient = (20 + 30) * len(RATES)
    assert told == trainer.step().evaluations + gradient


def test_domains_have_streams_of_their_own() -> None:
    space = SPACES[2]
    worlds = space.enumerate()
    config = settings(chains={"replicas": 20}, training={"batch": 20})
    potential = GraphPotential(space, len(RATES), 1, 4)
    (block,) = Trainer(potential, [Bucket(space, worlds), Bucket(space, worlds)], config).blocks
    one, other = block.parts
    assert not torch.equal(one.chains.values, other.chains.values)
    assert not torch.equal(one.minibatch(0), other.minibatch(0))


@pytest.mark.parametrize(
    ("total", "shares", "least", "expected"),
    [
        (100, (1.0,), 4, [100]),
        (100, (0.5, 0.3, 0.2), 4, [50, 30, 20]),
        (100, (0.98, 0.01, 0.01), 4, [92, 4, 4]),
        (10, (0.4, 0.3, 0.3), 3, [4, 3, 3]),
        (7, (0.5, 0.5), 1, [4, 3]),
        (12, (0.7, 0.26, 0.04), 4, [4, 4, 4]),
    ],
)
def test_replicas_are_dealt_by_shares_with_a_floor(
    total: int, shares: tuple[float, ...], least: int, expected: list[int]
) -> None:
    assert deal(total, shares, least) == expected


def of_many_sizes(count: int) -> list[Bucket]:
    """One half of the worlds has the first size, the others are rare."""
    spaces = [Space(LANGUAGE, {"node": 2 + number}) for number in range(count)]
    return [
        Bucket(space, torch.zeros(1 if number else count - 1, space.groups, dtype=space.dtype))
        for number, space in enumerate(spaces)
    ]


@pytest.mark.parametrize(
    ("sizes", "replicas", "blocks", "least"),
    [(25, 100, 1, 4), (31, 100, 1, 3), (31, 100, 2, 3), (31, 31, 1, 1), (10, 100, 6, 6)],
)
def test_the_floor_is_lowered_where_it_does_not_fit(
    sizes: int, replicas: int, blocks: int, least: int
) -> None:
    config = settings(chains={"replicas": replicas}, training={"batch": replicas})
    found = dealt(of_many_sizes(sizes), config, blocks)
    assert sum(one.replicas for one in found) == sum(one.batch for one in found) == replicas
    assert min(one.replicas for one in found) == min(one.batch for one in found) == least


def test_too_few_replicas_for_the_domains_are_refused() -> None:
    with pytest.raises(InputError, match=r"at least 12 for 3 domains with at least 4 each, got 10"):
        deal(10, (0.5, 0.25, 0.25), 4)
    for setting, replicas, batch in (("chains.replicas", 30, 99), ("training.batch", 99, 30)):
        config = settings(chains={"replicas": replicas}, training={"batch": batch})
        with pytest.raises(
            InputError, match=rf"{setting} must be at least 31 .* got 30\."
        ) as error:
            new_potential(of_many_sizes(31), config, ())
        for cure in ("chains.replicas", "--sizes", "--max-size"):
            assert cure in str(error.value)
    with pytest.raises(InputError, match="no worlds"):
        Trainer(
            GraphPotential(SPACES[0], len(RATES), 1, 4),
            [Bucket(SPACES[0], SPACES[0].enumerate()[:0])],
            settings(),
        )


def test_shares_are_those_of_the_data() -> None:
    found = shares_of(buckets(targets()))
    assert all(isclose(one, other) for one, other in zip(found, (0.2, 0.3, 0.5), strict=True))
