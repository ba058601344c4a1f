"""Files around samples: those of the user stay, and finished samples until there are new ones."""

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmln.errors import InputError, InterruptedRunError
from nmln.files import only_one
from nmln.model import load_run
from nmln.runs import stream
from nmln.runs import workspace as working
from tests.runs.sampling_runs import (
    TINY,
    begin,
    files,
    finished,
    leave,
    listing,
    read,
    run,
    summary,
)

__all__ = ["run"]  # a fixture


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A file of the user's that must survive everything."""
    path = tmp_path / "treasure.txt"
    path.write_text("of the user")
    return path


def stopped(run: Path, name: str, **wishes: Any) -> stream.SamplingJob:
    """Sampling that was stopped in its first block."""
    job = begin(run, name, **{**TINY, **wishes})
    with pytest.raises(InterruptedRunError):
        stream.work(job, tick=lambda: signal.raise_signal(signal.SIGTERM))
    return job


# Foreign files.


def test_folders_and_files_of_the_user_stay(run: Path) -> None:
    out = run.parent / "out"
    (out / "parts").mkdir(parents=True)
    for name in ("parts/mine.txt", "parts/settings.json", "counts-7.csv", "counts-mine.csv"):
        (out / name).write_text("mine")
    mine = listing(out)
    finished(run, "out", **TINY, all_levels=True)
    assert listing(out).items() >= mine.items()
    assert {"counts-0.csv", "counts-1.csv"} <= set(listing(out))
    finished(run, "out", **TINY, overwrite=True)
    after = listing(out)
    assert after.items() >= mine.items()
    assert set(after) - set(mine) == {"samples.csv.gz", "counts.csv", "sampling.json"}


def test_counts_of_the_user_are_not_replaced_by_those_of_levels(run: Path) -> None:
    mine = run.parent / "out" / "counts-0.csv"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(InputError, match=r"already holds samples \(counts-0\.csv\)"):
        begin(run, "out", **TINY, all_levels=True)
    finished(run, "out", **TINY)
    with pytest.raises(InputError, match=r"counts-0\.csv: this was not written by sampling"):
        begin(run, "out", **TINY, all_levels=True, overwrite=True)
    assert mine.read_text() == "mine"
    mine.rename(run.parent / "moved")
    for seed in (1, 2):  # which replaces its own
        finished(run, "out", **TINY, seed=seed, all_levels=True, overwrite=True)
    assert mine.read_text().startswith("smiles,count")


def test_what_comes_while_sampling_is_not_replaced_unasked(run: Path) -> None:
    whole, mine = finished(run, "whole", **TINY), run.parent / "out" / "samples.csv.gz"
    job = stopped(run, "out")
    mine.write_text("mine")
    model = load_run(run)
    for go_on in (lambda: begin(run, "out", **TINY), lambda: stream.resume(job.folder, model)):
        with pytest.raises(InputError, match=r"already holds samples \(samples\.csv\.gz\)"):
            go_on()
    mine.unlink()
    job = stream.resume(job.folder, model)
    stream.work(job)
    mine.write_text("mine")
    with pytest.raises(InputError, match=r"already holds samples \(samples\.csv\.gz\)"):
        stream.finish(job)
    assert mine.read_text() == "mine"
    stream.finish(begin(run, "out", **TINY, overwrite=True))
    assert files(mine.parent) == files(whole)


def test_what_was_drawn_stays_when_its_marker_is_lost(run: Path) -> None:
    job = stopped(run, "out")
    (job.work / working.SETTINGS).rename(run.parent / "kept")
    before = listing(job.folder)
    for go_on in (
        lambda: begin(run, "out", **TINY),
        lambda: stream.resume(job.folder, job.model),
        lambda: stream.attend(job.place, job.model),
    ):
        with pytest.raises(InputError, match=r"settings\.json: .*it is missing"):
            go_on()
    assert listing(job.folder) == before
    assert begin(run, "out", **TINY, overwrite=True).sweeps_done(0) == 0


@pytest.mark.parametrize("name", ["mine.txt", "block-0/mine.txt", "block-0/checkpoints/mine.txt"])
@pytest.mark.parametrize("begun", [True, False])
def test_foreign_files_in_the_working_folder_are_refused(run: Path, name: str, begun: bool) -> None:
    job = stopped(run, "out") if begun else None
    mine = run.parent / "out" / ".nmln-sampling" / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    before = listing(run.parent / "out")
    for options in ({}, {"overwrite": True}, {"seed": 3, "overwrite": True}):
        with pytest.raises(InputError, match=rf"{mine.name}: this was not written by sampling"):
            begin(run, "out", **{**TINY, **options})
    if job is not None:
        with pytest.raises(InputError, match="was not written by sampling"):
            stream.finish(job)
    assert listing(run.parent / "out") == before


# Links.


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "samples",
        "samples/sampling.json",
        "samples/samples.csv.gz",
        "samples/parts",
        "samples/parts/part-0/rows.csv.gz",
        "samples/.nmln-sampling",
        "samples/.nmln-sampling.lock",
        "samples/.nmln-sampling/settings.json",
        "samples/.nmln-sampling/block-0",
        "samples/.nmln-sampling/block-0/rows.csv.gz",
        "samples/.nmln-sampling/block-0/checkpoints",
        "samples/.nmln-sampling/writing/counts.csv",
        "tensorboard",
        "model/content.json",
    ],
)
def test_links_in_a_run_are_refused(
    run: Path,
    treasure: Path,
    name: str,
    exists: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = run / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    folder = run.parent / "elsewhere"
    folder.mkdir()
    leaf = link.name in (
        "samples",
        "parts",
        "checkpoints",
        "block-0",
        "tensorboard",
        ".nmln-sampling",
    )
    link.symlink_to((folder if leaf else treasure) if exists else run.parent / "nothing")
    for options in ((), ("--overwrite",), ("--resume",)):
        assert leave(monkeypatch, run, *options) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {link}: links within a run folder are not followed")
        assert said.count("\n") == 1
    assert treasure.read_text() == "of the user"
    assert not (run.parent / "nothing").exists()
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        "samples.csv.gz",
        "sampling.json",
        "chains.png",
        ".nmln-sampling",
        ".nmln-sampling.lock",
        ".nmln-sampling/settings.json",
        ".nmln-sampling/block-0/rows.csv.gz",
        ".nmln-sampling/block-2/lock",
        ".nmln-sampling/block-1/checkpoints",
        ".nmln-sampling/result",
    ],
)
def test_links_in_another_folder_of_samples_are_refused(
    run: Path, treasure: Path, name: str
) -> None:
    link = run.parent / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(treasure)
    (link.parent / "other").symlink_to(treasure)  # at a place where sampling has no business
    if ".nmln-sampling/" in name:
        (link.parent / "other").unlink()
    for overwrite in (False, True):
        with pytest.raises(InputError, match=f"{link.name}: links within a run folder"):
            begin(run, "out", **TINY, overwrite=overwrite)
    assert treasure.read_text() == "of the user"


def test_a_folder_of_samples_may_be_a_link_that_the_user_names(run: Path) -> None:
    real = run.parent / "real"
    real.mkdir()
    (run.parent / "out").symlink_to(real)
    finished(run, "out", **TINY)
    assert files(real) == files(finished(run, "whole", **TINY))


# Samples that are there already.


def test_samples_stay_until_new_ones_are_complete(run: Path) -> None:
    out = finished(run, "out", **TINY, all_levels=True)
    before = files(out)
    job = stopped(run, "out", seed=1, overwrite=True)
    assert files(out) == before
    again = stream.resume(out, job.model)
    stream.work(again)
    assert files(out) == before
    stream.finish(again)
    assert files(out) == files(finished(run, "other", **TINY, seed=1))
    assert not job.work.exists()


def test_overwriting_continues_itself(run: Path) -> None:
    finished(run, "out", **TINY)
    job = stopped(run, "out", seed=1, overwrite=True)
    assert begin(run, "out", **TINY, seed=1, overwrite=True).sweeps_done(0) == 1
    assert begin(run, "out", **TINY, seed=2, overwrite=True).sweeps_done(0) == 0
    assert not job.block(0).exists()


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"formulas": ["atom(0, O).", "!atom(0, O)."]}, "seem to contradict each other"),
        ({"formulas": ["1 atm(x, O)"]}, "unknown predicate"),
        ({"kernel": "gibs"}, "no kernel"),
        ({"scaffold": "Cx"}, "cannot be read as SMILES"),
        ({"count": 0}, "at least 1"),
        ({"chains": 0}, "chains must be at least 1"),
    ],
)
def test_wishes_that_cannot_be_met_change_nothing(
    run: Path, wishes: dict[str, Any], told: str
) -> None:
    before = listing(finished(run, "out", **TINY))
    for name in ("out", "new/one"):
        with pytest.raises(InputError, match=told):
            begin(run, name, **{**TINY, **wishes}, overwrite=True)
    assert listing(run.parent / "out") == before
    assert not (run.parent / "new").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("held", [".nmln-sampling.lock", ".nmln-sampling/block-2/lock"])
def test_where_another_process_samples_nothing_changes(
    run: Path,
    held: str,
    overwrite: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = finished(run, "out", **TINY)
    job = stopped(run, "out", seed=1, overwrite=True)
    lock = out / held
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    before = listing(out)
    words = [run, "--output", out, "--seed", 5, "--processes", 1]
    with only_one(lock, "sampling"):
        assert leave(monkeypatch, *words, *(["--overwrite"] if overwrite else [])) == 2
    said = capsys.readouterr().err
    other = "another process is sampling" if overwrite or held.count("/") == 0 else "other settings"
    assert other in said
    assert said.count("\n") == 1
    assert listing(out).items() >= {**before, held: b""}.items() - {(held, b"")}
    assert job.sweeps_done(0) == 1


def test_the_lock_is_gone_with_its_holder(run: Path) -> None:
    place = working.SamplePlace("molecules", run.parent / "a" / "b")
    with working.only_sampler(place):
        assert place.lock.exists()
        with pytest.raises(InputError, match="another process"), only_one(place.lock, "sampling"):
            pass
        with working.only_sampler(place):  # which this process is already
            pass
        assert place.lock.exists()
    assert not (run.parent / "a").exists()


def test_a_lock_that_its_holder_removes_does_not_let_two_in(tmp_path: Path) -> None:
    """The file was opened before it was removed, and locked afterwards."""
    lock = tmp_path / "lock"
    opened = os.open

    def late(path: Any, *arguments: Any, **options: Any) -> int:
        handle = opened(path, *arguments, **options)
        if str(path) == str(lock) and not late_once:
            late_once.append(True)
            lock.unlink()
        return handle

    late_once: list[bool] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", late)
        with only_one(lock, "sampling"):
            patched.undo()
            with pytest.raises(InputError, match="another"), only_one(lock, "sampling"):
                pass


# Killed while it puts together.


class BlackoutError(Exception):
    pass


def failing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """The `at`-th change of a name fails, and all after it, as if the process had ended."""
    left = [at]

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise BlackoutError
            return real(*arguments, **options)

        return call

    for name in ("replace", "rename", "unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    return left


@pytest.mark.parametrize("before", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_killed_while_it_finishes_it_ends_with_the_same_files(
    run: Path, before: bool, step: int
) -> None:
    whole = finished(run, "whole", **TINY, all_levels=True)
    out = run.parent / "out"
    if before:
        finished(run, "out", **TINY, seed=4)
    stream.work(begin(run, "out", **TINY, all_levels=True, overwrite=before))
    shutil.copytree(out, run.parent / "ready")
    model, moment, over = load_run(run), 0, False
    while not over:
        shutil.rmtree(out)
        shutil.copytree(run.parent / "ready", out)
        with pytest.MonkeyPatch.context() as patched:
            left = failing(patched, moment)
            with suppress(BlackoutError):
                stream.finish(stream.resume(out, model))
            over = left[0] >= 0
        with suppress(InputError):  # it may have been finished
            stream.finish(stream.resume(out, model))
        (out / ".nmln-sampling.lock").unlink(missing_ok=True)
        assert listing(out).keys() == listing(whole).keys()
        assert files(out) == files(whole)
        moment += step
    assert moment > 40


# Working folders of earlier versions.


def begun_before(run: Path, name: str, **changes: Any) -> stream.SamplingJob:
    """What a version without blocks of a fixed size left: a part for each of its two processes."""
    place = working.SamplePlace("molecules", run.parent / name)
    new = begin(run, "blueprint", **TINY)
    old = replace(new.settings, parts=2, block=0).described()
    content = {name: value for name, value in old.items() if name not in ("block", "kind")}
    text = {"settings": {**content, **changes}, "about": {"resume": "again"}}
    working.write_lines(place.home / "parts" / "settings.json", [working.json.dumps(text)])
    return stream.resume(place, new.model)


def test_what_an_earlier_version_began_is_continued(run: Path) -> None:
    job = begun_before(run, "out")
    assert (job.settings.parts, job.work) == (2, run.parent / "out" / "parts")
    assert [job.settings.stream(n) for n in (0, 1)] == [0, 0x9E3779B97F4A7C15 % 2**63]
    with pytest.raises(InterruptedRunError):
        stream.work(job, [1], tick=lambda: signal.raise_signal(signal.SIGINT))
    assert (job.work / "part-1").exists()
    again = begin(run, "out", **TINY)
    assert again.work == job.work
    stream.work(again)
    stream.finish(again)
    assert len(read(job.folder)) == 14
    assert summary(job.folder)["settings"]["parts"] == 2
    assert [path.name for path in job.folder.iterdir() if path.name.startswith(("part", "."))] == []


def test_an_earlier_working_folder_that_was_changed_is_named(run: Path) -> None:
    with pytest.raises(InputError, match=r"settings\.json: .*samples must be of type int"):
        begun_before(run, "out", samples="3")
    stream.work(begun_before(run, "lowered"))
    job = begun_before(run, "lowered", samples=7)
    for go_on in (stream.work, stream.finish):
        with pytest.raises(InputError, match="does not belong to this sampling"):
            go_on(job)
    assert not (run.parent / "lowered" / "samples.csv.gz").exists()
