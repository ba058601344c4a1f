import numpy as np
import pytest

from nmln.report.findings import Finding, drifted, findings_of
from nmln.report.history import History
from tests.report.test_curves import NOISING, TEMPERING, curve, history

STEPS = 200


def noise(*means: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(STEPS, len(means))) * 0.01 + np.array(means)


def texts(found: list[Finding], warning: bool) -> list[str]:
    return [one.text for one in found if one.warning == warning]


def test_swaps_are_reported_and_rare_ones_are_warned_of() -> None:
    found = findings_of(history(curve("swaps", noise(0.3, 0.02))), NOISING)
    assert texts(found, False) == ["Swaps between 0.1 and 0.01 are taken 30 % of the time."]
    (warned,) = texts(found, True)
    assert warned.startswith(
        "Swaps between 0.01 and 0.001 are taken 2 % of the time: worlds hardly"
    )


def test_tempered_swaps_are_reported_by_temperature() -> None:
    (found,) = findings_of(history(curve("swaps", noise(0.5))), TEMPERING)
    assert found.text == "Swaps between T = 2 and T = 1 are taken 50 % of the time."


def test_acceptance_at_the_target_is_reported_and_frozen_levels_are_warned_of() -> None:
    found = findings_of(history(curve("acceptance", noise(0.9, 0.5, 0.2))), NOISING)
    assert texts(found, True) == []
    assert texts(found, False) == ["The chains at the target (0.001) accept 20 % of moves."]
    found = findings_of(history(curve("acceptance", noise(0.9, 0, 0))), NOISING)
    assert len(texts(found, True)) == 2


def test_a_gap_that_drifts_away_from_zero_is_warned_of() -> None:
    gap = noise(0, 0.2, 0.4)
    gap[:, 1] += np.linspace(0, 4, STEPS)
    warned = texts(findings_of(history(curve("gap", gap)), NOISING), True)
    assert len(warned) == 1
    assert "The gap at 0.01 drifts away from 0" in warned[0]


@pytest.mark.parametrize("seed", range(30))
def test_noise_is_no_drift(seed: int) -> None:
    assert drifted(np.random.default_rng(seed).normal(0.5, 3, size=400)) is None


def test_a_gap_that_closes_is_no_drift_and_a_short_run_has_none() -> None:
    assert drifted(np.linspace(9, 0.1, STEPS)) is None
    assert drifted(np.linspace(0, 9, 30)) is None
    assert drifted(np.linspace(0, -9, STEPS)) == pytest.approx((-4.77, -8.77), abs=0.1)


@pytest.mark.parametrize(("clip", "count"), [(0.0, 0), (5.0, 1), (50.0, 0)])
def test_a_gradient_that_is_nearly_always_cut_is_warned_of(clip: float, count: int) -> None:
    found = findings_of(history(curve("gradient", noise(2, 3, 20))), NOISING, clip)
    assert len(texts(found, True)) == count


def test_shares_are_reported_with_the_best_step() -> None:
    (found,) = findings_of(history(curve("valid", [0.1, 0.62, 0.6])), NOISING)
    assert found.text == (
        "Of the chains' worlds at the target 60 % are valid in the end, 62 % at best (step 2)."
    )


def test_what_is_not_finite_is_counted_and_not_averaged() -> None:
    swaps = noise(0.3, 0.4)
    swaps[190:, 0] = np.nan
    found = findings_of(history(curve("swaps", swaps)), NOISING)
    assert "30 to 40 %" in texts(found, False)[0]
    assert texts(found, True) == [
        "At 10 of 200 steps swaps is not a finite number: gaps in its curve."
    ]


def test_a_run_without_any_finite_number_still_has_findings() -> None:
    names = ("gap", "acceptance", "gradient")
    nothing = [curve(name, np.full((5, 3), np.nan)) for name in names]
    nothing += [curve("swaps", np.full((5, 2), np.nan)), curve("valid", np.full(5, np.nan))]
    found = findings_of(history(*nothing), NOISING, 20.0)
    assert len(texts(found, True)) == 5
    assert texts(found, False) == []


def test_what_is_wrong_with_the_file_comes_first() -> None:
    told = History(np.arange(3), {"valid": curve("valid", [0.1, 0.2, 0.3])}, ("cut off",))
    assert findings_of(told, NOISING)[0] == Finding("cut off", True)
