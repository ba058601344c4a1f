"""Bad input, faults at every operation on files, and kills: the number of failures.

Runs the corpus of bad input, fails or kills six commands at each of their operations on files, kills
four commands at fifty random moments, and writes the figures that
docs/explanation/reliability.md quotes. It takes about twenty minutes on two cores, with a warm
process on each.
"""

import argparse
import json
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.ratios import RESULTS
from nmln.files import write_lines
from tests.corpus import runner
from tests.corpus.prepared import Shelf
from tests.faults import kills
from tests.faults.trials import HOWS, VERBS, Trial, disturb, reference
from tests.warm import Warm, warm

RESULT, FUZZING = RESULTS / "reliability.json", RESULTS / "fuzzing.json"
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "reliability.md"
IN_TURN = ("run",)  # made of the other commands: each operation fails in one of the ways, in turn
FIGURES = ("<!-- figures: written by benchmarks.reliability -->", "<!-- end of figures -->")
FUZZED = ("<!-- fuzzing -->", "<!-- end of fuzzing -->")

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


class CommonShelf(Shelf):
    """Prepared files that several workers share, so that every run names its data by the same path."""

    def __init__(self, call: Warm, folder: Path) -> None:
        super().__init__(call, folder)
        self.lock = threading.RLock()

    def take(self, name: str, into: Path) -> None:
        with self.lock:
            super().take(name, into)


class Workers:
    """A warm process on each core, and one that prepares files for all."""

    def __init__(self, count: int, folder: Path) -> None:
        self.folder, self.stack, self.count = folder, ExitStack(), count
        self.shelf = CommonShelf(self.stack.enter_context(warm()), folder / "shelf")
        self.free = [self.stack.enter_context(warm()) for _ in range(count)]
        self.lock, self.number = threading.Lock(), 0

    def all(
        self, work: Callable[[_Item, Warm, Shelf, Path], _Found], items: Iterable[_Item]
    ) -> list[_Found]:
        """Do the same with every item, each in a separate folder; results in order."""

        def one(item: _Item) -> _Found:
            with self.lock:
                call = self.free.pop()
                self.number += 1
                place = self.folder / f"{self.number:05d}"
            try:
                return work(item, call, self.shelf, place)
            finally:
                with self.lock:
                    self.free.append(call)

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(one, items))


def corpus(workers: Workers) -> dict[str, Any]:
    """Every case of bad input."""
    cases = runner.read_cases()

    def work(
        case: runner.Case, call: Warm, shelf: Shelf, place: Path
    ) -> tuple[runner.Case, runner.Verdict]:
        return case, runner.run(case, call, shelf, place)

    found = workers.all(work, cases)
    for case, verdict in found:
        if verdict.complaints:
            print(f"{case}: {verdict.complaints}\n  {verdict.done.said.strip()[-400:]}")
    verbs: dict[str, int] = {}
    for case in cases:
        verbs[case.verb] = verbs.get(case.verb, 0) + 1
    return {
        "cases": len(found),
        "tracebacks": sum(verdict.traceback for _, verdict in found),
        "hangs": sum(verdict.hung for _, verdict in found),
        "data lost": sum(bool(verdict.lost) for _, verdict in found),
        "complaints": sum(bool(verdict.complaints) for _, verdict in found),
        "by verb": verbs,
    }


def in_digits(trials: list[Trial]) -> dict[str, int]:
    for trial in trials:
        if not trial.fine:
            print(trial)
    return {
        "tried": len(trials),
        "tracebacks": sum(trial.tracebacks for trial in trials),
        "hangs": sum(trial.hangs for trial in trials),
        "data lost": sum(bool(trial.lost) for trial in trials),
        "identical": sum(not trial.lost and not trial.wrong for trial in trials),
    }


def faults(workers: Workers, every: int) -> dict[str, Any]:
    """Each operation on files of each command fails, in three ways or in one of them."""

    def prepare(verb: Any, call: Warm, shelf: Shelf, place: Path) -> Any:
        return reference(verb, call, shelf, place)

    by_verb = {}
    for expected in workers.all(prepare, VERBS):
        count = len(expected.operations)
        places = range(1, count + 1, every)
        work = [(at, how) for how in HOWS for at in places]
        if expected.verb.name in IN_TURN:
            work = [(at, HOWS[number % len(HOWS)]) for number, at in enumerate(places)]
        trials = workers.all(
            lambda item, call, shelf, place, e=expected: disturb(e, *item, call, shelf, place), work
        )
        by_verb[expected.verb.name] = {"operations": count, **in_digits(trials)}
        print(expected.verb.name, by_verb[expected.verb.name], flush=True)
    return {**_sums(by_verb.values()), "by verb": by_verb}


def killed(workers: Workers) -> dict[str, Any]:
    """SIGKILL at random moments."""
    by_verb = {}
    for verb, count in kills.KILLS:
        (plan,) = workers.all(
            lambda item, call, shelf, place, v=verb: kills.plan(v, item, call, shelf, place),
            [count],
        )
        trials = workers.all(
            lambda n, call, shelf, place, p=plan: kills.kill(p, n, call, shelf, place), range(count)
        )
        by_verb[verb.name] = in_digits(trials)
        print(verb.name, by_verb[verb.name], flush=True)
    return {**_sums(by_verb.values()), "by verb": by_verb}


def _sums(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0) + value
    return total


def table(content: dict[str, Any]) -> str:
    """The figures as a table for the page."""
    rows = ["| what | tried | tracebacks | hangs | data lost | as promised |",
            "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    bad = content["corpus"]
    right = bad["cases"] - bad["complaints"]
    rows.append(
        f"| bad input, all verbs | {bad['cases']} | {bad['tracebacks']} | {bad['hangs']} | "
        f"{bad['data lost']} | {right} |"
    )
    for part, name in (("faults", "faults"), ("kills", "SIGKILL")):
        for verb, one in [*content[part]["by verb"].items(), ("all", content[part])]:
            rows.append(
                f"| {name}: {verb} | {one['tried']} | {one['tracebacks']} | {one['hangs']} | "
                f"{one['data lost']} | {one['identical']} identical |"
            )
    return "\n".join(rows)


def fuzzing_table(content: dict[str, Any]) -> str:
    """The results of `python -m tests.fuzz` as a table for the page."""
    rows = [
        "| reader | files | read | refused in one line | tracebacks |",
        "| --- | --- | --- | --- | --- |",
    ]
    total = _sums(content["readers"].values())
    for name, one in [*content["readers"].items(), ("all", total)]:
        counts = (one["files"], one["result"], one["refused"], one["traceback"])
        rows.append(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |")
    return "\n".join(rows)


def on_page(page: str, marks: tuple[str, str] = FIGURES) -> str:
    """The table that a page shows between two marks."""
    return page.split(marks[0])[1].split(marks[1])[0].strip()


def write_page() -> None:
    """Put both tables on the page, from the results that are kept."""
    page = PAGE.read_text(encoding="utf-8")
    for marks, path, tabled in ((FIGURES, RESULT, table), (FUZZED, FUZZING, fuzzing_table)):
        content = json.loads(path.read_text(encoding="utf-8"))
        before, rest = page.split(marks[0])
        after = rest.split(marks[1])[1]
        page = f"{before}{marks[0]}\n\n{tabled(content)}\n\n{marks[1]}{after}"
    write_lines(PAGE, page.rstrip("\n").split("\n"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Bad input, faults and kills.")
    parser.add_argument("--workers", type=int, default=2, help="warm processes")
    parser.add_argument("--every", type=int, default=1, help="fail every N-th operation only")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument(
        "--only",
        choices=("corpus", "faults", "kills"),
        help="run one part again and keep the others",
    )
    chosen = parser.parse_args()
    if chosen.page:
        write_page()
        return
    torch.set_num_threads(1)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nmln-reliability-") as folder:
        workers = Workers(chosen.workers, Path(folder))
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "corpus": lambda: corpus(workers),
            "faults": lambda: faults(workers, chosen.every),
            "kills": lambda: killed(workers),
        }
        with workers.stack:
            found = {n: part() for n, part in parts.items() if chosen.only in (None, n)}
    minutes = (time.monotonic() - begun) / 60
    for name, numbers in found.items():
        print(name, {key: value for key, value in numbers.items() if key != "by verb"})
    print(f"{minutes:.0f} minutes")
    command = " ".join(["python -m benchmarks.reliability", *sys.argv[1:]])
    if chosen.only is not None:
        content = json.loads(RESULT.read_text(encoding="utf-8"))
        found[chosen.only]["command"] = command
        write_lines(RESULT, [json.dumps({**content, **found}, indent=2)])
        write_page()
        return
    content = {
        "command": command,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "minutes": round(minutes),
        **found,
    }
    write_lines(RESULT, [json.dumps(content, indent=2)])
    write_page()


if __name__ == "__main__":
    main()
