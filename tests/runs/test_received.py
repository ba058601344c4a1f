"""Received files: read within bounds, refused in one line, named as the user knows them."""

import csv
import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nmln import checkpoint
from nmln.checkpoint import directory
from nmln.config import read_config
from nmln.errors import InputError
from nmln.files import read_lines, write_lines
from nmln.formats.graphs import read_graphml
from nmln.formats.triples import read_triples
from nmln.model import Model, load_run
from nmln.report.history import read_history
from nmln.runs import data as sources
from nmln.runs import evaluate as evaluation
from nmln.runs import job, pages
from nmln.runs.job_page import read_summary
from nmln.runs.knowledge import _write_csv
from tests.checkpoint.test_directory import forge
from tests.runs.runs import run_here

BREAKS = ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e")


@pytest.fixture
def nmln(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """A command that must end with exit code 2 and one line, which this gives."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> str:
        done = run_here(monkeypatch, capfd, *arguments)
        assert done.code == 2
        assert len(done.lines) == 1, done.said
        return done.lines[0]

    return call


# Names with what only some programs take for the end of a line.


@pytest.mark.parametrize("mark", BREAKS)
def test_a_name_with_an_odd_line_end_stays_in_its_row(tmp_path: Path, mark: str) -> None:
    name = f"a{mark}b"
    _write_csv(tmp_path / "missing.csv", ("head", "tail"), [{"head": name, "tail": "c"}])
    with open(tmp_path / "missing.csv", encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["head", "tail"], [name, "c"]]

    write_lines(tmp_path / "train.tsv", [f"{name}\tr\tc"])
    assert read_triples(tmp_path / "train.tsv")[0].domain["entity"] == (name, "c")


def test_the_table_of_an_evaluation_keeps_odd_names_in_their_rows(tmp_path: Path) -> None:
    (tmp_path / "train.smi").write_text("CCO\nCCN\n")
    path = tmp_path / "mine\u2028\x85.smi"
    path.write_text("CCO\nCCC\n")
    known = str(tmp_path / "train.smi")
    evaluation.run([path], tmp_path / "out", train=known, test=known, with_fcd=False)
    with open(tmp_path / "out" / "recall.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {7}
    assert {row[0] for row in rows[1:]} == {path.name}


# Pipes and devices.

INPUTS: dict[str, tuple[str, ...]] = {
    "x.db": ("data", "info", "x.db"),
    "x.mln": ("data", "info", "x.mln"),
    "x.tsv": ("data", "info", "x.tsv"),
    "x.smi": ("data", "info", "x.smi"),
    "x.csv.gz": ("data", "info", "x.csv.gz"),
    "samples.csv": ("evaluate", "samples.csv", "--train", "m.smi", "--test", "m.smi"),
    "train.smi": ("evaluate", "m.smi", "--train", "train.smi", "--test", "m.smi"),
    "graph.graphml": ("train", "graph.graphml", "--steps", "1"),
    "graphs/1.graphml": ("train", "graphs", "--steps", "1"),
    "x.toml": ("train", "m.smi", "--config", "x.toml"),
    "l.mln": ("train", "w.db", "--language", "l.mln"),
    "i.mln": ("infer", "-i", "i.mln", "-q", "a"),
    "e.db": ("infer", "-i", "ok.mln", "-e", "e.db", "-q", "smokes"),
    "t.db": ("learn", "-i", "ok.mln", "-t", "t.db", "-o", "out.mln"),
}


@pytest.mark.parametrize("device", [False, True], ids=["pipe", "device"])
@pytest.mark.parametrize("name", INPUTS)
def test_a_pipe_or_device_is_refused_at_once(
    nmln: Callable[..., str], tmp_path: Path, name: str, device: bool
) -> None:
    (tmp_path / "m.smi").write_text("CCO\n")
    (tmp_path / "w.db").write_text("smokes(A)\n")
    (tmp_path / "ok.mln").write_text("person = {A, B}\nsmokes(person)\n1 smokes(x)\n")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if device:
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    told = nmln(*INPUTS[name], *(("--processes", "1") if INPUTS[name][0] == "train" else ()))
    assert "is not a regular file but a pipe, socket or device" in told
    assert "Write its content to a file" in told


# Small files that would become large, or deep.


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    with open(tmp_path / "x.db", "wb") as file:
        file.truncate(2**33)  # takes no room on the disk
    with pytest.raises(InputError, match="this line has more than 16,777,216 characters"):
        list(read_lines(tmp_path / "x.db"))


LAUGHS = (
    '<!DOCTYPE g [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {two} "{f"&{one};" * 10}">' for one, two in zip("abcde", "bcdef", strict=True))
    + "]>"
)  # fmt: skip
HEAD = "<graphml xmlns='http://graphml.graphdrawing.org/xmlns'>"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{LAUGHS}{HEAD}<graph><node id='&f;'/></graph></graphml>", "declares XML entities"),
        (
            f"<!DOCTYPE g [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>{HEAD}<graph>&x;</graph></graphml>",
            "declares XML entities",
        ),
        ("<a>" * 100_000 + "</a>" * 100_000, "nested more than 100 deep"),
    ],
)
def test_a_graph_that_unfolds_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.graphml").write_text(text)
    with pytest.raises(InputError, match=told):
        read_graphml(tmp_path / "x.graphml")


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 100_000, "x = " + "{a=" * 5_000, "x = " + "9" * 5_000]
)
def test_settings_that_are_too_deep_or_too_long_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(InputError, match=r"x\.toml: this (is nested too deeply|has a number)"):
        read_config(tmp_path / "x.toml")


# Sources.


def test_an_empty_source_is_refused(nmln: Callable[..., str]) -> None:
    assert "no data are named" in nmln("train", "", "--processes", "1", "--output", "out")


def test_a_language_is_refused_where_data_have_their_own(
    nmln: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "m.smi").write_text("CCO\nCCN\n")
    (tmp_path / "l.mln").write_text("smokes(person)\n")
    told = nmln("train", "m.smi", "--language", "l.mln", "--processes", "1", "--steps", "1")
    assert "m.smi: a language" in told
    old = job.JobSettings(data=str(tmp_path / "m.smi")).config().data
    assert sources.load(old).kind == "molecules"


# Numbers that no float holds.


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400, "9" * 5_000, "[" * 5_000])
def test_metrics_of_any_size_are_one_line_or_a_report(
    finished: Path, tmp_path: Path, number: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for name in ("seconds", "step", "gap", "evaluations"):
        (run / "metrics.jsonl").write_text(f'{{"step": 1, "{name}": {number}, "seconds": 1}}\n' * 2)
        with suppress(InputError):
            pages._facts(pages.read_run(run))
    (run / "metrics.jsonl").write_text('{"step": 1, "seconds": 1e400}\n')
    assert pages.read_run(run).seconds == 0


def test_a_step_that_is_no_count_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 9223372036854775808}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:1: a line of metrics needs"):
        read_history(tmp_path / "metrics.jsonl")


# Files of other shapes than expected.


@pytest.mark.parametrize(
    "change",
    [{"config": "x"}, {"config": [1]}, {"program": 3}, {"program": None}, {"config": None}],
)
def test_a_model_that_describes_itself_oddly_is_refused(
    finished: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(finished / "model", model)
    content = json.loads((model / "content.json").read_text())
    (model / "content.json").write_text(json.dumps({**content, **change}))
    forge(model)
    with pytest.raises(InputError, match="not the description of a model"):
        Model.load(model)


@pytest.mark.parametrize("tree", [None, 3, [], {}, {"tree": {}}, {"tree": {"average": 3}}])
def test_a_checkpoint_without_a_model_is_refused(finished: Path, tmp_path: Path, tree: Any) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    for step in checkpoint.saved_steps(run):
        path = run / "checkpoints" / f"step-{step:09d}"
        content = json.loads((path / "content.json").read_text())
        (path / "content.json").write_text(json.dumps({**content, "tree": tree}))
        forge(path)
    with pytest.raises(InputError, match=r"does not hold a model|its tensors are not those"):
        load_run(run)


@pytest.mark.parametrize("content", ["{}", "[]", '{"settings": 3}', '{"attempts": "many"}'])
def test_a_summary_of_samples_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "sampling.json").write_text(content)
    with pytest.raises(InputError, match=r"sampling\.json.*(does not describe samples|object)"):
        read_summary(tmp_path / "sampling.json")


@pytest.mark.parametrize(
    "change", [{"data": 3}, {"seed": "x"}, {"changes": [1]}, {"chains": None}, {"minutes": "7"}]
)
def test_a_job_of_other_types_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "main.json").write_text(json.dumps(change))
    with pytest.raises(InputError, match="this does not describe a job"):
        job.read_settings(tmp_path)


LONG = "9" * 5_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("data", "fetch", f"qm9-{LONG}"), "not a set that can be fetched"),
        (("data", "info", f"qm9-{LONG}"), "name too long"),
        (("train", f"qm9-{LONG}", "--output", "out", "--processes", "1"), "name too long"),
        (("train", "m.smi", "--set", f"training.steps={LONG}"), "training.steps"),
        (("train", "m.smi", "--set", f"model.bound={'[' * 100_000}"), "model.bound"),
        (("evaluate", "m.smi", "--train", "m.smi", "--test", "m.smi", "--at", "9" * 400), "ranks"),
    ],
)
def test_numbers_with_very_many_digits_are_one_line(
    nmln: Callable[..., str], tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "m.smi").write_text("CCO\nCCN\n")
    assert told.lower() in nmln(*arguments).lower()


# Messages.


def test_a_message_is_one_line_that_moves_no_cursor() -> None:
    error = InputError("no\x1b[31m such\r\nname\u2028\u202e.", "a\nb.db", 3)
    assert str(error) == "a\\nb.db:3: no\\x1b[31m such\\r\\nname\\u2028\\u202e."
    assert len(str(InputError("x" * 100_000 + " Cure."))) < 3_000
    assert str(InputError("x" * 100_000 + " Cure.")).endswith("Cure.")


def test_a_file_that_cannot_be_written_is_named_and_not_its_neighbour(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 250)  # the temporary name is longer than names can be
    with pytest.raises(OSError, match="too long") as caught:
        write_lines(target, ["x"])
    assert caught.value.filename == str(target)


def test_a_checkpoint_that_cannot_be_written_is_named_and_not_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, _: bytes) -> int:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(directory.Path, "write_bytes", fail)
    with pytest.raises(InputError, match=r"step-000000001/content\.json could not") as caught:
        checkpoint.save(tmp_path, 1, {}, {})
    assert "partial" not in str(caught.value)
