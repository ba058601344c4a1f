"""Two versions of nmln side by side: their speed of training and sampling, by the user's commands.

git worktree add /tmp/before v1 && python -m benchmarks.versions /tmp/before
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.ratios import Ratio, report

HERE = Path(__file__).parents[1]
STEPS, SKIPPED = 80, 15
SAMPLES, FEW, BURN_IN = 2_000, 200, 100
ROUNDS = 3


def start(version: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A command of a version."""
    return subprocess.Popen(
        [sys.executable, "-m", "nmln", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(version)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run(version: Path, folder: Path, *words: str) -> None:
    if start(version, folder, *words).wait():
        raise SystemExit(f"nmln {' '.join(words)} failed in {version}")


def processor_seconds(versions: Sequence[Path], *words: str) -> list[float]:
    """The processor time of one command of several versions that run at once, in a process each.

    At once, because on a shared machine the same work takes another time a minute later.
    """
    with ExitStack() as held:
        folders = [held.enter_context(tempfile.TemporaryDirectory()) for _ in versions]
        running = [
            start(version, Path(folder), *words, "--processes", "1", "--output", "out")
            for version, folder in zip(versions, folders, strict=True)
        ]
        found = {}
        for process in running:
            number, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"nmln {' '.join(words)} failed")
            found[number] = usage.ru_utime + usage.ru_stime
    return [found[process.pid] for process in running]


def work_per_second(versions: Sequence[Path], few: int, many: int, *words: str) -> list[float]:
    """What a command does in a second of processor time: `words` ends with the flag that says how much.

    By the difference of a longer and a shorter run, so that the start does not count.
    """
    short = processor_seconds(versions, *words, str(few))
    long = processor_seconds(versions, *words, str(many))
    return [(many - few) / (more - less) for less, more in zip(short, long, strict=True)]


TRAIN = ("train", "pubchem-10", "--steps")
SAMPLE = ("sample", "--pretrained", "pubchem-10", "--burn-in", "20", "--num-samples")


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
    for what, words, few, many in (
        ("training steps per second of processor time, 1 process", TRAIN, SKIPPED, STEPS),
        ("samples per second of processor time, 1 process", SAMPLE, FEW, SAMPLES),
    ):
        facts[what] = [
            work_per_second([before, HERE][:: 1 if turn % 2 else -1], few, many, *words)[
                :: 1 if turn % 2 else -1
            ]
            for turn in range(ROUNDS)
        ]
    for what, measure in (
        ("training steps per minute, 2 processes", steps_per_minute),
        ("samples per second, 2 processes", samples_per_second),
    ):
        facts[what] = [(measure(before, 2), measure(HERE, 2)) for _ in range(ROUNDS)]  # in turns
    for what, turns in facts.items():
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
