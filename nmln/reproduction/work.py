"""The folder of a grid, and the work on its cells: each step is one command in a process of its own.

A cell's folder has `cell.json` (what it is), `times.json` (what every step cost), `log.txt` and the
folder of its run. A step that is done is not repeated; one that was interrupted continues. Cells do not
depend on each other, so folders that were filled on several machines can be copied into one grid.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nmln.errors import InputError, InterruptedRunError
from nmln.files import only_one, write_json
from nmln.reproduction.budgets import Budget
from nmln.reproduction.cells import RUN, Job, Step
from nmln.signals import interruption

CELL, TIMES, LOG, LOCK = "cell.json", "times.json", "log.txt", "lock"
_LOOK, _KEEP = 0.1, 5.0  # seconds between two looks at a command, and between two notes of its cost

State = Literal["new", "begun", "failed", "done"]
Start = Callable[[Sequence[str], Any], "subprocess.Popen[bytes]"]


class CellFailedError(InputError):
    """A command of a cell ended with an error; its log says why."""


@dataclass(frozen=True)
class Grid:
    """A folder with the cells of one budget, their results and figures."""

    folder: Path
    budget: Budget

    @property
    def home(self) -> Path:
        return self.folder / self.budget.name

    @property
    def results(self) -> Path:
        return self.home / "results"

    @property
    def figures(self) -> Path:
        return self.home / "figures"

    def place(self, job: Job) -> Path:
        """The folder of a cell."""
        return self.home / "cells" / job.name

    def run_of(self, job: Job) -> Path:
        """The folder of a cell's run."""
        return self.place(job) / RUN

    def times(self, job: Job) -> dict[str, Any]:
        """What the steps of a cell have cost so far."""
        path = self.place(job) / TIMES
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def state(self, job: Job) -> State:
        """How far a cell is."""
        known = self.times(job)
        steps = [known.get(step.name, {}) for step in job.steps(self.budget, self.place(job))]
        if all(one.get("done") for one in steps):
            return "done"
        if any(one.get("failed") for one in steps):
            return "failed"
        return "begun" if any(steps) else "new"

    def minutes(self, job: Job, step: str | None = None) -> float:
        """Minutes of the processor that a cell, or one step of it, has taken."""
        known = self.times(job)
        chosen = known.values() if step is None else [known.get(step, {})]
        return sum(one.get("cpu_seconds", 0.0) for one in chosen) / 60

    def expected(self, jobs: Sequence[Job]) -> dict[str, float]:
        """About how many more minutes cells take that are not done.

        A cell takes as long as those of its method that are done, if there are some.
        """
        measured: dict[str, list[float]] = {}
        for one in jobs:
            if self.state(one) == "done":
                measured.setdefault(_alike(one), []).append(self.minutes(one))
        left = {}
        for one in jobs:
            if self.state(one) != "done":
                known = measured.get(_alike(one))
                whole = sum(known) / len(known) if known else one.expected(self.budget)
                left[one.name] = max(0.0, whole - self.minutes(one))
        return left


def _alike(job: Job) -> str:
    """What cells have in common that take about the same time."""
    return job.name.rpartition("-seed-")[0] or job.name


def plain_start(words: Sequence[str], log: Any) -> "subprocess.Popen[bytes]":
    """Start a command of nmln on one core."""
    return start_as([sys.executable, "-m", "nmln"], words, log)


def start_as(program: Sequence[str], words: Sequence[str], log: Any) -> "subprocess.Popen[bytes]":
    """Start a program on one core, away from the terminal, whose signals the grid passes on."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*program, *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def work_on(grid: Grid, job: Job, start: Start = plain_start) -> bool:
    """Bring a cell to its end; False if another process works on it.

    Raises `CellFailedError` if one of its commands fails. After a signal the command is asked to save
    its work, and `InterruptedRunError` is raised.
    """
    place = grid.place(job)
    place.mkdir(parents=True, exist_ok=True)
    try:
        with only_one(place / LOCK, "working on a cell"):
            check(grid, job)
            write_json(place / CELL, job.described(grid.budget))
            for step in job.steps(grid.budget, place):
                if not grid.times(job).get(step.name, {}).get("done"):
                    _perform(grid, job, step, start)
    except InputError as error:
        if error.kind == "busy":
            return False
        raise
    return True


def check(grid: Grid, job: Job) -> None:
    """Refuse a folder that holds a cell of other settings, finished or not."""
    path, wanted = grid.place(job) / CELL, job.described(grid.budget)
    if not path.exists():
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    if found != json.loads(json.dumps(wanted)):
        raise InputError(
            "this cell was made with other settings, such as another number of minutes or samples. "
            "Choose another folder (--output), or remove the cell.",
            str(path),
            kind="conflict",
        )


def _perform(grid: Grid, job: Job, step: Step, start: Start) -> None:
    """Run one command to its end, with its cost kept from time to time."""
    place = grid.place(job)
    continues = bool(step.again) and any((place / name).exists() for name in step.begun)
    words = step.again if continues else step.words
    known = grid.times(job)
    kept = known.setdefault(step.name, {"cpu_seconds": 0.0, "seconds": 0.0})
    kept |= {"command": shlex.join(("nmln", *step.words)), "done": False, "failed": False}
    before, spent = dict(kept), 0.0
    began = noted = time.monotonic()

    def note(cpu: float, **state: bool) -> None:
        kept["cpu_seconds"] = round(before["cpu_seconds"] + cpu, 3)
        kept["seconds"] = round(before["seconds"] + time.monotonic() - began, 3)
        kept.update(state)
        write_json(place / TIMES, known)

    note(0.0)
    with open(place / LOG, "ab") as log, interruption(True) as interrupted:
        log.write(f"$ {shlex.join(('nmln', *words))}\n".encode())
        log.flush()
        child, asked = start(words, log), False
        while True:
            try:
                pid, status, used = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                if interrupted() and not asked:
                    asked = True
                    child.terminate()
                if time.monotonic() - noted > _KEEP:
                    spent, noted = _cpu_seconds(child.pid) or spent, time.monotonic()
                    note(spent)
                time.sleep(_LOOK)
            except KeyboardInterrupt:  # the second signal
                asked = True
                child.kill()
    child.returncode = os.waitstatus_to_exitcode(status)  # so that it is not waited for again
    failed = bool(child.returncode) and not asked
    note(used.ru_utime + used.ru_stime, done=child.returncode == 0, failed=failed)
    if failed:
        raise CellFailedError(
            f"{shlex.join(('nmln', *words))} ended with {child.returncode}: {_last_line(place / LOG)}",
            str(place / LOG),
        )
    if asked:
        raise InterruptedRunError(
            f"stopped in {job.name}. The progress is kept.", "the same command"
        )


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else ""


def _cpu_seconds(process: int) -> float | None:
    """The processor time of a process, where the system tells it."""
    try:
        found = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    cells = found.rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")
