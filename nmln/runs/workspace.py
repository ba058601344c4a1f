"""The place of samples, and the working folder beside them: created, locked and cleared.

Until samples are complete, all their files lie in a working folder with its own name and marker. They
are moved into place at the end, so older samples stay readable until then. Only files with the names
that sampling gives them are ever removed; other files are refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nmln import checkpoint
from nmln.errors import InputError
from nmln.files import linked, only_one, refuse_links, write_lines
from nmln.formats.registry import Format, Kind, standard_format
from nmln.runs.specification import SamplingSettings

FORMAT = 2
"""The format of working folders. Those of format 1 are named `parts` and do not record it."""

SAMPLES, COUNTS, SUMMARY = "samples.csv.gz", "counts.csv", "sampling.json"
SETTINGS, FINISHED, LOCK = "settings.json", "finished.json", "lock"
ROWS, WORLDS = "rows.csv.gz", "worlds.gz"
WRITING, RESULT, REPLACED = "writing", "result", "replaced"
PLACING = "placing"  # marks that results are being moved into place
_PAGE = ("html", "json", "png", "svg")
_STEP = r"\.?step-\d{9,}(\.partial|\.replaced)?"
_TEMPORARY = r"\.[^/]+\.[a-z0-9_]{8}\.partial"  # of a killed writer

_CHECKPOINT = r"tensors\.safetensors|content\.json|manifest\.json"

_HELD: set[Path] = set()  # locks of this process


class Part(NamedTuple):
    """One of several parts of a sampling, counted from 1, drawn separately and joined later."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"part-{self.number}-of-{self.total}"


@dataclass(frozen=True)
class SamplePlace:
    """The place of samples: a folder for molecules, otherwise a file name without extension."""

    kind: Kind
    output: Path
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.kind != "molecules" and self.output.name in ("", ".."):
            raise InputError(
                "--output must name a file, but this is a folder. Add a file name.",
                str(self.output),
            )

    @property
    def standard(self) -> Format:
        """The format of the samples, unless they are molecules."""
        return standard_format(self.kind)

    @property
    def home(self) -> Path:
        """The folder that results are put into."""
        return self.output if self.kind == "molecules" else self.output.parent

    @property
    def prefix(self) -> str:
        """The prefix of the names of pages."""
        return "" if self.kind == "molecules" else f"{self.output.name}-"

    @property
    def work(self) -> Path:
        if self.kind == "molecules":
            return self.home / (".nmln-sampling" if self.part is None else str(self.part))
        name = self.output.name
        return self.home / (
            f".{name}.nmln-sampling" if self.part is None else f"{name}.{self.part}"
        )

    @property
    def lock(self) -> Path:
        """The lock of the process that manages the sampling; each block has one of its own."""
        return self.home / f".{self.work.name.lstrip('.')}.lock"

    @property
    def earlier(self) -> Path | None:
        """The working folder of versions before format 2."""
        alone = self.kind == "molecules" and self.part is None
        return self.home / "parts" if alone else None

    @property
    def target(self) -> Path:
        """The file or folder of the samples."""
        if self.kind == "molecules":
            return self.output / SAMPLES
        suffix = self.standard.suffixes[0]
        complete = self.standard.folder or self.output.name.endswith(suffix)
        return self.home / f"{self.output.name}{'' if complete else suffix}"

    @property
    def pages(self) -> tuple[Path, ...]:
        """The diagnostics of the chains, as a page, numbers and figures."""
        return tuple(self.home / f"{self.prefix}chains.{ending}" for ending in _PAGE)

    def results(self) -> list[Path]:
        """The existing results, apart from files that only some samplings write."""
        names = [self.target, *self.pages]
        if self.kind == "molecules":
            names = [self.home / SUMMARY, self.target, self.home / COUNTS, *self.pages]
        found = [path for path in names if os.path.lexists(path)]
        if self.standard.folder and self.target in found and _is_empty(self.target):
            found.remove(self.target)
        return found

    def owns(self, path: Path) -> bool:
        """Whether a path in the working folder has a name that sampling gives."""
        return bool(self._pattern.fullmatch(path.relative_to(self.work).as_posix()))

    @property
    def numbered(self) -> str:
        """What the files in a folder of samples are called, as a regular expression."""
        return rf"\d{{6,}}{re.escape(self.standard.suffixes[0])}|{_TEMPORARY}"

    @property
    def _pattern(self) -> re.Pattern[str]:
        result = rf"{_TEMPORARY}|counts(-\d+)?\.csv|" + "|".join(
            re.escape(name)
            for name in (SAMPLES, SUMMARY, self.target.name, *(page.name for page in self.pages))
        )
        graphs = ""
        if self.standard.folder:
            one = f"/({self.numbered})"
            within = rf"({WRITING}|{RESULT})/{re.escape(self.target.name)}"
            graphs = rf"|({within}|{REPLACED}){one}"
        return re.compile(
            rf"({_TEMPORARY}|{SETTINGS}|{FINISHED}|{PLACING}|{LOCK})"
            rf"|(block|part)-\d+/({_TEMPORARY}|{ROWS}|{WORLDS}|{LOCK}|offending\.db)"
            rf"|(block|part)-\d+/checkpoints/{_STEP}/({_CHECKPOINT})"
            rf"|({WRITING}|{RESULT})/({result}){graphs}"
        )


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


@contextmanager
def only_sampler(place: SamplePlace) -> Iterator[None]:
    """Hold the lock of a place; a process that already holds it may enter again.

    The lock file, and folders that were created only for it, are removed afterwards.
    """
    lock = place.lock.absolute()
    if lock in _HELD:
        yield
        return
    missing = [folder for folder in lock.parents if not folder.exists()]
    with only_one(lock, "sampling"):
        _HELD.add(lock)
        try:
            yield
        finally:
            _HELD.discard(lock)
            with suppress(OSError):
                if not lock.is_symlink() and lock.stat().st_size == 0:
                    lock.unlink()
            with suppress(OSError):
                for folder in missing:
                    folder.rmdir()


# The marker.


class Begun(NamedTuple):
    """The description of an unfinished sampling in its working folder."""

    work: Path
    settings: SamplingSettings
    about: dict[str, Any]
    sources: tuple[Path, ...] = ()  # of parts that are joined
    overwrite: bool = True  # whether older results may be replaced; not recorded in format 1

    @property
    def blocks(self) -> str:
        """The prefix of the folders of blocks."""
        return "block" if self.settings.block else "part"


def write_marker(
    place: SamplePlace,
    settings: SamplingSettings,
    about: dict[str, Any],
    sources: Sequence[Path] = (),
    overwrite: bool = False,
) -> Begun:
    """Write the description of a sampling into its working folder."""
    content = {
        "format": FORMAT,
        "nmln": checkpoint.VERSION,
        "settings": settings.described(),
        "about": about,
        "part": None if place.part is None else list(place.part),
        "from": [str(path.absolute()) for path in sources],
        "overwrite": overwrite,
    }
    text = json.dumps({**content, "digest": _digest(content)}, indent=2)
    write_lines(place.work / SETTINGS, [text])
    return Begun(place.work, settings, about, tuple(sources), overwrite)


def read_marker(place: SamplePlace) -> Begun | None:
    """The unfinished sampling at a place, if there is one; refuses a damaged or changed description."""
    path = place.work / SETTINGS
    if not os.path.lexists(path):
        if _left_in(place.work):
            raise damaged(path, "it is missing, but there are samples")
        return _read_earlier(place)
    content = checkpoint.read_json(path)
    written = content.get("format")
    if type(written) is int and written > FORMAT:
        raise InputError(
            f"this sampling was started in format {written} by nmln {str(content.get('nmln'))[:40]}, "
            f"but nmln {checkpoint.VERSION} reads formats up to {FORMAT}. Upgrade nmln, or choose "
            "another folder (--output).",
            str(path),
            kind="version",
        )
    try:
        if written != FORMAT or type(written) is not int:
            raise ValueError("its format is unknown")
        settings, about = SamplingSettings.read(content.get("settings")), _about(content)
        part, sources = content.get("part"), content.get("from")
        overwrite = content.get("overwrite", True)
        if part != (None if place.part is None else list(place.part)):
            raise ValueError("it describes another part")
        if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
            raise ValueError("from must be a list of paths")
        if type(overwrite) is not bool:
            raise ValueError("overwrite must be true or false")
        if settings.kind != place.kind:
            raise ValueError(f"its kind is {settings.kind}")
        if content.get("digest") != _digest(content):
            raise ValueError("it has changed since it was written")
    except ValueError as error:
        raise damaged(path, error) from None
    return Begun(place.work, settings, about, tuple(map(Path, sources)), overwrite)


def _left_in(work: Path) -> list[Path]:
    """Files in a working folder except temporary ones; a sampling writes its marker first."""
    return [one for one in inside(work) if one.is_file() and not re.fullmatch(_TEMPORARY, one.name)]


def _read_earlier(place: SamplePlace) -> Begun | None:
    """The unfinished sampling of format 1; other folders of the same name are ignored."""
    if place.earlier is None or place.earlier.is_symlink():
        return None
    path = place.earlier / SETTINGS
    try:
        content = checkpoint.read_json(path)
    except (InputError, OSError):
        return None
    settings = content.get("settings")
    if set(content) != {"settings", "about"} or not isinstance(settings, dict):
        return None
    if not {"samples", "chains", "burn_in"} & set(settings):
        return None
    try:
        return Begun(
            place.earlier, SamplingSettings.read(settings, by_processes=True), _about(content)
        )
    except ValueError as error:
        raise damaged(path, error) from None


def _about(content: dict[str, Any]) -> dict[str, Any]:
    about = content.get("about")
    if not isinstance(about, dict) or not isinstance(about.get("resume", ""), str):
        raise ValueError("about must be a table whose entry resume is a string")
    return about


def damaged(path: Path, error: Exception | str) -> InputError:
    return InputError(
        f"this is not a valid description of a sampling ({error}). Restore it from a copy, or restart "
        "with --overwrite.",
        str(path),
        kind="damaged",
    )


def _digest(content: dict[str, Any]) -> str:
    fields = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


# Clearing.


def check_own(place: SamplePlace) -> None:
    """Refuse links and foreign files at all paths where sampling reads, writes or removes."""
    for path in (place.work, *place.results()):
        if path.is_symlink():
            raise linked(path)
    if os.path.lexists(place.work) and not place.work.is_dir():
        raise foreign(place.work)
    refuse_links(place.work)
    for path in inside(place.work):
        if not path.is_dir() and not place.owns(path):
            raise foreign(path)
    if place.earlier is not None and (place.earlier / SETTINGS).is_file():
        if place.earlier.is_symlink():
            raise linked(place.earlier)
        refuse_links(place.earlier)
    if place.standard.folder and os.path.lexists(place.target):
        check_graphs(place)


def check_graphs(place: SamplePlace) -> None:
    """Refuse a folder for graphs that holds other files."""
    if not place.target.is_dir():
        raise foreign(place.target)
    for path in place.target.iterdir():
        if not re.fullmatch(place.numbered, path.name):
            raise foreign(path)


def foreign(path: Path) -> InputError:
    return InputError(
        "this was not written by sampling, so it is not replaced. Move it away, or choose another "
        "folder (--output).",
        str(path),
        kind="exists",
    )


def inside(folder: Path) -> list[Path]:
    """All files and folders in a folder, those inside others first; links are not followed."""
    found: list[Path] = []
    with suppress(FileNotFoundError):
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                found += inside(entry)
            found.append(entry)
    return found


def tidy(place: SamplePlace) -> None:
    """Finish an interrupted removal."""
    for work in (place.work, place.earlier):
        if work is not None and (work / FINISHED).is_file() and not work.is_symlink():
            discard(place, work)
    if place.work.is_dir() and not _left_in(place.work):
        _clear(place, place.work)  # stopped before its settings were written


def discard(place: SamplePlace, work: Path) -> None:
    """Remove a finished working folder, and those of parts joined here; only files of known names.

    The marker is renamed first and removed last, so that an interrupted removal can be finished.
    """
    marker, finished = work / SETTINGS, work / FINISHED
    if work.is_symlink():
        raise linked(work)
    if marker.exists():
        os.replace(marker, finished)
    for part in _joined_here(place, finished):
        discard(part, part.work)
    _clear(place, work)
    finished.unlink(missing_ok=True)
    with suppress(OSError):
        work.rmdir()


def _joined_here(place: SamplePlace, finished: Path) -> list[SamplePlace]:
    """The parts that a finished marker names, if they lie beside the samples."""
    try:
        sources = checkpoint.read_json(finished).get("from") or []
    except (InputError, OSError):
        return []
    here = parts_in(place)
    return [one for one in here if str(one.work.absolute()) in sources]


def parts_in(place: SamplePlace, folder: Path | None = None) -> list[SamplePlace]:
    """The parts of a sampling in a folder, by their names; by default beside the samples."""
    folder = place.home if folder is None else folder
    before = re.escape("" if place.kind == "molecules" else f"{place.output.name}.")
    output = folder if place.kind == "molecules" else folder / place.output.name
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            if match := re.fullmatch(rf"{before}part-([1-9]\d*)-of-([1-9]\d*)", path.name):
                part = Part(int(match[1]), int(match[2]))
                found.append(SamplePlace(place.kind, output, part))
    return sorted(found, key=lambda one: one.part or Part(0, 0))


def _clear(place: SamplePlace, work: Path) -> None:
    """Remove all files of sampling in a working folder except the marker of the end."""
    for path in inside(work):
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # it holds foreign files
                path.rmdir()
        elif path != work / FINISHED and place.owns(place.work / path.relative_to(work)):
            path.unlink(missing_ok=True)


def check_idle(work: Path) -> None:
    """Refuse a working folder in which a process still draws a block."""
    for lock in sorted(work.glob(f"*/{LOCK}")):
        with only_one(lock, "sampling"):
            pass


def unfinished(place: SamplePlace) -> list[Path]:
    """The working folders at a place, in any state."""
    found = [place.work] if place.work.is_dir() else []
    try:
        earlier = _read_earlier(place)
    except InputError:
        earlier = place.earlier
    else:
        earlier = None if earlier is None else earlier.work
    return found if earlier is None else [*found, earlier]
