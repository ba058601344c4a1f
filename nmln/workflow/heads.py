"""What a folder says that its run is: settings, language, data and their split."""

import json
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import torch

from nmln import checkpoint
from nmln.config import Config, DataConfig, configure
from nmln.dropped import Dropped
from nmln.files import InputError, refuse_links, write_lines
from nmln.model import Model
from nmln.workflow import sources
from nmln.workflow.folders import HEAD, SPLIT, foreign, refuse_foreign, resuming, writing
from nmln.workflow.sources import Source


def is_run(folder: Path) -> bool:
    """Whether a run was begun in a folder."""
    return (folder / HEAD).exists()


def check_new(folder: Path, source: Source | None = None) -> None:
    """Refuse to begin a run in a folder that holds one, or anything that a run would replace.

    A `split.json` without a head is left by a beginning that was killed: then it is the one that the
    new run on the same `source` writes again. Any other is not replaced.
    """
    refuse_links(folder)
    if is_run(folder):
        if not _looks_like_head(folder / HEAD):
            raise foreign(folder / HEAD)
        raise InputError(
            f"there is a run in this folder already. Go on with it ({resuming(folder)}), or choose "
            "another one (--output).",
            str(folder),
        )
    refuse_foreign(folder)
    path = folder / SPLIT
    if path.exists() and not _is_own_split(path, source):
        raise foreign(path)


def _looks_like_head(path: Path) -> bool:
    with suppress(InputError):
        return {"config", "program"} <= checkpoint.read_json(path).keys()
    return False


def _is_own_split(path: Path, source: Source | None) -> bool:
    """Whether a file is the split of a source; as long as that is not known, whether it is any split."""
    with suppress(InputError):
        found = checkpoint.read_json(path)
        return found == _split_of(source) if source else found.keys() == {"train", "test"}
    return False


def _split_of(source: Source) -> dict[str, list[int]]:
    return {"train": source.train.tolist(), "test": source.test.tolist()}


def split_hash(source: Source) -> str:
    """A hash of which worlds are learned from and which are held out."""
    return sha256(json.dumps(_split_of(source)).encode()).hexdigest()


def write_head(folder: Path, model: Model, source: Source, **more: Any) -> None:
    """What a run is: written once, before its first step."""
    content = {
        "format": checkpoint.FORMAT,
        "nmln": checkpoint.VERSION,
        **model.describe(),
        "kind": source.kind,
        "fingerprint": source.fingerprint,
        "split": split_hash(source),
        "dropped": [asdict(one) for one in source.dropped],
        **more,
    }
    for name, lines in (
        (SPLIT, json.dumps(_split_of(source))),
        (HEAD, json.dumps(content, indent=2)),  # last: it makes the folder a run
    ):
        with writing(folder / name):
            write_lines(folder / name, [lines])


def record_data(folder: Path, data: DataConfig) -> None:
    """Note in the head of a run where its data are now; the caller has checked that they are its own."""
    head = read_head(folder)
    head["config"]["data"] = asdict(data)
    with writing(folder / HEAD):
        write_lines(folder / HEAD, [json.dumps(head, indent=2)])


def read_head(folder: Path) -> dict[str, Any]:
    """What a folder says that its run is; refuses what a newer version says in words unknown here."""
    path = folder / HEAD
    refuse_links(folder)
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


def moved(config: Config, data: str | None, language: str | None = None) -> Config:
    """The configuration of a run whose data are now elsewhere."""
    changes = {"source": data, "language": language}
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return config
    return replace(config, data=sources.located(replace(config.data, **given)))


def read_source(
    folder: Path, head: dict[str, Any] | None = None, data: DataConfig | str | None = None
) -> Source:
    """The data of a run, split as they were when it began; refuses data that have changed since.

    Places in a file say nothing once its lines have moved: what was held out would count as learnt.
    `data` says where the data are now, if they have moved.
    """
    head = head or read_head(folder)
    config = configure(head["config"], str(folder / HEAD))
    where = data if isinstance(data, DataConfig) else moved(config, data).data
    path = folder / SPLIT
    if not path.exists():
        raise InputError("there is no split.json in this run to say what is held out.", str(folder))
    split = checkpoint.read_json(path)
    _check_there(folder, where)
    source = sources.load(where)
    known = head.get("fingerprint")  # runs of earlier versions have none
    if known is not None and known != source.fingerprint:
        raise other_data(folder, source, where.source)
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
            raise other_data(folder, source, where.source)
        raise InputError(
            f"this does not fit the data {where.source}: each world is either learned from or "
            "held out. Restore it from a copy.",
            str(path),
        )
    found = replace(source, train=train, test=test)
    if head.get("split", split_hash(found)) != split_hash(found):  # earlier versions have none
        raise InputError(
            "this is not the split that the run began with: what it has learned from would count as "
            "held out. Restore it from a copy.",
            str(path),
        )
    return found


def _check_there(folder: Path, data: DataConfig) -> None:
    """Refuse data that were found by their full path when the run began, and are gone."""
    for name in (data.source, data.language):
        if name is not None and Path(name).is_absolute() and not Path(name).exists():
            flag = "--data" if name == data.source else "--language"
            raise InputError(
                f"the data of this run are not here any more. If they have moved, name them: "
                f"{resuming(folder)} {flag} NEW_PATH",
                name,
            )


def other_data(folder: Path, source: Source, name: str) -> InputError:
    """The error of a run whose data are no longer those that it began with."""
    reader = ", or another RDKit reads them otherwise" if source.kind == "molecules" else ""
    return InputError(
        f"the data {name} are not those that this run began with: their worlds, the order of them, or "
        f"the language has changed{reader}. Bring back the old data, or begin anew.",
        str(folder),
    )
