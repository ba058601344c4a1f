"""Sampled answers against enumeration: they are right, and as sure as they say."""

from functools import cache

import numpy as np
import pytest
from torch import Generator

from nmln.inference import Plan, chains
from tests.inference.models import QUERY, random_case

pytestmark = pytest.mark.usefixtures("unchecked")

MODELS = 20
QUICK = 3  # of them, for the quick tests
PLAN = Plan(chains=20, burn_in=150, sweeps=200, error=None, moves=1)
FLOOR = 1e-3


@cache
def z_scores(models: int) -> tuple[np.ndarray, np.ndarray]:
    """How many standard errors every sampled answer is away from the truth.

    Also with errors that take every draw for independent.
    """
    honest, naive = [], []
    for seed in range(models):
        asked = random_case(seed).conditional
        exact = asked.marginals(QUERY, exactly=True)
        spreads: dict[str, float] = {}
        answer = chains._answer

        def noted(text, trace, recorder, spreads=spreads, answer=answer):
            spreads[text] = float(trace.std()) / trace.size**0.5
            return answer(text, trace, recorder)

        chains._answer = noted
        try:
            found = asked.marginals(QUERY, Generator().manual_seed(seed), plan=PLAN, exactly=False)
        finally:
            chains._answer = answer
        assert exact.exact
        assert not found.exact
        for sampled, true in zip(found, exact, strict=True):
            if true.value not in (0.0, 1.0):  # the evidence settles it: nothing to estimate
                honest.append((sampled.value - true.value) / max(sampled.error, FLOOR))
                naive.append((sampled.value - true.value) / max(spreads[sampled.text], FLOOR))
    return np.array(honest), np.array(naive)


@pytest.mark.slow
def test_sampled_marginals_of_a_few_models_agree_with_enumeration() -> None:
    scores, naive = z_scores(QUICK)
    assert len(scores) >= 50
    assert np.abs(scores).max() < 5
    assert (scores**2).mean() < 2
    assert (naive**2).mean() > 1.3 * (scores**2).mean()


@pytest.mark.slow
def test_sampled_marginals_agree_with_enumeration_and_their_errors_are_honest() -> None:
    scores, _ = z_scores(MODELS)
    assert len(scores) >= 400
    assert np.abs(scores).max() < 5
    assert (np.abs(scores) > 2).mean() <= 0.08
    assert 0.6 < (scores**2).mean() < 1.5


@pytest.mark.slow
def test_errors_that_ignore_autocorrelation_fail_the_same_check() -> None:
    _, scores = z_scores(MODELS)
    assert (scores**2).mean() > 1.5
    assert (np.abs(scores) > 2).mean() > 0.08
