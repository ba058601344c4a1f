"""Whatever bytes a file has: a result or one line, within bounds of memory and time.

A few examples of each reader are tried in the quick suite, the same every time. NMLN_FUZZ says how many
the slow one tries, with other examples for every NMLN_FUZZ_SEED; it prints its figures (`pytest -s`).
Files on which readers failed are kept in `found/`, named by their reader.
"""

import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.limits import judge
from tests.fuzz.other_runs import other_readers
from tests.fuzz.readers import TEXT_READERS, Reader, run_readers

FOUND = Path(__file__).parent / "found"
QUICK, SLOW = 40, int(os.environ.get("NMLN_FUZZ", "2000"))
RUN_FILES = (
    "config.json", "split.json", "worlds.safetensors", "forged worlds", "main.json", "metrics.jsonl",
    "metrics as JSON", "likelihood.json",
    "flipped tensors", "flipped content", "flipped manifest", "manifest.json", "forged tensors",
    "forged content", "forged model", "sampling settings", "flipped settings", "training.json",
    "forged knowledge", "forged base",
)  # fmt: skip
NAMES = (*TEXT_READERS, *RUN_FILES)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def readers(home: Path) -> dict[str, Reader]:
    found = {**TEXT_READERS, **run_readers(home), **other_readers(home)}
    assert tuple(found) == NAMES
    return found


@pytest.fixture
def room(
    request: pytest.FixtureRequest, readers: dict[str, Reader], home: Path, tmp_path: Path
) -> tuple[Reader, Path]:
    """A reader, and where its file goes: alone in a folder, or in a copy of a run."""
    name = request.node.callspec.params["name"]
    reader = readers[name]
    folder = tmp_path / "room"
    if reader.base:
        shutil.copytree(home / reader.base, folder)
    folder.mkdir(exist_ok=True)
    for beside, content in reader.extra.items():
        (folder / beside).write_bytes(content)
    return reader, folder / reader.name


def fuzz(reader: Reader, path: Path, examples: int, number: int) -> Counter[str]:
    """Try so many mutated files; raises at the first that is neither read nor refused."""
    outcomes: Counter[str] = Counter()
    beside = {
        file: file.read_bytes()
        for file in path.parent.glob("manifest.json")
        if file.name != path.name
    }

    @seed(number)
    @settings(
        max_examples=max(1, round(examples * reader.share)),
        database=None,
        derandomize=False,
        deadline=None,
        phases=(Phase.generate,),  # shrinking would repeat what takes long
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(reader.files)
    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        for file, own in beside.items():  # what a forgery of the example before has changed
            file.write_bytes(own)
        outcomes[judge(lambda: reader.read(path))] += 1

    attempt()
    return outcomes


@pytest.mark.parametrize("name", NAMES)
def test_no_file_ends_in_a_traceback(name: str, room: tuple[Reader, Path]) -> None:
    reader, path = room
    outcomes = fuzz(reader, path, QUICK, 0)
    assert outcomes["refused"], outcomes


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_file_of_very_many_ends_in_a_traceback(name: str, room: tuple[Reader, Path]) -> None:
    outcomes = fuzz(*room, SLOW, int(os.environ.get("NMLN_FUZZ_SEED", "1")))
    told = f"{outcomes['result']:,} read, {outcomes['refused']:,} refused, 0 tracebacks"
    sys.stdout.write(f"{name}: {outcomes.total():,} files, {told}\n")


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_stays_mended(name: str, room: tuple[Reader, Path]) -> None:
    reader, path = room
    for file in sorted(FOUND.glob(f"{name.replace(' ', '-')}--*")):
        path.write_bytes(file.read_bytes())
        judge(lambda: reader.read(path))
