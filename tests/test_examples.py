import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


LONG = ("complete_nations", "potts_tempering")  # more than ten seconds of processor time
CASES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
    for path in EXAMPLES
]


@pytest.mark.parametrize("path", CASES)
def test_the_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_first_example_is_short() -> None:
    first = Path(__file__).parent.parent / "examples" / "corrupt_a_world.py"
    assert len(first.read_text().splitlines()) < 25
