"""The rules of the claims: each verdict is reached, and nothing is said without a run."""

from typing import Any

import pytest

from nmln.reproduction.claims import CLAIMS
from nmln.reproduction.comparing import Measured, ahead, compare, difference
from nmln.reproduction.verdicts import FAILS, HOLDS, MISSING, OPEN
from tests.reproduction.made import result, row, share

JUDGES = {claim.name: claim.judge for claim in CLAIMS}


def test_without_results_every_claim_says_so() -> None:
    assert [claim.name for claim in CLAIMS] == [f"C{number}" for number in range(1, 13)]
    for judge in JUDGES.values():
        found = judge({})
        assert (found.verdict, found.numbers, found.figures) == (MISSING, (), ())


def test_the_interval_of_a_difference() -> None:
    # The example of Newcombe (1998), 56/70 and 48/80: method 10.
    low, high = difference(Measured(56, 70), Measured(48, 80))
    assert (low, high) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))


def test_seeds_decide_by_their_extremes() -> None:
    size = 1000
    one, other = ([Measured(n, size) for n in some] for some in ((50, 60, 70), (40, 45, 49)))
    assert ahead(one, other) == 1
    assert ahead(other, one) == -1
    assert ahead(one, [*other, Measured(51, size)]) == 0


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ((300, 100), (100, 50), "above"),
        ((300, 50), (100, 100), "open"),  # ahead in all, behind at the beginning
        ((100, 50), (300, 52), "below"),
        ((100, 50), (104, 52), "open"),
    ],
)
def test_above_below_and_open(first: Any, second: Any, order: str) -> None:
    found = compare(result("any", row("a", *first), row("b", *second)), "a", "b")
    assert found is not None
    assert found.order == order
    assert compare(result("any", row("a", *first)), "a", "b") is None


def ablations(star: int, **others: int) -> dict[str, Any]:
    """Both figures of the ablations, with three seeds of each method on a thousand test molecules."""
    rows = [
        row(name, covered + seed, covered // 2, seed=seed)
        for name, covered in {"star": star, **others}.items()
        for seed in range(3 if name not in ("s1", "s2") else 1)
    ]
    return {name: result(name, *rows) for name in ("ablations", "ablations-updates")}


def test_c5_and_c6_need_both_older_models() -> None:
    good = ablations(300, s1=50, s2=100, s3=200, s4=100, s5=100)
    assert JUDGES["C5"](good).verdict == HOLDS
    assert JUDGES["C6"](good).verdict == HOLDS
    assert JUDGES["C5"](ablations(300, s1=50, s2=600, s3=1)).verdict == FAILS
    assert JUDGES["C6"](ablations(300, s1=50, s2=201, s3=200)).verdict == OPEN
    assert JUDGES["C5"](ablations(300, s1=50)).verdict == MISSING


def test_c7_needs_more_chains_not_to_help() -> None:
    assert JUDGES["C7"](ablations(300, s3=200, s4=200, s5=201)).verdict == HOLDS
    helped = JUDGES["C7"](ablations(300, s3=100, s4=200, s5=201))
    assert helped.verdict == FAILS
    assert "More chains alone do help" in helped.why
    assert JUDGES["C7"](ablations(300, s3=200, s4=200, s5=301)).verdict == FAILS
    half = ablations(300, s3=200, s4=200, s5=201)
    assert JUDGES["C7"]({"ablations": half["ablations"]}).verdict == MISSING


def recall(name: str, size: int, kind: str, ours: int, *rivals: int, **more: Any) -> dict[str, Any]:
    key = f"{name}-{size}"
    rows = [row(f"r{n}", covered, covered // 2, kind) for n, covered in enumerate(rivals)]
    figure = f"recall-{key}-{kind}"
    return {
        figure: result(figure, row("ours", ours, ours // 2), *rows, data=key, size=size, **more)
    }


def test_c8_is_decided_by_the_majority() -> None:
    good = recall("a", 9, "graphs", 300, 100, 100)
    assert JUDGES["C8"](good).verdict == HOLDS
    assert JUDGES["C8"](good | recall("b", 15, "graphs", 100, 300, 102)).verdict == OPEN
    assert JUDGES["C8"](recall("b", 15, "graphs", 100, 300, 102)).verdict == FAILS
    assert "above in 2 of 2 comparisons" in JUDGES["C8"](good).why


def test_c9_looks_at_small_molecules_only() -> None:
    good = recall("a", 9, "strings", 300, 302, 100) | recall("b", 20, "strings", 100, 500)
    assert JUDGES["C9"](good).verdict == HOLDS
    assert JUDGES["C9"](good | recall("c", 10, "strings", 100, 400)).verdict == FAILS
    three = good | recall("c", 10, "strings", 300, 1) | recall("d", 10, "strings", 100, 400)
    assert JUDGES["C9"](three).verdict == OPEN
    assert JUDGES["C9"](recall("b", 20, "strings", 100, 500)).verdict == MISSING


def levels(*valid: int, found: tuple[int, ...] = (0, 100, 200)) -> dict[str, Any]:
    rows = [
        row("star", covered, covered // 2, level=n, rate=0.1**n, valid=share(count, 5000))
        for n, (count, covered) in enumerate(zip(valid, found, strict=True))
    ]
    return {"levels": result("levels", *rows, layout="levels")}


@pytest.mark.parametrize(
    ("valid", "verdict"),
    [
        ((1, 2000, 4990), HOLDS),
        ((1, 2000, 4000), FAILS),  # not almost all
        ((1000, 2000, 4990), FAILS),  # not near 0
        ((1, 4999, 4900), FAILS),  # falls
        ((1, 2000, 4750), OPEN),
    ],
)
def test_c10_needs_both_ends_and_a_rise(valid: tuple[int, ...], verdict: str) -> None:
    assert JUDGES["C10"](levels(*valid)).verdict == verdict


def test_c11_needs_the_target_above_most_levels() -> None:
    assert JUDGES["C11"](levels(1, 2, 3)).verdict == HOLDS
    assert JUDGES["C11"](levels(1, 2, 3, found=(0, 300, 200))).verdict == FAILS
    assert JUDGES["C11"](levels(1, 2, 3, found=(199, 201, 200))).verdict == OPEN


def test_c12_has_three_parts() -> None:
    graphs = recall("a", 15, "graphs", 300, 100)
    graphs["recall-a-15-graphs"]["rows"][1]["valid"] = share(1000, 5000)
    ahead_of_us = recall("a", 15, "strings", 300, 600)
    assert JUDGES["C12"](graphs | ahead_of_us).verdict == HOLDS
    assert JUDGES["C12"](graphs | recall("a", 15, "strings", 300, 100)).verdict == FAILS
    graphs["recall-a-15-graphs"]["rows"][1]["valid"] = share(4900, 5000)
    assert JUDGES["C12"](graphs | ahead_of_us).verdict == FAILS
    assert JUDGES["C12"](graphs).verdict == MISSING


def test_the_rules_of_the_experiments() -> None:
    checks = [{"what": "a step", "change": 1e-16, "change_of_broken_twin": 0.1}]
    swaps = {
        "largest_difference_from_overlap": 1e-16, "counted_in_standard_errors": 2.0, "draws": 10,
        "least_overlap": 0.1, "largest_overlap": 0.9,
    }  # fmt: skip
    exact = {"exactness": {"checks": checks, "swaps": swaps}}
    assert [JUDGES[name](exact).verdict for name in ("C1", "C2")] == [HOLDS, HOLDS]
    checks[0]["change"], swaps["counted_in_standard_errors"] = 1e-3, 9.0
    assert [JUDGES[name](exact).verdict for name in ("C1", "C2")] == [FAILS, FAILS]
    checks[0] |= {"change": 1e-16, "change_of_broken_twin": 0.0}
    assert JUDGES["C1"](exact).verdict == OPEN, "a check that cannot fail shows nothing"
    for low, high, verdict in ((0.1, 0.9, HOLDS), (1.1, 1.9, FAILS), (0.9, 1.1, OPEN)):
        interval = {"value": (low + high) / 2, "low": low, "high": high}
        errors = {"PT": interval, "PN": interval}
        found = {"toy-tracking": {"ratio_last_third": interval, "error_last_third": errors}}
        assert JUDGES["C3"](found).verdict == verdict
        gap = {name: value - 1 for name, value in interval.items()}
        one = {"attacks": interval}
        kernel = {"difference": {"attacks": gap}, "PN": one, "PT": one}
        assert JUDGES["C4"]({"n-queens": {"kernels": {"gibbs": kernel}}}).verdict == verdict
