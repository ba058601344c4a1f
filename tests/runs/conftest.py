import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runs.runs import Outcome, command_line, run_here, whole_run, write_worlds


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A file of small worlds, alone in a folder."""
    return write_worlds(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with a checkpoint of each; to be copied, not to be changed."""
    return whole_run(write_worlds(tmp_path_factory.mktemp("finished")), training__steps=3)


@pytest.fixture(scope="session")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Outcome]]:
    """Runs `nmln` with some arguments; gives its exit code and what it said on stderr."""
    with command_line(tmp_path_factory.mktemp("said")) as call:
        yield call


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs the command line in this process."""
    return lambda *arguments: run_here(monkeypatch, capfd, *arguments)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run whose name must be quoted."""
    target = tmp_path / "my run"
    shutil.copytree(finished, target)
    return target
