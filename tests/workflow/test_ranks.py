"""Two processes train as one does, and an error of one of them is told once."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from socket import socket

import pytest
import torch
import typer
from torch import Tensor
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.launcher.api import LaunchConfig

from nmln import checkpoint
from nmln.cli import processes
from nmln.cli.common import fail
from nmln.distributed import LAUNCHER
from nmln.files import InterruptedRunError
from tests.workflow.runs import begin_command, nmln, whole_run

ROOT = Path(__file__).parents[2]
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")


def curves(count: int, kind: str = "whole") -> tuple[Tensor, bool]:
    """Divergences by seed, window and level, and whether all processes agreed in the end."""
    launcher = TORCHRUN if count == 2 else ()
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "tests.workflow.curves", kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    found = torch.tensor([one for one, _ in results], dtype=torch.float64)
    return found, all(alike for _, alike in results)


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Of the mean curves, in units of its standard error."""
    errors = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    return float(((one.mean(0) - other.mean(0)) / errors).abs().max())


@pytest.mark.slow
def test_two_processes_learn_along_the_curve_of_one() -> None:
    alone, _ = curves(1)
    both, alike = curves(2)
    assert alike, "all processes must hold the same parameters"
    means = alone.mean(0)
    assert bool(means[0, -1] > 3 * means[-1, -1]), "a curve that does not fall shows nothing"
    assert largest_difference(alone, both) < 4
    summed, _ = curves(2, "summing")
    assert largest_difference(alone, summed) > 4, "a twin must fail"
    _, alike = curves(2, "apart")
    assert not alike, "a twin must fail"


SABOTAGE = """if True:
    import os
    if os.environ.get("RANK", "") in {ranks!r}:
        from nmln.files import InputError
        from nmln.training import Trainer
        step = Trainer.step

        def failing(self):
            if self.step_number == 3:
                raise InputError("a chain could not be repaired. Sweep the floor.")
            return step(self)

        Trainer.step = failing
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [["0"], ["1"], ["0", "1"]], ids="-".join)
def test_an_error_in_some_processes_is_told_once(people: Path, ranks: list[str]) -> None:
    folder = people.parent
    (folder / "sitecustomize.py").write_text(SABOTAGE.format(ranks=ranks))
    done = subprocess.run(
        begin_command(folder, "both", training={"steps": 100, "processes": 2}),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert told == ["error: a chain could not be repaired. Sweep the floor."]
    assert "Traceback" not in done.stderr
    assert checkpoint.latest_step(folder / "both") == 3


@pytest.mark.slow
def test_a_damaged_checkpoint_is_told_once_to_two_processes(people: Path) -> None:
    folder = whole_run(people, training__steps=3)
    newest = folder / "checkpoints" / "step-000000003" / "tensors.safetensors"
    os.truncate(newest, 99)
    done = nmln(people.parent, "train", "--resume", str(folder), "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: going back to the checkpoint of step 2") == 1


def test_who_says_something_first_says_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, message in ((1, "common"), (0, "common"), (0, "mine"), (1, "yours")):
        (tmp_path / str(rank)).mkdir(exist_ok=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / str(rank) / "error.json"))
        with pytest.raises(SystemExit):
            fail(message)
    assert capsys.readouterr().err == "error: common\nerror: mine\nerror: yours\n"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "absent" / "0" / "error.json"))
    for _ in range(2):
        with pytest.raises(SystemExit):
            fail("no place for marks")
    assert capsys.readouterr().err.count("no place") == 2
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    for _ in range(2):
        with pytest.raises(SystemExit):
            fail("alone")
    assert capsys.readouterr().err.count("alone") == 2


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({0: 3, 1: 2}, 2),
        ({0: -15, 1: 2}, 2),
        ({0: 130, 1: 3}, 130),
        ({0: 3, 1: -9}, "process 1 of 2 was lost (signal 9)"),
        ({0: -15, 1: -9}, "process 1 of 2 was lost (signal 9)"),
        ({0: 3, 1: 1}, "process 1 of 2 was lost (code 1)"),
    ],
    ids=str,
)
def test_the_process_that_failed_first_is_named(
    codes: dict[int, int],
    expected: int | str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises((SystemExit, typer.Exit)) as left:
        processes.tell_loss(codes, 2, tmp_path)
    said = capsys.readouterr().err
    if isinstance(expected, int):
        assert isinstance(left.value, typer.Exit)
        assert left.value.exit_code == expected
        assert said == ""
    else:
        assert expected in said
        assert f"nmln train --resume {tmp_path}" in said


@pytest.mark.parametrize("gone", [True, False])
def test_a_process_whose_launcher_is_gone_waits_for_nobody(gone: bool) -> None:
    """Killed while its processes start, a launcher would leave them waiting for each other."""
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port where nobody answers
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        started = {"WORLD_SIZE": "2", "RANK": "1", LAUNCHER: str(1 if gone else os.getpid())}
        words = "from nmln.distributed import join; print('joining', flush=True); join()"
        with subprocess.Popen(
            [sys.executable, "-c", words],
            env={**os.environ, **place, **started},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                assert process.wait(60 if gone else 4) == 1
                ended = True
            except subprocess.TimeoutExpired:
                ended = False
            process.kill()
    assert ended == gone


def test_the_launcher_gives_signals_back_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (LAUNCHER, "OMP_NUM_THREADS", "TORCHELASTIC_SIGNALS_TO_HANDLE"):
        monkeypatch.setenv(name, "1")  # so that they are put back afterwards
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    processes.start_processes(2, tmp_path, ["--version"])
    assert {one: signal.getsignal(one) for one in before} == before
    for name in ("agent.server.api", "multiprocessing.api"):
        logger = logging.getLogger(f"torch.distributed.elastic.{name}")
        assert not logger.isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("told", [True, False])
def test_a_stop_is_told_by_the_launcher_if_by_nobody_else(
    number: signal.Signals, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(settings: LaunchConfig, _: str) -> Callable[..., None]:
        if told:
            assert settings.logs_specs is not None
            (Path(settings.logs_specs.root_log_dir) / "said-something").touch()

        def launch(*_: str) -> None:
            raise SignalException("", number)

        return launch

    monkeypatch.setenv(LAUNCHER, "1")
    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", stopped)
    with pytest.raises((InterruptedRunError, typer.Exit)) as left:
        processes.start_processes(2, tmp_path, again="nmln again")
    assert isinstance(left.value, typer.Exit) == told
    assert told or str(left.value).endswith("Go on with: nmln again")
