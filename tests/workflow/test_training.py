"""Runs of training as a user starts them: killed, stopped, resumed, on one process and on two."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import networkx as nx
import pytest
import torch

from nmln import checkpoint
from nmln.config import Config, configure, override
from nmln.files import InputError
from nmln.formats.db import read_db
from nmln.model import Model
from nmln.workflow import likelihood, sampling, sources, training
from nmln.worlds import true_atoms

SMALL = {
    "ladder": {"rates": [0.2, 0.02]},
    "model": {"layers": 1, "hidden": 8},
    "chains": {"moves": 2, "replicas": 8},
    "optimiser": {"warm_up": 5},
    "training": {"steps": 25, "batch": 8, "processes": 1, "checkpoint_seconds": 0},
}


def write_worlds(folder: Path) -> Path:
    """Worlds in which everybody is somebody's friend or smokes."""
    people = ["Anna", "Bob", "Carl", "Dora"]
    chance = random.Random(0)
    worlds = []
    for _ in range(30):
        one, other = chance.sample(people, 2)
        lines = [f"friends({one}, {other})", *(f"smokes({p})" for p in people if p != one)]
        worlds.append("\n".join(lines))
    path = folder / "people.db"
    path.write_text("\n---\n".join(worlds) + "\n")
    return path


def write_config(folder: Path, **changes: dict) -> Path:
    content = {name: {**table, **changes.get(name, {})} for name, table in SMALL.items()}
    lines = []
    for name, table in content.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path = folder / "run.toml"
    path.write_text("\n".join(lines))
    return path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nmln", *arguments]


def nmln(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, check=False
    )


def settings(source: Path, **changes: object) -> Config:
    config = override(configure(SMALL), {"data.source": str(source)})
    return override(config, {name.replace("__", "."): value for name, value in changes.items()})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load_model(folder / "model")[0]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return write_worlds(tmp_path)


def whole_run(people: Path, name: str = "whole", **changes: object) -> Path:
    folder = people.parent / name
    training.run(training.begin(folder, settings(people, **changes)))
    return folder


def test_a_run_leaves_everything_that_is_needed(people: Path) -> None:
    folder = whole_run(people)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 26))
    assert all(len(line["gap"]) == 2 for line in lines)
    head = json.loads((folder / "config.json").read_text())
    assert head["kind"] == "db"
    assert head["config"]["chains"]["replicas"] == 8
    split = json.loads((folder / "split.json").read_text())
    assert sorted(split["train"] + split["test"]) == list(range(30))
    assert len(split["train"]) == 24
    assert checkpoint.latest_step(folder) == 25
    assert len(Model.load(folder / "model").space.language) == 2


@pytest.mark.parametrize("steps", [1, 12, 24])
def test_resuming_gives_the_run_that_was_not_interrupted(people: Path, steps: int) -> None:
    folder = whole_run(people)
    part = people.parent / "part"
    job = training.begin(part, settings(people))

    class Stop:
        def on_start(self, job: training.Job) -> None: ...

        def on_step(self, metrics, quality) -> None:
            if metrics.step == steps + 1:
                raise InputError("the lights go out")

        def on_note(self, text: str) -> None: ...

    with pytest.raises(InputError, match="lights"):
        training.run(job, Stop())
    assert checkpoint.latest_step(part) == steps
    resumed = training.resume(part)
    assert resumed.trainer.step_number == steps
    training.run(resumed)
    assert equal(weights(folder), weights(part))

    def told(place: Path) -> list:
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert told(folder) == told(part)


def kill_and_resume(people: Path, times: int, seed: int) -> Path:
    chance = random.Random(seed)
    folder = people.parent / "killed"
    write_config(people.parent)
    begin = ("train", "people.db", "--config", "run.toml", "--output", "killed")
    for _ in range(times):
        there = (folder / "config.json").exists()
        arguments = ("train", "--resume", "killed") if there else begin
        with subprocess.Popen(
            command(*arguments),
            cwd=people.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            deadline = time.monotonic() + 60
            before = checkpoint.latest_step(folder) if there else None
            # Wait for a sign of life, so that the blow falls on a run that is under way.
            while time.monotonic() < deadline and process.poll() is None:
                if there and checkpoint.latest_step(folder) != before:
                    break
                if not there and (folder / "checkpoints").exists():
                    break
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
    done = nmln(people.parent, "train", "--resume", "killed")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_killed_run_ends_where_the_undisturbed_one_does(people: Path) -> None:
    folder = whole_run(people)
    assert equal(weights(folder), weights(kill_and_resume(people, 3, seed=0)))


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_moments_ends_where_the_undisturbed_one_does(
    people: Path,
) -> None:
    folder = whole_run(people, training__steps=150)
    SMALL["training"]["steps"] = 150
    try:
        killed = kill_and_resume(people, 20, seed=1)
    finally:
        SMALL["training"]["steps"] = 25
    assert equal(weights(folder), weights(killed))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_keeps_what_it_has(
    people: Path, number: signal.Signals
) -> None:
    write_config(people.parent, training={"steps": 100_000, "checkpoint_seconds": 1000})
    arguments = command("train", "people.db", "--config", "run.toml", "--output", "stopped")
    with subprocess.Popen(
        arguments, cwd=people.parent, stderr=subprocess.PIPE, text=True
    ) as process:
        metrics = people.parent / "stopped" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped after step" in said
    assert "nmln train --resume stopped" in said
    assert "Traceback" not in said
    assert checkpoint.latest_step(people.parent / "stopped") == len(
        metrics.read_text().splitlines()
    )


def test_a_damaged_checkpoint_gives_way_to_the_one_before(people: Path) -> None:
    folder = whole_run(people)
    newest = folder / "checkpoints" / "step-000000025" / "tensors.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(checkpoint.CheckpointWarning, match="step-000000025"):
        job = training.resume(folder)
    assert job.trainer.step_number == 24


def test_a_folder_that_holds_a_run_is_not_begun_again(people: Path) -> None:
    folder = whole_run(people)
    with pytest.raises(InputError, match="there is a run in this folder already"):
        training.begin(folder, settings(people))
    with pytest.raises(InputError, match="there is no run in this folder"):
        training.resume(people.parent / "nowhere")


def test_data_that_have_changed_are_noticed(people: Path) -> None:
    folder = whole_run(people)
    people.write_text("friends(Anna, Zoe)\n")
    with pytest.raises(InputError, match="not those that this run began with"):
        training.resume(folder)


def test_a_budget_in_minutes_becomes_a_number_of_steps(people: Path) -> None:
    folder = people.parent / "timed"
    job = training.begin(folder, settings(people, training__minutes=0.005))
    steps = job.config.training.steps
    assert job.trainer.step_number == 0
    assert steps != 25
    recorded = json.loads((folder / "config.json").read_text())["config"]["training"]
    assert recorded["steps"] == steps
    assert recorded["minutes"] is None


def test_two_processes_train_and_a_lost_one_leaves_a_checkpoint_for_one(people: Path) -> None:
    write_config(people.parent, training={"steps": 100_000, "processes": 2})
    arguments = command("train", "people.db", "--config", "run.toml", "--output", "both")
    folder = people.parent / "both"
    with subprocess.Popen(
        arguments, cwd=people.parent, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 90
        while (checkpoint.latest_step(folder) or 0) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
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
    assert [part["values"].shape[1] for part in parts] == [4, 4]
    job = training.resume(folder)
    assert job.trainer.values.shape[1] == 8
    assert job.trainer.step_number == kept.step
    job.trainer.step()


def children_of(process: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]


def test_worlds_go_back_to_the_format_they_came_from(people: Path) -> None:
    folder = whole_run(people)
    outcome = sampling.run(folder, 20, chains=5, burn_in=3)
    assert outcome.count == 20
    space = sources.load(settings(people).data).space
    _, worlds = read_db(folder / "samples.db", space.language, space.domain)
    assert len(worlds) == 20
    (people.parent / "known.db").write_text("smokes(Anna)\n!smokes(Bob)\n")
    outcome = sampling.run(
        folder,
        10,
        people.parent / "given",
        evidence=people.parent / "known.db",
        chains=5,
        burn_in=3,
    )
    _, given = read_db(people.parent / "given.db", space.language, space.domain)
    for world in given:
        atoms = set(map(str, true_atoms(space, world)))
        assert "smokes(Anna)" in atoms
        assert "smokes(Bob)" not in atoms


def test_graphs_are_read_and_written_as_graphml(tmp_path: Path) -> None:
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    for number in range(12):
        graph = nx.gnp_random_graph(5, 0.4, seed=number)
        nx.write_graphml(graph, graphs / f"{number}.graphml")
    folder = tmp_path / "run"
    training.run(training.begin(folder, settings(graphs, training__steps=3)))
    outcome = sampling.run(folder, 6, chains=3, burn_in=2)
    assert len(list(outcome.written[0].glob("*.graphml"))) == 6
    assert len(nx.read_graphml(outcome.written[0] / "000000.graphml")) == 5
    nx.write_graphml(nx.path_graph(4), graphs / "other.graphml")
    with pytest.raises(InputError, match=r"different numbers of nodes: 4 \(1 graphs\), 5 \(12"):
        sources.read_graphs(graphs)


def test_molecules_are_judged_by_their_validity(tmp_path: Path) -> None:
    path = tmp_path / "small.smi"
    path.write_text("CCO\nCCN\nCOC\nC=CO\nN#CC\nO=CC\n")
    folder = tmp_path / "run"
    training.run(training.begin(folder, settings(path, training__steps=3)))
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["known"] <= last["valid"] <= 1
    outcome = sampling.run(folder, 10, chains=5, burn_in=2)
    assert outcome.written[0].suffix == ".smi"
    assert set(outcome.quality) == {"valid"}


def test_the_likelihood_agrees_with_enumeration(people: Path) -> None:
    folder = whole_run(people, training__steps=60)
    found = likelihood.run(folder, chains=300, steps=60)
    model, source = sampling.load(folder), sources.load(settings(people).data)
    rng = torch.Generator().manual_seed(0)
    uniform = torch.randint(2, (2, 60_000, source.space.groups), generator=rng)
    with torch.no_grad():
        scores = model.potential.score(uniform.to(source.space.dtype))[-1].double()
        whole = scores.logsumexp(0) + source.space.groups * math.log(2) - math.log(60_000)
        test = source.worlds[source.test].expand(2, -1, -1)
        wanted = model.potential.score(test)[-1].double().mean() - whole
    assert abs(found.log_z - float(whole)) < 4 * found.log_z_error + 0.1
    assert found.test == pytest.approx(float(wanted), abs=4 * found.log_z_error + 0.1)
    assert json.loads((folder / "likelihood.json").read_text())["test"] == found.test
