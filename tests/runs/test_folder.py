"""The folder of a run: no links inside, one process at a time, nothing of the user's replaced."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nmln.errors import InputError
from nmln.files import only_one
from nmln.runs import folder as heads
from nmln.runs import pipeline
from nmln.runs import train as training
from tests.knowledge.families import write_family
from tests.runs.main_jobs import small, write_molecules
from tests.runs.runs import (
    Outcome,
    equal,
    settings,
    weights,
    whole_run,
    write_config,
)

STEP = "checkpoints/step-000000002"


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder; locks are no part of what a run is."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.endswith("lock")}


# Links.


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file and a folder of the user's, elsewhere; both must stay as they are."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "file").write_text("precious")
    yield place
    assert contents(place) == {"file": b"precious"}


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "the metrics": lambda f, s: replace(f / "metrics.jsonl", s / "file"),
    "a file that is not there yet": lambda f, s: replace(f / "metrics.jsonl", s / "new"),
    "the head": lambda f, s: replace(f / "config.json", s / "file"),
    "the split": lambda f, s: replace(f / "split.json", s / "file"),
    "the kept worlds": lambda f, s: replace(f / "worlds.safetensors", s / "file"),
    "the events": lambda f, s: replace(f / "tensorboard", s),
    "the samples": lambda f, s: replace(f / "samples", s),
    "the evaluation": lambda f, s: replace(f / "evaluation", s),
    "the model": lambda f, s: replace(f / "model", s),
    "the checkpoints": lambda f, s: replace(f / "checkpoints", s),
    "a file of a checkpoint": lambda f, s: replace(f / STEP / "tensors.safetensors", s / "file"),
    "the lock": lambda f, s: replace(f / ".lock", s / "file"),
    "a link deep inside": lambda f, s: replace(f / "more" / "deep" / "link", s),
    "the report": lambda f, s: replace(f / "report.html", s / "file"),
}


def replace(path: Path, by: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(by)


@pytest.mark.parametrize("name", LINKS)
def test_a_run_with_a_link_inside_is_refused_by_every_command(
    run: Path, secret: Path, here: Callable[..., Outcome], name: str
) -> None:
    LINKS[name](run, secret)
    (run.parent / "drawn.smi").write_text("CCO\n")
    before = contents(run)
    for arguments in (
        ("train", "--resume", run, "--tensorboard"),
        ("report", run),
        ("likelihood", run, "--steps", 2),
        ("evaluate", run.parent / "drawn.smi", "--run", run),
        ("combine", run, run.parent / "other", "--output", run.parent / "both"),
    ):
        done = here(*arguments)
        assert done.code == 2, arguments
        assert len(done.lines) == 1
        assert done.lines[0].startswith(f"error: {run}/")
        assert "links within a run folder are not followed" in done.lines[0]
    assert contents(run) == before
    assert not (run.parent / "both").exists()


def test_the_folder_as_a_whole_may_be_a_link(run: Path, here: Callable[..., Outcome]) -> None:
    (run.parent / "link").symlink_to(run)
    assert here("train", "--resume", run.parent / "link").code == 0


def test_a_new_run_is_not_started_among_links(
    people: Path, secret: Path, here: Callable[..., Outcome]
) -> None:
    folder = people.parent / "new"
    folder.mkdir()
    (folder / "tensorboard").symlink_to(secret)
    for arguments in (
        ("train", people, "--config", write_config(people.parent), "--tensorboard"),
        ("run", "--data", write_molecules(people.parent), "--size", 4, "--minutes", 0.01),
        ("kb", "train", write_family(people.parent / "camps", people=6)),
    ):
        done = here(*arguments, "--output", folder)
        assert done.code == 2
        assert done.lines[-1] == (
            f"error: {folder / 'tensorboard'}: links within a run folder are not followed. Link the "
            "run folder as a whole, or replace the link by a copy."
        )
    assert [path.name for path in folder.iterdir() if "lock" not in path.name] == ["tensorboard"]


def test_a_knowledge_base_with_a_link_inside_is_refused(
    tmp_path: Path, secret: Path, here: Callable[..., Outcome]
) -> None:
    source, run = write_family(tmp_path / "camps", people=6), tmp_path / "kb"
    options = ("--epochs", 1, "--hidden", 4, "--rank", 2)
    assert here("kb", "train", source, "--output", run, *options).code == 0
    replace(run / "ranks.csv", secret / "file")
    for arguments in (
        ("train", "--resume", run),
        ("train", source, "--output", run),
        ("rank", run),
        ("complete", run),
    ):
        done = here("kb", *arguments)
        assert done.code == 2
        assert done.lines[0].startswith(f"error: {run / 'ranks.csv'}: links within a run folder")


# One process at a time.


def test_a_second_training_in_a_folder_is_refused_and_changes_nothing(
    people: Path, here: Callable[..., Outcome]
) -> None:
    folder = people.parent / "run"
    job = training.begin(folder, settings(people, training__steps=5))
    told, tell = os.pipe()
    go, gone = os.pipe()

    class Wait:
        def on_start(self, job: training.TrainingJob) -> None: ...

        def on_step(self, metrics: Any, quality: dict[str, float]) -> None:
            if metrics.step == 3:
                os.write(tell, b"!")
                os.read(go, 1)

        def on_note(self, text: str) -> None: ...

    if not (child := os.fork()):
        training.run(job, Wait())
        os._exit(0)
    os.read(told, 1)
    before = contents(folder)
    config = write_config(people.parent, training={"steps": 7})
    for arguments, said in (
        (("train", "--resume", folder), "another process is training in this folder"),
        (
            ("train", people, "--config", config, "--output", folder),
            "already holds a run",
        ),
    ):
        done = here(*arguments)
        assert done.code == 2
        assert len(done.lines) == 1
        assert said in done.lines[0]
    with pytest.raises(InputError, match="another process"):
        training.run(job)
    assert contents(folder) == before
    os.write(gone, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert equal(weights(folder), weights(whole_run(people, training__steps=5)))


def test_a_beginning_that_another_process_was_faster_with_is_refused(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen an empty folder; only one of them writes."""
    folder, build = people.parent / "run", training.Trainer

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(training, "Trainer", build)
        training.begin(folder, settings(people, training__steps=3))
        return build(*arguments)

    monkeypatch.setattr(training, "Trainer", slow)
    with pytest.raises(InputError, match="already holds a run"):
        training.begin(folder, settings(people))
    assert json.loads((folder / "config.json").read_text())["config"]["training"]["steps"] == 3


def test_a_job_that_another_process_went_on_with_is_refused(people: Path) -> None:
    folder = people.parent / "run"
    job = training.begin(folder, settings(people, training__steps=2))
    training.run(training.resume(folder))
    before = contents(folder)
    with pytest.raises(InputError, match="another process has trained"):
        training.run(job)
    assert contents(folder) == before


def test_no_other_process_writes_where_a_lock_is_held(
    people: Path, run: Path, here: Callable[..., Outcome]
) -> None:
    other = people.parent / "other"
    shutil.copytree(run, other)
    both, kb = people.parent / "both", people.parent / "kb"
    camps = write_family(people.parent / "camps", people=6)
    molecules = write_molecules(people.parent)
    for folder, lock, arguments, said in (
        (both, ".lock", ("combine", run, other, "--output", both), "combining"),
        (both, ".lock", ("train", people, "--steps", 1, "--output", both), "training"),
        (kb, ".lock", ("kb", "train", camps, "--epochs", 1, "--output", kb), "training"),
        (kb, ".main.lock", ("run", "--data", molecules, "--size", 4, "--output", kb), "nmln run"),
    ):
        with only_one(folder / lock, "waiting"):
            done = here(*arguments)
        assert done.code == 2
        assert f"error: {folder}: another process is" in done.lines[-1]
        assert said in done.lines[-1]
        assert contents(folder) == {}
    job = small(molecules)
    with only_one(kb / ".main.lock", "waiting"), pytest.raises(InputError, match="nmln run"):
        pipeline.run(kb, job)


# What is not ours.


@pytest.mark.parametrize(
    "name",
    ["model/mine.txt", "checkpoints/mine", "metrics.jsonl", "split.json", "config.json",
     "worlds.safetensors", "report.html", "training.csv", "samples/mine.csv", "evaluation/a",
     "likelihood.json"],
)  # fmt: skip
def test_what_a_run_would_replace_is_noticed_before_it_begins(
    people: Path, run: Path, here: Callable[..., Outcome], name: str
) -> None:
    folder = people.parent / "mine"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text('{"precious": 1}')
    other = people.parent / "other"
    shutil.copytree(run, other)
    molecules = write_molecules(people.parent)
    for arguments in (
        ("train", people, "--steps", 1, "--processes", 1),
        ("combine", run, other),
        ("run", "--data", molecules, "--size", 4, "--minutes", 0.01),
    ):
        done = here(*arguments, "--output", folder)
        assert done.code == 2, arguments
        assert done.lines[-1].startswith(f"error: {folder}")
        assert "Move it away" in done.lines[-1] or "Choose another one" in done.lines[-1]
        assert contents(folder) == {name: b'{"precious": 1}'}


def test_a_split_of_the_users_in_our_form_is_not_replaced(people: Path) -> None:
    folder = people.parent / "mine"
    folder.mkdir()
    (folder / "split.json").write_text('{"train": [1], "test": [0]}')
    with pytest.raises(InputError, match=r"split\.json: this was not written by a run"):
        training.begin(folder, settings(people))
    assert contents(folder) == {"split.json": b'{"train": [1], "test": [0]}'}


@pytest.mark.parametrize("name", ["model/x", "checkpoints/x", "training.json", "history.csv"])
def test_what_a_knowledge_base_would_replace_is_noticed(
    tmp_path: Path, here: Callable[..., Outcome], name: str
) -> None:
    source, folder = write_family(tmp_path / "camps", people=6), tmp_path / "mine"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text('{"precious": 1}')
    done = here("kb", "train", source, "--epochs", 1, "--output", folder)
    assert done.code == 2
    (line,) = done.lines
    assert line.startswith(f"error: {folder / name}: this was not written by a run in this folder")
    assert contents(folder) == {name: b'{"precious": 1}'}


def test_a_model_that_the_end_could_not_replace_is_noticed_when_a_run_is_resumed(
    run: Path, here: Callable[..., Outcome]
) -> None:
    (run / "model" / "notes.txt").write_text("mine")
    before = contents(run)
    done = here("train", "--resume", run)
    assert done.code == 2
    assert done.lines[-1].startswith(f"error: {run / 'model' / 'notes.txt'}: this was not written")
    assert contents(run) == before


# Killed while it began.


def test_a_beginning_that_was_killed_between_split_and_head_is_restarted(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = people.parent / "run", []

    def killed(path: Path, content: Any, **form: Any) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content, **form)

    write = heads.write_json
    with monkeypatch.context() as patch:
        patch.setattr(heads, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            training.begin(folder, settings(people))
    assert contents(folder).keys() == {"split.json", "worlds.safetensors"}
    training.run(training.begin(folder, settings(people, training__steps=3)))
    assert equal(weights(folder), weights(whole_run(people, training__steps=3)))
