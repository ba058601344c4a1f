"""Sharpened samples in files: recorded, resumed, in parts, and apart from others."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmln.cli import app
from nmln.errors import InputError, InterruptedRunError
from nmln.model import load_run
from nmln.runs import evaluate as evaluation
from nmln.runs import parts as joining
from nmln.runs import sample as sampling
from nmln.runs import stream
from nmln.runs.specification import SamplingSettings
from nmln.runs.workspace import Part
from tests.runs.sampling_runs import begin, files, finished, read, run, summary

__all__ = ["run"]  # a fixture
SMALL = {"count": 40, "burn_in": 2, "thin": 1, "chains": 8, "block": 4}


def test_sharpening_is_recorded_and_changes_the_samples(run: Path) -> None:
    plain, one, sharp = (
        finished(run, name, **SMALL, **given)
        for name, given in (("plain", {}), ("one", {"sharpen": 1.0}), ("sharp", {"sharpen": 3.0}))
    )
    assert files(one) == files(plain) != files(sharp)
    assert "sharpen" not in summary(plain)["settings"]
    assert summary(one)["settings"] == summary(plain)["settings"]
    assert summary(sharp)["settings"]["sharpen"] == 3.0


def test_settings_without_sharpening_are_those_of_earlier_versions() -> None:
    plain = SamplingSettings(10, chains=2, block=2)
    assert "sharpen" not in plain.described()
    assert SamplingSettings.read(json.loads(json.dumps(plain.described()))) == plain
    sharp = SamplingSettings(10, chains=2, block=2, sharpen=1.4)
    written = json.loads(json.dumps(sharp.described()))
    assert SamplingSettings.read(written) == sharp
    assert sharp.digest != plain.digest
    with pytest.raises(ValueError, match="sharpen must be"):
        SamplingSettings.read({**written, "sharpen": "1.4"})
    with pytest.raises(InputError, match="positive"):
        SamplingSettings.read({**written, "sharpen": -1.0})


def test_a_sharpened_sampling_resumes_with_its_own_number(run: Path) -> None:
    whole = finished(run, "whole", **SMALL, sharpen=3.0)
    job, ticks = begin(run, "stopped", **SMALL, sharpen=3.0), 0

    def stop() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 4:
            raise InterruptedRunError("stopped", "again")

    with pytest.raises(InterruptedRunError):
        stream.work(job, tick=stop, save_every=0)
    with pytest.raises(InputError, match="sharpen"):
        begin(run, "stopped", **SMALL, sharpen=2.0)
    again = stream.resume(job.folder, load_run(run))
    assert again.settings.sharpen == 3.0
    stream.work(again)
    stream.finish(again)
    assert files(again.folder) == files(whole)


def test_parts_of_a_sharpened_sampling_give_what_one_process_gives(run: Path) -> None:
    whole = finished(run, "whole", **SMALL, sharpen=3.0)
    for number in (1, 2):
        stream.work(begin(run, "parts", **SMALL, sharpen=3.0, part=Part(number, 2)))
    opened = sampling.open_run(run)
    place = sampling.place_of(opened, run.parent / "parts")
    stream.finish(joining.join(place, opened.model, []))
    assert read(place.output) == read(whole)


def test_sharpened_samples_do_not_have_the_likelihood_of_the_model(run: Path) -> None:
    (run / "likelihood.json").write_text('{"test_molecules": -9.5}')
    plain, sharp = (
        finished(run, f"run/{name}", **SMALL, sharpen=sharpen)
        for name, sharpen in (("plain", 1.0), ("sharp", 3.0))
    )
    assert evaluation._likelihood(plain / "counts.csv", run) is not None
    assert evaluation._likelihood(sharp / "counts.csv", run) is None


@pytest.mark.parametrize("number", ["0", "-1", "inf", "nan"])
def test_a_sharpening_that_is_no_positive_number_is_one_line(run: Path, number: str) -> None:
    found = CliRunner().invoke(app, ["sample", str(run), "--sharpen", number])
    assert isinstance(found.exception, InputError)
    assert "sharpen must be a positive finite number" in str(found.exception)
    assert "\n" not in str(found.exception)
    assert not (run / "samples").exists()
