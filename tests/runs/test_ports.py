"""Other users of a machine can connect to its ports: nothing that they send is executed or used."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runs.runs import begin_command, command, equal, wait_until, weights
from tests.runs.sampling_runs import make_run
from tests.runs.sockets import attack, family, listening, payloads, poison_store

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A directory that only an object of an attacker makes, where all may make one."""
    place = tmp_path / "open"
    place.mkdir()
    for folder in (place, *tmp_path.parents):
        if os.getuid() == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o777 if folder == place else 0o755)
    return place / "taken"


@contextmanager
def started(folder: Path, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        arguments,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_a_training_listens_on_loopback_only_and_survives_whatever_is_sent(
    people: Path, bomb: Path
) -> None:
    folder = people.parent
    arguments = begin_command(folder, "both", training={"steps": 100_000, "processes": 2})
    metrics = folder / "both" / "metrics.jsonl"
    with started(folder, arguments) as process:
        wait_until(metrics.exists)
        ports = sorted(listening(process.pid))
        assert {(port.kind, port.address) for port in ports} == {("tcp", "127.0.0.1")}
        assert len(ports) == len(family(process.pid)) - 1 == 2
        attack(ports, payloads(bomb), seconds=0.5)
        poison_store(ports, f"torch.rendezvous.nmln-{process.pid}", bomb)
        before = metrics.stat().st_size
        wait_until(lambda: metrics.stat().st_size > before + 1000)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.count("stopped after step") == 1
    assert not bomb.exists()


def test_sampling_listens_nowhere(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    options = ("--num-samples", "10000000", "--chains", "20", "--block-size", "10")
    arguments = command("sample", "run", *options, "--processes", "2", "--output", "out")
    seen: set[Any] = set()
    with started(tmp_path, arguments) as process:

        def at_work() -> bool:
            seen.update(listening(process.pid))
            return len(list(tmp_path.rglob("rows.csv.gz"))) == 2 or process.poll() is not None

        wait_until(at_work)
        seen.update(listening(process.pid))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert seen == set()


@pytest.fixture(scope="module")
def met() -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.meeting"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "WORLD_SIZE"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_gathered_trees_are_the_same_in_every_bit(met: dict[str, list[Any]]) -> None:
    assert met["two"] == [[True] * 2] * 2
    assert met["three"] == [[True] * 3] * 3


def test_a_process_without_the_secret_is_refused_by_all(met: dict[str, list[Any]]) -> None:
    for told in met["stranger"]:
        assert "could not prove to each other who they are" in told


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(4), ids=["silent", "noise", "hello", "hello-and-more"])
def test_whatever_comes_before_the_group_is_made_ends_in_an_error_or_the_same_numbers(
    people: Path, bomb: Path, kind: int
) -> None:
    folder = people.parent
    undisturbed = begin_command(folder, "calm", training={"steps": 60, "processes": 2})
    with started(folder, undisturbed) as process:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said

    everything = payloads(bomb)
    sent = [everything[:1] * 20, everything[1:7], everything[7:15], everything[15:]][kind]
    arguments = begin_command(folder, "storm", training={"steps": 60, "processes": 2})
    with started(folder, arguments) as process:
        over = threading.Event()

        def storm() -> None:
            rounds = 0
            while not over.is_set() and rounds < 6:
                if ports := listening(process.pid):
                    rounds += 1
                    attack(sorted(ports), sent, seconds=0.1)

        thread = threading.Thread(target=storm, daemon=True)
        thread.start()
        _, said = process.communicate(timeout=300)
        over.set()
        thread.join(60)
    assert not bomb.exists()
    if process.returncode == 0:
        assert equal(weights(folder / "calm"), weights(folder / "storm"))
    else:
        assert [line[:7] for line in said.splitlines()].count("error: ") == 1
        assert not (folder / "storm" / "model").exists()
    if kind == 0:
        assert process.returncode == 0, said
