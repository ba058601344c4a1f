"""What all commands share: options, messages, a bar."""

import errno
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from nmln.errors import InputError, InterruptedRunError, LostProcessError
from nmln.memory import is_out_of_memory
from nmln.signals import PRIVATE_FOLDER

Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Repeats a run exactly.")]
Seeds = Annotated[int, typer.Option(min=2, max=10_000, help="Independent repetitions.")]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Where the data of the run are now, if they have moved."),
]
Output = Annotated[Path, typer.Option(help="Where the results go.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")]

_CURES = {
    errno.ENOSPC: "Free some space or name a folder on another disk.",
    errno.EDQUOT: "Free some space or name a folder on another disk.",
    errno.EROFS: "Name a folder that you can write to.",
    errno.EACCES: "Check its permissions, or name another one.",
    errno.ENOTDIR: "A file stands where a folder must be: move it, or name another folder.",
    errno.ENOENT: "Check the path.",
}


def alone() -> bool:
    """Whether this is the process that the user started, not one of several by a launcher."""
    return "WORLD_SIZE" not in os.environ


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Let a mistake of the user, and what the system refuses, end in one line instead of a traceback."""
    warnings.showwarning = warn
    try:
        yield
    except InputError as error:
        fail(str(error))
    except InterruptedRunError as error:
        fail(str(error), code=130)
    except LostProcessError as error:
        if PRIVATE_FOLDER in os.environ:  # the process that started all says what happened
            raise SystemExit(3) from None
        fail(
            f"{error} The last checkpoint is kept: start all processes again with nmln train "
            "--resume and the folder of the run.",
            code=3,
        )
    except OSError as error:
        fail(explain(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        fail("this does not fit into the memory of the machine. Ask for less at a time.")
    except KeyboardInterrupt:
        if not alone():  # the process that started all says how to continue
            raise SystemExit(130) from None
        fail("interrupted.", code=130)


def fail(message: str, code: int = 2) -> None:
    """Say what is wrong, in one line, and leave."""
    if _first_to_say(message):
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(message, err=True)
    raise SystemExit(code)


def warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is a sentence for the user, not a line of our code."""
    if _first_to_say(str(message)):
        typer.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
        typer.echo(str(message), err=True)


def changed_options(command: Callable[..., None], values: Mapping[str, Any]) -> set[str]:
    """The names of a command's parameters whose values are not their defaults."""
    known = signature(command).parameters
    return {name for name in known if values[name] != known[name].default}


def check_output(path: Path, overwrite: bool, inputs: Sequence[Path | None] = ()) -> None:
    """Before anything is computed: a file is replaced only if the user asks for it, an input never."""
    if not path.exists() or path.is_dir():  # a folder is refused when it is written
        return
    if any(one is not None and one.exists() and one.samefile(path) for one in inputs):
        raise InputError("this file is read by the same command. Name another one.", str(path))
    if not overwrite:
        raise InputError(
            "this file is there already. Name another one (--output), or give --overwrite.",
            str(path),
            kind="exists",
        )


def explain(error: OSError) -> str:
    """What the system refused, where, and the cure if there is a common one."""
    where = f"{error.filename}: " if error.filename else ""
    cure = _CURES.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}. {cure}".rstrip()


_SILENT = "silent"  # in a private folder: from now on only the launcher speaks


def _first_to_say(message: str) -> bool:
    """Whether none of several processes has said this yet.

    Their launcher gives them a folder: the first to make a mark there may speak. So what happens to one
    process is told by that one, and what happens to all of them is told once.
    """
    if private := os.environ.get(PRIVATE_FOLDER):
        folder = Path(private)
    elif error_file := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # torchrun: a folder for each
        folder = Path(error_file).parent.parent
    else:
        return True
    if (folder / _SILENT).exists():
        return False
    mark = folder / f"said-{hashlib.sha256(message.encode()).hexdigest()}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # rather twice than never
        return True
    return True


def silence_processes(private: Path) -> None:
    """Let the processes that share a folder end without a word."""
    (private / _SILENT).touch()


def something_said(private: Path) -> bool:
    """Whether one of the processes that share a folder has told the user something."""
    return any(private.glob("said-*"))


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar while a terminal watches, and nothing left of it afterwards."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(escape(what), total=total)
        yield lambda: bar.advance(task)


def one_thread() -> None:
    """One compute thread a process: a second one costs more than it gives on a loaded machine."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """What is being done, while a terminal watches."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading") as status:
        yield lambda text: status.update(escape(text))


def settings_in(given: list[str]) -> dict[str, Any]:
    """What `--set` says: values are written as in TOML, plain words need no quotes."""
    changes: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f"--set {text!r} has no value. Write --set chains.moves=5.", kind="syntax"
            )
        try:
            changes[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):  # also of numbers with very many digits
            changes[name.strip()] = value.strip()
    return changes


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told how much is done and of how much, while a terminal watches."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(escape(what), total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
