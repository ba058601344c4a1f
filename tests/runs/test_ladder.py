"""Runs whose ladder is chosen for the worlds: recorded, resumed, announced and reported."""

import json
from pathlib import Path

import pytest

from nmln.errors import InputError
from nmln.ladders import Ladder
from nmln.model import load_run
from nmln.runs import train as training
from nmln.runs.folder import RunFolder
from nmln.runs.pages import read_run, write_report
from tests.runs.runs import equal, run_here, settings, weights, whole_run, write_config

CHOSEN = Ladder.even(20, 0.4)  # of four people: 4 who may smoke, 16 pairs of friends
SHORT = {"ladder__rates": "auto", "training__steps": 6}


def test_the_rates_that_were_chosen_are_recorded_and_resumed_to_the_same_bytes(
    people: Path,
) -> None:
    folder, part = whole_run(people, **SHORT), people.parent / "part"
    recorded = json.loads((folder / "config.json").read_text())["config"]["ladder"]
    assert recorded["rates"] == list(CHOSEN)
    assert "swap" not in recorded

    class Stop(training.Silent):
        def on_step(self, metrics: training.Metrics, quality: dict[str, float]) -> None:
            if metrics.step == 4:
                raise InputError("the lights go out")

    with pytest.raises(InputError, match="lights"):
        training.run(training.begin(part, settings(people, **SHORT)), Stop())
    assert load_run(part).method.noise == CHOSEN
    training.run(training.resume(part))
    assert equal(weights(part), weights(folder))
    for name in ("model/tensors.safetensors", "config.json", "split.json"):
        assert (part / name).read_bytes() == (folder / name).read_bytes()


def test_the_report_has_predicted_and_measured_swaps(people: Path) -> None:
    folder = whole_run(people, **SHORT)
    run = read_run(folder)
    assert run.levels.predicted == CHOSEN.predicted_swaps(20)
    assert run.swaps is not None
    text = write_report(folder).written[0].read_text().replace("&nbsp;", " ")
    assert "<h2>Levels</h2>" in text
    assert "with 20 groups per world; trained" in text
    for shares in (run.levels.predicted, run.swaps):
        for share in shares:
            assert f"<td>{100 * share:.0f} %</td>" in text


def test_a_run_without_exchange_has_no_section_about_its_levels(people: Path) -> None:
    folder = whole_run(people, training__steps=2, ladder__method="single")
    assert "<h2>Levels</h2>" not in write_report(folder).written[0].read_text()
    assert RunFolder(folder).read_head().config.ladder.rates == (0.2, 0.02)


def test_training_announces_its_ladder_and_ends_with_its_swaps(
    people: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_config(people.parent, ladder={"rates": "auto"}, training={"steps": 3, "processes": 1})
    words = ("train", people, "--config", people.parent / "run.toml", "--output")
    done = run_here(monkeypatch, capfd, *words, people.parent / "first")
    said = " ".join(done.said.split())
    assert done.code == 0, said
    assert "ladder: 3 levels with corruption rates 0.08, " in said
    assert said.index("ladder: ") < said.index("step 3 of 3") < said.index("Swaps between")
    far = ("--set", "ladder.rates=[0.45,0.001]", "--set", "training.steps=0")
    done = run_here(monkeypatch, capfd, *words, people.parent / "far", *far)
    said = " ".join(done.said.split())
    assert done.code == 0, said
    assert "note: some levels will seldom swap. They are too far apart" in said
    assert "Swaps between" not in said
