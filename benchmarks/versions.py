"""Two versions of nmln side by side: their speed of training and sampling, by the user's commands.

git worktree add /tmp/before v1 && python -m benchmarks.versions /tmp/before
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.ratios import Ratio, report

HERE = Path(__file__).parents[1]
STEPS, SKIPPED = 60, 15
SAMPLES, BURN_IN = 2_000, 100
ROUNDS = 2


def run(version: Path, folder: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "nmln", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(version)},
        check=True,
        capture_output=True,
    )


def steps_per_minute(version: Path, processes: int) -> float:
    """By the clock in metrics.jsonl; the first steps do not count."""
    with tempfile.TemporaryDirectory() as name:
        words = ["--steps", str(STEPS), "--processes", str(processes), "--output", "run"]
        run(version, Path(name), "train", "pubchem-10", *words)
        lines = (Path(name) / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[SKIPPED - 1]), json.loads(lines[-1])
    return 60 * (last["step"] - first["step"]) / (last["seconds"] - first["seconds"])


def samples_per_second(version: Path, processes: int) -> float:
    """As recorded in sampling.json, burn-in included."""
    with tempfile.TemporaryDirectory() as name:
        words = ["--num-samples", str(SAMPLES), "--burn-in", str(BURN_IN), "--output", "out"]
        words += ["--processes", str(processes)]
        run(version, Path(name), "sample", "--pretrained", "pubchem-10", *words)
        return json.loads((Path(name) / "out" / "sampling.json").read_text())["samples_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="A checkout of the other version.")
    before = parser.parse_args().before.resolve()
    ratios, facts = [], {}
    for what, measure in (
        ("training steps per minute", steps_per_minute),
        ("samples per second", samples_per_second),
    ):
        for processes in (1, 2):
            # In turns, because other work on the machine slows both.
            turns = [(measure(before, processes), measure(HERE, processes)) for _ in range(ROUNDS)]
            name = f"{what}, {processes} process{'es' if processes > 1 else ''}"
            facts[name] = turns
            print(name, turns, flush=True)
            value = median(now / then for then, now in turns)
            ratios.append(Ratio(f"{name}: now / before", value, 0.95, at_most=False))
    commit = subprocess.run(
        ["git", "-C", str(before), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    report("versions", ratios, before=commit.stdout.strip() or "unknown", turns=facts)


if __name__ == "__main__":
    main()
