"""Runs on worlds of several domains: started, killed, resumed, in several processes, and reported."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

from nmln import checkpoint
from nmln.cli.train import start_training, train
from nmln.config import Config
from nmln.errors import InputError
from nmln.model import Model, load_run
from nmln.runs import pages
from nmln.runs import train as training
from nmln.runs.folder import RunFolder
from tests.molecules.test_sizes import LINES
from tests.runs.runs import (
    Outcome,
    command,
    equal,
    nmln,
    settings,
    wait_until,
    weights,
    write_config,
)
from tests.runs.several_domains import write_graphs, write_people

CHAINS = {"moves": 2, "replicas": 24}
TRAINING = {"steps": 12, "batch": 24, "processes": 1, "checkpoint_seconds": 0, "blocks": 2}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """10 molecules of 3 atoms, 40 of 4 and 6 of 5."""
    path = tmp_path / "mixed.smi"
    path.write_text("\n".join(LINES) + "\n")
    return path


def small(mixed: Path, **changes: object) -> Config:
    given = {"chains__replicas": 24, "training__batch": 24, "training__steps": 12}
    return settings(mixed, **{**given, "training__blocks": 2, **changes})


def whole(mixed: Path, name: str = "whole", **changes: object) -> Path:
    folder = mixed.parent / name
    training.run(training.begin(folder, small(mixed, **changes)))
    return folder


def lines_of(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def test_a_run_records_its_sizes(mixed: Path) -> None:
    folder = whole(mixed)
    head = json.loads((folder / "config.json").read_text())
    assert [one["domain"] for one in head["domains"]] == [{"node": n} for n in (3, 4, 5)]
    assert [one["share"] for one in head["domains"]] == [8 / 45, 32 / 45, 5 / 45]
    split = json.loads((folder / "split.json").read_text())
    assert sorted(split["train"] + split["test"]) == list(range(56))
    last = lines_of(folder)[-1]
    assert last["by_size"].keys() == {"3", "4", "5"}
    shares = {"3": 8 / 45, "4": 32 / 45, "5": 5 / 45}
    overall = sum(share * last["by_size"][size]["valid"] for size, share in shares.items())
    assert last["valid"] == pytest.approx(overall)
    found = Model.load(folder / "model")
    assert [len(one.space.domain["node"]) for one in found.domains] == [3, 4, 5]
    assert len(found.generate(9, chains=9, burn_in=3, thin=1)) == 9


@pytest.mark.parametrize("steps", [1, 7])
def test_resuming_gives_the_run_that_was_not_interrupted(mixed: Path, steps: int) -> None:
    folder, part = whole(mixed), mixed.parent / "part"

    class Stop(training.Silent):
        def on_step(self, metrics: Any, quality: dict[str, float]) -> None:
            if metrics.step == steps + 1:
                raise InputError("the lights go out")

    with pytest.raises(InputError, match="lights"):
        training.run(training.begin(part, small(mixed)), Stop())
    assert checkpoint.latest_step(part) == steps
    assert len(load_run(part).domains) == 3
    training.run(training.resume(part))
    assert equal(weights(part), weights(folder))
    assert lines_of(part) == lines_of(folder)


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_bytes(mixed: Path) -> None:
    here = mixed.parent
    write_config(here, chains=CHAINS, training={**TRAINING, "steps": 40})
    arguments = ("train", "mixed.smi", "--config", "run.toml", "--output")
    done = nmln(here, *arguments, "whole")
    assert done.returncode == 0, done.stderr
    with subprocess.Popen(
        command(*arguments, "killed"),
        cwd=here,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: bool(checkpoint.saved_steps(here / "killed")))
        os.kill(process.pid, signal.SIGKILL)
    assert 0 < (checkpoint.latest_step(here / "killed") or 0) < 40
    done = nmln(here, "train", "--resume", "killed")
    assert done.returncode == 0, done.stderr
    for name in ("model/tensors.safetensors", "worlds.safetensors", "split.json", "config.json"):
        assert (here / "killed" / name).read_bytes() == (here / "whole" / name).read_bytes()


@pytest.mark.slow
def test_one_and_two_processes_with_the_same_blocks_give_the_same_run(mixed: Path) -> None:
    here = mixed.parent
    write_config(here, chains=CHAINS, training=TRAINING)
    arguments = ("train", "mixed.smi", "--config", "run.toml", "--output")
    for processes in ("1", "2"):
        done = nmln(here, *arguments, f"with-{processes}", "--processes", processes)
        assert done.returncode == 0, done.stderr
    assert equal(weights(here / "with-1"), weights(here / "with-2"))
    one, other = lines_of(here / "with-1"), lines_of(here / "with-2")
    for line in (*one, *other):
        for name in ("valid", "known", "by_size"):  # of the first block
            line.pop(name, None)
    assert one == other


def test_other_blocks_continue_with_shares_of_the_replicas(mixed: Path) -> None:
    folder = mixed.parent / "part"

    class Stop(training.Silent):
        def on_step(self, metrics: Any, quality: dict[str, float]) -> None:
            if metrics.step == 4:
                raise InputError("the lights go out")

    with pytest.raises(InputError, match="lights"):
        training.run(training.begin(folder, small(mixed)), Stop())
    path = folder / "config.json"
    head = json.loads(path.read_text())
    head["config"]["training"]["blocks"] = 3
    path.write_text(json.dumps(head))
    job = training.resume(folder)
    assert [len(block.parts) for block in job.trainer.blocks] == [3, 3, 3]
    training.run(job)
    assert lines_of(folder)[-1]["step"] == 12


def test_a_budget_in_minutes_becomes_steps(mixed: Path) -> None:
    job = training.begin(mixed.parent / "run", small(mixed, training__minutes=0.001))
    assert job.config.training.minutes is None
    assert job.config.training.steps >= 1


def test_the_held_out_likelihood_counts_the_size(mixed: Path) -> None:
    folder = whole(mixed, chains__weighted=True, training__steps=2)
    last = lines_of(folder)[-1]
    shares = torch.tensor([8 / 45, 32 / 45, 5 / 45], dtype=torch.float64)
    parts = torch.tensor([last["by_size"][size]["held_out"] for size in "345"], dtype=torch.float64)
    expected = float((shares * (parts + shares.log())).sum())
    assert last["held_out"] == pytest.approx(expected)


def test_the_report_of_several_sizes_is_written(mixed: Path) -> None:
    folder = whole(mixed, training__steps=3)
    pages.write_report(folder)
    assert (folder / "report.html").exists()


def test_sizes_and_memory_are_shown(mixed: Path, here: Callable[..., Outcome]) -> None:
    config = write_config(mixed.parent, chains=CHAINS, training={**TRAINING, "steps": 1})
    done = here("train", mixed, "--config", config, "--output", mixed.parent / "run")
    assert done.code == 0, done.said
    said = " ".join(done.said.split())
    assert "heavy atoms (molecules): 3 (10), 4 (40), 5 (6)" in said
    assert "size (chains per level): 3 (4), 4 (16), 5 (4); at least 1 MiB of memory" in said
    assert "about 432 worlds scored per step" in said  # 24 * 2 * (1 + 2 * 3) + 48 * 2


def test_the_cost_of_a_run_on_one_size_is_shown_too(
    people: Path, here: Callable[..., Outcome]
) -> None:
    config = write_config(people.parent, training={"steps": 1})
    done = here("train", people, "--config", config, "--output", people.parent / "run")
    assert done.code == 0, done.said
    said = " ".join(done.said.split())
    assert "at least 1 MiB of memory; about 144 worlds scored per step" in said
    assert "size (chains" not in said


def test_every_process_has_chains_of_every_size(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    module = sys.modules[start_training.__module__]
    monkeypatch.setattr(module, "perform", lambda verb, count, *_, **__: started.append(count))
    config = small(mixed, chains__replicas=12, training__batch=13)
    start_training(mixed.parent / "run", config, processes=8)
    assert started == [4]


def test_a_resumed_run_has_no_more_processes_than_a_new_one(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = whole(mixed, chains__replicas=12, training__batch=13, training__steps=1)
    started: list[int] = []
    module = sys.modules[start_training.__module__]
    monkeypatch.setattr(module, "perform", lambda verb, count, *_, **__: started.append(count))
    for wanted in (8, 3):
        train(resume=folder, processes=wanted)
    assert started == [4, 3]


def test_data_of_other_sizes_are_not_those_of_the_run(mixed: Path) -> None:
    folder = whole(mixed, training__steps=1)
    mixed.write_text(mixed.read_text().replace("CCCCN\n", "CCCN\n"))
    with pytest.raises(InputError, match="not those that this run started with"):
        RunFolder(folder).read_source()


# Other kinds of worlds.


def test_graphs_of_several_sizes_train_one_model(tmp_path: Path) -> None:
    folder = write_graphs(tmp_path / "graphs")
    run = whole(folder, training__steps=2)
    found = Model.load(run / "model")
    assert [len(one.space.domain["node"]) for one in found.domains] == [4, 5, 6]
    assert all(isinstance(one, nx.Graph) for one in found.generate(4, chains=4, burn_in=2))


def test_databases_with_their_own_constants_train_one_model(tmp_path: Path) -> None:
    path = write_people(tmp_path / "people.db")
    folder = whole(path, data__domains="each", training__steps=2)
    head = RunFolder(folder).read_head()
    assert head.config.data.domains == "each"
    assert [len(one.space.domain["constant"]) for one in Model.load(folder / "model").domains] == [
        3,
        4,
    ]
    training.run(training.resume(folder))
