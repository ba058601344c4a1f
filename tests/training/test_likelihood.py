"""The gradient against the exact likelihood, and training against enumeration."""

import pytest
import torch
from torch import Generator, Tensor

from nmln.config import Config, configure
from nmln.language import Attribute, Language, predicate
from nmln.model import Model
from nmln.noise import noised
from nmln.potentials.base import BasePotential
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.graph import GraphPotential
from nmln.space import Space
from nmln.training import Trainer, train
from nmln.training.objective import accumulate_gradient, accumulate_local_gradient

SPACE = Space(
    Language(
        Attribute("type", ("node",), tuple("AB")),
        predicate("bond", "node", "node", symmetric=True, reflexive=False),
    ),
    {"node": 4},
)
WORLDS = SPACE.enumerate()  # 1024
RATES = (0.2, 0.05, 0.01)


def model(levels: int = 2) -> BasePotential:
    return FragmentPotential(SPACE, levels, 2, (8,), rng=Generator().manual_seed(1)).double()


def gradients(potential: BasePotential) -> list[Tensor]:
    return [p.grad.clone() for p in potential.parameters() if p.grad is not None]


def data(count: int = 50, levels: int = 2) -> Tensor:
    rng = Generator().manual_seed(2)
    return WORLDS[torch.randint(len(WORLDS), (levels, count), generator=rng)]


def exact_gradient(
    potential: BasePotential, positive: Tensor, penalty: float = 0.0
) -> list[Tensor]:
    """By differentiating the log-likelihood itself, log Z summed over all worlds."""
    potential.zero_grad()
    everything = potential.score(WORLDS.expand(potential.levels, -1, -1))
    scores = potential.score(positive)
    loss = (everything.logsumexp(1) - scores.mean(1)).sum()
    loss = loss + penalty * scores.square().mean(1).sum()
    loss.backward()
    return gradients(potential)


def test_the_local_gradient_is_that_of_one_conditional_of_every_world() -> None:
    potential, positive = model(), data(20)
    accumulate_local_gradient(potential, positive, Generator().manual_seed(3))
    found = gradients(potential)
    potential.zero_grad()
    groups = torch.randint(SPACE.groups, (20,), generator=Generator().manual_seed(3)).tolist()
    loss = torch.zeros((), dtype=torch.float64)
    for level in range(2):
        for world, group in zip(positive[level], groups, strict=True):
            others = torch.arange(SPACE.groups) != group
            alike = WORLDS[(WORLDS[:, others] == world[others]).all(1)]
            assert len(alike) == SPACE.sizes[group]
            logs = potential.score(alike.expand(2, -1, -1))[level].log_softmax(0)
            loss = loss - logs[(alike == world).all(1)].sum() / 20
    loss.backward()
    for one, other in zip(found, gradients(potential), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_with_an_exact_negative_phase_the_gradient_is_that_of_the_likelihood() -> None:
    potential, positive = model(), data()
    wanted = exact_gradient(potential, positive)
    potential.zero_grad()
    everywhere = WORLDS.expand(2, -1, -1)
    with torch.no_grad():
        weights = potential.score(everywhere).softmax(1)
    phases = accumulate_gradient(potential, positive, everywhere, weights)
    for found, expected in zip(gradients(potential), wanted, strict=True):
        assert torch.allclose(found, expected, atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(phases.positive, potential.score(positive).mean(1))
        mean = (weights * potential.score(everywhere)).sum(1)
    assert torch.allclose(phases.gap, phases.positive - mean)


def test_the_sampled_gradient_agrees_within_its_error() -> None:
    potential, positive = model(), data()
    wanted = torch.cat([g.flatten() for g in exact_gradient(potential, positive)])
    with torch.no_grad():
        chances = potential.score(WORLDS.expand(2, -1, -1)).softmax(1)
    rng, found = Generator().manual_seed(3), []
    for _ in range(200):
        potential.zero_grad()
        drawn = torch.stack([torch.multinomial(p, 50, True, generator=rng) for p in chances])
        accumulate_gradient(potential, positive, WORLDS[drawn])
        found.append(torch.cat([g.flatten() for g in gradients(potential)]))
    runs = torch.stack(found)
    error = runs.std(0) / len(runs) ** 0.5
    z = (runs.mean(0) - wanted).abs() / error.clamp(min=1e-12)
    moving = error > 1e-9
    assert z[moving].max() < 5
    assert z[moving].square().mean() < 2
    uniform = WORLDS[torch.randint(len(WORLDS), (2, 50_000), generator=rng)]
    potential.zero_grad()
    accumulate_gradient(potential, positive, uniform)
    wrong = torch.cat([g.flatten() for g in gradients(potential)])
    assert ((wrong - wanted).abs() / error.clamp(min=1e-12))[moving].max() > 5, "a twin must fail"


@pytest.mark.parametrize("option", ["penalty", "spread"])
def test_penalties_are_on_squared_scores_and_on_data_above_most_chains(option: str) -> None:
    potential, positive = model(), data()
    negative = data(70)[:, :4]
    potential.zero_grad()
    accumulate_gradient(potential, positive, negative)
    plain = gradients(potential)
    potential.zero_grad()
    penalty, spread = (0.1, 0.0) if option == "penalty" else (0.0, 0.1)
    accumulate_gradient(potential, positive, negative, penalty=penalty, spread=spread)
    found = gradients(potential)
    potential.zero_grad()
    above, below = potential.score(positive), potential.score(negative)
    if option == "penalty":
        extra = 0.1 * (above.square().mean(1) + below.square().mean(1))
    else:
        mean = above.mean(1, keepdim=True)
        highest = torch.maximum(below.quantile(0.95, dim=1, keepdim=True), mean)
        far = above - mean - (highest - mean).detach()
        assert 0.01 < float((far > 0).double().mean()) < 0.9
        extra = torch.where(far > 0, far**2, 0 * far).mean(1) / 0.2
    extra.sum().backward()
    for with_it, without, wanted in zip(found, plain, gradients(potential), strict=True):
        assert torch.allclose(with_it - without, wanted)


def target() -> Tensor:
    """Draws come from a random member of the family that is trained, sharper than its start."""
    network = GraphPotential(SPACE, 1, 2, 16, rng=Generator().manual_seed(5))
    with torch.no_grad():
        network.readout.layers[-1].weight.mul_(60)  # pyright: ignore
        return network.score(WORLDS[None])[0].double().softmax(0)


def divergences(potential: BasePotential, chances: Tensor) -> list[float]:
    """KL(target || model) at every level, by enumeration."""
    found = []
    with torch.no_grad():
        scores = potential.score(WORLDS.expand(potential.levels, -1, -1)).double().log_softmax(1)
    for rate, level in zip(RATES, scores, strict=True):
        exact = noised(SPACE, chances, rate)
        found.append(float((exact * (exact.log() - level)).sum()))
    return found


def settings(**chains: object) -> Config:
    return configure(
        {
            "ladder": {"rates": list(RATES)},
            "model": {"layers": 2, "hidden": 24},
            "chains": {"moves": 5, "replicas": 60, **chains},
            "optimiser": {"learning_rate": 5e-3, "average": 0.99},
            "training": {"steps": 500, "batch": 150},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["gradients", "gibbs", "langevin", "path"])
def test_training_reaches_the_noised_target_at_every_level(kernel: str) -> None:
    chances = target()
    assert chances.max() > 10 / len(chances), "a target that is nearly flat shows nothing"
    draws = torch.multinomial(chances, 20_000, True, generator=Generator().manual_seed(0))
    worlds = WORLDS[draws]
    begun = Model.build(SPACE, worlds, settings(kernel=kernel))
    assert max(divergences(begun.potential, chances)) > 0.1
    trainer = Trainer(begun.potential, worlds, begun.config)
    for _ in train(trainer):
        pass
    assert max(divergences(begun.averaged(trainer).potential, chances)) < 0.02
