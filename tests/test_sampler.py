from itertools import islice
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.formats.db import read_db
from nmln.formats.mln import parse_formula
from nmln.kernels.combined import Composition, Lazy, Mixture
from nmln.kernels.gibbs import Gibbs
from nmln.kernels.gradient import GibbsWithGradients
from nmln.kernels.langevin import DiscreteLangevin
from nmln.kernels.metropolised import MetropolisedGibbs
from nmln.ladders import Ladder
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.noise import noised
from nmln.potentials.base import ScoreError
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.function import OneHotPotential, TablePotential, ValuesPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.potentials.total import TotalPotential
from nmln.sampler import sample, snapshot
from nmln.space import Space
from nmln.types import Kernel, Potential, Sweep

pytestmark = pytest.mark.usefixtures("unchecked")

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
        ({"sweeps": -1}, "sweeps must be at least 0"),
        ({"moves": 0}, "moves must be at least 1"),
        ({"thin": 0}, "thin must be at least 1"),
        ({"values": None}, "give values, or a snapshot to resume"),
        ({"values": starts(1)[:, :0]}, "with at least one chain"),
    ],
)
def test_a_run_that_cannot_be_is_refused(options, message: str) -> None:
    given = {"values": starts(1), "sweeps": 1, **options}
    with pytest.raises(InputError, match=message) as caught:
        list(sample(noised_levels(), Gibbs(SPACE), rng=Generator(), **given))
    assert caught.value.token in options


def test_values_for_another_number_of_levels_are_refused() -> None:
    with pytest.raises(InputError, match="has 3 levels, but the chains start at 2"):
        list(sample(noised_levels(), Gibbs(SPACE), starts(4, 2), 1, Generator()))


def test_a_start_that_contradicts_the_evidence_is_refused() -> None:
    evidence = Evidence.of(SPACE, [Literal("k", ("0", "y"))])
    kernel = Mixture((Gibbs(SPACE, evidence), Lazy(MetropolisedGibbs(SPACE, evidence))))
    with pytest.raises(InputError, match=r"chain 0 of level 0 .* contradicts the evidence"):
        list(sample(noised_levels(), kernel, starts(4), 1, Generator()))


def test_a_start_that_a_hard_formula_forbids_is_repaired_within_the_evidence() -> None:
    hard = FormulaPotential(SPACE, [parse_formula('k(x, "x") v k(x, "y").', SPACE.language)])
    evidence = Evidence.of(SPACE, [Literal("k", ("1", "y"))])
    values = evidence.clamp(starts(9, 1))
    allowed = hard.score(values) == 0
    (sweep,) = sample(hard, Lazy(Gibbs(SPACE, evidence), 0.999999), values, 1, Generator())
    assert (hard.score(sweep.state.values) == 0).all()
    assert evidence.allows(sweep.state.values).all()
    assert torch.equal(sweep.state.values[0][allowed[0]], values[0][allowed[0]])
    assert not allowed.all()


def test_a_start_that_cannot_be_repaired_names_the_formula() -> None:
    rules = ['k(x, "x").', '!k(x, "x").']
    hard = FormulaPotential(SPACE, [parse_formula(rule, SPACE.language) for rule in rules], 1)
    total = TotalPotential([GraphPotential(SPACE, 1), hard])
    with pytest.raises(InputError, match=r'Still violated: !?k\(x, "x"\)\.'):
        list(sample(total, Gibbs(SPACE), starts(2, 1), 1, Generator()))


def test_an_energy_of_ones_own_that_forbids_the_start_is_repaired_or_refused() -> None:
    only = ValuesPotential(SPACE, lambda values: torch.where(values[..., 0] == 2, 0.0, -torch.inf))
    (sweep,) = sample(only, Gibbs(SPACE), starts(5, 1), 1, Generator())
    assert (sweep.state.values[..., 0] == 2).all()

    class Bare:
        levels = 1
        score, score_and_slopes = only.score, only.score_and_slopes
        score_alternatives = only.score_alternatives

    with pytest.raises(InputError, match="starts in a world of score minus infinity"):
        list(sample(Bare(), Gibbs(SPACE), starts(5, 1), 1, Generator()))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_score_that_cannot_be_ends_the_run_with_its_world_saved(
    wrong: float, tmp_path: Path
) -> None:
    def score(values: Tensor) -> Tensor:
        return torch.where((values == 2).all(-1), wrong, 0.5 * values.double().sum(-1))

    potential = ValuesPotential(SPACE, score)
    runs = sample(
        potential,
        Gibbs(SPACE),
        starts(3, 1),
        1000,
        Generator().manual_seed(0),
        rescue=tmp_path / "offending.db",
    )
    with pytest.raises(ScoreError, match=r"gives (nan|inf) at level 0.*saved as .*offending.db"):
        list(runs)
    _, worlds = read_db(tmp_path / "offending.db", SPACE.language, SPACE.domain)
    assert (worlds[0] == 2).all()


def test_by_default_the_offending_world_is_in_the_error_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    potential = ValuesPotential(SPACE, lambda values: values.double().sum(-1) * float("nan"))
    with pytest.raises(ScoreError) as caught:
        list(sample(potential, Gibbs(SPACE), starts(3, 1), 5, Generator().manual_seed(0)))
    assert caught.value.world.shape == (SPACE.groups,)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kernel", [Gibbs(SPACE), GibbsWithGradients(SPACE)])
def test_an_energy_that_changes_between_calls_is_noticed(kernel: Kernel) -> None:
    calls = iter(range(10**6))
    drifting = ValuesPotential(
        SPACE, lambda values: values.double().sum(-1) + 0.01 * next(calls), levels=2
    )
    with pytest.raises(InputError, match="the energy changes between calls: the world of chain"):
        list(sample(drifting, kernel, starts(3, 2), 5, Generator()))


def test_one_level_is_sampled_without_exchange() -> None:
    potential = TablePotential(SPACE, TARGET.log()[None])
    runs = list(sample(potential, Gibbs(SPACE), starts(3, 1), 4, Generator().manual_seed(0)))
    assert [len(swap.pairs) for sweep in runs for swap in sweep.swaps] == [0] * 8


def test_step_sizes_adapt_while_warming_up_and_then_stay() -> None:
    space = Space(Language(predicate("up", "site")), {"site": 20})

    def ring(onehot: Tensor) -> Tensor:
        spins = onehot[..., 1::2] - onehot[..., ::2]
        return 0.8 * (spins * spins.roll(1, -1)).sum(-1)

    potential = TemperedPotential(OneHotPotential(space, ring), (4.0, 2.0, 1.0))
    kernel = Composition((DiscreteLangevin(space, alpha=50.0), Gibbs(space)))
    start = torch.zeros(3, 100, 20, dtype=torch.uint8)
    runs = list(sample(potential, kernel, start, 300, Generator().manual_seed(0), warm_up=200))
    sizes = [sweep.tuning.log_sizes for sweep in runs]
    assert not torch.equal(sizes[0][0], sizes[199][0])
    assert all(torch.equal(sizes[199][0], later[0]) for later in sizes[200:])
    assert sizes[0][1].isnan().all(), "Gibbs sampling has no step size"
    later = torch.stack([sweep.moves.by_kernel[0] for sweep in runs[200:]]).mean(0)
    assert (later - 0.574).abs().max() < 0.05
    assert runs[0].kernels == ("DiscreteLangevin", "Gibbs")


def test_a_run_resumed_while_it_warms_up_continues_bit_for_bit() -> None:
    potential, kernel = noised_levels(), DiscreteLangevin(SPACE)
    whole = list(sample(potential, kernel, starts(5), 12, Generator().manual_seed(3), warm_up=9))
    rng = Generator().manual_seed(3)
    *_, fourth = islice(sample(potential, kernel, starts(5), 12, rng, warm_up=9), 4)
    kept = snapshot(fourth, rng)
    rest = list(sample(potential, kernel, None, 12, Generator(), warm_up=9, resume=kept))
    assert torch.equal(whole[-1].state.values, rest[-1].state.values)
    assert torch.equal(whole[-1].tuning.log_sizes, rest[-1].tuning.log_sizes)


def test_every_evaluation_is_counted() -> None:
    potential = noised_levels()
    first, last = sample(potential, Gibbs(SPACE), starts(4), 2, Generator().manual_seed(0))
    assert first.evaluations.scores == 12 + 12 * 3 + 2 * 12 + 12  # start, move, swaps, check
    assert last.evaluations.scores == first.evaluations.scores + 12 * 3 + 2 * 12
    assert last.evaluations.slopes == 0
    (one,) = sample(potential, GibbsWithGradients(SPACE), starts(4), 1, Generator().manual_seed(0))
    assert one.evaluations.slopes == 12 + 12 + 2 * 12
    assert one.evaluations.scores == 12
    assert one.evaluations.seconds > 0


def test_recorder_and_progress_see_what_is_not_given_out() -> None:
    class Counting:
        seen: ClassVar[list[int]] = []

        def record(self, sweep: Sweep) -> None:
            self.seen.append(sweep.number)

    told: list[tuple[int, int]] = []
    given = sample(
        noised_levels(),
        Gibbs(SPACE),
        starts(2),
        10,
        Generator(),
        burn_in=4,
        thin=3,
        recorder=Counting(),
        progress=lambda done, total: told.append((done, total)),
    )
    assert [sweep.number for sweep in given] == [7, 10]
    assert Counting.seen == list(range(5, 11))
    assert told == [(done, 10) for done in range(1, 11)]
