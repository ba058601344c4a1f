"""Run a case of the corpus in a folder of its own, and say what is wrong with what came of it.

A case is an entry of a .toml file beside this one:

| key | what it says |
| --- | --- |
| `name` | a sentence; with the name of the file it names the test |
| `with` | prepared files and runs that are copied into the folder, see `prepared` |
| `files` | a table of further files and their text |
| `steps` | what is done to the files before, see `STEPS`: `["flip", "run/config.json"]` |
| `command` | as typed after `nmln`; `{here}` is the folder, `{9*ab}` nine times ab |
| `code` | the exit code, 2 unless said; 0 asks for success |
| `says` | words that the one line on stderr must have (of a success: that it must have said anywhere) |
| `usage` | the line comes from the parser of options, in a box |
| `hides` | words that must not be said |
| `changes` | patterns of files that may be new or changed; nothing else may |
| `keeps` | patterns that win over `changes` |
| `first` | commands that run before and must succeed |
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import struct
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.corpus.prepared import Shelf
from tests.warm import Outcome, Warm

FOLDER = Path(__file__).parent
SECONDS = float(
    os.environ.get("NMLN_CORPUS_SECONDS", "90")
)  # beyond which a command hangs; generous, for machines that are busy


@dataclass(frozen=True)
class Case:
    """A command with bad input, and what must come of it."""

    verb: str
    name: str
    command: str
    prepared: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    steps: tuple[tuple[Any, ...], ...] = ()
    code: int = 2
    says: tuple[str, ...] = ()
    usage: bool = False
    hides: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    first: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.verb}: {self.name}"


def read_cases(folder: Path = FOLDER) -> list[Case]:
    """All cases, in the order of the files."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            entry["prepared"] = entry.pop("with", ())
            lists = ("prepared", "says", "hides", "changes", "keeps", "first")
            entry |= {name: tuple(entry.get(name, ())) for name in lists}
            entry["steps"] = tuple(tuple(step) for step in entry.get("steps", ()))
            found.append(Case(path.stem, **entry))
    return found


# What is done to files before a command runs.


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def change(path: Path, key: str, value: Any) -> None:
    """Set a key of a JSON file, named as a.b.c."""
    content = inner = json.loads(path.read_text())
    *outer, last = key.split(".")
    for name in outer:
        inner = inner[int(name) if isinstance(inner, list) else name]
    inner[int(last) if isinstance(inner, list) else last] = value
    path.write_text(json.dumps(content))


def drop(path: Path, key: str) -> None:
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def forge(folder: Path) -> None:
    """Make the manifest of a checkpoint fit its files, as one who changes them on purpose would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        content = (folder / name).read_bytes()
        manifest["files"][name] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
        }
    del manifest["digest"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "digest": digest}))


def claim(path: Path, shape: list[int]) -> None:
    """A tensor file that promises more than it holds."""
    size = 4
    for length in shape:
        size *= length
    header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 64)


def fill(path: Path, before: str, text: str, times: int, after: str = "") -> None:
    write(path, before + text * times + after)


def rows(path: Path, text: str, count: int) -> None:
    """Numbered lines."""
    write(path, "".join(text.replace("{}", str(number)) + "\n" for number in range(count)))


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target.replace("{here}", str(path.parent)))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1))


STEPS: dict[str, Callable[..., object]] = {
    "flip": flip,
    "cut": lambda path, size: os.truncate(path, size),
    "write": write,
    "bytes": lambda path, text: write(path, "") or path.write_bytes(bytes.fromhex(text)),
    "append": lambda path, text: path.write_bytes(path.read_bytes() + text.encode()),
    "fill": fill,
    "rows": rows,
    "set": change,
    "drop": drop,
    "replace": replace,
    "forge": forge,
    "claim": claim,
    "link": link,
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(parents=True),
    "remove": remove,
    "move": lambda path, to: path.rename(path.parent / to),
    "copy": lambda path, to: (
        shutil.copytree(path, path.parent / to)
        if path.is_dir()
        else shutil.copy(path, path.parent / to)
    ),
    "sparse": lambda path, size: (path.touch(), os.truncate(path, size)),
}


# What a folder holds, so that it can be compared.


def contents(folder: Path) -> dict[str, str]:
    """What stands at every path: the hash of a file, the target of a link, or what else it is."""
    return dict(sorted(_contents(folder, folder)))


def _contents(folder: Path, root: Path) -> Iterator[tuple[str, str]]:
    for entry in os.scandir(folder):
        name = os.path.relpath(entry.path, root)
        if entry.is_symlink():
            yield name, f"link to {os.readlink(entry.path)}"
        elif entry.is_dir():
            yield name, "folder"
            yield from _contents(Path(entry.path), root)
        elif entry.is_file():
            large = entry.stat().st_size > 2**28
            text = b"large" if large else Path(entry.path).read_bytes()
            yield name, hashlib.sha256(text).hexdigest()
        else:
            yield name, "neither file nor folder"


EMPTY = hashlib.sha256(b"").hexdigest()


def is_lock(name: str, content: str | None) -> bool:
    """Whether this is an empty lock file, which may come and go."""
    return content == EMPTY and os.path.basename(name).endswith("lock")


def differences(case: Case, before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Paths that have come, gone or changed though the case does not allow it."""
    found = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    kinds = {(True, False): "lost", (False, True): "new", (True, True): "changed"}
    wrong = []
    for name in sorted(found):
        allowed = any(fnmatch(name, pattern) for pattern in case.changes)
        allowed = allowed or is_lock(name, after.get(name, before.get(name)))
        if not allowed or any(fnmatch(name, pattern) for pattern in case.keeps):
            kind = kinds[name in before, name in after]
            if f"{kind}: {os.path.dirname(name)}" not in wrong:
                wrong.append(f"{kind}: {name}")
    return wrong


# A case from beginning to end.


def prepare(case: Case, shelf: Shelf, folder: Path) -> None:
    """Make the folder that a case runs in."""
    folder.mkdir(parents=True)
    for name in case.prepared:
        shelf.take(name, folder)
    for name, text in case.files.items():
        write(folder / name, text)
    for what, name, *more in case.steps:
        found = sorted(folder.glob(name)) if "*" in name else [folder / name]
        assert found, f"{case}: nothing is called {name}"
        STEPS[what](found[0], *more)


def words(command: str, folder: Path) -> list[str]:
    """The arguments of a command, with their shorthands written out."""

    def written(word: str) -> str:
        word = word.replace("{here}", str(folder))
        return re.sub(r"\{(\d+)\*([^}]*)\}", lambda found: found[2] * int(found[1]), word)

    return [written(word) for word in shlex.split(command)]


@dataclass(frozen=True)
class Verdict:
    """What is wrong with how a case ended, by kind; nothing, if all is well."""

    done: Outcome
    traceback: bool
    hung: bool
    lost: list[str]  # files that have changed, come or gone
    misses: list[str]  # what else was expected

    @property
    def complaints(self) -> list[str]:
        told = ["a traceback"] * self.traceback + ["it hung"] * self.hung
        return [*told, *self.lost, *self.misses]


def run(case: Case, call: Warm, shelf: Shelf, folder: Path) -> Verdict:
    """Run a case in a new folder and judge it."""
    here, temporary = folder / "here", folder / "temporary"
    prepare(case, shelf, here)
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    for line in case.first:
        done = call(*words(line, here), folder=here, seconds=SECONDS, environment=environment)
        assert done.code == 0, (line, done)
    before = contents(here)
    done = call(*words(case.command, here), folder=here, seconds=SECONDS, environment=environment)
    lost = differences(case, before, contents(here))
    lost += [f"left in the temporary folder: {name}" for name in contents(temporary)]
    traced = "Traceback (most recent" in done.said
    return Verdict(done, traced, done.hung, lost, misses(case, done))


def misses(case: Case, done: Outcome) -> list[str]:
    """What a command should have said or how it should have left, where it did not."""
    found = []
    if done.code != case.code:
        found.append(f"it left with {done.code} instead of {case.code}")
    if done.left_behind:
        found.append(f"it left {done.left_behind} processes behind")
    if case.usage:
        told = done.text if "Usage: " in done.said else ""
    elif case.code == 0:
        told = done.said + done.out
    else:
        told = done.errors[0] if len(done.errors) == 1 else ""
        if len(done.errors) != 1:
            found.append(f"it said {len(done.errors)} lines of error instead of one")
        elif done.lines[-1] != told:
            found.append("the line of error is not the last one")
    if case.code == 0 and done.errors:
        found.append("it told an error, but left with 0")
    found += [f"it did not say {text!r}" for text in case.says if text not in told]
    found += [f"it said {text!r}" for text in case.hides if text in done.said + done.out]
    return found
