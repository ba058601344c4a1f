"""What a folder says that its run is: settings, language, data and their split."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import torch

from nmln import checkpoint
from nmln.config import configure
from nmln.files import InputError, write_lines
from nmln.model import Model
from nmln.molecules.tally import Dropped
from nmln.workflow import sources
from nmln.workflow.sources import Source


def is_run(folder: Path) -> bool:
    """Whether a run was begun in a folder."""
    return (folder / "config.json").exists()


def check_new(folder: Path) -> None:
    """Refuse to begin a run in a folder that holds one."""
    if is_run(folder):
        raise InputError(
            "there is a run in this folder already. Go on with it (nmln train --resume), or choose "
            "another one (--output).",
            str(folder),
        )


def write_head(folder: Path, model: Model, source: Source, **more: Any) -> None:
    """What a run is: written once, before its first step."""
    split = {"train": source.train.tolist(), "test": source.test.tolist()}
    content = {
        "format": checkpoint.FORMAT,
        "nmln": checkpoint.VERSION,
        **model.describe(),
        "kind": source.kind,
        "fingerprint": source.fingerprint,
        "dropped": [asdict(one) for one in source.dropped],
        **more,
    }
    for name, lines in (
        ("split.json", json.dumps(split)),
        ("config.json", json.dumps(content, indent=2)),  # last: it makes the folder a run
    ):
        with writing(folder / name):
            write_lines(folder / name, [lines])


def read_head(folder: Path) -> dict[str, Any]:
    """What a folder says that its run is; refuses what a newer version says in words unknown here."""
    path = folder / "config.json"
    if not is_run(folder):
        raise InputError("there is no run in this folder. Begin one with nmln train.", str(folder))
    head = checkpoint.read_json(path)
    written, version = head.get("format", 1), str(head.get("nmln", "of an unknown version"))[:40]
    if not isinstance(written, int) or written > checkpoint.FORMAT:
        raise InputError(
            f"this run was begun in format {str(written)[:40]} by nmln {version}, but nmln "
            f"{checkpoint.VERSION} reads formats up to {checkpoint.FORMAT}. Upgrade nmln.",
            str(path),
        )
    try:
        if str(head["kind"]) not in get_args(sources.Kind) or not isinstance(head["program"], str):
            raise TypeError("it must name a known kind of data and a program")
        configure(head["config"], str(path))
        dropped_in(head)
    except InputError as error:
        if version == checkpoint.VERSION:
            raise
        raise InputError(
            f"{error.message} The run was begun with nmln {version}, and this is nmln "
            f"{checkpoint.VERSION}: go on with the version that it was begun with.",
            str(path),
        ) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"this does not describe a run ({error}). Restore it from a copy, or begin anew.",
            str(path),
        ) from None
    return head


def dropped_in(head: dict[str, Any]) -> tuple[Dropped, ...]:
    """The lines of the data that a run has left out, by reason."""
    found = tuple(Dropped(**one) for one in head.get("dropped", ()))
    if not all(isinstance(one.count, int) for one in found):
        raise TypeError("lines that were left out are counted")
    return found


def read_source(folder: Path, head: dict[str, Any] | None = None) -> Source:
    """The data of a run, split as they were when it began; refuses data that have changed since.

    Places in a file say nothing once its lines have moved: what was held out would count as learnt.
    """
    head = head or read_head(folder)
    config = configure(head["config"], str(folder / "config.json"))
    path = folder / "split.json"
    if not path.exists():
        raise InputError("there is no split.json in this run to say what is held out.", str(folder))
    split = checkpoint.read_json(path)
    source = sources.load(config.data)
    known = head.get("fingerprint")  # runs of earlier versions have none
    if known is not None and known != source.fingerprint:
        raise other_data(folder, source, config.data.source)
    try:
        train, test = (torch.tensor(split[part], dtype=torch.int64) for part in ("train", "test"))
        places = torch.cat([train, test]).sort().values
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise InputError(
            "this does not say which of the data are learned from and which are held out. Restore it "
            "from a copy.",
            str(path),
        ) from None
    if not torch.equal(places, torch.arange(len(source.worlds))):
        if known is None:
            raise other_data(folder, source, config.data.source)
        raise InputError(
            f"this does not fit the data {config.data.source}: each world is either learned from or "
            "held out. Restore it from a copy.",
            str(path),
        )
    return replace(source, train=train, test=test)


def other_data(folder: Path, source: Source, name: str) -> InputError:
    """The error of a run whose data are no longer those that it began with."""
    reader = ", or another RDKit reads them otherwise" if source.kind == "molecules" else ""
    return InputError(
        f"the data {name} are not those that this run began with: their worlds, the order of them, or "
        f"the language has changed{reader}. Bring back the old data, or begin anew.",
        str(folder),
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that fails is the user's to mend; what was kept before stays."""
    try:
        yield
    except OSError as error:
        folder = path.parent
        kept = (
            ""
            if not checkpoint.saved_steps(folder)
            else (
                f" The run is kept as its last checkpoint has it; then go on with: nmln train --resume "
                f"{folder}"
            )
        )
        raise InputError(f"{checkpoint.explain(error, path)}{kept}", str(path)) from error
