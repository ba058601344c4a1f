"""Noise by marginals: the sampled channel against the exact one, and the predicted swaps."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.exchange import log_swap_ratio
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.marginals import by_group, changes_of, redraw, redraw_matrix, shares_of, swap_prediction
from nmln.potentials.independent import IndependentPotential
from nmln.space import Space

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
DRAWS = 200_000


def some_shares(space: Space = SPACE, seed: int = 0) -> Tensor:
    """Frequencies that are the same for all groups of an attribute."""
    logs = torch.zeros(space.entries)
    rng = Generator().manual_seed(seed)
    for block in space.blocks:
        one = torch.randn(block.size, generator=rng)
        logs[block.entries] = one.repeat(block.count)
    return shares_of(space, logs)


def p_value(rate: float, evidence: Evidence | None, exact: Tensor) -> float:
    """Chi-square of corrupted copies of one world against its row of a channel matrix."""
    rules = evidence or Evidence.none(SPACE)
    start = rules.enumerate()[5]
    rng = Generator().manual_seed(0)
    drawn = redraw(SPACE, start.expand(DRAWS, -1), rate, some_shares(), rng, evidence)
    counts = torch.bincount(rules.index(drawn), minlength=len(exact)).double()
    common = DRAWS * exact[5] >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([exact[5][common], exact[5][~common].sum()[None]])
    kept = wanted > 0
    assert not observed[~kept].any()
    return float(chisquare(observed[kept], wanted[kept] * (DRAWS / wanted[kept].sum())).pvalue)


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
@pytest.mark.parametrize("rate", [0.02, 0.3, 1.0])
def test_redrawn_worlds_follow_the_exact_channel(rate: float, evidence: Evidence | None) -> None:
    exact = redraw_matrix(SPACE, rate, some_shares(), evidence)
    assert torch.allclose(exact.sum(1), torch.ones(len(exact), dtype=torch.float64))
    assert p_value(rate, evidence, exact) > 1e-4


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["free", "evidence"])
def test_the_check_rejects_a_channel_of_other_frequencies(evidence: Evidence | None) -> None:
    assert p_value(0.3, evidence, redraw_matrix(SPACE, 0.3, some_shares(seed=1), evidence)) < 1e-6


def test_independent_groups_keep_their_distribution_at_every_rate() -> None:
    shares = some_shares()
    law = torch.ones(1, dtype=torch.float64)
    for row, size in zip(by_group(SPACE, shares), SPACE.sizes.tolist(), strict=True):
        law = torch.kron(law, row[:size])
    for rate in (0.1, 0.7, 1.0):
        assert torch.allclose(law @ redraw_matrix(SPACE, rate, shares), law, atol=1e-12)


def test_the_number_of_changes_is_that_of_groups_that_are_redrawn() -> None:
    rng = Generator().manual_seed(5)
    shares = some_shares()
    worlds = redraw(SPACE, torch.zeros(20_000, SPACE.groups, dtype=torch.long), 1.0, shares, rng)
    again = redraw(SPACE, worlds, 1.0, shares, rng)
    changed = (again != worlds).double().sum(1)
    error = float(changed.std()) / len(changed) ** 0.5
    assert abs(float(changed.mean()) - changes_of(SPACE, shares)) < 4 * error


def test_rate_zero_changes_nothing_and_observed_groups_never_change() -> None:
    worlds = EVIDENCE.enumerate()
    rng = Generator().manual_seed(0)
    assert torch.equal(redraw(SPACE, worlds, 0.0, some_shares(), rng), worlds)
    drawn = redraw(SPACE, worlds.repeat(50, 1), 1.0, some_shares(), rng, EVIDENCE)
    assert bool(EVIDENCE.allows(drawn).all())
    assert (drawn != worlds.repeat(50, 1)).any()


def test_a_category_without_frequency_is_never_drawn() -> None:
    shares = some_shares()
    block = SPACE.block("type")
    shares[block.entries] = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64).repeat(2)
    worlds = SPACE.enumerate()[:1].expand(100_000, -1)
    drawn = redraw(SPACE, worlds, 1.0, shares, Generator().manual_seed(0))
    assert set(drawn[:, block.groups].flatten().tolist()) == {0, 1}


@pytest.mark.parametrize(("high", "low"), [(0.3, 0.1), (0.05, 0.003), (1.0, 0.4), (0.2, 0.0)])
def test_the_prediction_is_the_swap_probability_of_worlds_with_their_changes(
    high: float, low: float
) -> None:
    """A swap of pairs (datum, corrupted datum), by enumeration of two groups."""
    space = Space(Language(Attribute("type", ("node",), tuple("abc"))), {"node": 2})
    shares = some_shares(space, 3)
    one = by_group(space, shares)[0]
    rates = [rate * one + (1 - rate) * torch.eye(3, dtype=torch.float64) for rate in (high, low)]
    joint = [(one[:, None] * rate).flatten() for rate in rates]
    both = [torch.kron(law, law).log() for law in joint]
    ratio = both[0][None, :] + both[1][:, None] - both[0][:, None] - both[1][None, :]
    chance = (both[0].exp()[:, None] * both[1].exp()[None, :]) * ratio.nan_to_num(
        neginf=-1e9, posinf=1e9
    ).clamp(max=0).exp()
    assert swap_prediction(space, shares, high, low) == pytest.approx(
        float(chance.nansum()), abs=2e-3
    )


def test_levels_that_are_exactly_noised_swap_at_least_as_often_as_predicted() -> None:
    space = Space(Language(Attribute("type", ("node",), tuple("abc"))), {"node": 5})
    rng = Generator().manual_seed(0)
    draws = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 500, True, generator=rng)
    law = torch.bincount(
        space.index(draws.view(100, 5).to(space.dtype)), minlength=space.number_of_worlds
    ).double()
    law /= law.sum()
    base = IndependentPotential.fit(space, space.enumerate()[None], prior=0.0)
    logs = torch.log(torch.tensor([0.6, 0.3, 0.1])).repeat(5)
    shares = shares_of(space, logs.to(base.table))
    levels = torch.stack([law @ redraw_matrix(space, rate, shares) for rate in (0.4, 0.05)])
    scores = levels.log()
    mean = 0.0
    for world in range(space.number_of_worlds):
        own = torch.stack([scores[0, world].expand(len(law)), scores[1]])
        cross = torch.stack([scores[0], scores[1, world].expand(len(law))])
        taken = log_swap_ratio(own, cross, (0,))[0].clamp(max=0).exp()
        mean += float(levels[0, world] * (levels[1] * taken).sum())
    assert mean >= swap_prediction(space, shares, 0.4, 0.05) - 0.02


def test_bad_rates_and_worlds_are_refused() -> None:
    rng = Generator().manual_seed(0)
    worlds = SPACE.enumerate()[:3]
    with pytest.raises(InputError, match="must be between 0 and 1"):
        redraw(SPACE, worlds, 1.5, some_shares(), rng)
    with pytest.raises(InputError, match="contradict the evidence"):
        redraw(SPACE, SPACE.enumerate(), 0.1, some_shares(), rng, EVIDENCE)
    with pytest.raises(InputError, match="have 4 groups"):
        redraw(SPACE, worlds[:, :-1], 0.1, some_shares(), rng)
