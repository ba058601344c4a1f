"""Runs of training as a user starts them, resumed, and what is made of them."""

import json
import math
from pathlib import Path

import networkx as nx
import pytest
import torch

from nmln import checkpoint
from nmln.config import configure
from nmln.errors import InputError
from nmln.files import only_one
from nmln.formats.db import read_db
from nmln.model import Model, load_run
from nmln.runs import combine as combining
from nmln.runs import data as sources
from nmln.runs import likelihood
from nmln.runs import sample as sampling
from nmln.runs import train as training
from nmln.runs.folder import RunFolder
from nmln.worlds import true_atoms
from tests.runs.runs import equal, settings, weights, whole_run


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
        def on_start(self, job: training.TrainingJob) -> None: ...

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

    def metrics(place: Path) -> list:
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert metrics(folder) == metrics(part)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(people: Path) -> None:
    folder = whole_run(people)
    newest = folder / "checkpoints" / "step-000000025" / "tensors.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(checkpoint.CheckpointWarning, match="step-000000025"):
        job = training.resume(folder)
    assert job.trainer.step_number == 24


def test_a_folder_that_holds_a_run_is_not_restarted(people: Path) -> None:
    folder = whole_run(people)
    with pytest.raises(InputError, match="already holds a run"):
        training.begin(folder, settings(people))
    with pytest.raises(InputError, match="there is no run in this folder"):
        training.resume(people.parent / "nowhere")


def test_two_processes_do_not_train_one_run(people: Path) -> None:
    job = training.begin(people.parent / "run", settings(people))
    with (
        only_one(job.folder / ".lock", "training"),
        pytest.raises(InputError, match="another process"),
    ):
        training.run(job)
    assert not (job.folder / "metrics.jsonl").exists()
    training.run(job)


def test_data_that_have_changed_are_noticed(people: Path) -> None:
    folder = whole_run(people)
    people.write_text("friends(Anna, Zoe)\n")
    with pytest.raises(InputError, match="not those that this run started with"):
        training.resume(folder)


def test_data_in_another_order_are_noticed_wherever_the_split_counts(people: Path) -> None:
    """As many worlds over the same people: places in the file would mean others."""
    folder, other = whole_run(people), whole_run(people, "other", model__seed=1)
    before = RunFolder(folder).read_source()
    worlds = people.read_text().strip().split("\n---\n")
    people.write_text("\n---\n".join(reversed(worlds)) + "\n")
    for use in (
        lambda: training.resume(folder),
        lambda: likelihood.run(folder, chains=4, steps=5, sweeps=5),
        lambda: combining.combine([folder, other], people.parent / "both", 2),
    ):
        with pytest.raises(InputError, match="not those that this run started with"):
            use()
    assert not (people.parent / "both").exists()
    people.write_text("\r\n---\r\n".join(worlds))  # the same, written otherwise
    after = RunFolder(folder).read_source()
    assert after.train.tolist() == before.train.tolist()
    assert training.resume(folder).finished


def test_what_holds_nothing_to_learn_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.smi").write_text("C\n")
    (tmp_path / "empty").mkdir()
    for source, said in (
        (tmp_path / "one.smi", r"one\.smi: only one world is possible"),
        (tmp_path / "empty", r"empty: this is a folder without a \.graphml or \.db file"),
        (" ", "no data are named"),
    ):
        with pytest.raises(InputError, match=said):
            sources.load(configure({"data": {"source": str(source)}}).data)


def test_a_split_that_was_damaged_is_named(people: Path) -> None:
    folder = whole_run(people)
    split = json.loads((folder / "split.json").read_text())
    for content, said in (
        ({"train": split["train"]}, "must list the positions"),
        ({"train": ["a"], "test": []}, "must list the positions"),
        ({**split, "test": split["test"][1:]}, r"split\.json: this does not fit the data"),
        ({**split, "test": split["train"][:1]}, r"split\.json: this does not fit the data"),
    ):
        (folder / "split.json").write_text(json.dumps(content))
        with pytest.raises(InputError, match=said):
            RunFolder(folder).read_source()
    (folder / "split.json").unlink()
    with pytest.raises(InputError, match=r"must have a split\.json"):
        RunFolder(folder).read_source()


def test_a_budget_in_minutes_becomes_a_number_of_steps(people: Path) -> None:
    folder = people.parent / "timed"
    job = training.begin(folder, settings(people, training__minutes=0.005))
    steps = job.config.training.steps
    assert job.trainer.step_number == 0
    assert steps != 25
    recorded = json.loads((folder / "config.json").read_text())["config"]["training"]
    assert recorded["steps"] == steps
    assert recorded["minutes"] is None


@pytest.mark.slow
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


def test_molecules_are_judged_by_their_validity(tmp_path: Path) -> None:
    path = tmp_path / "small.smi"
    path.write_text("CCO\nCCN\nCOC\nC=CO\nN#CC\nO=CC\n")
    folder = tmp_path / "run"
    training.run(training.begin(folder, settings(path, training__steps=3)))
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["known"] <= last["valid"] <= 1
    outcome = sampling.run(folder, 10, chains=5, burn_in=2)
    assert outcome.written[0].name == "samples.csv.gz"
    assert set(outcome.quality) == {"valid"}


def test_the_likelihood_agrees_with_enumeration(people: Path) -> None:
    folder = whole_run(people, training__steps=30)
    found = likelihood.run(folder, chains=300, steps=60, sweeps=40)
    model, source = load_run(folder), sources.load(settings(people).data)
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
