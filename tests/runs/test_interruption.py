"""Runs that are killed, stopped or lose a process, at the command line."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nmln import checkpoint
from nmln.runs import train as training
from tests.runs.runs import (
    begin_command,
    command,
    equal,
    half_written,
    wait_until,
    weights,
    whole_run,
)


def kill(folder: Path, moment: float, steps: int) -> tuple[bool, bool]:
    """Begin or resume the run `killed` and kill it; whether it still lived, and whether it was writing.

    Moments below 0.2 come that share of ten seconds after the start, wherever the run is then. The
    others come up to 0.3 seconds after its first new checkpoint: the blow falls on a run under way.
    """
    run = folder / "killed"
    there = (run / "config.json").exists()
    before = checkpoint.saved_steps(run)
    begin = begin_command(folder, "killed", training={"steps": steps})
    arguments = command("train", "--resume", "killed") if there else begin
    with subprocess.Popen(
        arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        if moment < 0.2:
            time.sleep(10 * moment)
        else:
            wait_until(lambda: checkpoint.saved_steps(run) != before or process.poll() is not None)
            time.sleep(0.3 * (moment - 0.2) / 0.8)
        alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
    return alive, bool(list(run.glob("checkpoints/.*")))


def kill_and_resume(folder: Path, times: int, steps: int, seed: int) -> tuple[Path, int]:
    """A run that was killed again and again, then left in peace; how often amid a checkpoint."""
    chance, amid = random.Random(seed), 0
    for number in range(times):
        alive, writing = kill(folder, chance.random(), steps)
        assert alive, f"the run was over before blow {number + 1} of {times}"
        amid += writing
    run = folder / "killed"
    assert (run / "config.json").exists()
    last = command("train", "--resume", "killed")
    done = subprocess.run(last, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not half_written(run), "nothing half-written may stay"
    return run, amid


@pytest.mark.slow
def test_a_killed_run_ends_where_the_undisturbed_one_does(people: Path) -> None:
    undisturbed = whole_run(people, training__steps=60)
    killed, _ = kill_and_resume(people.parent, 1, steps=60, seed=0)
    assert equal(weights(undisturbed), weights(killed))


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_moments_ends_where_the_undisturbed_one_does(
    people: Path,
) -> None:
    undisturbed = whole_run(people, training__steps=400)
    killed, amid = kill_and_resume(people.parent, 20, steps=400, seed=1)
    assert amid > 0, "some blows must fall while a checkpoint is written"
    assert equal(weights(undisturbed), weights(killed))
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in (undisturbed, killed)]
    assert len(lines[0]) == len(lines[1]) == 400


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_keeps_what_it_has(
    people: Path, number: signal.Signals, processes: int
) -> None:
    training = {"steps": 100_000, "checkpoint_seconds": 1000, "processes": processes}
    arguments = begin_command(people.parent, "stopped", training=training)
    with subprocess.Popen(
        arguments, cwd=people.parent, stderr=subprocess.PIPE, text=True
    ) as process:
        metrics = people.parent / "stopped" / "metrics.jsonl"
        wait_until(metrics.exists)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.count("stopped after step") == 1
    assert "nmln train --resume stopped" in said
    assert "Traceback" not in said
    assert checkpoint.latest_step(people.parent / "stopped") == len(
        metrics.read_text().splitlines()
    )


def test_a_lost_process_leaves_a_checkpoint_for_one(people: Path) -> None:
    arguments = begin_command(people.parent, "both", training={"steps": 100_000, "processes": 2})
    folder = people.parent / "both"
    with subprocess.Popen(
        arguments, cwd=people.parent, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: (checkpoint.latest_step(folder) or 0) >= 3)
        children = children_of(process.pid)
        assert len(children) == 2
        os.kill(children[-1], signal.SIGKILL)
        _, said = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "was lost (signal 9)" in said
    assert "nmln train --resume both" in said
    assert "Traceback" not in said
    kept = checkpoint.load(folder)
    parts = checkpoint.unflatten(kept.tensors, kept.content["tree"])["ranks"]
    assert len(parts) == 2
    job = training.resume(folder)
    assert job.trainer.values.shape[1] == 8
    assert job.trainer.step_number == kept.step
    job.trainer.step()


@pytest.mark.slow
def test_processes_whose_launcher_was_killed_save_and_leave(people: Path) -> None:
    training = {"steps": 100_000, "checkpoint_seconds": 1000, "processes": 2}
    arguments = begin_command(people.parent, "orphans", training=training)
    folder = people.parent / "orphans"
    with subprocess.Popen(arguments, cwd=people.parent, stderr=subprocess.DEVNULL) as process:
        wait_until((folder / "metrics.jsonl").exists)
        children = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
    assert len(children) == 2
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    steps = len((folder / "metrics.jsonl").read_text().splitlines())
    assert checkpoint.latest_step(folder) == steps


def children_of(process: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]
