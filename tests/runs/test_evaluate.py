"""Evaluations as a user starts them."""

import csv
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nmln.cli.evaluate import _nats, _place, evaluate
from nmln.config import configure
from nmln.errors import InputError
from nmln.runs import evaluate as evaluation
from nmln.runs import references
from nmln.runs import train as training
from nmln.runs.specification import fingerprint

TRAIN = ("CCCCO", "CCCCN", "CCCCC", "CC(C)CO", "CCOCC", "CCCNC")
TEST = ("CCC(C)O", "CCSCC", "CCCCF")


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nmln", "evaluate", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip


def write_sets(folder: Path) -> None:
    (folder / "train.smi").write_text("\n".join(TRAIN))
    (folder / "test.csv").write_text("smiles\n" + "\n".join(TEST))
    drawn = random.Random(0).choices([*TRAIN, *TEST, "CCCC=O", "CCC", "C1C"], k=400)
    (folder / "mixed.smi").write_text("\n".join(drawn))
    (folder / "counts.csv").write_text("smiles,count\n" + "".join(f"{s},5\n" for s in TRAIN))


@pytest.mark.slow
def test_several_files_give_one_figure_and_all_numbers(tmp_path: Path) -> None:
    write_sets(tmp_path)
    done = command(
        "mixed.smi", "counts.csv", "--train", "train.smi", "--test", "test.csv", "--no-fcd",
        "--at", "3,10", "--output", "out",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "6 training and 3 test molecules of 5 heavy atoms, 9 together" in done.stdout
    written = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert written["heavy_atoms"] == 5
    mixed, counted = written["samples"]
    assert [mixed["name"], counted["name"]] == ["mixed.smi", "counts.csv"]
    assert mixed["valid"]["total"] == 400
    assert mixed["valid"]["count"] + sum(drop["count"] for drop in mixed["not_valid"]) == 400
    assert {drop["reason"] for drop in mixed["not_valid"]} == {"another size", "not SMILES"}
    assert mixed["coverage_test"]["value"] == 1
    assert mixed["novelty"] == {
        "value": 0.4, "count": 4, "total": 10, "of": "different valid samples",
    }  # fmt: skip
    assert mixed["ideal_coverage"] == pytest.approx(1)
    assert mixed["fcd"] is None
    assert mixed["internal_diversity"]["samples"] == mixed["valid"]["count"]
    assert counted["recall"]["test"]["at"]["10"]["value"] == 0
    assert counted["recall"]["train"]["at"]["3"]["value"] == 3
    assert counted["recall"]["train"]["at"]["10"]["value"] == 6
    with open(tmp_path / "out" / "recall.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["samples"] == "counts.csv"]
    assert [(row["t"], row["train"], row["test"]) for row in rows] == [
        ("3", "3", "0"), ("6", "6", "0"), ("10", "6", "0"),
    ]  # fmt: skip
    assert (tmp_path / "out" / "recall.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "out" / "recall.svg").read_text()


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))


def test_a_run_names_its_own_training_and_test_set(tmp_path: Path) -> None:
    smiles = tuple("C" * (7 - n) + end + "C" * n for end in "NOS" for n in range(1, 4))
    (tmp_path / "mine.smi").write_text("\n".join(smiles))
    small = {"model": {"layers": 1, "hidden": 4}, "chains": {"replicas": 4}}
    config = configure({"data": {"source": str(tmp_path / "mine.smi")}, **small})
    config = replace(config, training=replace(config.training, steps=1, batch=4))
    run = tmp_path / "run"
    job = training.begin(run, config)
    test = {job.source.names[place] for place in job.source.test.tolist()}
    assert len(test) == 2
    (run / "counts.csv").write_text("smiles,count\n" + "".join(f"{s},2\n" for s in sorted(test)))
    job.model.save(run / "model")
    drawn = {"model": fingerprint(job.model), "allowed": "", "formulas": []}
    write_json(run / "sampling.json", {"attempts": 8, "settings": drawn})
    write_json(run / "likelihood.json", {"test": -13.5})

    outcome = evaluation.run([run], tmp_path / "out", folder=run, with_fcd=False)
    assert outcome.test.smiles == test
    assert outcome.train.smiles == set(smiles) - test
    (one,) = outcome.evaluated
    assert one.found.coverage_test.value == 1
    assert one.found.valid.value == 0.5
    assert one.likelihood == {"test": -13.5}
    (run / "theirs").mkdir()
    (run / "theirs" / "theirs.smi").write_text("\n".join(test))
    (run / "theirs" / "counts.csv").write_text((run / "counts.csv").read_text())

    def with_nats(*paths: Path, **conditions: object) -> list[bool]:
        """Which samples are said to have the likelihood of the run's model."""
        write_json(run / "theirs" / "sampling.json", {"settings": {**drawn, **conditions}})
        found = evaluation.run(paths, tmp_path / "out", folder=run, with_fcd=False).evaluated
        return [one.likelihood is not None for one in found]

    ours, theirs = run / "counts.csv", tmp_path / "mine.smi"
    assert with_nats(theirs) == [False]
    assert with_nats(ours, theirs) == [True, False]
    assert with_nats(run / "theirs" / "counts.csv") == [True]
    assert with_nats(run / "theirs" / "counts.csv", allowed="ff") == [False]
    assert with_nats(run / "theirs" / "counts.csv", formulas=["atom(x, C)."]) == [False]
    assert with_nats(run / "theirs" / "counts.csv", model="another") == [False]
    whole = str(tmp_path / "mine.smi")
    _, everything = references.references(str(run), whole)
    assert everything.smiles == set(smiles)
    shared = evaluation.compare([], outcome.train, everything, sizes=(8,), with_fcd=False)
    assert any("share 7 molecules" in note for note in shared.notes)

    split = json.loads((run / "split.json").read_text())
    (run / "split.json").write_text(json.dumps({**split, "test": [4000]}))
    with pytest.raises(InputError, match=r"split\.json: this does not fit the data"):
        references.of_run(run)


def test_levels_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sets(tmp_path)
    monkeypatch.setattr(evaluation, "write", lambda outcome, output: outcome)  # no figures
    rows = "".join(f"{n},0,invalid,\n{n},1,valid,{smiles}\n" for n, smiles in enumerate(TEST))
    (tmp_path / "samples.csv").write_text("sample,level,status,smiles\n" + rows)
    monkeypatch.setattr(evaluation, "_likelihood", lambda *_: {"test_molecules": -13.5})
    known: list[bool] = []

    def valid(level: int | str | None) -> dict[str, float]:
        outcome = evaluation.run(
            [tmp_path],
            tmp_path / "out",
            train=str(tmp_path / "train.smi"),
            test=str(tmp_path / "test.csv"),
            level=level,  # type: ignore[arg-type]
            with_fcd=False,
        )
        known[:] = [one.likelihood is not None for one in outcome.evaluated]
        return {one.name: one.found.valid.value for one in outcome.evaluated}

    assert valid(None) == {"samples.csv": 1}
    assert valid(0) == {"samples.csv": 0}
    assert known == [False]  # the likelihood is that of the target
    assert valid("all") == {"samples.csv level 0": 0, "samples.csv level 1": 1}
    assert known == [False, True]
    with pytest.raises(InputError, match="no samples of level 7"):
        valid(7)


def test_the_distance_is_reported_beside_that_of_the_training_set(tmp_path: Path) -> None:
    write_sets(tmp_path)
    outcome = evaluation.run(
        [tmp_path / "mixed.smi"],
        tmp_path / "out",
        train=str(tmp_path / "train.smi"),
        test=str(tmp_path / "test.csv"),
    )
    (one,) = outcome.evaluated
    assert one.fcd is not None
    assert one.fcd.samples == one.found.samples.valid
    assert outcome.fcd_train is not None
    assert one.fcd.value < outcome.fcd_train.value  # the training set has no test molecules in it


def test_the_likelihood_is_reported_with_the_interval_of_log_z() -> None:
    numbers = {"test_molecules": -12.0, "test_molecules_error": 0.125}
    assert _nats(None) == "-"
    assert _nats(numbers) == "-12.00 +- 0.12"
    bounds = {"log_z": 5.0, "log_z_least": 4.75, "log_z_most": 5.5}
    assert _nats({**numbers, **bounds}) == "-12.00 +- 0.12 [-12.50, -11.75]"


def test_results_go_into_a_run_only_for_its_own_samples(tmp_path: Path) -> None:
    run, theirs = tmp_path / "run", tmp_path / "theirs.smi"
    assert _place([run], run) == _place([run / "samples" / "counts.csv"], run) == run / "evaluation"
    assert _place([theirs], run) == _place([run, theirs], run) == Path("evaluation")
    assert _place([theirs], None) == Path("evaluation")


SETS = {"train": "train.smi", "test": "test.csv"}


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ("mixed.smi", {}, "the training set is not known. Name a file, a set or"),
        ("mixed.smi", {"train": "train.smi"}, "the test set is not known"),
        ("none.smi", SETS, "none.smi: there is no such file"),
        ("mixed.smi", {"run": Path()}, ".: there is no run in this folder"),
        ("mixed.smi", {"at": "10,x"}, "got '10,x'"),
        ("mixed.smi", {"level": "top"}, "got 'top'"),
        ("mixed.smi", {"level": "9" * 5000}, "--level must be"),
        ("test.csv", {**SETS, "column": "mol"}, "test.csv:1: no column is called mol"),
    ],
)
def test_a_mistake_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: str, options: dict, message: str
) -> None:
    write_sets(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        evaluate([Path(samples)], **options)


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    write_sets(tmp_path)
    done = command("none.smi", "--train", "train.smi", "--test", "test.csv", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: none.smi: there is no such file. Check the path.\n"
