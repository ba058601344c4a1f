"""Two versions of nmln side by side: their speed of training and sampling, by the user's commands.

git worktree add /tmp/before v1 && python -m benchmarks.versions /tmp/before
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.ratios import Ratio, report

HERE = Path(__file__).parents[1]
STEPS, SKIPPED = 60, 15
SAMPLES, FEW, BURN_IN = 2_000, 200, 100
ROUNDS = 3


def run(version: Path, folder: Path, *words: str) -> float:
    """Run a command of a version; the seconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "nmln", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(version)},
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def steps_per_cpu_minute(version: Path, processes: int) -> float:
    """By the processor time of a longer and of a shorter run, so that the start does not count."""
    with tempfile.TemporaryDirectory() as name:
        seconds = [
            run(
                version, Path(name), "train", "pubchem-10", "--steps", str(steps),
                "--processes", str(processes), "--output", f"run-{steps}",
            )
            for steps in (SKIPPED, STEPS)
        ]  # fmt: skip
    return 60 * (STEPS - SKIPPED) / (seconds[1] - seconds[0])


def samples_per_cpu_second(version: Path, processes: int) -> float:
    """By the processor time of a longer and of a shorter run, so that the burn-in does not count."""
    with tempfile.TemporaryDirectory() as name:
        seconds = [
            run(
                version, Path(name), "sample", "--pretrained", "pubchem-10", "--num-samples",
                str(samples), "--burn-in", "20", "--output", f"out-{samples}",
                "--processes", str(processes),
            )
            for samples in (FEW, SAMPLES)
        ]  # fmt: skip
    return (SAMPLES - FEW) / (seconds[1] - seconds[0])


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
    for what, measure, processes in (
        ("training steps per minute of processor time, 1 process", steps_per_cpu_minute, 1),
        ("samples per second of processor time, 1 process", samples_per_cpu_second, 1),
        ("training steps per minute, 2 processes", steps_per_minute, 2),
        ("samples per second, 2 processes", samples_per_second, 2),
    ):
        # In turns: what else the machine does slows both.
        turns = [(measure(before, processes), measure(HERE, processes)) for _ in range(ROUNDS)]
        facts[what] = turns
        print(what, turns, flush=True)
        value = median(now / then for then, now in turns)
        ratios.append(Ratio(f"{what}: now / before", value, 0.95, at_most=False))
    commit = subprocess.run(
        ["git", "-C", str(before), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    report("versions", ratios, before=commit.stdout.strip() or "unknown", turns=facts)


if __name__ == "__main__":
    main()
