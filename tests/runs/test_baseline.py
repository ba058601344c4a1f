"""Baselines as users run them: trained, killed, resumed, sampled, measured and evaluated."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nmln import checkpoint
from nmln.baselines.base import Budget, Generator, new
from nmln.baselines.training import BaselineTraining
from nmln.cli import app
from nmln.config import DataConfig
from nmln.errors import InputError, InterruptedRunError
from nmln.model import load_run
from nmln.runs import baseline as runs
from nmln.runs import evaluate as evaluation
from nmln.runs.baseline_folder import read_head
from nmln.runs.baseline_sample import sample
from nmln.runs.folder import RunFolder
from tests.baselines import fake
from tests.runs.main_jobs import MOLECULES

ROOT = Path(__file__).parents[2]
UPDATES = 20


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    fake.register()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "mine.smi"
    path.write_text("\n".join(MOLECULES) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """A trained and sampled baseline; tests do not change it."""
    folder = data.parent / "trained"
    runs.run(begin(folder, data))
    sample(runs.open_baseline(folder), 130)
    return folder


def begin(folder: Path, data: Path, **changes: object) -> runs.BaselineJob:
    return runs.begin(folder, fake.NAME, DataConfig(str(data)), Budget(UPDATES), 3, changes)


def drawn(folder: Path) -> bytes:
    return gzip.decompress((folder / "samples" / "samples.csv.gz").read_bytes())


def weights(folder: Path) -> torch.Tensor:
    return checkpoint.load_model(folder / "model")[0]["scores"]


class LightsOutError(Exception):
    pass


def out_after(count: int) -> Callable[..., None]:
    """A watcher after whose `count`-th event the lights go out."""
    left = count

    def watch(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise LightsOutError

    return watch


def test_a_run_leaves_what_other_runs_leave(trained: Path) -> None:
    head = json.loads((trained / "baseline.json").read_text())
    assert (head["baseline"], head["updates"], head["seed"], head["size"]) == (
        "fake",
        UPDATES,
        3,
        4,
    )
    assert head["trained"]["updates"] == UPDATES
    assert head["trained"]["cpu_seconds"] > 0
    assert [one["reason"] for one in head["refused"]] == ["triple bond"]
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))
    assert checkpoint.latest_step(trained) == UPDATES
    assert not (trained / "config.json").exists()
    assert {"split.json", "worlds.safetensors", "model", "samples"} <= set(os.listdir(trained))


def test_samples_are_judged_and_written_like_ours(trained: Path) -> None:
    rows = [line.split(",") for line in drawn(trained).decode().splitlines()]
    assert rows[0] == ["sample", "level", "status", "smiles"]
    assert [row[0] for row in rows[1:]] == [str(number) for number in range(130)]
    assert [row[2] for row in rows[1:5]] == ["invalid", "invalid", "disconnected", "invalid"]
    assert all(row[2] == "valid" and row[3] for row in rows[5:21])
    summary = json.loads((trained / "samples" / "sampling.json").read_text())
    [level] = summary["levels"]
    assert level["valid"] == sum(row[2] == "valid" for row in rows)
    assert summary["cpu_seconds"] > 0
    assert {one["reason"] for one in summary["not_valid"]} == {
        "another size", "not SMILES", "nothing", "several fragments",
    }  # fmt: skip
    counts = (trained / "samples" / "counts.csv").read_text().splitlines()
    assert sum(int(line.split(",")[1]) for line in counts[1:]) == level["valid"]
    assert not (trained / "samples" / ".nmln-sampling").exists()


@pytest.mark.parametrize("count", [1, 9, UPDATES])
def test_a_resumed_training_is_the_one_that_was_not_interrupted(
    trained: Path, data: Path, tmp_path: Path, count: int
) -> None:
    with pytest.raises(LightsOutError):
        runs.run(begin(tmp_path / "part", data), out_after(count), save_every=0)
    resumed = runs.resume(tmp_path / "part")
    assert resumed.training.update == count - 1
    runs.run(resumed)
    assert torch.equal(weights(trained), weights(tmp_path / "part"))
    assert len((tmp_path / "part" / "metrics.jsonl").read_text().splitlines()) == UPDATES


def test_resuming_a_finished_training_changes_nothing(trained: Path) -> None:
    before = (trained / "baseline.json").read_bytes()
    runs.run(runs.resume(trained))
    assert (trained / "baseline.json").read_bytes() == before


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_resumed_sampling_gives_the_same_files(trained: Path, tmp_path: Path, count: int) -> None:
    opened, output = runs.open_baseline(trained), tmp_path / "run" / "samples"
    with pytest.raises(LightsOutError):
        sample(opened, 130, output, progress=out_after(count), save_every=0)
    assert not (output / "samples.csv.gz").exists()
    sample(opened, 130, output)
    assert drawn(tmp_path / "run") == drawn(trained)
    for name in ("samples.csv.gz", "counts.csv"):
        assert (output / name).read_bytes() == (trained / "samples" / name).read_bytes()


def test_fewer_samples_are_the_first_of_more(trained: Path, tmp_path: Path) -> None:
    sample(runs.open_baseline(trained), 33, tmp_path / "samples")
    assert drawn(trained).startswith(drawn(tmp_path))


def test_a_signal_ends_a_long_batch_and_keeps_the_others(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, output = runs.open_baseline(trained), tmp_path / "samples"
    usual = opened.generator.draw

    def slow(count: int) -> Sequence[object]:
        if checkpoint.saved_steps(output / ".nmln-sampling" / "block-0"):
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):  # network steps
                time.sleep(0.01)
                usual(count)
            pytest.fail("the batch was not given up")
        return usual(count)

    monkeypatch.setattr(opened.generator, "draw", slow)
    with pytest.raises(InterruptedRunError, match="after batch 1 of 7"):
        sample(opened, 130, output, save_every=0)
    monkeypatch.undo()
    sample(opened, 130, output)
    assert drawn(tmp_path) == drawn(trained)


def test_ctrl_c_keeps_the_training(data: Path, trained: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int, loss: float) -> None:
        if done == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="update 7") as error:
        runs.run(begin(tmp_path / "part", data), stop)
    assert "nmln baseline train --resume" in str(error.value)
    runs.run(runs.resume(tmp_path / "part"))
    assert torch.equal(weights(trained), weights(tmp_path / "part"))


def killed(words: list[str], folder: Path, when: Callable[[], bool]) -> None:
    """Start `nmln` with the fake baseline, which saves all progress, and kill it at a moment.

    Its updates and batches are slow, so that the moment is over long before the command ends.
    """
    environment = {**os.environ, fake.SLOW: "0.3", fake.SAVE_EVERY: "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.baselines.fake", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 90
        while not when():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_sigkill_and_resume_give_an_identical_model(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    words = ["baseline", "train", "fake", str(data), "--updates", str(UPDATES), "--seed", "3"]
    killed(
        [*words, "--output", str(folder)],
        tmp_path,
        lambda: (checkpoint.latest_step(folder) or 0) >= 3,
    )
    assert read_head(RunFolder(folder)).trained is None
    resumed = runs.resume(folder)
    assert 3 <= resumed.training.update < UPDATES
    runs.run(resumed)
    assert torch.equal(weights(folder), weights(trained))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, UPDATES + 1))
    sample(runs.open_baseline(folder), 130)
    assert drawn(folder) == drawn(trained)


@pytest.mark.slow
def test_sigkill_while_sampling_gives_identical_samples(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "samples"
    block = output / ".nmln-sampling" / "block-0"
    words = ["baseline", "sample", str(trained), "--num-samples", "130", "--output", str(output)]
    killed(words, tmp_path, lambda: (checkpoint.latest_step(block) or 0) >= 2)
    assert not (output / "samples.csv.gz").exists()
    counts: list[int] = []
    opened = runs.open_baseline(trained)
    found = sample(opened, 130, output, progress=lambda done, _: counts.append(done))
    assert 2 * fake.Fake.at_once < counts[0] < 130  # the batches before were not drawn again
    assert drawn(tmp_path) == drawn(trained)
    whole = json.loads((trained / "samples" / "sampling.json").read_text())
    for name in ("levels", "not_valid"):
        assert found[name] == whole[name]


def test_a_real_baseline_resumes_to_an_identical_model(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generator, "at_once", 30)
    changes = {
        "units": 8, "embedded": 4, "layers": 2, "longest": 20, "batch": 16, "judged": 8,
    }  # fmt: skip
    found = []
    for folder, stop in ((tmp_path / "whole", None), (tmp_path / "part", 4)):
        job = runs.begin(folder, "rnn-char", DataConfig(str(data)), Budget(6), 3, changes)
        if stop is not None:
            with pytest.raises(LightsOutError):
                runs.run(job, out_after(stop), save_every=0)
            job = runs.resume(folder)
            assert job.training.update == stop - 1
        runs.run(job)
        tensors, _ = checkpoint.load_model(folder / "model")
        found.append((tensors, list(runs.open_baseline(folder).generator.generate(40, seed=1))))
    (whole, texts), (part, others) = found
    assert whole.keys() == part.keys()
    assert all(torch.equal(tensor, part[name]) for name, tensor in whole.items())
    assert texts == others
    assert len(set(texts)) > 10  # there is something to compare


def test_other_commands_name_those_of_baselines(trained: Path) -> None:
    for use in (load_run, lambda folder: RunFolder(folder).read_head()):
        with pytest.raises(InputError, match="nmln baseline sample"):
            use(trained)
    with pytest.raises(InputError, match="already holds a baseline"):
        RunFolder(trained).check_new()


def test_nats_are_shown_with_the_samples_of_their_model(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    found = runs.likelihood(folder, most=5, seed=1)
    other = runs.likelihood(folder, most=5, seed=2)
    assert other["test_molecules"] != found["test_molecules"]
    assert found == runs.likelihood(folder, most=5, seed=1) | {"cpu_seconds": found["cpu_seconds"]}
    assert (found["exact"], found["test_molecules_count"]) == (False, 5)
    samples = folder / "samples" / "samples.csv.gz"
    assert evaluation._likelihood(samples, None) == json.loads(
        (folder / "likelihood.json").read_text()
    )
    ran = CliRunner().invoke(app, ["evaluate", str(folder), "--no-fcd"], env={"COLUMNS": "200"})
    assert ran.exit_code == 0, ran.output
    assert f"at least {found['test_molecules']:.2f}" in ran.output
    (folder / "likelihood.json").write_text(json.dumps({**found, "model": "another"}))
    assert evaluation._likelihood(samples, None) is None


def test_the_commands_do_it_all(data: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")

    def call(*words: str) -> str:
        ran = CliRunner().invoke(app, ["baseline", *words])
        assert ran.exit_code == 0, ran.output
        return ran.output

    assert "fake" in call("list", "--names").splitlines()
    assert "Draws training molecules." in call("list")
    told = call("train", "fake", str(data), "--minutes", "0.0005", "--set", "batch=8",
                "--output", folder)  # fmt: skip
    assert "triple bond" in told
    head = read_head(RunFolder(Path(folder)))
    assert (head.settings["batch"], head.settings["shape"]) == (8, [1, 2])
    assert head.trained is not None
    assert head.trained["updates"] == head.updates > 0
    assert "20 attempts" in call("sample", folder, "--num-samples", "20")
    assert "lower bound" in call("likelihood", folder)


@pytest.mark.parametrize(
    ("changes", "token"), [({"bach": 3}, "bach"), ({"batch": "x"}, "fake.batch"),
                           ({"batch": 0}, "batch")],
)  # fmt: skip
def test_wrong_settings_are_refused(
    data: Path, tmp_path: Path, changes: dict[str, object], token: str
) -> None:
    with pytest.raises(InputError) as error:
        begin(tmp_path / "run", data, **changes)
    assert error.value.token == token
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("broken.smi", "C1CC\nC(\n", "broken.smi"),
        ("triple.smi", "C#CCC\nCC#CC\nCCC#N\n", "none of 2 molecules"),
    ],
)
def test_wrong_data_end_in_one_line(name: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    arguments = ["train", "fake", str(tmp_path / name), "--output", str(tmp_path / "run")]
    ran = CliRunner().invoke(app, ["baseline", *arguments])
    assert isinstance(ran.exception, InputError), ran.output
    assert says in str(ran.exception)
    assert not (tmp_path / "run").exists()


def test_minutes_do_not_prolong_a_schedule() -> None:
    def updates(minutes: float) -> int:
        molecules = ["CCCC", "CCCO", "CCCN", "CCOC", "CCNC"]
        return BaselineTraining.start(new(fake.NAME), molecules, Budget(minutes=minutes), 0).updates

    assert updates(10) == 6  # three epochs of two updates
    assert updates(1e-9) == 1


def test_a_size_that_was_not_trained_on_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trained on molecules of 4 heavy atoms, but 7"):
        sample(runs.open_baseline(trained), 5, tmp_path / "samples", size=7)
    assert not (tmp_path / "samples").exists()


def test_a_checkpoint_of_another_training_is_refused(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    kept = checkpoint.load(folder)
    tensors = {**kept.tensors, "network/scores": torch.zeros(3)}
    checkpoint.save(folder, UPDATES, tensors, kept.content)
    with pytest.raises(InputError, match="does not belong") as error:
        runs.resume(folder)
    assert error.value.kind == "damaged"


def test_the_core_does_not_import_baselines(tmp_path: Path) -> None:
    shutil.copy(ROOT / "nmln" / "data" / "smokers.mln", tmp_path)
    script = (
        "import sys, nmln\n"
        "from nmln.cli import app\n"
        "app(['infer', '-i', 'smokers.mln', '--map'], standalone_mode=False)\n"
        "import nmln.runs.train, nmln.runs.sample, nmln.runs.evaluate\n"
        "sys.exit(any(name.startswith('nmln.baselines') for name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
