"""The command line in processes forked from one that has imported everything already.

A command costs its own work and some hundredths of a second, not the seconds that importing takes. Each
runs in a process of its own, with a limit of time and of memory, and cannot change the next one.
"""

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH = "400"  # columns, so that no message is broken into lines
_LATER = (
    "rich.progress", "rich.live", "rich.table", "rich.columns", "rich.panel", "networkx",
    "arviz_stats.base.array", "rdkit.Chem", "rdkit.Chem.Draw.rdMolDraw2D", "pooch", "requests",
    "matplotlib.pyplot", "matplotlib.backends.backend_svg",
    "matplotlib.backends.backend_agg",
)  # fmt: skip
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes that lose their parent become ours


@dataclass(frozen=True)
class Fault:
    """What happens at the operation `at`, counted from 1, among those that change files in `root`.

    `full`: this one and all later ones that need space find the disk full. `error`: this one fails by
    itself. `kill`: the process ends there. With 0 for `at` nothing happens, and all is counted.
    """

    root: str
    at: int = 0
    how: str = "full"
    count: str = ""  # a file that takes the names of all operations, one per line


@dataclass(frozen=True)
class Request:
    """A command, where it runs, and how long it may take."""

    arguments: list[str]
    folder: str
    out: str
    seconds: float = 60.0
    memory: int = 3 * 2**30  # bytes beyond what the warm process has already
    environment: dict[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    kill_after: float | None = None  # seconds until SIGKILL
    kill_all: bool = True  # with the processes that the command has started
    stop_after: float | None = None  # seconds until SIGINT
    cores: int = 1  # that the command finds
    plain_figures: bool = True  # written without being drawn, which takes seconds


@dataclass(frozen=True)
class Outcome:
    """How a command left, what it said, and whether it had to be ended or left processes behind."""

    code: int
    out: str
    said: str
    seconds: float
    hung: bool
    left_behind: int

    @property
    def lines(self) -> list[str]:
        return self.said.split("\n")[:-1] if self.said.endswith("\n") else self.said.split("\n")

    @property
    def errors(self) -> list[str]:
        return [line for line in self.lines if line.startswith("error: ")]

    @property
    def text(self) -> str:
        """All that was said, without the frames of boxes and the breaks of lines."""
        return " ".join("".join(" " if c in "│╭╮╰╯─" else c for c in self.said).split())


class Warm:
    """A warm process that runs one command at a time."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path) -> None:
        self.server, self.folder = server, folder

    def __call__(self, *arguments: object, folder: Path | None = None, **options: Any) -> Outcome:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        out = self.folder / "said"
        words = [str(word) for word in arguments]
        request = Request(words, str(folder or self.folder), str(out), **options)
        self.server.stdin.write(json.dumps(asdict(request)) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the warm process has ended"
        out, err = (
            Path(f"{out}.{n}").read_bytes().decode("utf-8", "replace") for n in ("out", "err")
        )
        found = json.loads(answer)
        return Outcome(found["code"], out, err, found["seconds"], found["hung"], found["left"])


@contextmanager
def warm(settings: dict[str, str] | None = None) -> Iterator[Warm]:
    """Start a warm process; `settings` are added to its environment."""
    with tempfile.TemporaryDirectory(prefix="nmln-warm-") as folder:
        home = Path(folder, "home")
        home.mkdir()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *_paths()]),
            "TERMINAL_WIDTH": WIDTH,
            "COLUMNS": WIDTH,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TORCH_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **(settings or {}),
        }
        environment.pop("FORCE_COLOR", None)
        environment.pop("NMLN_DATA", None)
        server = subprocess.Popen(
            [sys.executable, "-c", "from tests.warm import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,  # Ctrl-C at the tests is for the tests
        )
        with server:
            try:
                yield Warm(server, Path(folder))
            finally:
                assert server.stdin is not None
                server.stdin.close()


def _paths() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def serve() -> None:
    """Answer requests on stdin until it is closed. Runs in the warm process."""
    import_everything()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for line in sys.stdin:
        content = json.loads(line)
        content["fault"] = None if content["fault"] is None else Fault(**content["fault"])
        request = Request(**content)
        begun = time.monotonic()
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _work(request)
        code, hung = _wait(child, request, wake)
        left = _clear(request.kill_after is not None)
        answer = {"code": code, "hung": hung, "left": left, "seconds": time.monotonic() - begun}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def import_everything() -> None:
    """Whatever any command imports, and nothing that starts a thread."""
    import matplotlib as mpl

    mpl.use("Agg")
    import torch

    torch.set_num_threads(1)
    import gc
    import importlib
    import logging
    import pkgutil
    import warnings

    import nmln
    import nmln.cli
    import tests.faults.shim  # noqa: F401

    for module in pkgutil.walk_packages(nmln.__path__, "nmln."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    logging.disable(logging.WARNING)  # one of them is talkative
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _LATER:
            importlib.import_module(name)
    logging.disable(logging.NOTSET)
    weight = torch.nn.Parameter(torch.zeros(1))
    torch.optim.Adam([weight]).step(lambda: weight.sum().backward())
    gc.collect()
    gc.freeze()


def _work(request: Request) -> None:
    """One command, in a process of its own."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(f"{request.out}.{name}", flags, 0o600), number)
        os.environ.update(request.environment)
        tempfile.tempdir = None
        os.chdir(request.folder)
        if request.memory:
            limit = _address_space() + request.memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        cores = set(range(request.cores))
        os.sched_getaffinity = lambda process: cores
        sys.argv = ["nmln", *request.arguments]
        from tests.faults import shim

        if request.plain_figures:
            shim.draw_nothing()
        if request.fault is not None:
            shim.install(request.fault)
        import nmln.cli

        nmln.cli.main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def _address_space() -> int:
    """How many bytes of addresses this process has mapped."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 8 * 2**30


def _wait(child: int, request: Request, wake: int) -> tuple[int, bool]:
    """Wait for a command, send it what signals were asked for, and end it when its time is over."""
    begun = time.monotonic()
    planned = [(request.seconds, "hung")]
    if request.kill_after is not None:
        planned.append((request.kill_after, "kill"))
    if request.stop_after is not None:
        planned.append((request.stop_after, "stop"))
    hung = False
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), hung
        moment, what = min(planned)
        left = begun + moment - time.monotonic()
        if left > 0:
            select.select([wake], [], [], min(left, 1.0))
            with suppress(BlockingIOError):
                os.read(wake, 512) if select.select([wake], [], [], 0)[0] else None
            continue
        planned.remove((moment, what))
        planned = planned or [(float("inf"), "nothing")]
        hung = hung or what == "hung"
        everybody = [child, *descendants(child)] if what == "hung" or request.kill_all else [child]
        number = signal.SIGINT if what == "stop" else signal.SIGKILL
        for one in [child] if what == "stop" else everybody:
            with suppress(ProcessLookupError):
                os.kill(one, number)


def descendants(parent: int) -> list[int]:
    """All processes that a process has started, and those that these have."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _clear(patiently: bool) -> int:
    """Wait for processes that a command has left, then end them; how many had to be ended."""
    deadline = time.monotonic() + (30 if patiently else 3)
    while True:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if found:
            continue
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    left = descendants(os.getpid())
    for one in left:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return len(left)
