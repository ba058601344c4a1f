"""Every kernel moves worlds where they are: all on one device, or the network on another."""

import pytest
import torch
from torch import Generator

from nmln.evidence import Evidence
from nmln.exchange import exchange, start_walkers
from nmln.kernels.balanced import BalancedMetropolis
from nmln.kernels.coloured import ColouredGibbs
from nmln.kernels.combined import Composition, Mixture
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.kernels.path import PathAuxiliary
from nmln.kernels.registry import KERNELS, kernel_named
from nmln.kernels.repair import repair
from nmln.logic import Literal
from nmln.noise import corrupt, uniform
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.total import TotalPotential
from nmln.recording import Recorder
from nmln.sampler import sample
from nmln.types import Kernel
from tests.devices.elsewhere import DEVICE, elsewhere, generator
from tests.potentials.test_contract import CONSTRAINT, FORMULAS, LEVELS, MOLECULES
from tests.strategies import random_worlds

CHAINS = 6
EVIDENCE = Evidence.of(
    MOLECULES,
    [
        Literal("atom", ("0", "N")),
        Literal("atom", ("1", "C"), False),
        Literal("bond", ("0", "1", "none"), False),
    ],
)
MIXED = {
    "coloured": lambda evidence: ColouredGibbs.of(network(), evidence, expects=True),
    "composition": lambda evidence: Composition(
        (
            BalancedMetropolis(MOLECULES, evidence, ("atom",)),
            GibbsWithGradients(MOLECULES, evidence, ("bond",)),
        )
    ),
    "mixture": lambda evidence: Mixture(
        (
            DiscreteLangevin(MOLECULES, evidence, (0.5, 1.0), ("bond",)),
            PathAuxiliary(MOLECULES, evidence, (1, 2)),
        )
    ),
}


def network() -> BasePotential:
    return GraphPotential(MOLECULES, LEVELS, 2, 8, rng=Generator().manual_seed(0)).double()


def kernel_of(name: str, evidence: Evidence | None) -> Kernel:
    return MIXED[name](evidence) if name in MIXED else kernel_named(name, MOLECULES, evidence)


def moved(
    potential: BasePotential, kernel: Kernel, evidence: Evidence | None, rng: Generator
) -> list[torch.Tensor]:
    """Worlds, scores and labels of chains after some sweeps, and what was recorded."""
    recorder, start = Recorder(), uniform(MOLECULES, LEVELS, CHAINS, rng, evidence)
    *_, sweep = sample(potential, kernel, start, 3, rng, burn_in=1, recorder=recorder)
    found = [sweep.state.values, sweep.state.scores, sweep.walkers]
    assert all(one.device == rng.device for one in found)
    return [*found, recorder.recording().acceptance, recorder.recording().swap_probability]


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
@pytest.mark.parametrize("name", [*KERNELS, *MIXED])
def test_kernels_move_worlds_on_a_device(name: str, evidence: Evidence | None) -> None:
    expected = moved(network(), kernel_of(name, evidence), evidence, Generator().manual_seed(0))
    with elsewhere():
        found = moved(network().to(DEVICE), kernel_of(name, evidence), evidence, generator())
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one.cpu(), other) or torch.allclose(one.cpu(), other, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KERNELS, *MIXED])
def test_kernels_move_worlds_of_the_cpu_by_a_network_without_double_precision(name: str) -> None:
    rng = Generator().manual_seed(0)
    expected = moved(network().float(), kernel_of(name, EVIDENCE), EVIDENCE, rng)
    with elsewhere(double=False):
        there = network().float().to(DEVICE)
        found = moved(there, kernel_of(name, EVIDENCE), EVIDENCE, Generator().manual_seed(0))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, equal_nan=True)


def screened() -> BasePotential:
    """A network beside a stand-in with random numbers."""
    rng = Generator().manual_seed(1)
    local = LocalPotential(MOLECULES, LEVELS)
    with torch.no_grad():
        for weights in local.parameters():
            weights.copy_(torch.randn(weights.shape, generator=rng))
    table = torch.randn(LEVELS, MOLECULES.entries, generator=rng)
    parts = [network().float(), IndependentPotential(MOLECULES, table), local]
    return TotalPotential(parts)


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
def test_walks_by_a_stand_in_are_taken_where_the_worlds_are(evidence: Evidence | None) -> None:
    kernel = kernel_named("screened", MOLECULES, evidence)
    expected = moved(screened().double(), kernel, evidence, Generator().manual_seed(0))
    with elsewhere():
        found = moved(screened().double().to(DEVICE), kernel, evidence, generator())
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one.cpu(), other, equal_nan=True)


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_walks_of_worlds_of_the_cpu_need_no_double_precision_elsewhere(
    compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMLN_COMPILED", compiled)
    kernel = kernel_named("screened", MOLECULES, EVIDENCE)
    expected = moved(screened(), kernel, EVIDENCE, Generator().manual_seed(0))
    with elsewhere(double=False):
        there = screened().to(DEVICE)
        found = moved(there, kernel, EVIDENCE, Generator().manual_seed(0))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.filterwarnings("ignore:rate 1.0 is noisier")
@pytest.mark.parametrize("rate", [0.001, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
def test_worlds_are_corrupted_where_they_are(rate: float, evidence: Evidence | None) -> None:
    worlds = random_worlds(MOLECULES, 300, 1)
    worlds = worlds if evidence is None else evidence.clamp(worlds)
    expected = corrupt(MOLECULES, worlds, rate, Generator().manual_seed(0), evidence)
    with elsewhere():
        found = corrupt(MOLECULES, worlds.to(DEVICE), rate, generator(), evidence)
        assert torch.equal(found.cpu(), expected)


def test_evidence_is_about_worlds_of_any_device() -> None:
    worlds = random_worlds(MOLECULES, 50, 1)
    with elsewhere():
        there = worlds.to(DEVICE)
        clamped = EVIDENCE.clamp(there)
        assert torch.equal(clamped.cpu(), EVIDENCE.clamp(worlds))
        assert torch.equal(EVIDENCE.allows(there).cpu(), EVIDENCE.allows(worlds))
        assert torch.equal(EVIDENCE.index(clamped).cpu(), EVIDENCE.index(EVIDENCE.clamp(worlds)))
        assert torch.equal(MOLECULES.unpack(MOLECULES.pack(there)).cpu(), worlds)
        assert torch.equal(MOLECULES.categories(MOLECULES.one_hot(there)).cpu(), worlds)
        assert torch.equal(MOLECULES.index(there).cpu(), MOLECULES.index(worlds))


def constrained() -> BasePotential:
    """A network under a hard formula that random worlds violate."""
    hard = FormulaPotential(MOLECULES, CONSTRAINT, LEVELS, dtype=torch.float64)
    return TotalPotential([network()]).add(hard)


def test_forbidden_worlds_are_repaired_where_they_are() -> None:
    worlds = random_worlds(MOLECULES, LEVELS * 20, 1).view(LEVELS, 20, -1)
    expected = repair(constrained(), worlds, Generator().manual_seed(0), EVIDENCE)
    assert bool((constrained().violations_of(worlds) > 0).any())
    with elsewhere():
        found = repair(constrained().to(DEVICE), worlds.to(DEVICE), generator(), EVIDENCE)
        assert torch.equal(found.cpu(), expected)


def test_formulas_that_are_added_follow_the_model_to_its_device() -> None:
    values = random_worlds(MOLECULES, LEVELS * CHAINS, 1).view(LEVELS, CHAINS, -1)

    def added() -> BasePotential:
        return FormulaPotential(MOLECULES, FORMULAS, LEVELS, dtype=torch.float64)

    expected = TotalPotential([network()]).add(added()).score(values)
    with elsewhere():
        total = TotalPotential([network().to(DEVICE)]).add(added())
        assert torch.equal(total.score(values.to(DEVICE)).detach().cpu(), expected.detach())


def test_levels_exchange_worlds_where_they_are() -> None:
    with elsewhere():
        potential, rng = network().to(DEVICE), generator()
        values = uniform(MOLECULES, LEVELS, CHAINS, rng)
        kernel = kernel_named("gradients", MOLECULES)
        for parity in (0, 1):
            found = exchange(
                potential, kernel.init(potential, values), start_walkers(values), parity, rng
            )
            assert found.walkers.device == found.info.swapped.device == DEVICE
