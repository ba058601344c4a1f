"""Training across machines by torchrun: two nodes on one machine, and one of them lost."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from socket import socket

import pytest

from nmln import checkpoint
from nmln.runs import train as training
from tests.runs.runs import begin_command, command, equal, wait_until, weights
from tests.runs.sockets import family

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def nodes(
    stack: ExitStack, folder: Path, arguments: list[str], by_rendezvous: bool = False
) -> list[subprocess.Popen[str]]:
    """The same command of nmln on two nodes of one process each."""
    port = str(free_port())
    started = []
    for rank in range(2):
        # Both ways to meet that docs/how-to/distributed.md shows.
        place = ("--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", port)
        if by_rendezvous:
            host = f"is_host={int(rank == 0)}"  # what torchrun finds out by the name of the machine
            place = ("--rdzv-backend", "c10d", "--rdzv-id", "7", "--rdzv-conf", host)
            place += ("--rdzv-endpoint", f"127.0.0.1:{port}")
        launch = ("torch.distributed.run", "--nnodes", "2", *place)
        process = subprocess.Popen(
            [sys.executable, "-m", *launch, "--nproc-per-node", "1", "-m", "nmln", *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        stack.enter_context(process)
        stack.callback(lambda one=process: one.kill() if one.poll() is None else None)
        started.append(process)
    return started


def words(arguments: list[str]) -> list[str]:
    """The command without what starts it."""
    return arguments[arguments.index("nmln") + 1 :]


@pytest.mark.parametrize("by_rendezvous", [False, True])
def test_two_nodes_train_what_two_processes_of_one_machine_do(
    people: Path, by_rendezvous: bool
) -> None:
    folder = people.parent
    arguments = begin_command(folder, "far", training={"steps": 20, "processes": 2})
    with ExitStack() as stack:
        for process in nodes(stack, folder, words(arguments), by_rendezvous):
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said
    near = begin_command(folder, "near", training={"steps": 20, "processes": 2})
    subprocess.run(near, cwd=folder, check=True, capture_output=True, timeout=300)
    assert equal(weights(folder / "far"), weights(folder / "near"))


@pytest.mark.parametrize("whole", [False, True], ids=["its process", "all of it"])
@pytest.mark.parametrize("by_rendezvous", [False, True])
def test_a_lost_node_ends_the_other_and_the_run_resumes(
    people: Path, by_rendezvous: bool, whole: bool
) -> None:
    folder, run = people.parent, people.parent / "far"
    arguments = begin_command(folder, "far", training={"steps": 100_000, "processes": 2})
    with ExitStack() as stack:
        first, second = nodes(stack, folder, words(arguments), by_rendezvous)
        wait_until(lambda: (checkpoint.latest_step(run) or 0) >= 3, seconds=240)
        lost = family(second.pid)
        for process in lost if whole else lost[-1:]:
            os.kill(process, signal.SIGKILL)
        (_, said), _ = first.communicate(timeout=300), second.communicate(timeout=300)
    assert 0 not in (first.returncode, second.returncode)
    own = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(own) == 1, said
    assert "connection to another process was lost" in own[0]
    assert "nmln train --resume" in own[0]

    kept = checkpoint.latest_step(run)
    assert kept is not None
    job = training.resume(run)
    assert job.trainer.step_number == kept
    with ExitStack() as stack:
        both = nodes(stack, folder, words(command("train", "--resume", "far")))
        wait_until(lambda: (checkpoint.latest_step(run) or 0) >= kept + 3, seconds=240)
        os.kill(family(both[0].pid)[-1], signal.SIGTERM)  # a worker: all keep and leave
        for process in both:
            _, said = process.communicate(timeout=300)
            assert process.returncode != 0, said
    assert (checkpoint.latest_step(run) or 0) >= kept + 3
