"""What is asked of the main job, kept as `main.json` in its folder."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.config import Config, configure, override
from nmln.errors import InputError
from nmln.files import refuse_links, write_lines
from nmln.runs import data as sources
from nmln.runs.folder import RunFolder, moved, writing
from nmln.runs.start import Start, read_start

MINUTES = 7.0
"""The default training time."""

PRESET = "molecules"
"""The preset of the training: many replicas and few steps, against memorising the data."""

_KINDS: dict[str, Any] = {
    "data": str, "size": int | None, "minutes": float | int | None, "samples": int | None, "seed": int,
    "changes": Mapping, "chains": int, "burn_in": int, "sizes": tuple | None, "max_size": int | None,
    "start": str | None,
}  # fmt: skip


@dataclass(frozen=True)
class JobSettings:
    """All settings that determine the results.

    A missing number of samples is chosen later by a timing, and recorded. `changes` are settings of the
    training, named like `chains.moves`.
    """

    data: str = "pubchem-10"
    size: int | None = None
    minutes: float | None = None
    samples: int | None = None
    seed: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    chains: int = 100
    burn_in: int = 300
    sizes: tuple[int, ...] | None = None
    max_size: int | None = None
    start: str | None = None

    def begun(self) -> Start | None:
        """The run whose weights the training starts with."""
        return None if self.start is None else read_start(self.start)

    def config(self, processes: int = 1, start: Start | None = None) -> Config:
        """The settings of the training; `start` has those of its potential that are not given."""
        flags: dict[str, Any] = {
            "data.source": self.data,
            "data.nodes": self.size,
            "data.sizes": self.sizes,
            "data.max_size": self.max_size,
            "training.seed": self.seed,
            "model.seed": self.seed,
            "training.processes": processes,
        }
        if "training.steps" not in self.changes:
            flags["training.minutes"] = MINUTES if self.minutes is None else self.minutes
        elif self.minutes is not None:
            raise InputError(
                "minutes and training.steps both set the length of training. Give one of them.",
                kind="conflict",
            )
        base = None if start is None else start.settings
        found = override(configure({}, preset=PRESET, base=base), {**flags, **self.changes})
        if start is not None:
            start.check(found)
        return found

    @property
    def burn_in_asked(self) -> int | None:
        """The sweeps before the first sample; None if they are left to the sampling."""
        return None if self.burn_in == JobSettings.burn_in else self.burn_in

    def located(self) -> "JobSettings":
        """The same with full paths, which are valid in every working directory."""
        there = self.start is not None and Path(self.start).exists()
        start = str(Path(self.start or "").resolve()) if there else self.start
        return replace(self, data=sources.located(self.config().data).source, start=start)


def begin(folder: Path, settings: JobSettings) -> JobSettings:
    """Record the settings of a new job, or check that they are those of the job in the folder."""
    settings = settings.located()
    recorded = read_settings(folder)
    if recorded is None:
        if RunFolder(folder).is_run:
            raise InputError(
                "this folder holds a run of nmln train. Choose another one (--output).",
                str(folder),
                kind="exists",
            )
        RunFolder(folder).check_new()
        write_settings(folder, settings)
        return settings
    if settings.data != recorded.data and _gone(recorded.data):
        recorded = _moved(folder, recorded, settings.data)
    if settings.samples is None:  # chosen earlier by a timing, or not yet chosen
        settings = replace(settings, samples=recorded.samples)
    if differences := _differences(recorded, settings):
        raise InputError(
            f"a job with other settings was started in this folder ({', '.join(differences)}). Give the "
            "same settings to continue it, or choose another folder (--output).",
            str(folder),
            kind="conflict",
        )
    return recorded


def _gone(data: str) -> bool:
    """Whether the recorded path of the data does not exist any more."""
    return Path(data).is_absolute() and not Path(data).exists()


def _moved(folder: Path, recorded: JobSettings, data: str) -> JobSettings:
    """The same job on data that have moved; records the new path in the job and in the run."""
    home = RunFolder(folder)
    if home.is_run:
        head = home.read_head()
        config = moved(head.config, data)
        home.read_source(head, config.data)  # refuses other data
        home.record_data(config.data)
    recorded = replace(recorded, data=data)
    write_settings(folder, recorded)
    return recorded


def _differences(recorded: JobSettings, settings: JobSettings) -> list[str]:
    before, now = _flat(recorded), _flat(settings)
    return [
        f"{name} {before.get(name, 'by default')}, not {now.get(name, 'by default')}"
        for name in [*before, *(name for name in now if name not in before)]
        if before.get(name) != now.get(name)
    ]


def _flat(settings: JobSettings) -> dict[str, Any]:
    """The given settings by name; those left to defaults are omitted."""
    said = {name: value for name, value in asdict(settings).items() if value is not None}
    return {**said, **said.pop("changes")}


def read_settings(folder: Path) -> JobSettings | None:
    """The settings of the job in a folder, if there is one."""
    refuse_links(folder)
    path = RunFolder(folder).job
    if not path.exists():
        return None
    try:
        content = checkpoint.read_json(path)
        if isinstance(sizes := content.get("sizes"), list):
            content["sizes"] = tuple(sizes)
        found = JobSettings(**content)
        for name, kind in _KINDS.items():
            if not isinstance(value := getattr(found, name), kind):
                raise TypeError(f"{name} must not be of type {type(value).__name__}")
        return found
    except TypeError as error:
        raise InputError(
            f"this does not describe a job ({error}). Choose another folder (--output).",
            str(path),
            kind="damaged",
        ) from None


def write_settings(folder: Path, settings: JobSettings) -> None:
    """Write what is asked of a job; several sizes and a start only where they are chosen."""
    content = asdict(settings)
    for name in ("sizes", "max_size", "start"):
        if content[name] is None:
            del content[name]
    with writing(RunFolder(folder).job):
        write_lines(RunFolder(folder).job, [json.dumps(content, indent=2, ensure_ascii=False)])


def repeating(folder: Path, attempts: int) -> str:
    """The command that repeats the job in another folder, with the chosen steps and samples."""
    settings = read_settings(folder) or JobSettings()
    config = RunFolder(folder).read_head().config
    changes = {**settings.changes, "training.steps": config.training.steps}
    changes.pop("training.minutes", None)
    words = ["nmln", "run", "--data", config.data.source]
    if settings.size is not None:
        words += ["--size", str(settings.size)]
    if settings.sizes is not None:
        words += ["--sizes", ",".join(map(str, settings.sizes))]
    if settings.max_size is not None:
        words += ["--max-size", str(settings.max_size)]
    if settings.start is not None:
        words += ["--from", settings.start]
    words += [
        "--num-samples", str(attempts), "--seed", str(settings.seed),
        "--processes", str(config.training.processes or 1), "--output", f"{folder}-again",
    ]  # fmt: skip
    for flag, value, default in (
        ("--chains", settings.chains, JobSettings.chains),
        ("--burn-in", settings.burn_in, JobSettings.burn_in),
    ):
        words += [flag, str(value)] if value != default else []
    return shlex.join([*words, *set_options(changes)])


def set_options(changes: Mapping[str, Any]) -> list[str]:
    """Changed settings as arguments of the command line."""
    words = []
    for name, value in changes.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words
