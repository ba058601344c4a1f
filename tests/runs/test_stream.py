"""Molecules by the million, in small: files, resuming, several parts."""

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from nmln.cli import main
from nmln.diagnostics import Diagnostics
from nmln.errors import InputError, InterruptedRunError
from nmln.files import only_one
from nmln.model import load_run
from nmln.runs import blocks, sample_rows, stream
from tests.runs.sampling_runs import (
    begin,
    files,
    finished,
    leave,
    make_run,
    read,
    run,
    summary,
)

pytestmark = pytest.mark.usefixtures("unchecked")

__all__ = ["run"]  # a fixture


def test_a_sweep_has_as_many_moves_of_the_kernel_that_are_asked_for(run: Path) -> None:
    usual, longer, other = (
        summary(finished(run, name, **wishes))
        for name, wishes in (
            ("usual", {}),
            ("longer", {"moves": 6}),
            ("other", {"kernel": "metropolis"}),
        )
    )
    assert usual["moves_per_sample"] == 2 * 2
    assert longer["moves_per_sample"] == 2 * 6
    assert longer["evaluations"]["slopes"] > 2 * usual["evaluations"]["slopes"] > 0
    assert other["evaluations"]["slopes"] == 0


def test_a_kernel_that_does_not_exist_is_reported_with_those_that_do(run: Path) -> None:
    with pytest.raises(InputError, match=r"no kernel 'gibs'.*gibbs"):
        begin(run, "samples", kernel="gibs")


def test_two_do_not_sample_into_one_folder(run: Path) -> None:
    job = begin(run, "once")
    with (
        only_one(job.lock(0), "sampling"),
        pytest.raises(InputError, match="another process"),
    ):
        stream.work(job)
    stream.work(job)
    stream.finish(job)


# Files.


def test_every_attempt_has_a_row_and_counts_agree_with_the_rows(run: Path) -> None:
    folder = finished(run, "out")
    lines = gzip.decompress((folder / "samples.csv.gz").read_bytes()).decode().splitlines()
    assert lines[0] == "sample,level,status,smiles"
    found = read(folder)
    assert sorted(row[0] for row in found) == list(range(105))
    assert {row[1] for row in found} == {1}
    assert all(bool(smiles) == (status == "valid") for _, _, status, smiles in found)
    counts = Counter(smiles for *_, smiles in found if smiles)
    expected = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    table = (folder / "counts.csv").read_text().splitlines()
    assert table == ["smiles,count", *(f"{smiles},{count}" for smiles, count in expected)]
    told = summary(folder)
    (level,) = told["levels"]
    assert told["attempts"] == 105
    assert level["valid"] == sum(counts.values()) > 0
    statuses = Counter(row[2] for row in found)
    assert all(level[name] == statuses[name] for name in ("disconnected", "invalid", "normalised"))
    assert level["unique"] == len(counts)
    assert level["rate"] == 0.02
    assert told["moves_per_sample"] == 4
    assert told["samples_per_second"] > 0
    assert told["evaluations"]["slopes"] >= 10 * 2 * 2 * 25
    assert not (folder / ".nmln-sampling").exists()


def test_all_levels_have_rows_and_counts_of_their_own(run: Path) -> None:
    folder = finished(run, "out", all_levels=True)
    found = read(folder)
    assert sorted((row[0], row[1]) for row in found) == [
        (sample, level) for sample in range(105) for level in range(2)
    ]
    for level in range(2):
        total = sum(row[1] == level and row[2] == "valid" for row in found)
        table = (folder / f"counts-{level}.csv").read_text().splitlines()[1:]
        assert sum(int(line.split(",")[1]) for line in table) == total
    assert (folder / "counts-1.csv").read_bytes() == (folder / "counts.csv").read_bytes()
    # The target's rows are those that there would have been without the others.
    assert [row for row in found if row[1] == 1] == read(finished(run, "target"))


def test_fewer_samples_than_chains_are_enough(run: Path) -> None:
    assert len(read(finished(run, "out", count=1, block=1))) == 1
    with pytest.raises(InputError, match="at least 1"):
        begin(run, "none", count=0)


# Stopped and resumed.


class BlackoutError(Exception):
    pass


def interrupted(run: Path, name: str, stops: list[int], save_every: float, **wishes: Any) -> Path:
    """Sampling that breaks down after these numbers of sweeps, each time with rubbish in its file."""
    for stop in stops:
        job, left = begin(run, name, **wishes), stop

        def tick() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise BlackoutError

        with pytest.raises(BlackoutError):
            stream.work(job, tick=tick, save_every=save_every)
        for part in job.work.glob("block-*/sample_rows.csv.gz"):
            with open(part, "ab") as file:
                file.write(b"\x1f\x8b half a member")
    return finished(run, name, **wishes)


@pytest.mark.parametrize("block", [50, 4])
@pytest.mark.parametrize("save_every", [0.0, pytest.param(0.02, marks=pytest.mark.slow)])
def test_sampling_that_breaks_down_ends_with_the_same_files(
    run: Path, monkeypatch: pytest.MonkeyPatch, block: int, save_every: float
) -> None:
    monkeypatch.setattr(sample_rows, "_MEMBER", 200)  # so that there are many
    whole = finished(run, "whole", block=block)
    chance = random.Random(block)
    stops = [chance.randrange(1, 7) for _ in range(4)]
    broken = interrupted(run, "broken", stops, save_every, block=block)
    assert files(broken) == files(whole)
    assert files(whole)["samples.csv.gz"].count(b"\x1f\x8b\x08") > 5


def test_what_is_known_of_the_chains_outlives_a_breakdown(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Diagnostics] = []
    monkeypatch.setattr(stream, "write_summary", lambda _, found, __: told.append(found) or [])
    finished(run, "whole")
    interrupted(run, "broken", [5, 11], 0.0)
    one, other = (found.recording._asdict() for found in told)
    assert one["traces"]["score"].shape == (22, 2, 10)
    for name in ("sweeps", "phases", "moves", "kernels", "stride"):
        assert one[name] == other[name]
    for name in ("acceptance", "moved", "swap_probability", "round_trips", "restarts"):
        assert torch.equal(one[name], other[name])
    assert (one["traces"]["score"] == other["traces"]["score"]).all()
    assert (one["walkers"] == other["walkers"]).all()


def test_the_blocks_can_be_done_in_any_order(run: Path) -> None:
    whole = finished(run, "whole", block=4)
    job = begin(run, "other", block=4)
    for part in (2, 0):
        stream.work(job, [part])
    with pytest.raises(InputError, match="block 1 of 3 is not finished"):
        stream.finish(job)
    stream.work(job, [1])
    stream.finish(job, processes=3)
    assert files(job.folder) == files(whole)


def test_blocks_have_chains_of_their_own(run: Path) -> None:
    found = read(finished(run, "out", block=5))
    halves = [
        [(status, smiles) for sample, _, status, smiles in found if (sample % 10 < 5) is first]
        for first in (True, False)
    ]
    assert halves[0] != halves[1][: len(halves[0])]
    assert read(finished(run, "again", block=5)) == found
    assert read(finished(run, "seed", block=5, seed=1)) != found


def test_a_signal_keeps_what_was_reached(run: Path) -> None:
    job = begin(run, "out")
    sweeps = 0

    def tick() -> None:
        nonlocal sweeps
        sweeps += 1
        if sweeps == 9:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(InterruptedRunError, match=r"stopped after sweep 9 of 25\..* Continue with"):
        stream.work(job, tick=tick, save_every=1000)
    assert job.sweeps_done(0) == 9
    assert files(finished(run, "out")) == files(finished(run, "whole"))


def test_samples_that_are_there_are_not_spoiled(run: Path) -> None:
    folder = finished(run, "out")
    before = files(folder)
    with pytest.raises(InputError, match="already holds samples"):
        begin(run, "out", seed=1)
    with pytest.raises(InputError, match="no interrupted sampling"):
        stream.resume(folder, load_run(run))
    assert files(folder) == before
    job = begin(run, "out", count=5, burn_in=1, seed=1, overwrite=True)
    assert files(folder) == before
    stream.work(job)
    stream.finish(job)
    assert len(read(folder)) == 5


def test_one_of_several_says_what_all_say(run: Path) -> None:
    job = begin(run, "out", block=5)
    with pytest.raises(InterruptedRunError, match=r"^stopped\..* Continue with: "):
        stream.work(job, [1], lambda: signal.raise_signal(signal.SIGTERM))
    assert [job.sweeps_done(part) for part in range(2)] == [0, 1]


def test_only_the_same_sampling_continues(run: Path) -> None:
    with pytest.raises(InterruptedRunError):
        stream.work(begin(run, "out"), tick=lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(InputError, match=r"other settings .*\(seed 0 instead of 3\)"):
        begin(run, "out", seed=3)
    with pytest.raises(InputError, match="formulas"):
        begin(run, "out", formulas=["1.5 atom(x, O)"])
    with pytest.raises(InputError, match=r"\(parts 1 instead of 2, block 50 instead of 5\)"):
        begin(run, "out", block=5)
    other = make_run(run.parent / "trained", seed=1)
    with pytest.raises(InputError, match="the model has changed"):
        stream.resume(run.parent / "out", load_run(other))


def test_what_has_kept_nothing_gives_way(run: Path) -> None:
    begin(run, "out", formulas=["!atom(x, O)."], block=5)
    job = begin(run, "out", block=4)
    assert stream.resume(job.folder, job.model).settings == job.settings
    assert job.settings.parts == 3
    trained = make_run(run.parent / "trained", seed=1)
    assert begin(trained, "out").settings.model != job.settings.model
    assert files(finished(run, "out")) == files(finished(run, "whole"))


@pytest.mark.parametrize("held", [".nmln-sampling.lock", ".nmln-sampling/block-1/lock"])
def test_what_is_being_done_does_not_give_way(run: Path, held: str) -> None:
    job = begin(run, "out", block=5)
    with (
        only_one(job.folder / held, "sampling"),
        pytest.raises(InputError, match="another process is sampling"),
    ):
        begin(run, "out", seed=3)
    assert stream.resume(job.folder, job.model).settings == job.settings


def test_samples_without_their_blocks_are_not_spoiled(run: Path) -> None:
    """As they are when somebody stops it while it tidies up."""
    job = begin(run, "out")
    (job.folder / stream.SUMMARY).touch()
    with pytest.raises(InputError, match="already holds samples"):
        begin(run, "out", seed=3)


def test_two_cannot_write_one_part(run: Path) -> None:
    job = begin(run, "out")
    with (
        sample_rows.SampleFile(job.data(0)),
        pytest.raises(InputError, match="another process is sampling into this folder"),
    ):
        stream.work(job)


def test_memory_does_not_grow_with_the_number_of_sweeps(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_DRAWS", 10)
    monkeypatch.setattr(blocks, "REMEMBERED", 7)
    monkeypatch.setattr(sample_rows, "_MEMBER", 200)
    job = begin(run, "out", count=400)
    stream.work(job, save_every=1000)
    kept = stream.Kept.load(job, 0)
    assert kept.recorder is not None
    assert kept.recorder.seen == 80
    assert len(kept.recorder.recording().walkers) <= 10


# As a user starts it.


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nmln", "sample", *arguments]


def nmln(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scaffold", "Cx"], "error: the scaffold 'Cx' cannot be read as SMILES"),
        (["--formula", "1 atm(x, O)"], "error: formula '1 atm(x, O)':3: unknown predicate atm"),
        (["--resume", "--seed", "1"], "error: --resume continues a sampling"),
    ],
)
def test_a_mistake_ends_in_one_line(
    run: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["nmln", "sample", str(run), *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith(message)
    assert said.count("\n") == 1


def test_a_start_that_failed_does_not_block_the_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (run, "--output", run.parent / "out", "--num-samples", "20", "--burn-in", "2")
    words += ("--processes", "1", "--scaffold", "O*")
    assert leave(monkeypatch, *words, "--formula", "!atom(x, O).") == 2
    said = capsys.readouterr().err
    assert "they seem to contradict each other. Still violated: !atom(x, O)." in said
    assert said.count("\n") == 1
    assert leave(monkeypatch, *words, "--formula", "!atom(x, N).") == 0
    assert len(read(run.parent / "out")) == 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_it_counts_it_says_how_to_go_on(
    run: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, out = finished(run, "whole"), run.parent / "out"
    before = signal.getsignal(number)
    words = ("--num-samples", "105", "--chains", "10", "--burn-in", "3", "--thin", "2")
    with monkeypatch.context() as patched:
        patched.setattr(stream, "write_counts", lambda *_: signal.raise_signal(number))
        assert leave(patched, run, *words, "--processes", "1", "--output", out) == 130
    again = f"nmln sample {run} --resume --output {out}"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: stopped.")
    assert line.endswith(f"Continue with: {again}")
    assert signal.getsignal(number) == before
    assert leave(monkeypatch, *again.split()[2:], "--processes", "1") == 0
    assert files(out) == files(whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("sign", "samples", "seconds"),
    [(".nmln-sampling/block-1/lock", 10**7, 0.2), (".nmln-sampling/writing", 20_000, 0.0)],
    ids=["work", "count"],
)
def test_two_processes_that_are_stopped_say_one_line(
    run: Path, sign: str, samples: int, seconds: float, number: signal.Signals
) -> None:
    options = ("--num-samples", str(samples), "--chains", "20", "--burn-in", "5", "--thin", "1")
    options += ("--block-size", "10")
    with subprocess.Popen(
        command("run", *options, "--processes", "2", "--output", "out"),
        cwd=run.parent,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not (run.parent / "out" / sign).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(seconds)
        # Ctrl-C reaches all processes of a terminal, kill only one.
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("kept. Continue with: nmln sample run --resume --output out\n")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_files(run: Path) -> None:
    options = ("run", "--num-samples", "20000", "--chains", "20", "--burn-in", "5")
    options += ("--thin", "1", "--processes", "1", "--output", "killed")
    chance = random.Random(0)
    for _ in range(4):
        with subprocess.Popen(
            command(*options), cwd=run.parent, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            deadline = time.monotonic() + 60
            part = run.parent / "killed" / ".nmln-sampling" / "block-0"
            while not part.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 2))
            process.send_signal(signal.SIGTERM if chance.random() < 0.5 else signal.SIGKILL)
    done = nmln(run.parent, *options)
    already = "already holds samples" in done.stderr
    assert done.returncode == 0 or already, done.stderr
    whole = finished(run, "whole", count=20_000, chains=20, burn_in=5, thin=1)
    assert files(run.parent / "killed") == files(whole)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(run: Path) -> None:
    numbers = ("--num-samples", "105", "--chains", "10", "--burn-in", "3", "--thin", "2")
    numbers += ("--block-size", "5")
    done = nmln(run.parent, "run", *numbers, "--processes", "2", "--output", "two")
    assert done.returncode == 0, done.stderr
    assert "105 attempts" in done.stdout
    assert files(run.parent / "two") == files(finished(run, "whole", block=5))
    assert summary(run.parent / "two")["processes"] == 2
    assert (run.parent / "two" / "chains.html").exists()
    assert summary(run.parent / "two")["command"].startswith("nmln sample run --num-samples 105")
