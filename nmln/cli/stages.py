"""Stages that several processes can perform together, each started by its name.

The user's process writes the settings of a stage as JSON into a folder that only the user can read, and
starts processes that call `main` with the name of the stage. With one process it calls the same
function itself.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from nmln.cli.common import one_thread, reporting_errors
from nmln.cli.processes import STAGE, start_processes
from nmln.signals import PRIVATE_FOLDER

_STAGES = {
    "train": ("nmln.cli.train", "begin_training"),
    "resume": ("nmln.cli.train", "resume_training"),
    "sample": ("nmln.cli.sample", "draw_blocks"),
}


def perform(
    stage: str,
    processes: int,
    folder: Path,
    settings: dict[str, Any],
    again: str | None = None,
    **options: Any,
) -> None:
    """Perform a stage, in this process or in several; `options` are those of `start_processes`."""
    if processes > 1:
        start_processes(processes, folder, stage, settings, again, **options)
    else:
        _function(stage)(**settings)


def main() -> None:
    """Perform the stage that the command line names, in one of several processes."""
    with reporting_errors():
        one_thread()
        settings = Path(os.environ[PRIVATE_FOLDER]) / STAGE
        _function(sys.argv[1])(**json.loads(settings.read_text(encoding="utf-8")))


def _function(stage: str) -> Callable[..., None]:
    module, name = _STAGES[stage]
    return getattr(import_module(module), name)
