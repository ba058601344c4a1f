"""The folder of a run: which files in it are its own, and who may write them.

One rule for all commands: there is no link inside a run, one process trains at a time, and nothing that
a run did not write is replaced.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmln import checkpoint
from nmln.checkpoint.directory import CONTENT, MANIFEST, TENSORS
from nmln.files import InputError, only_one

HEAD, SPLIT, METRICS, MODEL, CHECKPOINTS = (
    "config.json", "split.json", "metrics.jsonl", "model", "checkpoints",
)  # fmt: skip
LOCK = ".lock"
NAMES = (
    METRICS, CHECKPOINTS, MODEL, "report.html", "training.csv", "training.png", "training.svg",
    "likelihood.json", "samples", "evaluation",
)  # fmt: skip
"""What commands write into the folder of a run, beside its head and split."""


@contextmanager
def locked(folder: Path, what: str = "training") -> Iterator[None]:
    """Be the only process that does `what` in a folder; the lock is a file that has no other use."""
    with only_one(folder / LOCK, what):
        yield


def refuse_foreign(folder: Path, names: tuple[str, ...] = NAMES) -> None:
    """Refuse a folder without a run in which something stands where a run will write."""
    for name in names:
        path = folder / name
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise foreign(path)


def foreign(path: Path) -> InputError:
    return InputError(
        "this was not written by a run in this folder, and a run would replace it. Move it away, or "
        "choose another folder (--output).",
        str(path),
    )


def check_model(folder: Path) -> None:
    """Refuse a folder `model` with other files in it, which the end of a run could not replace."""
    path = folder / MODEL
    if path.exists() and not path.is_dir():
        raise foreign(path)
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if entry.name not in (TENSORS, CONTENT, MANIFEST):
                raise foreign(entry)


def resuming(folder: Path) -> str:
    """The command that resumes a run."""
    return shlex.join(["nmln", "train", "--resume", str(folder)])


@contextmanager
def writing(path: Path, again: str | None = None) -> Iterator[None]:
    """Report an error of the disk as one that names the user's file and how to resume.

    `path` is a file in the folder of a run, `again` the command that resumes the run where that is not
    nmln train.
    """
    try:
        yield
    except OSError as error:
        kept = ""
        if checkpoint.saved_steps(path.parent):
            kept = (
                " The run is kept as its last checkpoint has it; then go on with: "
                f"{again or resuming(path.parent)}"
            )
        raise InputError(f"{checkpoint.explain(error, path)}{kept}", str(path)) from error
