"""Two processes train as one does, and an error of one of them is shown once."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import torch
import typer
from torch import Tensor

from nmln import checkpoint, distributed, memory
from nmln.cli import processes
from nmln.cli.common import fail, silence_processes
from nmln.errors import InputError, InterruptedRunError, LostProcessError
from nmln.signals import LAUNCHER, PRIVATE_FOLDER
from tests.runs.runs import begin_command, nmln, wait_until, whole_run

ROOT = Path(__file__).parents[2]
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")


def curves(count: int, kind: str = "whole") -> tuple[Tensor, bool]:
    """Divergences by seed, window and level, and whether all processes agreed in the end."""
    launcher = TORCHRUN if count == 2 else ()
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "tests.runs.curves", kind],
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
        from nmln.errors import InputError
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
def test_an_error_in_some_processes_is_reported_once(people: Path, ranks: list[str]) -> None:
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
def test_a_damaged_checkpoint_is_reported_once_to_two_processes(people: Path) -> None:
    folder = whole_run(people, training__steps=3)
    newest = folder / "checkpoints" / "step-000000003" / "tensors.safetensors"
    os.truncate(newest, 99)
    done = nmln(people.parent, "train", "--resume", str(folder), "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: going back to the checkpoint of step 2") == 1


@pytest.fixture(params=[PRIVATE_FOLDER, "TORCHELASTIC_ERROR_FILE"])
def be_rank(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, str], None]:
    """Makes this process one of several, of our launcher or of torchrun's."""
    monkeypatch.delenv(PRIVATE_FOLDER, raising=False)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)

    def be(rank: int, folder: str = "") -> None:
        own = tmp_path / folder
        if request.param != PRIVATE_FOLDER:
            own = own / str(rank) / "error.json"
        if not folder:
            own.parent.mkdir(exist_ok=True)
        monkeypatch.setenv(request.param, str(own))

    return be


def test_who_says_something_first_says_it_alone(
    be_rank: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rank, message in ((1, "common"), (0, "common"), (0, "mine"), (1, "yours")):
        be_rank(rank)
        with pytest.raises(SystemExit):
            fail(message)
    assert capsys.readouterr().err == "error: common\nerror: mine\nerror: yours\n"
    be_rank(0, "absent")
    for _ in range(2):
        with pytest.raises(SystemExit):
            fail("no place for marks")
    assert capsys.readouterr().err.count("no place") == 2
    for name in (PRIVATE_FOLDER, "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
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
def test_a_process_whose_launcher_is_gone_does_not_wait(gone: bool) -> None:
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


def test_a_node_that_is_lost_before_all_have_met_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(PRIVATE_FOLDER, raising=False)
    monkeypatch.setattr(distributed, "_PATIENCE", timedelta(seconds=1))
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port where nobody answers
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        for name, value in {**place, "WORLD_SIZE": "2", "RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(LostProcessError):
            distributed.join()


NO_RUN = {"run": "there/is/none", "output": "out", "part": None}
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)


def test_the_launcher_gives_signals_back_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, environment = {one: signal.getsignal(one) for one in HANDLED}, dict(os.environ)
    with pytest.raises(typer.Exit) as left:
        processes.start_processes(2, tmp_path / "run", "sample", NO_RUN)
    assert left.value.exit_code == 2
    assert {one: signal.getsignal(one) for one in HANDLED} == before
    assert dict(os.environ) == environment
    assert list(tmp_path.iterdir()) == []
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == said.err.count("error: ") == 1, "both say the same, once"


CHILD = """if True:
    import os, pathlib, signal, sys, time
    private, rank = pathlib.Path(os.environ["NMLN_PRIVATE_FOLDER"]), os.environ["RANK"]
    (private.parent / f"began-{rank}").touch()
    what = sys.argv[1:]
    if "say" in what:
        signal.signal(signal.SIGTERM, lambda *_: ((private / "said-x").touch(), os._exit(130)))
    if "deaf" in what:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "fail" in what and rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    (private.parent / f"ready-{rank}").touch()
    time.sleep(0 if "leave" in what else 100)
"""


@pytest.fixture
def small_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start at once and do only what the test is about."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "child.py").write_text(CHILD)
    start = subprocess.Popen

    def other(words: list[str], **options: Any) -> subprocess.Popen[Any]:
        return start([sys.executable, "-S", str(tmp_path / "child.py"), words[-1]], **options)

    monkeypatch.setattr("nmln.cli.processes.subprocess.Popen", other)


def send_when(ready: Callable[[], bool], *numbers: signal.Signals) -> None:
    """Send signals to this process, from another thread, once something has come."""

    def send() -> None:
        wait_until(ready)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.5)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.usefixtures("small_children")
@pytest.mark.parametrize("number", HANDLED)
@pytest.mark.parametrize("told", [True, False])
def test_a_stop_is_reported_by_the_launcher_if_by_no_process(
    number: signal.Signals, told: bool, tmp_path: Path
) -> None:
    send_when(lambda: len(list(tmp_path.glob("ready-*"))) == 2, number)
    with pytest.raises((InterruptedRunError, typer.Exit)) as left:
        processes.start_processes(2, tmp_path, "say" if told else "wait", {}, "nmln again")
    assert isinstance(left.value, typer.Exit) == told
    if isinstance(left.value, typer.Exit):
        assert left.value.exit_code == 130
    else:
        assert str(left.value).endswith("Continue with: nmln again")
    assert not list(tmp_path.glob("nmln-*"))


@pytest.mark.usefixtures("small_children")
def test_a_second_signal_ends_processes_that_do_not_listen(tmp_path: Path) -> None:
    ready = lambda: len(list(tmp_path.glob("ready-*"))) == 2  # noqa: E731
    send_when(ready, signal.SIGINT, signal.SIGINT)
    with pytest.raises(InterruptedRunError, match="stopped before anything"):
        processes.start_processes(2, tmp_path / "run", "deaf", {})


@pytest.mark.usefixtures("small_children")
def test_a_stopped_training_is_continued_by_a_command_that_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "a run; rm x"
    folder.mkdir()
    (folder / "config.json").touch()
    send_when(lambda: len(list(tmp_path.glob("ready-*"))) == 2, signal.SIGTERM)
    with pytest.raises(InterruptedRunError) as left:
        processes.start_processes(2, folder, "wait", {})
    words = shlex.split(str(left.value).split("Continue with: ")[1])
    assert words == ["nmln", "train", "--resume", str(folder)]


@pytest.mark.usefixtures("small_children")
def test_others_are_ended_without_a_word_when_one_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "_LAST_WORDS", 0.2)
    with pytest.raises(SystemExit) as left:
        processes.start_processes(2, tmp_path, "fail", {}, "nmln again")
    assert left.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: process 1 of 2 was lost (signal 9)")
    assert line.endswith("Continue with: nmln again")


def test_a_silenced_process_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PRIVATE_FOLDER, str(tmp_path))
    silence_processes(tmp_path)
    with pytest.raises(SystemExit):
        fail("stopped, and kept.", code=130)
    assert capsys.readouterr().err == ""


def test_processes_import_nothing_from_the_folder_that_one_works_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "typer.py").write_text("import os; os.mkdir('taken')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit):
        processes.start_processes(2, tmp_path / "run", "sample", NO_RUN, rendezvous=False)
    assert not (tmp_path / "taken").exists()
    assert "Traceback" not in capfd.readouterr().err


def test_processes_that_cannot_fit_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 2**30)
    monkeypatch.setattr(processes, "_start", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(InputError, match=r"in 100 processes needs at least .* \(--processes"):
        processes.start_processes(100, tmp_path, "train", {})
