"""The propositions of the paper as numbers."""

import json
from pathlib import Path

import pytest

from nmln.experiments import exactness
from nmln.experiments.exactness import ExactnessSettings, run


@pytest.mark.usefixtures("unchecked")
def test_the_sampler_is_exact_and_its_broken_twins_are_not(tmp_path: Path) -> None:
    ticks = list[None]()
    outcome = run(ExactnessSettings(tables=3), tmp_path, lambda: ticks.append(None))
    assert len(outcome.checks) == len(ticks) == 3
    for check in outcome.checks:
        assert check.change < 1e-12
        assert check.change_of_broken_twin > 1e-4
    assert outcome.overlap_error < 1e-12
    assert outcome.counted_error < 4.5
    assert min(outcome.overlaps) < 0.9, "the levels differ"
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["checks"] == [one._asdict() for one in outcome.checks]
    assert found["swaps"]["largest_difference_from_overlap"] == outcome.overlap_error


@pytest.mark.usefixtures("unchecked")
def test_a_sampler_that_never_swaps_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = exactness.log_swap_ratio
    monkeypatch.setattr(exactness, "log_swap_ratio", lambda *given: usual(*given) - 1.0)
    outcome = run(ExactnessSettings(tables=2), tmp_path)
    assert outcome.overlap_error > 0.01
    assert outcome.counted_error > 4.5
