import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float64
from scipy.stats import chisquare
from torch import Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.noise import (
    NoiseWarning,
    acceptance_bound,
    channel_matrix,
    corrupt,
    noised,
    swap_bound,
    total_variation_bound,
)
from nmln.space import Space
from tests.strategies import random_worlds

SPACE = Space(
    Language(
        Attribute("type", ("node",), tuple("CNOS"), value_sort="kind"),
        predicate("bond", "node", "node", symmetric=True, reflexive=False),
        Attribute("label", (), tuple("xyz")),
    ),
    {"node": "AB"},
)
EVIDENCE = Evidence.of(
    SPACE,
    [Literal("type", ("A", "N")), Literal("type", ("B", "O"), False), Literal("label", ("x",))],
)
RATES = (0.02, 0.06, 0.3, 0.5)  # the first two are drawn by positions, the others group by group
DRAWS = 400_000


def p_value(
    rate: float, evidence: Evidence | None, exact: Float64[Tensor, "worlds worlds"]
) -> float:
    """Chi-square of corrupted copies of one world against its row of a channel matrix."""
    rules = evidence or Evidence.none(SPACE)
    start = rules.enumerate()[5]
    rng = torch.Generator().manual_seed(0)
    drawn = corrupt(SPACE, start.expand(DRAWS, -1), rate, rng, evidence)
    counts = torch.bincount(rules.index(drawn), minlength=len(exact)).double()
    expected = DRAWS * exact[5]
    common = expected >= 5
    rare = (~common).any()
    observed = torch.cat([counts[common], counts[~common].sum()[None]] if rare else [counts])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]] if rare else [expected])
    return float(chisquare(observed, wanted * (observed.sum() / wanted.sum())).pvalue)


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
@pytest.mark.parametrize("rate", RATES)
def test_corrupted_worlds_follow_the_exact_channel(rate: float, evidence: Evidence | None) -> None:
    assert p_value(rate, evidence, channel_matrix(SPACE, rate, evidence)) > 1e-3


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
@pytest.mark.parametrize("rate", RATES)
def test_the_check_rejects_a_channel_that_may_redraw_the_same_category(rate, evidence) -> None:
    twin = torch.ones(1, 1, dtype=torch.float64)
    for count in (evidence or Evidence.none(SPACE)).counts.tolist():
        alike = torch.full((count, count), rate / count, dtype=torch.float64)
        twin = torch.kron(twin, alike + (1 - rate) * torch.eye(count, dtype=torch.float64))
    assert p_value(rate, evidence, twin) < 1e-6


def test_rate_zero_changes_nothing_and_rate_one_everything() -> None:
    worlds = random_worlds(SPACE, 1000)
    rng = torch.Generator().manual_seed(1)
    assert torch.equal(corrupt(SPACE, worlds, 0.0, rng), worlds)
    with pytest.warns(NoiseWarning):
        assert (corrupt(SPACE, worlds, 1.0, rng) != worlds).all()


@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_observed_groups_are_never_touched_and_the_rest_stay_allowed(rate: float) -> None:
    worlds = EVIDENCE.clamp(random_worlds(SPACE, 5000))
    corrupted = corrupt(SPACE, worlds, rate, torch.Generator().manual_seed(2), EVIDENCE)
    assert EVIDENCE.allows(corrupted).all()
    assert torch.equal(corrupted[:, ~EVIDENCE.free], worlds[:, ~EVIDENCE.free])
    changed = (corrupted != worlds)[:, EVIDENCE.free].double().mean()
    assert abs(changed - rate) < 0.02


def test_not_even_a_uniform_number_of_zero_touches_what_is_observed(monkeypatch) -> None:
    worlds = EVIDENCE.clamp(random_worlds(SPACE, 50))
    draw = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *args, **options: draw(*args, **options).zero_())
    corrupted = corrupt(SPACE, worlds, 0.5, torch.Generator(), EVIDENCE)
    assert torch.equal(corrupted[:, ~EVIDENCE.free], worlds[:, ~EVIDENCE.free])
    assert (corrupted[:, EVIDENCE.free] != worlds[:, EVIDENCE.free]).all()


def test_the_input_is_left_alone_and_the_seed_repeats_the_draw() -> None:
    worlds = random_worlds(SPACE, 100)
    before = worlds.clone()
    for rate in RATES:
        one, two = (corrupt(SPACE, worlds, rate, torch.Generator().manual_seed(3)) for _ in "ab")
        assert torch.equal(one, two)
    assert torch.equal(worlds, before)


@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("size", [3, 128, 200, 256, 300])
def test_large_groups_are_corrupted_alike(size: int, rate: float, narrowed: bool) -> None:
    space = Space(Language(Attribute("p", ("a",), tuple(map(str, range(size))))), {"a": 1})
    evidence = Evidence.of(space, [Literal("p", ("0", "1"), False)]) if narrowed else None
    start = torch.full((100_000, 1), size - 1, dtype=space.dtype)
    drawn = corrupt(space, start, rate, torch.Generator().manual_seed(5), evidence)
    places = (evidence or Evidence.none(space)).index(drawn)
    counts = torch.bincount(places, minlength=size - narrowed).double()
    exact = 100_000 * channel_matrix(space, rate, evidence)[-1]
    assert float(chisquare(counts, exact).pvalue) > 1e-3


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_the_noised_distribution_is_the_one_pushed_through_the_matrix(rate, evidence) -> None:
    matrix = channel_matrix(SPACE, rate, evidence)
    start = torch.rand(len(matrix), dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    start /= start.sum()
    assert torch.allclose(matrix.sum(1), torch.ones(len(matrix), dtype=torch.float64))
    assert torch.allclose(noised(SPACE, start, rate, evidence), start @ matrix, atol=1e-14)


def test_two_values_make_the_bit_flip_channel() -> None:
    space = Space(Language(predicate("p", "a")), {"a": 3})
    flips = (space.enumerate()[:, None].int() ^ space.enumerate()[None].int()).sum(-1)
    expected = 0.2**flips * 0.8 ** (3 - flips)
    assert torch.allclose(channel_matrix(space, 0.2).float(), expected.float())


@pytest.mark.filterwarnings("ignore::nmln.noise.NoiseWarning")
@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 20))
def test_the_bounds_hold_for_any_distribution(
    seed: int, one: float, two: float, peak: float
) -> None:
    rng = torch.Generator().manual_seed(seed)
    start = torch.randn(SPACE.number_of_worlds, generator=rng, dtype=torch.float64)
    start = torch.softmax(peak * start, 0)
    p, q = noised(SPACE, start, one), noised(SPACE, start, two)
    variation = (p - q).abs().sum() / 2
    assert variation <= total_variation_bound(SPACE.groups, one, two) + 1e-12
    accepted = torch.minimum(torch.outer(p, q), torch.outer(q, p)).sum()
    assert accepted >= acceptance_bound(SPACE.groups, one, two) - 1e-12
    assert accepted >= swap_bound(SPACE.groups, one, two) - 1e-12
    assert swap_bound(SPACE.groups, one, two) >= acceptance_bound(SPACE.groups, one, two) - 1e-12
    assert swap_bound(SPACE.groups, one, two) == pytest.approx(swap_bound(SPACE.groups, two, one))


@pytest.mark.parametrize("rates", [(0.3, 0.1), (0.5, 0.0), (0.02, 0.001), (1.0, 0.4)])
@pytest.mark.filterwarnings("ignore::nmln.noise.NoiseWarning")
def test_the_bound_of_swaps_is_their_probability_for_copies_of_one_boolean_world(
    rates: tuple[float, float],
) -> None:
    space = Space(Language(predicate("p", "a")), {"a": 8})
    start = torch.zeros(space.number_of_worlds, dtype=torch.float64)
    start[77] = 1
    p, q = (noised(space, start, rate) for rate in rates)
    accepted = torch.minimum(torch.outer(p, q), torch.outer(q, p)).sum()
    assert float(accepted) == pytest.approx(swap_bound(space.groups, *rates), abs=1e-12)


def test_a_rate_beyond_uniform_warns_with_the_number_of_categories() -> None:
    rng = torch.Generator()
    with pytest.warns(NoiseWarning, match="rate 0.6 is noisier than uniform for groups of 2"):
        corrupt(SPACE, random_worlds(SPACE, 3), 0.6, rng)
    observed = Evidence.of(SPACE, [Literal("bond", ("A", "B"))])
    corrupt(SPACE, observed.clamp(random_worlds(SPACE, 3)), 0.6, rng, observed)  # 0.6 < 2/3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: corrupt(SPACE, random_worlds(SPACE, 1), 2.0, torch.Generator()),
            "between 0 and 1, got 2.0",
        ),
        (
            lambda: corrupt(SPACE, random_worlds(SPACE, 5)[:, :3], 0.1, torch.Generator()),
            "have 4 groups, but these have 3",
        ),
        (
            lambda: channel_matrix(Space(SPACE.language, {"node": "A"}), 0.1, EVIDENCE),
            "another space",
        ),
        (
            lambda: corrupt(SPACE, random_worlds(SPACE, 99), 0.1, torch.Generator(), EVIDENCE),
            r"contradict the evidence.*evidence.clamp\(worlds\)",
        ),
        (
            lambda: noised(SPACE, torch.ones(3), 0.1),
            "96 numbers.* got 3",
        ),
        (lambda: channel_matrix(SPACE, 0.1, limit=50), "there are 96 worlds, too many"),
    ],
)
def test_bad_rates_and_worlds_are_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
