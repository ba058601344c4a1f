"""Questions to a model on a device: partition functions, likelihoods, marginals, the best world."""

import math

import pytest
import torch
from torch import Generator

from nmln import devices
from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.inference import Conditional, Plan
from nmln.kernels.registry import kernel_named
from nmln.language import Attribute, Language
from nmln.logic import Literal
from nmln.model import Model
from nmln.partition import annealed, estimate_log_z, mbar, reverse_annealed, stepping_stone
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from nmln.types import Values
from tests.devices.elsewhere import DEVICE, SeededGenerator, elsewhere
from tests.devices.test_training import config
from tests.strategies import random_worlds

LEVELS = 2
PAIRS = Space(
    Language(
        Attribute("atom", ("node",), tuple("CNO")),
        Attribute("bond", ("node", "node"), ("none", "single"), True, False),
    ),
    {"node": 3},
)
EVIDENCE = Evidence.of(PAIRS, [Literal("atom", ("0", "N")), Literal("atom", ("1", "C"), False)])
HARD = [parse_formula("atom(x, O) ^ atom(y, O) => bond(x, y, none) v x = y.", PAIRS.language)]
WORLDS = torch.zeros(20, PAIRS.groups, dtype=PAIRS.dtype)
PLAN = Plan(chains=6, burn_in=2, sweeps=6, error=None)


@pytest.fixture(autouse=True)
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "Generator", SeededGenerator)


def network() -> BasePotential:
    return GraphPotential(PAIRS, LEVELS, 1, 4, rng=Generator().manual_seed(0)).double()


def constrained() -> BasePotential:
    hard = FormulaPotential(PAIRS, HARD, LEVELS, dtype=torch.float64)
    return TotalPotential([network()]).add(hard)


def rng_on(device: torch.device) -> Generator:
    return SeededGenerator(device).manual_seed(0)


def partition_functions(device: torch.device) -> list[float]:
    """log Z in every way that the package has, of the same chains."""
    potential, noisiest = network().to(device), network().at_levels([0]).to(device)
    kernel = kernel_named("gradients", PAIRS, EVIDENCE)
    draws: list[Values] = [
        EVIDENCE.clamp(random_worlds(PAIRS, LEVELS * 20, seed).view(LEVELS, 20, -1)).to(device)
        for seed in range(3)
    ]
    low = annealed(potential, kernel, 6, 4, rng_on(device), evidence=EVIDENCE)
    high = reverse_annealed(
        potential, kernel, draws, 4, rng_on(device), evidence=EVIDENCE, uniform=50
    )
    ratios, differences = stepping_stone(potential, draws), mbar(potential, draws)
    free = kernel_named("balanced", PAIRS)
    worlds = WORLDS.to(device)
    bracket = estimate_log_z(
        potential, noisiest, free, worlds, rng_on(device), chains=4, steps=4, sweeps=6
    )
    return [
        *low.log_z.tolist(),
        *high.log_z.tolist(),
        *ratios.forward.tolist(),
        *differences.log_ratios[0].tolist(),
        bracket.value,
    ]


def test_log_z_is_the_same_on_a_device() -> None:
    expected = partition_functions(devices.CPU)
    with elsewhere():
        assert partition_functions(DEVICE) == pytest.approx(expected, abs=1e-6)


def answers(device: torch.device) -> list[float]:
    """Marginals, log-probabilities and the most probable world, exactly and by chains."""
    rng = rng_on(device)
    hard = Conditional.of_potential(constrained().at_levels([-1]).to(device), EVIDENCE, levels=2)
    found = []
    for exactly in (True, False):
        asked = hard.marginals(
            "atom, bond(0, 1, single) ^ atom(1, O)", rng, plan=PLAN, exactly=exactly
        )
        best = hard.most_probable(rng, restarts=3, steps=4, exactly=exactly)
        worlds = EVIDENCE.clamp(WORLDS[:3])
        logs = hard.log_probability(worlds, rng, chains=100, steps=4, sweeps=6, exactly=exactly)
        assert best.world.device.type == logs.scores.device.type == "cpu"
        found += [*(one.value for one in asked.answers), best.score, *logs.values.tolist()]
    return [one if math.isfinite(one) else -1e9 for one in found]


@pytest.mark.slow
def test_answers_are_the_same_on_a_device() -> None:
    expected = answers(devices.CPU)
    with elsewhere():
        assert answers(DEVICE) == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_model_generates_and_answers_on_its_device() -> None:
    here = Model.build(PAIRS, WORLDS, config())

    def asked(model: Model) -> tuple[list[object], list[float]]:
        conditional = model.given(EVIDENCE, formulas=HARD)
        found = conditional.marginals("atom", model_rng(model), plan=PLAN, exactly=False)
        made = model.generate(5, chains=3, burn_in=3, thin=1, kind="atoms", evidence=EVIDENCE)
        return made, [one.value for one in found.answers]

    expected = asked(here)
    with elsewhere():
        found = asked(Model.build(PAIRS, WORLDS, config()).to(DEVICE))
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-6)


def model_rng(model: Model) -> Generator:
    return devices.generator(model.potential.device)
