import pytest
import torch
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.files import InputError
from nmln.formats.mln import parse_formula
from nmln.kernels.combined import Mixture
from nmln.kernels.gibbs import Gibbs
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.language import Attribute, Language
from nmln.logic import Literal
from nmln.noise import Ladder, noised
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.function import ValuesPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.sampler import sample, snapshot
from nmln.space import Space
from nmln.types import Kernel, Potential

SPACE = Space(Language(Attribute("k", ("a",), tuple("xyz"), value_sort="s")), {"a": 3})  # 27 worlds
WORLDS = SPACE.enumerate()
TARGET = (4 * torch.randn(27, generator=Generator().manual_seed(0), dtype=torch.float64)).softmax(0)
LADDER = Ladder((0.4, 0.1, 0.0))


def noised_levels() -> ValuesPotential:
    """The exact noised distributions of one target: parallel noising as the theory has it."""
    table = torch.stack([noised(SPACE, TARGET, rate) for rate in LADDER]).log()
    return ValuesPotential(
        SPACE, lambda values: table[torch.arange(3)[:, None], SPACE.index(values)], levels=3
    )


def tempered_levels() -> TemperedPotential:
    one = ValuesPotential(SPACE, lambda values: TARGET.log()[SPACE.index(values)])
    return TemperedPotential(one, (4.0, 2.0, 1.0))


def starts(chains: int, levels: int = 3) -> Tensor:
    return WORLDS[torch.arange(levels * chains).view(levels, chains) % 27]


@pytest.mark.parametrize("phases", ["both", "alternate"])
@pytest.mark.parametrize("build", [noised_levels, tempered_levels])
def test_the_target_level_has_the_exact_distribution(build, phases) -> None:
    potential: Potential = build()
    kernel = Gibbs(SPACE)
    runs = sample(
        potential,
        kernel,
        starts(400),
        260,
        Generator().manual_seed(1),
        moves=3,
        phases=phases,
        burn_in=60,
        thin=20,
    )
    found = torch.cat([SPACE.index(sweep.state.values[2]) for sweep in runs])
    assert len(found) == 4000
    expected = len(found) * TARGET
    common = expected >= 5
    counts = torch.bincount(found, minlength=27).double()
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    assert float(chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue) > 1e-4


def test_clamped_chains_sample_the_conditional() -> None:
    evidence = Evidence.of(SPACE, [Literal("k", ("0", "y")), Literal("k", ("1", "z"), False)])
    potential = noised_levels()
    values = evidence.clamp(starts(400))
    runs = sample(
        potential,
        Gibbs(SPACE, evidence),
        values,
        160,
        Generator().manual_seed(2),
        moves=3,
        burn_in=60,
        thin=20,
    )
    found = torch.cat([SPACE.index(sweep.state.values[2]) for sweep in runs])
    allowed = evidence.allows(WORLDS)
    conditional = (TARGET * allowed) / TARGET[allowed].sum()
    share = torch.bincount(found, minlength=27).double() / len(found)
    assert share[~allowed].sum() == 0
    assert (share - conditional).abs().max() < 0.04


KERNELS: list[Kernel] = [
    Gibbs(SPACE),
    GibbsWithGradients(SPACE),
    DiscreteLangevin(SPACE),
    Mixture((GibbsWithGradients(SPACE), Gibbs(SPACE))),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_a_resumed_run_is_the_run_that_was_not_interrupted(kernel: Kernel) -> None:
    potential = GraphPotential(SPACE, 3, 2, 8)
    rng = Generator().manual_seed(3)
    whole = list(sample(potential, kernel, starts(5), 30, rng, moves=2, burn_in=4, thin=2))
    rng = Generator().manual_seed(3)
    kept = None
    for sweep in sample(potential, kernel, starts(5), 30, rng, moves=2, burn_in=4, thin=2):
        if sweep.number == 16:
            kept = snapshot(sweep, rng)
            break
    rest = list(
        sample(potential, kernel, None, 30, Generator(), moves=2, burn_in=4, thin=2, resume=kept)
    )
    assert [sweep.number for sweep in whole] == list(range(6, 31, 2))
    assert [sweep.number for sweep in rest] == list(range(18, 31, 2))
    for one, other in zip(whole[-len(rest) :], rest, strict=True):
        assert torch.equal(one.state.values, other.state.values)
        assert torch.equal(one.state.scores, other.state.scores)
        assert torch.equal(one.walkers, other.walkers)


def test_walkers_travel_through_all_levels_of_a_noise_ladder() -> None:
    seen = torch.zeros(3, 3, dtype=torch.bool)
    for sweep in sample(noised_levels(), Gibbs(SPACE), starts(20), 60, Generator().manual_seed(4)):
        assert (sweep.walkers.sort(0).values == torch.arange(3)[:, None]).all()
        for level in range(3):
            seen[level, sweep.walkers[level]] = True
    assert seen.all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sweeps": -1}, "sweeps must be at least 0, but is -1"),
        ({"moves": 0}, "moves must be at least 1, but is 0"),
        ({"thin": 0}, "thin must be at least 1, but is 0"),
        ({"values": None}, "give values, or a snapshot to resume"),
        ({"values": starts(1)[:, :0]}, "with at least one chain"),
    ],
)
def test_a_run_that_cannot_be_is_refused(options, message: str) -> None:
    given = {"values": starts(1), "sweeps": 1, **options}
    with pytest.raises(InputError, match=message):
        list(sample(noised_levels(), Gibbs(SPACE), rng=Generator(), **given))


def test_a_start_that_a_hard_formula_forbids_is_refused() -> None:
    hard = FormulaPotential(SPACE, [parse_formula('k(x, "x") v k(x, "y").', SPACE.language)], 3)
    with pytest.raises(
        InputError, match="chain 2 of level 0 starts in a world that a hard formula forbids"
    ):
        list(sample(hard, Gibbs(SPACE), starts(5), 1, Generator()))
