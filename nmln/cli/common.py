"""Options, messages and progress bars that all commands share."""

import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nmln.errors import InputError, InterruptedRunError, LostProcessError
from nmln.memory import is_out_of_memory
from nmln.signals import PRIVATE_FOLDER

_MOST_SEED = 2**63 - 1
_MOST_SIZES = 1000
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


def _in_63_bits(seed: int | None) -> int | None:
    if seed is not None and seed > _MOST_SEED:
        raise typer.BadParameter(f"{seed} is not in the range 0<=x<={_MOST_SEED}.")
    return seed


def seed_option(text: str, **more: Any) -> Any:
    """The option of a seed. `max=` would print its long limit in a column of every help text."""
    return typer.Option(min=0, callback=_in_63_bits, help=text, **more)


Seed = Annotated[int, seed_option("Random seed.")]
Seeds = Annotated[int, typer.Option(min=2, max=10_000, help="Number of independent repetitions.")]
Data = Annotated[
    str | None,
    typer.Option("--data", help="New location of the run's data, if the file has moved."),
]
RunOutput = Annotated[
    Path | None, typer.Option(help="Folder for the run.", show_default="runs/NAME")
]
Resume = Annotated[Path | None, typer.Option(help="Continue the run in this folder.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Start from the weights of the run in this folder, which has the same language. Sizes and "
        "levels may differ; the network is that of the old run.",
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--size",
        "--nodes",
        min=1,
        help="Use only molecules with exactly this many heavy atoms.",
    ),
]
Sizes = Annotated[
    str | None,
    typer.Option(
        "--sizes",
        help="Use molecules of these numbers of heavy atoms, such as 8-12 or 9,10,15. One model "
        "learns them all.",
        show_default="all sizes with 1 % of the molecules",
    ),
]
MaxSize = Annotated[
    int | None,
    typer.Option("--max-size", min=1, help="Leave out molecules with more heavy atoms than this."),
]
Device = Annotated[
    str,
    typer.Option(
        help="Where to compute: cpu, cuda, mps, or auto: a CUDA device if there is one, else the CPU."
    ),
]
Output = Annotated[Path, typer.Option(help="Folder for the results.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output file.")]

_CURES = {
    errno.ENOSPC: "Free some space or name a folder on another disk.",
    errno.EDQUOT: "Free some space or name a folder on another disk.",
    errno.EROFS: "Name a folder that you can write to.",
    errno.EACCES: "Check its permissions, or name another one.",
    errno.ENOTDIR: "This must be a folder, but is a file: move it, or name another folder.",
    errno.ENOENT: "Check the path.",
}


def examples(*commands: str) -> str:
    """The epilog of a command's help: one example per line."""
    return ("Examples:" if len(commands) > 1 else "Example:") + "\n\n" + "\n".join(commands)


class Verb(TyperCommand):
    """A command whose help leaves out `--no-x` where that is the default, to save a wide column."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for one in self.params:
            if one.default is False:
                one.secondary_opts = []
        super().format_help(ctx, formatter)


def refuse_unused(given: set[str], flags: Mapping[str, str], reason: str) -> None:
    """Refuse given options that would have no effect; `flags` maps parameters to their flags."""
    for name, flag in flags.items():
        if name in given:
            raise InputError(f"{flag} {reason}", token=flag, kind="conflict")


def alone() -> bool:
    """Whether the user started this process, rather than a launcher that starts several."""
    return "WORLD_SIZE" not in os.environ


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Report input errors and errors of the operating system in one line, without a traceback."""
    warnings.showwarning = warn
    try:
        yield
    except InputError as error:
        fail(str(error))
    except InterruptedRunError as error:
        fail(str(error), code=130)
    except LostProcessError as error:
        if PRIVATE_FOLDER in os.environ:  # the launcher reports what happened
            raise SystemExit(3) from None
        fail(
            f"{error} The last checkpoint is kept: restart all processes with nmln train --resume and "
            "the folder of the run.",
            code=3,
        )
    except OSError as error:
        fail(explain(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        fail("this does not fit into the memory of the machine. Use smaller sizes or fewer chains.")
    except KeyboardInterrupt:
        if not alone():  # the launcher reports how to continue
            raise SystemExit(130) from None
        fail("interrupted.", code=130)


def fail(message: str, code: int = 2) -> None:
    """Report an error in one line, and exit."""
    if _first_to_say(message):
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(message, err=True)
    raise SystemExit(code)


def warn(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning as one sentence, without the place in the code."""
    if _first_to_say(str(message)):
        typer.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
        typer.echo(str(message), err=True)


def changed_options(command: Callable[..., None], values: Mapping[str, Any]) -> set[str]:
    """The names of a command's parameters whose values are not their defaults."""
    known = signature(command).parameters
    return {name for name in known if values[name] != known[name].default}


def check_output(path: Path, overwrite: bool, inputs: Sequence[Path | None] = ()) -> None:
    """Refuse an output file that exists, unless `overwrite` is set, and one that is an input.

    Called before anything is computed.
    """
    if not path.exists() or path.is_dir():  # a folder is refused when it is written
        return
    if any(one is not None and one.exists() and one.samefile(path) for one in inputs):
        raise InputError(
            "the output must not be an input of the same command. Name another file.", str(path)
        )
    if not overwrite:
        raise InputError(
            "this file already exists. Name another one (--output), or give --overwrite.",
            str(path),
            kind="exists",
        )


def explain(error: OSError) -> str:
    """The path, the error of the operating system, and the usual remedy if there is one."""
    where = f"{error.filename}: " if error.filename else ""
    cure = _CURES.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}. {cure}".rstrip()


_SILENT = "silent"  # in a private folder: from now on only the launcher prints messages


def _first_to_say(message: str) -> bool:
    """Whether no other process of the same command has printed this message.

    The processes share a folder. The first one that creates a mark for the message there prints it, so
    an event of one process is reported by that process, and an event of all is reported once.
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
    except OSError:  # a repeated message is better than a lost one
        return True
    return True


def silence_processes(private: Path) -> None:
    """Make the processes that share a folder exit without messages."""
    (private / _SILENT).touch()


def something_said(private: Path) -> bool:
    """Whether one of the processes that share a folder has printed a message."""
    return any(private.glob("said-*"))


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar, if stderr is a terminal; it disappears at the end."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(escape(what), total=total)
        yield lambda: bar.advance(task)


def one_thread() -> None:
    """Use one compute thread per process: a second one is slower on a loaded machine."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """A function that shows the current activity, if stderr is a terminal."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading") as status:
        yield lambda text: status.update(escape(text))


def sizes_in(text: str | None) -> tuple[int, ...] | None:
    """The sizes given by `--sizes`: numbers and ranges, separated by commas."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last - first >= _MOST_SIZES:
            reason = "is not a number or a range"
            if match:
                reason = (
                    "is an empty range" if first > last else f"has more than {_MOST_SIZES} sizes"
                )
            raise InputError(
                "--sizes must be numbers and rising ranges, such as 8-12 or 9,10,15, but "
                f"{part.strip()[:20]!r} {reason}. Correct it.",
                token="--sizes",
                kind="syntax",
            )
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def settings_in(given: list[str]) -> dict[str, Any]:
    """The settings given by `--set`: values are written as in JSON, strings need no quotes."""
    changes: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f"--set must be NAME=VALUE, got {text!r}. Write, for example, --set chains.moves=5.",
                kind="syntax",
            )
        try:
            changes[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):  # also of numbers with very many digits
            changes[name.strip()] = value.strip()
    return changes


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar that is updated with the work done and the total, if stderr is a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(escape(what), total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
