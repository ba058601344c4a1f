"""Small runs of training for the tests, in this process and at the command line."""

import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nmln import checkpoint
from nmln.cli import main
from nmln.config import Config, configure, override
from nmln.runs import train as training

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


def whole_run(people: Path, name: str = "whole", **changes: object) -> Path:
    folder = people.parent / name
    training.run(training.begin(folder, settings(people, **changes)))
    return folder


def begin_command(folder: Path, output: str, **changes: dict) -> list[str]:
    """`nmln train` on the worlds in a folder; tables of settings may be changed."""
    write_config(folder, **changes)
    return command("train", "people.db", "--config", "run.toml", "--output", output)


def half_written(folder: Path) -> list[Path]:
    """Hidden files that a run must not leave; its lock stays."""
    found = [*folder.glob(".*"), *folder.glob("checkpoints/.*")]
    return [path for path in found if path.name not in (".lock", ".main.lock")]


def wait_until(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for has not come"
        time.sleep(0.02)


class Outcome:
    """What the command line said, and how it left."""

    def __init__(self, code: int, said: str) -> None:
        self.code, self.said = code, said

    @property
    def lines(self) -> list[str]:
        return self.said.splitlines()


def run_here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: object
) -> Outcome:
    """The command line as a user meets it, but in this process, which has torch already."""
    monkeypatch.setattr(sys, "argv", ["nmln", *map(str, arguments)])
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always", checkpoint.CheckpointWarning)
        with pytest.raises(SystemExit) as left:
            main()
    code = left.value.code
    assert code is None or isinstance(code, int)
    return Outcome(code or 0, capfd.readouterr().err)


SERVER = """if True:
    import json, os, sys
    import torch
    import nmln.cli, nmln.runs.sample, nmln.runs.train
    # What is imported only when it is needed, for all children at once.
    weight = torch.nn.Parameter(torch.zeros(1))
    torch.optim.Adam([weight]).step(lambda: weight.sum().backward())
    for line in sys.stdin:
        said, *arguments = json.loads(line)
        if not (child := os.fork()):
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.argv = ["nmln", *arguments]
            try:
                nmln.cli.main()
            except SystemExit as left:
                sys.stderr.flush()
                os._exit(left.code or 0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def command_line(folder: Path) -> Iterator[Callable[..., Outcome]]:
    """The command line in processes of its own, as a user meets it, but quick to start."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def call(*arguments: object) -> Outcome:
            stdin.write(json.dumps([str(folder / "said"), *map(str, arguments)]) + "\n")
            stdin.flush()
            code = int(stdout.readline())
            return Outcome(code, (folder / "said").read_text())

        yield call
        stdin.close()
