"""A command that is disturbed at one operation on files, then continued, and what has come of it.

An undisturbed run says what must come out. Which of its files are the same in every run, but for times,
is found by running it twice.
"""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus.prepared import CHANGES, MAIN, SAMPLING, Shelf
from tests.corpus.runner import contents
from tests.warm import Fault, Outcome, Warm

SECONDS = 240.0
KB = ("--epochs", "3", "--checkpoint-seconds", "0")
_TIMES = re.compile(r"seconds|minutes|per_second|time|command|when|memory")
_INTERNAL = re.compile(r"(^|/)(checkpoints/|\.?lock$|\.[^/]*lock$|config\.json$)")


@dataclass(frozen=True)
class Verb:
    """A command, what it starts from, how to continue it, and files that must come out the same."""

    name: str
    prepared: str
    command: tuple[str, ...]
    root: str  # the folder that it writes into
    results: tuple[str, ...]  # patterns of files; each must be found among the stable ones
    resume: tuple[str, ...] = ()  # tried first; where there is nothing to resume, the command again


VERBS = (
    Verb(
        "train",
        "people",
        ("train", "people.db", "--config", "run.toml", "--output", "run"),
        "run",
        ("model/tensors.safetensors", "metrics.jsonl", "split.json", "worlds.safetensors"),
        ("train", "--resume", "run"),
    ),
    Verb(
        "sample molecules",
        "molecules_run",
        ("sample", "molecules-run", *SAMPLING, "--processes", "1"),
        "molecules-run",
        ("samples/samples.csv.gz", "samples/counts.csv"),
    ),
    Verb(
        "sample worlds",
        "people_run",
        ("sample", "people-run", *SAMPLING),
        "people-run",
        ("samples.db",),
    ),
    Verb(
        "kb train",
        "triples",
        ("kb", "train", "triples", "--output", "run", "--minutes", "30", *KB),
        "run",
        ("model/tensors.safetensors", "history.csv"),
        ("kb", "train", "--resume", "run"),
    ),
    Verb(
        "report",
        "people_run",
        ("report", "people-run"),
        "people-run",
        ("training.csv", "report.html"),
    ),
    Verb(
        "run",
        "molecules",
        ("run", "--data", "mine.smi", *MAIN, "--processes", "1", *CHANGES, "--output", "run"),
        "run",
        ("model/tensors.safetensors", "samples/samples.csv.gz", "samples/counts*.csv"),
    ),
)


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run leaves: all its files, and the content of those that never differ."""

    verb: Verb
    operations: list[str]
    names: set[str]
    stable: dict[str, str]
    seconds: float  # that it takes
    untouched: set[str]  # files that were there before and that it does not change


@dataclass
class Trial:
    """One disturbance, and what is wrong with what came of it."""

    verb: str
    fault: str
    said: list[str] = field(default_factory=list)
    tracebacks: int = 0
    hangs: int = 0
    lost: list[str] = field(default_factory=list)  # of the user's files
    wrong: list[str] = field(
        default_factory=list
    )  # results that differ, and what else is not right

    @property
    def fine(self) -> bool:
        return not (self.tracebacks or self.hangs or self.lost or self.wrong)

    def __str__(self) -> str:
        told = "\n  ".join(self.said)
        return (
            f"{self.verb}, {self.fault}: {self.tracebacks} tracebacks, {self.hangs} hangs, "
            f"lost: {self.lost}, wrong: {self.wrong}\n  {told}"
        )


def plain_content(path: Path) -> str:
    """A hash of what a file says apart from times and commands."""
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
        content = json.dumps([_timeless(json.loads(line)) for line in lines]).encode()
    elif path.suffix == ".csv":
        rows = [line.split(",") for line in content.decode().splitlines()]
        kept = [i for i, name in enumerate(rows[0]) if not _TIMES.search(name)] if rows else []
        content = "\n".join(",".join(r[i] for i in kept if i < len(r)) for r in rows).encode()
    return hashlib.sha256(content).hexdigest()


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: _timeless(v) for k, v in content.items() if not _TIMES.search(k)}
    return [_timeless(one) for one in content] if isinstance(content, list) else content


def files_in(folder: Path) -> dict[str, str]:
    """The files of a run that a user looks at, by what they say."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in found}
    return {n: plain_content(p) for n, p in names.items() if not _INTERNAL.search(n)}


def reference(verb: Verb, call: Warm, shelf: Shelf, folder: Path, cores: int = 1) -> Reference:
    """Run a command undisturbed, twice, in folders of their own."""
    left: list[dict[str, str]] = []
    operations: list[str] = []
    seconds, given = 0.0, {}
    for name in ("first", "second"):
        here = folder / name / "here"
        here.mkdir(parents=True)
        shelf.take(verb.prepared, here)
        given = files_in(here / verb.root) if (here / verb.root).exists() else {}
        count = folder / name / "count"
        fault = Fault(str(here / verb.root), count=str(count))
        done = call(*verb.command, folder=here, seconds=SECONDS, fault=fault, cores=cores)
        assert done.code == 0, done
        seconds = done.seconds
        operations = count.read_text().splitlines()
        left.append(files_in(here / verb.root))
    first, second = left
    assert first.keys() == second.keys()
    # What the command found and left as it was is compared with itself: other shelves hold other paths.
    untouched = {name for name, text in given.items() if second.get(name) == text}
    stable = {
        name: text for name, text in first.items() if second[name] == text and name not in untouched
    }
    for pattern in verb.results:
        assert any(Path(name).match(pattern) for name in stable), (pattern, sorted(first), stable)
    return Reference(verb, operations, set(first), stable, seconds, untouched)


def disturb(
    expected: Reference, at: int, how: str, call: Warm, shelf: Shelf, folder: Path
) -> Trial:
    """Disturb a command at one operation, continue it, and compare with the undisturbed run."""
    verb = expected.verb
    trial = Trial(verb.name, f"{how} at {at}: {expected.operations[at - 1]}")
    here, temporary = folder / "here", folder / "temporary"
    here.mkdir(parents=True)
    temporary.mkdir()
    shelf.take(verb.prepared, here)
    before = contents(here)
    fault = Fault(str(here / verb.root), at, how)
    options: dict[str, Any] = {
        "folder": here, "seconds": SECONDS, "environment": {"TMPDIR": str(temporary)},
    }  # fmt: skip
    done = call(*verb.command, **options, fault=fault)
    _judge(trial, done, killed=how == "kill")
    continue_to_the_end(trial, expected, call, here, options)
    after = contents(here)
    own = {name for name in before if not name.startswith(f"{verb.root}/") and name != verb.root}
    # What the command started from must be as it was, also in the folder that it writes into.
    written = {f"{verb.root}/{name}" for name in expected.names - expected.untouched}
    kept = {name for name in before if name not in written}
    trial.lost += [name for name in sorted(own | kept) if after.get(name) != before[name]]
    shutil.rmtree(folder)
    return trial


def continue_to_the_end(
    trial: Trial, expected: Reference, call: Warm, here: Path, options: dict[str, Any]
) -> None:
    """Do what a user does after something went wrong, and compare what comes out."""
    verb = expected.verb
    done = None
    if verb.resume:
        done = call(*verb.resume, **options)
        _judge(trial, done)
    if done is None or done.code != 0:
        done = call(*verb.command, **options)
        _judge(trial, done)
    found = files_in(here / verb.root) if (here / verb.root).exists() else {}
    complete = all(found.get(name) == text for name, text in expected.stable.items())
    if done.code != 0 and not complete:
        trial.wrong.append(f"it cannot be continued: {done.said.strip()[-400:]}")
        return
    missing = expected.names - found.keys()
    other = [name for name, text in expected.stable.items() if found.get(name) not in (None, text)]
    more = found.keys() - expected.names
    trial.wrong += [f"missing: {name}" for name in sorted(missing)]
    trial.wrong += [f"different: {name}" for name in sorted(other)]
    trial.wrong += [f"left over: {name}" for name in sorted(more)]


def _judge(trial: Trial, done: Outcome, killed: bool = False) -> None:
    trial.said.append(f"[{done.code}] {done.said.strip()[-600:]}")
    trial.tracebacks += "Traceback (most recent" in done.said
    trial.hangs += done.hung
    if killed and done.code == -9:
        return
    if done.code != 0 and len(done.errors) != 1:
        trial.wrong.append(f"{len(done.errors)} lines of error with code {done.code}")
    if done.code == 0 and done.errors:
        trial.wrong.append("an error was told, but the code is 0")
    if done.left_behind:
        trial.wrong.append(f"{done.left_behind} processes left behind")


def spread(count: int, wanted: int) -> list[int]:
    """Some of the numbers from 1 to `count`, far apart from each other."""
    return sorted({1 + (2 * place + 1) * count // (2 * wanted) for place in range(wanted)})


HOWS = ("full", "error", "kill")
