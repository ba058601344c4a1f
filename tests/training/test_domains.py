"""Several domains learned together, held against enumeration on spaces of three sizes."""

from math import isclose

import pytest
import torch
from torch import Generator, Tensor

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
from nmln.training.buckets import Bucket, deal, shares_of

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


def test_the_gradient_is_that_of_the_joint_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(optimiser={"spread": 0.0, "average": 0.0})
    data = [
        Bucket(space, space.enumerate()[3 : 3 + number])
        for space, number in zip(SPACES, (5, 20, 15), strict=True)
    ]
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
        clean = part.worlds.expand(len(RATES), -1, -1)
        monkeypatch.setattr(part, "minibatch", lambda step, clean=clean: clean)
    trainer._accumulate()
    found = torch.cat([p.grad.flatten() for p in potential.parameters() if p.grad is not None])
    potential.zero_grad()
    joint = torch.zeros((), dtype=torch.float64)
    for bucket, share in zip(data, (5 / 40, 20 / 40, 15 / 40), strict=True):
        there = potential.on(bucket.space)
        everything = there.score(bucket.space.enumerate().expand(len(RATES), -1, -1))
        scores = there.score(bucket.worlds.expand(len(RATES), -1, -1))
        joint = joint + share * (everything.logsumexp(1) - scores.mean(1)).sum()
    joint.backward()
    wanted = torch.cat([p.grad.flatten() for p in potential.parameters() if p.grad is not None])
    assert float((found - wanted).norm()) < 0.02 * float(wanted.norm())


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


def test_too_few_replicas_for_the_domains_are_refused() -> None:
    with pytest.raises(InputError, match=r"3 domains.*takes 12"):
        deal(10, (0.5, 0.25, 0.25), 4)
    with pytest.raises(InputError, match="no worlds"):
        Trainer(
            GraphPotential(SPACES[0], len(RATES), 1, 4),
            [Bucket(SPACES[0], SPACES[0].enumerate()[:0])],
            settings(),
        )


def test_shares_are_those_of_the_data() -> None:
    found = shares_of(buckets(targets()))
    assert all(isclose(one, other) for one, other in zip(found, (0.2, 0.3, 0.5), strict=True))
