"""The report of a run, made from its files alone: whole ones, unfinished ones and damaged ones."""

import csv
import json
import re
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from nmln.cli.common import settings_in
from nmln.config import Config, configure, override
from nmln.errors import InputError
from nmln.report import page
from nmln.report.page import Section
from nmln.runs import train as training
from nmln.runs.pages import duration, read_run, repeating, write_report
from nmln.runs.train import begin

SMALL = {
    "ladder": {"rates": [0.2, 0.05, 0.01], "temperatures": [1.5, 1.0]},
    "model": {"layers": 1, "hidden": 4},
    "chains": {"moves": 1, "replicas": 4},
    "training": {"steps": 60, "batch": 4, "processes": 1},
}
WORLDS = "smokes(Anna)\n---\nsmokes(Bob)\n---\nsmokes(Anna)\nsmokes(Bob)\n"


def settings(folder: Path, name: str = "people", **changes: object) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.db").write_text(WORLDS)
    config = override(configure(SMALL), {"data.source": str(folder / f"{name}.db")})
    return override(config, {key.replace("__", "."): value for key, value in changes.items()})


def begun(folder: Path, name: str = "people", **changes: object) -> Path:
    """A run that has taken no step yet."""
    return begin(folder / "run", settings(folder, name, **changes)).folder


def line(step: int, levels: int = 3) -> dict:
    numbers = [round(0.1 * (level + 1) + 0.001 * step, 4) for level in range(levels)]
    names = ("gap", "score", "gradient", "acceptance", "moved")
    told = {"step": step, "learning_rate": 0.001 * step, **dict.fromkeys(names, numbers)}
    return {**told, "swaps": numbers[1:], "evaluations": 10 * step, "seconds": 2.5 * step}


def tell(folder: Path, *lines: dict | str) -> Path:
    told = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    (folder / "metrics.jsonl").write_text("\n".join(told))
    return folder


def titles(text: str) -> list[str]:
    return [unescape(title) for title in re.findall("<h2>(.*?)</h2>", text)]


def test_a_run_as_it_was_trained_is_reported_whole(tmp_path: Path) -> None:
    job = begin(tmp_path / "run", settings(tmp_path))
    training.run(job)
    made = write_report(job.folder)
    assert [path.name for path in made.written] == [
        "report.html", "training.png", "training.svg", "training.csv",
    ]  # fmt: skip
    text = made.written[0].read_text()
    assert titles(text) == ["Findings", "The run", "Levels", "Curves", "Repeat", "Configuration"]
    assert "60 of 60 steps" in text
    assert "2 to learn from, 1 held out" in text
    assert ">0.2 | 0.05<" in text, "legends are text"
    for finding in made.findings:
        assert finding.text in unescape(text).replace("\xa0", " ")
    assert f"nmln train --resume {job.folder}" in text
    told = [json.loads(one) for one in (job.folder / "metrics.jsonl").read_text().splitlines()]
    with open(made.written[3], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 61))
    for row, one in zip(rows, told, strict=True):
        assert float(row["gap 0.01"]) == pytest.approx(one["gap"][2], rel=1e-4)
        assert float(row["swaps 0.2 | 0.05"]) == pytest.approx(one["swaps"][0], rel=1e-4)
        assert float(row["seconds"]) == pytest.approx(one["seconds"], rel=1e-4)


def test_what_others_add_stands_before_the_settings(tmp_path: Path) -> None:
    folder = tell(begun(tmp_path), line(1), line(2))
    more = [Section("Samples <new>", page.paragraph("a & b"))]
    text = write_report(folder, more).written[0].read_text()
    assert titles(text)[-3:] == ["Samples <new>", "Repeat", "Configuration"]


def test_the_likelihood_is_reported_where_it_was_measured(tmp_path: Path) -> None:
    folder = tell(begun(tmp_path), line(1), line(2))
    likelihood = {"worlds": 3, "train": -1.25, "train_error": 0.5, "test": None, "brand_new": 7}
    (folder / "likelihood.json").write_text(json.dumps(likelihood))
    text = write_report(folder).written[0].read_text()
    assert "Likelihood" in titles(text)
    assert "<td>-1.25 ± 0.5</td>" in text
    assert "<td>none</td>" in text
    assert "brand new" in text
    assert "train error" not in text


def test_the_same_files_give_the_same_report(tmp_path: Path) -> None:
    folder = tell(begun(tmp_path), *(line(step) for step in range(1, 100)))
    first = [path.read_bytes() for path in write_report(folder).written]
    assert [path.read_bytes() for path in write_report(folder).written] == first


def test_names_from_outside_do_no_harm(tmp_path: Path) -> None:
    folder = begun(tmp_path, name="<script>alert(1)&")
    odd = {'<img src=x onerror="y">': 1.0, "$a_b$": 2.0}
    tell(folder, {**line(1), **odd}, {**line(2), **dict.fromkeys(odd, 9.0)})
    text = write_report(folder).written[0].read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;img" in text


def test_the_command_repeats_the_run(tmp_path: Path) -> None:
    changes = {"chains__kernel": "gibbs", "model__base": False, "optimiser__clip": 5.0}
    config = settings(tmp_path / "with space", **changes)
    words = shlex.split(repeating(config, tmp_path / "run"))
    assert words[:3] == ["nmln", "train", config.data.source]
    assert words[3:5] == ["--output", f"{tmp_path / 'run'}-again"]
    assert set(words[5::2]) == {"--set"}
    again = override(configure({}), {"data.source": words[2], **settings_in(words[6::2])})
    assert again == config


def test_tempered_levels_are_called_by_their_temperatures(tmp_path: Path) -> None:
    folder = begun(tmp_path, ladder__method="tempering")
    one = {**line(1), "gap": [0.5], "score": [1.0], "gradient": [2.0], "swaps": [0.25]}
    for name in ("acceptance", "moved"):
        one[name] = [0.5, 0.75]
    run = read_run(tell(folder, one, {**one, "step": 2}))
    told = [finding.text for finding in run.findings]
    assert "Swaps between T = 1.5 and T = 1 are taken 25 % of the time." in told
    assert "The chains at the target (T = 1) accept 75 % of moves." in told
    assert run.levels.names(run.history.curves["acceptance"]) == ["T = 1.5", "T = 1"]
    assert run.levels.names(run.history.curves["gap"]) == ["0.01"]


def test_one_level_has_no_swaps_to_tell_of(tmp_path: Path) -> None:
    folder = begun(tmp_path, ladder__method="single")
    run = read_run(tell(folder, line(1, levels=1), line(2, levels=1)))
    assert run.findings
    assert not any("Swaps" in finding.text for finding in run.findings)


def test_a_run_that_was_killed_is_reported_as_far_as_it_got(tmp_path: Path) -> None:
    lines = [line(step) for step in range(1, 31)]
    lines[10]["gap"] = [None, None, None]
    lines[11]["gap"] = [float("nan"), 1.0, float("inf")]
    made = write_report(tell(begun(tmp_path), *lines, '{"step": 31, "gap": [0.'))
    first, *others = [finding.text for finding in made.findings if finding.warning]
    assert "cut off" in first
    assert any(text.startswith("At 2 of 30 steps gap is not a finite number") for text in others)
    text = made.written[0].read_text()
    assert "30 of 60 steps, 50% done" in text
    assert "To continue this run:" in text
    row = made.written[3].read_text().splitlines()[11].split(",")
    assert row[0] == "11"
    assert row.count("") == 3, "one gap for each level"


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_a_run_without_a_step_is_refused_with_the_cure(content: str | None, tmp_path: Path) -> None:
    folder = begun(tmp_path)
    if content is not None:
        (folder / "metrics.jsonl").write_text(content)
    with pytest.raises(InputError, match="step"):
        write_report(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("name", ["split.json", "likelihood.json", "config.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    folder = tell(begun(tmp_path), line(1))
    (folder / name).write_text('{"train": [1, 2')
    with pytest.raises(InputError, match=re.escape(name)):
        read_run(folder)


def test_the_command_line_answers_in_one_line_where_there_is_no_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nmln", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "no run in this folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0 s"), (119, "119 s"), (150, "2 min 30 s"), (9000, "2 h 30 min")]
)
def test_times_are_reported_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
