"""The content of the files of a run: its split, its metrics, its data; and the errors about them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmln import checkpoint
from nmln.errors import InputError
from nmln.report import page
from nmln.runs import combine as combining
from nmln.runs import knowledge, likelihood, pages, pipeline
from nmln.runs import train as training
from nmln.runs.folder import RunFolder
from tests.runs.main_jobs import small, write_molecules
from tests.runs.runs import (
    Outcome,
    equal,
    half_written,
    settings,
    weights,
    whole_run,
    write_config,
)

# The split belongs to the run.


def swapped(split: dict[str, list[int]]) -> dict[str, list[int]]:
    return {"train": split["test"], "test": split["train"]}


def moved(split: dict[str, list[int]]) -> dict[str, list[int]]:
    train, test = split["train"], split["test"]
    return {"train": [test[0], *train[1:]], "test": [train[0], *test[1:]]}


@pytest.mark.parametrize("change", [swapped, moved])
def test_another_split_is_refused_by_every_command_that_reads_the_data(
    run: Path, here: Callable[..., Outcome], change: Callable[..., Any]
) -> None:
    path = run / "split.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    for arguments in (("train", "--resume", run), ("likelihood", run, "--steps", 2)):
        done = here(*arguments)
        assert done.code == 2
        assert len(done.lines) == 1
        assert f"error: {path}: this is not the split that the run started with" in done.lines[0]


def test_a_split_with_a_new_hash_in_the_head_does_not_fit_the_checkpoints(
    run: Path, here: Callable[..., Outcome]
) -> None:
    path, head = run / "split.json", json.loads((run / "config.json").read_text())
    path.write_text(json.dumps(swapped(json.loads(path.read_text()))))
    del head["split"]
    (run / "config.json").write_text(json.dumps(head))
    done = here("train", "--resume", run)
    assert done.code == 2
    assert f"error: {run / 'checkpoints'}" in done.lines[0]
    assert "this checkpoint was made with another split of the data" in done.lines[0]


# Metrics.


def steps(folder: Path) -> list[int]:
    return [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


METRICS: dict[str, tuple[Callable[[list[str]], list[str]], list[int], str]] = {
    "later lines": (lambda lines: [*lines, lines[2].replace(": 3", ": 4")], [1, 2, 3], ""),
    "a line by halves": (lambda lines: [*lines, '{"step": 4, "ga'], [1, 2, 3], ""),
    "repeats": (lambda lines: [*lines[:2], *lines], [1, 2, 3], ""),
    "a damaged line": (lambda lines: [lines[0], "\0" * 40, lines[2]], [1, 3], "for step 2: "),
    "lines that are lost": (lambda lines: lines[:1], [1], "for step 2 to 3: "),
    "no lines": (lambda lines: [], [], "for step 1 to 3: "),
    "a step that is none": (lambda lines: ['{"step": true}', *lines], [1, 2, 3], ""),
    "too deep": (lambda lines: ["[" * 100_000, *lines], [1, 2, 3], ""),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_have_each_step_once_after_resuming_or_the_gap_is_reported(
    run: Path, here: Callable[..., Outcome], name: str
) -> None:
    change, kept, said = METRICS[name]
    shutil.rmtree(run / "model")
    path = run / "metrics.jsonl"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    done = here("train", "--resume", run)
    assert done.code == 0, done.said
    assert steps(run) == kept
    assert ("metrics.jsonl has no intact line" in done.said) == bool(said)
    assert said in done.said
    assert not half_written(run)


def test_lines_are_on_disk_before_the_checkpoint_that_counts_on_them(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronised: list[list[int]] = []
    real, save = os.fsync, checkpoint.save
    folder = people.parent / "run"

    def fsync(handle: int) -> None:
        if os.path.samestat(os.fstat(handle), (folder / "metrics.jsonl").stat()):
            synchronised.append(steps(folder))
        real(handle)

    def saved(place: Path, step: int, *arguments: Any, **options: Any) -> Any:
        assert synchronised[-1] == list(range(1, step + 1))
        return save(place, step, *arguments, **options)

    job = training.begin(folder, settings(people, training__steps=3))
    (folder / "metrics.jsonl").touch()
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(checkpoint, "save", saved)
    training.run(job)
    assert len(synchronised) == 3


@pytest.mark.parametrize("number", ["1e400", "1" + 400 * "0", "-1e308"])
def test_numbers_beyond_all_bounds_in_metrics_are_reported(
    run: Path, here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    if number != "1e400":  # figures take seconds
        monkeypatch.setattr(pages, "draw", lambda *_: ())
        monkeypatch.setattr(page, "panels", lambda _: page.Html(""))
    path = run / "metrics.jsonl"
    *before, last = map(json.loads, path.read_text().splitlines())
    last |= {"learning_rate": "#", "gap": ["#", 1.0], "seconds": "#", "evaluations": "#"}
    lines = [json.dumps(line) for line in (*before, last)]
    path.write_text("".join(f"{line}\n" for line in lines).replace('"#"', number))
    done = here("report", run)
    assert done.code == 0, done.said


@pytest.mark.parametrize("number", ["1e400", "1" + 400 * "0", "-1", "1.5", "9223372036854775808"])
def test_a_step_beyond_all_bounds_is_refused_in_one_line(
    run: Path, here: Callable[..., Outcome], number: str
) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 2', f'"step": {number}'))
    done = here("report", run)
    assert done.lines == [f"error: {path}:2: a line of metrics needs a whole number as its step."]


# Data that have moved.


def test_data_that_have_moved_are_named_again(
    people: Path, here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = whole_run(people, training__steps=6)
    folder, other = people.parent / "my run", people.parent / "other"
    job = training.begin(folder, settings(people, training__steps=6))

    class Stop:
        def on_start(self, job: training.TrainingJob) -> None: ...

        def on_step(self, metrics: Any, quality: dict[str, float]) -> None:
            if metrics.step == 4:
                raise InputError("the lights go out")

        def on_note(self, text: str) -> None: ...

    with pytest.raises(InputError, match="lights"):
        training.run(job, Stop())
    shutil.copytree(whole, other)
    place = people.parent / "new place"
    place.mkdir()
    now = place / "folk.db"
    people.rename(now)

    done = here("train", "--resume", folder)
    (line,) = done.lines
    assert line.startswith(f"error: {people}: ")
    assert line.endswith(f"nmln train --resume '{folder}' --data NEW_PATH")
    wrong = place / "wrong.db"
    wrong.write_text("friends(Anna, Zoe)\n")
    head = (folder / "config.json").read_bytes()
    done = here("train", "--resume", folder, "--data", wrong)
    assert done.code == 2
    assert f"the data {wrong} are not those that this run started with" in done.lines[-1]
    assert (folder / "config.json").read_bytes() == head

    monkeypatch.chdir(place)
    done = here("train", "--resume", folder, "--data", "folk.db")
    assert done.code == 0, done.said
    assert equal(weights(folder), weights(whole))
    recorded = json.loads((folder / "config.json").read_text())
    assert recorded["config"]["data"]["source"] == str(now.resolve())
    assert recorded == {**json.loads(head), "config": recorded["config"]}
    assert here("train", "--resume", folder).code == 0, "it is found again by itself"

    before = (whole / "config.json").read_bytes()
    likelihood.run(whole, chains=2, steps=2, sweeps=3, data=str(now))
    combining.combine([whole, folder], people.parent / "both", data=str(now))
    assert (whole / "config.json").read_bytes() == before
    with pytest.raises(InputError, match="missing"):
        likelihood.run(other, chains=4, steps=5, sweeps=5)


def test_a_main_job_continues_with_data_that_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = write_molecules(tmp_path), tmp_path / "job"
    settings = pipeline.begin(folder, small(data))
    training.begin(folder, settings.config())
    now = tmp_path / "moved.smi"
    data.rename(now)
    wrong = tmp_path / "wrong.smi"
    wrong.write_text("CCCC\nCCCO\nCCCN\n")
    with pytest.raises(InputError, match="not those that this run started with"):
        pipeline.begin(folder, small(wrong))
    assert pipeline.begin(folder, small(now)).data == str(now.resolve())
    assert pipeline.begin(folder, small(now)).data == str(now.resolve())
    assert training.resume(folder).config.data.source == str(now.resolve())
    shutil.copy(now, data)
    with pytest.raises(InputError, match="other settings"):
        pipeline.begin(folder, small(data))


# Flags and hints.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--minutes", "1", "--steps", "3"), "--minutes and --steps"),
        (("--minutes", "1", "--set", "training.steps=3"), "--minutes and --steps"),
        (("--set", "training.seed=-1"), "training.seed must be between 0"),
        (("--set", "model.seed=9223372036854775808"), "model.seed must be between 0"),
        (("--data", "x"), "--resume"),
    ],
)
def test_flags_that_contradict_are_refused(
    people: Path, here: Callable[..., Outcome], arguments: tuple[str, ...], said: str
) -> None:
    done = here("train", people, "--output", people.parent / "run", *arguments)
    assert done.code == 2
    assert len(done.lines) == 1
    assert said in done.lines[0]
    assert not (people.parent / "run").exists()


def test_seeds_are_bounded(people: Path, here: Callable[..., Outcome]) -> None:
    config = write_config(people.parent, training={"steps": 1})
    folder = people.parent / "run"
    begin = ("train", people, "--config", config, "--output", folder, "--seed")
    assert here(*begin, 2**63).code == 2
    assert not folder.exists()
    assert here(*begin, 2**63 - 1).code == 0


def test_steps_override_the_minutes_of_a_file(people: Path, here: Callable[..., Outcome]) -> None:
    config = write_config(people.parent, training={"minutes": 100.0})
    folder = people.parent / "run"
    done = here("train", people, "--config", config, "--output", folder, "--steps", 2)
    assert done.code == 0, done.said
    assert steps(folder) == [1, 2]


def test_a_language_is_for_worlds(tmp_path: Path, here: Callable[..., Outcome]) -> None:
    data, language = write_molecules(tmp_path), tmp_path / "my.mln"
    language.write_text("friends(person, person)\n")
    arguments = ("--language", language, "--output", tmp_path / "run", "--processes", 1)
    done = here("train", data, *arguments)
    (line,) = done.lines
    assert line.startswith(f"error: {data}: ")
    assert "--language" in line


@pytest.mark.parametrize("flag", [("--steps", "0"), ("--seed", "0"), ("--nodes", "3")])
def test_resuming_takes_no_other_settings(
    run: Path, here: Callable[..., Outcome], flag: tuple[str, str]
) -> None:
    done = here("train", "--resume", run, *flag)
    assert done.code == 2
    assert "--resume continues a run" in done.lines[0]


def test_hints_can_be_pasted_into_a_shell(
    run: Path, people: Path, here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = here("train", people, "--output", run, "--steps", 1)
    assert f"nmln train --resume '{run}'" in done.lines[0]
    (run / "metrics.jsonl").unlink()
    assert f"nmln train --resume '{run}'" in here("report", run).lines[0]
    assert RunFolder(run).resume_command == f"nmln train --resume '{run}'"
    assert knowledge.resuming(run) == f"nmln kb train --resume '{run}'"


def test_an_error_of_the_disk_names_the_users_file(
    run: Path, here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    done = here("report", run)
    assert done.code == 2
    assert len(done.lines) == 1
    assert f"{run / 'training.csv'}: No space left on device" in done.lines[0]
