"""Parts of an experiment that are done by commands of nmln, one after the other, and never twice."""

import csv
import gzip
import json
import os
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.files import write_json


class Cell:
    """A folder, the commands that fill it, and their processor time."""

    def __init__(self, folder: Path, times: Path) -> None:
        self.folder = folder
        self.times = times  # processor seconds of finished and cut commands

    def nmln(self, step: str, *arguments: object) -> None:
        """Run a command on one core, and add its processor time to that of the step."""
        words = ["nmln", *map(str, arguments)]
        print("$", shlex.join(words), flush=True)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen([sys.executable, "-m", *words], env=env)
        try:
            _, status, used = os.wait4(child.pid, 0)
        except KeyboardInterrupt:
            _, status, used = os.wait4(child.pid, 0)
        known = self.known()
        kept = known.setdefault(step, {"command": shlex.join(words), "cpu_seconds": 0.0})
        kept["cpu_seconds"] += used.ru_utime + used.ru_stime
        kept["done"] = status == 0
        write_json(self.times, known)
        if status:
            raise SystemExit(f"{shlex.join(words)} ended with {os.waitstatus_to_exitcode(status)}")

    def known(self) -> dict[str, Any]:
        return json.loads(self.times.read_text()) if self.times.exists() else {}

    def done(self, step: str) -> bool:
        return bool(self.known().get(step, {}).get("done"))


def steps_of_run(folder: Path) -> list[dict[str, Any]]:
    """What a training has recorded about each of its steps."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def minutes_until(
    steps: Sequence[dict[str, Any]], spent: float, shares: Sequence[float], recent: int
) -> dict[str, float]:
    """The minutes, of all steps in equal parts, until a share of the chains at the target was valid.

    The share is the mean of some recent measurements.
    """
    last, reached = deque[float](maxlen=recent), dict[str, float]()
    for one in steps:
        if "valid" not in one:
            continue
        last.append(one["valid"])
        for wanted in shares:
            if len(last) == recent and sum(last) / recent >= wanted:
                reached.setdefault(f"{wanted:.0%}", spent * one["step"] / len(steps))
    return reached


def drawn_so_far(folder: Path) -> list[str | None]:
    """The samples that an interrupted sampling of a baseline has kept, as `drawn` gives them."""
    block = folder / ".nmln-sampling" / "block-0"
    kept = checkpoint.load(block)
    tree = checkpoint.unflatten(kept.tensors, kept.content)
    written = (block / "rows.csv.gz").read_bytes()[: tree["offset"]]
    text = (gzip.decompress(written) + tree["pending"].numpy().tobytes()).decode()
    rows = [line.split(",") for line in text.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    return [row[3] if row[2] == "valid" else None for row in rows]


def drawn(folder: Path) -> list[str | None]:
    """The samples of the target in the order of their numbers, None where one is not valid."""
    with gzip.open(folder / "samples.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    target = max(int(row["level"]) for row in rows)
    chosen = [row for row in rows if int(row["level"]) == target]
    chosen.sort(key=lambda row: int(row["sample"]))
    return [row["smiles"] if row["status"] == "valid" else None for row in chosen]
