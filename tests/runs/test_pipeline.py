"""The main job as a user starts it: whole, stopped and continued, repeated, and refused."""

import csv
import json
import re
import shlex
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import typer
from rdkit import Chem

from nmln.cli.common import settings_in
from nmln.cli.run import _kept, _show
from nmln.config import DataConfig, configure
from nmln.errors import InputError, InterruptedRunError
from nmln.evaluation import Estimate
from nmln.runs import data as sources
from nmln.runs import pipeline, stream
from nmln.runs import sample as sampling
from nmln.runs import train as training
from nmln.runs.data import Source
from nmln.runs.job import MINUTES, set_options
from nmln.runs.job_page import _table
from nmln.runs.sample_rows import read_rows
from tests.report.test_page import Reader
from tests.runs.main_jobs import CHANGES, HOSTILE, MOLECULES, small, write_molecules
from tests.runs.runs import equal, nmln, run_here, weights

pytestmark = pytest.mark.usefixtures("unchecked")

PARSED: list[object] = []


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> pipeline.JobOutcome:
    """A whole job, done once; what it parses is noted."""
    folder, load = tmp_path_factory.mktemp("job"), sources.load

    def noted(config: DataConfig) -> Source:
        PARSED.append(config)
        return load(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "load", noted)
        return pipeline.run(folder / "out", small(write_molecules(folder)))


@pytest.mark.usefixtures("done")
def test_a_job_parses_its_data_once() -> None:
    assert len(PARSED) == 1


def page_of(outcome: pipeline.JobOutcome) -> str:
    return outcome.report.read_text(encoding="utf-8")


def titles(text: str) -> list[str]:
    return [unescape(title) for title in re.findall("<h2>(.*?)</h2>", text)]


def test_the_page_has_all_its_parts(done: pipeline.JobOutcome) -> None:
    text = page_of(done)
    assert titles(text) == [
        "In short", "New molecules", "The most frequent of all",
        "Levels, from the noisiest to the target", "Recall", "Chains", "Training",
        "Training: the run", "Training: levels", "Training: curves", "Files beside this page", "Repeat",
        "Configuration",
    ]  # fmt: skip
    reader = Reader(text)
    assert len(reader.ids) == len(set(reader.ids))
    for link in re.findall("<a href='(.*?)'>", text):
        assert (done.folder / link).exists()
    assert all(path.exists() for path in done.written)
    assert "1 x another size (first in line 41: CCO has 3 heavy atoms.)" in text


def test_nothing_from_outside_does_harm(done: pipeline.JobOutcome) -> None:
    text = page_of(done)
    assert not {"script", "img", "link", "iframe"} & Reader(text).names
    assert f"New molecules from {HOSTILE}" in unescape(text)
    assert not re.search(r"(src|href)=.(http|//)|url\((?!#)|@import", text)


def test_galleries_show_the_most_frequent_and_say_what_is_known(done: pipeline.JobOutcome) -> None:
    split = json.loads((done.folder / "split.json").read_text())
    train = {Chem.CanonSmiles(MOLECULES[at]) for at in split["train"]}
    with (done.folder / "samples" / "counts.csv").open() as file:
        rows = list(csv.DictReader(file))
    shown = re.findall(
        r"(\d+)&times;<span class='badge (\w+)'>[^<]*</span></p><code>(.*?)</code>", page_of(done)
    )
    new = [row for row in rows if row["smiles"] not in train]
    wanted = [*new[:28], *rows[:7]]
    assert [(count, smiles) for count, _, smiles in shown] == [
        (row["count"], row["smiles"]) for row in wanted
    ]
    assert len(new) > 3
    for _, kind, smiles in shown:
        assert (kind == "train") == (smiles in train)
        assert (kind == "novel") == (smiles not in set(map(Chem.CanonSmiles, MOLECULES)))


def test_the_table_of_levels_is_that_of_the_rows(done: pipeline.JobOutcome) -> None:
    with (done.folder / "evaluation" / "levels.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["name"] for row in table] == ["0.3", "0.1", "0.02"]
    rows = list(read_rows(done.folder / "samples" / "samples.csv.gz"))
    for number, row in enumerate(table):
        mine = [status for _, level, status, _ in rows if level == number]
        assert len(mine) == int(row["attempts"]) == 300
        assert float(row["valid"]) == pytest.approx(mine.count("valid") / 300, abs=1e-5)
        assert float(row["valid_low"]) < float(row["valid"]) < float(row["valid_high"])
        assert float(row["recall_low"]) <= float(row["recall"]) <= float(row["recall_high"])


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, done: pipeline.JobOutcome) -> None:
    """Jobs that draw nothing and write no page, which takes most of their time here."""
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    monkeypatch.setattr(pipeline, "conclude", lambda *_: done)


class Stopped(pipeline.Performer):
    """Trains, and is stopped before it draws anything."""

    def draw(self, job: stream.SamplingJob, folder: Path, count: int) -> None:
        raise KeyboardInterrupt


class Listed(pipeline.Performer):
    """Notes the stages that it does."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def train(
        self, folder: Path, job: pipeline.JobSettings, source: Source | None, count: int
    ) -> None:
        self.stages.append("train")
        super().train(folder, job, source, count)

    def draw(self, job: stream.SamplingJob, folder: Path, count: int) -> None:
        self.stages.append("draw")
        super().draw(job, folder, count)


@pytest.mark.usefixtures("plain")
def test_a_job_that_was_stopped_continues_and_comes_to_the_same(
    done: pipeline.JobOutcome, tmp_path: Path
) -> None:
    folder, settings = tmp_path / "out", small(done.folder.parent / HOSTILE)

    with pytest.raises(KeyboardInterrupt):
        pipeline.run(folder, settings, by=Stopped())
    before = (folder / "model" / "manifest.json").stat().st_mtime_ns
    done_again = Listed()
    pipeline.run(folder, settings, by=done_again)
    assert done_again.stages == ["draw"]
    assert (folder / "model" / "manifest.json").stat().st_mtime_ns == before
    assert equal(weights(folder), weights(done.folder))
    for name in ("samples/counts.csv", "samples/samples.csv.gz"):
        assert (folder / name).read_bytes() == (done.folder / name).read_bytes()
    nothing = Listed()
    pipeline.run(folder, settings, by=nothing)
    assert not nothing.stages, "all of it was finished"


def test_other_settings_for_the_same_folder_are_refused(done: pipeline.JobOutcome) -> None:
    data = done.folder.parent / HOSTILE
    with pytest.raises(InputError, match=r"in this folder \(seed 0, not 3\)"):
        pipeline.begin(done.folder, small(data, seed=3))
    with pytest.raises(InputError, match="size 4, not 5"):
        pipeline.begin(done.folder, pipeline.JobSettings(str(data), 5, samples=300))
    with pytest.raises(InputError, match=r"model\.hidden 8, not by default"):
        pipeline.begin(done.folder, pipeline.JobSettings(str(data), 4, samples=300))
    assert pipeline.begin(done.folder, small(data, samples=None)) == small(data).located()


def test_a_folder_of_another_command_is_left_alone(tmp_path: Path) -> None:
    data = write_molecules(tmp_path)
    training.begin(tmp_path / "run", small(data).config())
    with pytest.raises(InputError, match="a run of nmln train"):
        pipeline.run(tmp_path / "run", small(data))


def test_what_holds_no_molecules_is_refused_with_the_commands_for_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nmln train 'my worlds.db', then nmln sample 'runs/my w"):
        pipeline.run(tmp_path / "out", pipeline.JobSettings("my worlds.db"))
    (tmp_path / "few.smi").write_text("CCO\n")
    with pytest.raises(InputError, match="1 molecules cannot be split"):
        pipeline.run(tmp_path / "out", pipeline.JobSettings(str(tmp_path / "few.smi")))
    assert not (tmp_path / "out").exists()


def test_the_number_of_samples_fits_into_the_time_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_molecules(tmp_path)
    folder = tmp_path / "out"
    settings = pipeline.begin(folder, small(data, samples=None))
    training.run(training.begin(folder, settings.config()))
    opened = sampling.open_run(folder)
    assert 0 < pipeline.seconds_a_sweep(opened, settings, 2) < 10
    monkeypatch.setattr(pipeline, "seconds_a_sweep", lambda *_: 0.01)
    assert pipeline.fitting_samples(opened, settings, 2, 1) == 35_000  # 12 chains, 2,998 draws
    assert pipeline.settle(folder, opened, settings, 1).samples == pipeline.LEAST
    assert pipeline.begin(folder, small(data, samples=None)).samples == pipeline.LEAST
    monkeypatch.setattr(pipeline, "seconds_a_sweep", lambda *_: 1e-9)
    assert pipeline.fitting_samples(opened, settings, 0.5, 1) == pipeline.MOST


def test_minutes_and_steps_are_not_both_given() -> None:
    assert pipeline.JobSettings().config().training.minutes == MINUTES
    assert pipeline.JobSettings(minutes=2).config().training.minutes == 2
    steps = pipeline.JobSettings(changes={"training.steps": 5})
    assert steps.config().training.minutes is None
    with pytest.raises(InputError, match="steps"):
        pipeline.JobSettings(minutes=2, changes={"training.steps": 5}).config()


def test_settings_of_the_training_reach_it_as_they_are(tmp_path: Path) -> None:
    settings = small(tmp_path / HOSTILE, seed=3)
    config = settings.config(2)
    assert configure(config.to_dict()) == config
    assert config.training.processes == 2
    assert settings_in(set_options(settings.changes)[1::2]) == CHANGES


@pytest.mark.usefixtures("plain")
def test_the_command_of_the_page_repeats_the_job_to_the_bit(
    done: pipeline.JobOutcome, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall("<pre>(nmln run .*?)</pre>", page_of(done), re.DOTALL)
    program, *words = shlex.split(unescape(command))
    assert program == "nmln"
    again = Path(words[words.index("--output") + 1])
    assert again == done.folder.with_name("out-again")
    first = run_here(monkeypatch, capfd, *words)
    assert first.code == 0, first.said
    for number in range(1, 5):
        assert f"[{number}/4]" in first.said
    assert "note: 1 line left out: 1 x another size (first in line 41: CCO has 3 h" in first.said
    assert equal(weights(again), weights(done.folder))
    for name in ("samples/counts.csv", "samples/samples.csv.gz"):
        assert (again / name).read_bytes() == (done.folder / name).read_bytes()
    second = run_here(monkeypatch, capfd, *words)
    assert second.code == 0, second.said
    assert "Training is already finished" in second.said
    assert "Generating is already finished" in second.said
    refused = run_here(monkeypatch, capfd, *words, "--seed", 9)
    assert refused.code == 2
    assert "(seed 0, not 9)" in refused.said
    assert len(refused.lines) == 1


def test_a_stopped_job_names_the_command_that_continues_all_of_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(InterruptedRunError) as left, _kept("nmln run --seed 1"):
        raise InterruptedRunError("stopped after step 3, and kept.", "nmln train --resume out")
    assert str(left.value) == "stopped after step 3, and kept. Continue with: nmln run --seed 1"
    with pytest.raises(InterruptedRunError, match="Continue with: nmln run"), _kept("nmln run"):
        raise KeyboardInterrupt
    for code, hint in ((130, True), (1, True), (2, False)):
        with pytest.raises(typer.Exit), _kept("nmln run"):
            raise typer.Exit(code)
        assert ("continue the whole job with: nmln run" in capfd.readouterr().err) == hint


@pytest.mark.slow
def test_the_page_does_not_promise_the_same_samples_of_other_processes(
    done: pipeline.JobOutcome, tmp_path: Path
) -> None:
    assert "repeat this job exactly" in page_of(done)
    folder = tmp_path / "out"
    shutil.copytree(done.folder, folder)
    path = folder / "samples" / "sampling.json"
    summary = json.loads(path.read_text())
    summary["settings"].pop("block")  # as earlier versions wrote it
    summary["settings"]["parts"] = 2
    path.write_text(json.dumps(summary))
    text = page_of(pipeline.conclude(folder))
    assert "exactly" not in text
    assert "the samples will differ" in text


def test_a_level_with_nothing_valid_has_no_shares(
    done: pipeline.JobOutcome, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = float("nan")
    level = done.levels[0]
    empty = replace(
        level,
        known_train=Estimate(nothing, nothing, nothing),
        found=replace(level.found, unique=replace(level.found.unique, count=0, total=0)),
    )
    levels = (empty, *done.levels[1:])
    _show(replace(done, levels=levels), 1.0)
    assert "nan" not in capsys.readouterr().out
    assert "nan" not in "".join(_table(levels))


@pytest.mark.slow
def test_two_processes_do_the_whole_job(tmp_path: Path) -> None:
    data = write_molecules(tmp_path, "four.smi")
    words = ["run", "--data", str(data), "--size", "4", "--num-samples", "200", "--processes", "2"]
    words += ["--chains", "60", "--burn-in", "5", *set_options(CHANGES)]  # two blocks
    whole = nmln(tmp_path, *words)
    assert whole.returncode == 0, whole.stderr
    assert "Report: runs/main-four-4/report.html" in whole.stdout
    folder = tmp_path / "runs" / "main-four-4"
    assert json.loads((folder / "samples" / "sampling.json").read_text())["processes"] == 2
    assert "In short" in (folder / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_sampling_that_was_started_is_continued(done: pipeline.JobOutcome, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(done.folder, folder)
    shutil.rmtree(folder / "samples")
    settings = small(done.folder.parent / HOSTILE)
    job = pipeline.sample_job(sampling.open_run(folder), settings)
    stream.work(job, [0])
    first = job.data(0).read_bytes()
    pipeline.run(folder, settings)
    assert not job.work.exists()
    assert first in (folder / "samples" / "samples.csv.gz").read_bytes()
