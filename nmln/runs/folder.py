"""The folder of a run: the names of its files, its description, its split and its lock.

The same rules hold for every command: a run contains no links, one process at a time writes, and files
that no run wrote are never replaced.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import torch

from nmln import checkpoint
from nmln.buckets import labels_of
from nmln.checkpoint.directory import CONTENT, MANIFEST, TENSORS
from nmln.config import Config, DataConfig, configure
from nmln.dropped import Dropped
from nmln.errors import InputError
from nmln.files import only_one, refuse_links, write_json
from nmln.formats.mln import parse_mln
from nmln.model import Model
from nmln.model.domains import Domain, read_domains
from nmln.model.loading import BASELINE, refuse_baseline
from nmln.runs import data as sources
from nmln.runs.data import Kind, Source
from nmln.runs.kept import keep_source, kept_source
from nmln.space import Space


@dataclass(frozen=True)
class RunHead:
    """The description of a run in `config.json`; `content` is the whole file."""

    content: dict[str, Any]
    config: Config
    kind: Kind
    program: str
    dropped: tuple[Dropped, ...]  # dropped lines of the data, by reason

    @property
    def fingerprint(self) -> str | None:
        """A hash of the data; runs of the first versions have none."""
        return _text(self.content.get("fingerprint"))

    @property
    def split(self) -> str | None:
        """A hash of the split; runs of the first versions have none."""
        return _text(self.content.get("split"))

    @property
    def predicted_swaps(self) -> tuple[float, ...] | None:
        """The predicted swaps of neighbouring levels, where they depend on the data."""
        found = self.content.get("predicted_swaps")
        return tuple(map(float, found)) if isinstance(found, list) else None

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the sizes in the data, by the names of the sizes, if there are several."""
        found = self._domains
        names = labels_of([one.space for one in found])
        return {name: one.share for name, one in zip(names, found, strict=True)}

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The worlds of every size in the data."""
        if found := self._domains:
            return tuple(one.space for one in found)
        program = parse_mln(self.program)
        return (Space(program.language, program.domain),)

    @property
    def _domains(self) -> tuple[Domain, ...]:
        if "domains" not in self.content:
            return ()
        return read_domains(parse_mln(self.program).language, self.content["domains"])

    @property
    def combined(self) -> bool:
        """Whether the model was combined from others instead of trained here."""
        return "combined" in self.content

    @property
    def start(self) -> dict[str, Any] | None:
        """The run whose weights this one started with, as `Start.record` describes it."""
        found = self.content.get("from")
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run; the names of all files that commands write into it are here."""

    path: Path

    @property
    def head(self) -> Path:
        return self.path / checkpoint.HEAD

    @property
    def baseline(self) -> Path:
        """The description of a baseline, which has no `head`."""
        return self.path / BASELINE

    @property
    def split(self) -> Path:
        return self.path / checkpoint.SPLIT

    @property
    def worlds(self) -> Path:
        """The data as they were parsed at the start, so that no later command parses them again."""
        return self.path / "worlds.safetensors"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        return self.path / checkpoint.MODEL

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        """The default output of `nmln sample`."""
        return self.path / "samples"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation"

    @property
    def likelihood(self) -> Path:
        return self.path / "likelihood.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def curves(self) -> tuple[Path, Path, Path]:
        """The training curves as a table and as two figures."""
        return (self.path / "training.csv", self.path / "training.png", self.path / "training.svg")

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def job(self) -> Path:
        """The settings of `nmln run`, if that started the run."""
        return self.path / "main.json"

    @property
    def resume_command(self) -> str:
        """The command that continues the training."""
        verb = ["baseline", "train"] if self.is_baseline else ["train"]
        return shlex.join(["nmln", *verb, "--resume", str(self.path)])

    @property
    def is_run(self) -> bool:
        """Whether a run was started in the folder."""
        return self.head.exists()

    @property
    def is_baseline(self) -> bool:
        """Whether a baseline was started in the folder."""
        return self.baseline.exists()

    @contextmanager
    def locked(self, what: str = "training") -> Iterator[None]:
        """Hold the lock of the folder; `what` names the activity in the error of other processes."""
        with only_one(self.path / ".lock", what):
            yield

    # What may be written.

    def check_new(self, source: Source | None = None) -> None:
        """Refuse a folder that holds a run, or a file that a run would replace.

        A `split.json` and parsed worlds without a head are left by a start that was killed: then they
        are those that the new run on the same `source` writes again. Any others are not replaced.
        """
        refuse_links(self.path)
        if self.is_run or self.is_baseline:
            if self.is_run and not _looks_like_head(self.head):
                raise foreign(self.head)
            if self.is_baseline and not _looks_like_head(self.baseline):
                raise foreign(self.baseline)
            what = "a baseline" if self.is_baseline else "a run"
            raise InputError(
                f"this folder already holds {what}. Continue it ({self.resume_command}), or choose "
                "another folder (--output).",
                str(self.path),
                kind="exists",
            )
        for path in (
            self.metrics, self.checkpoints, self.model, self.report, *self.curves, self.likelihood,
            self.samples, self.evaluation,
        ):  # fmt: skip
            if path.exists() and not (path.is_dir() and not any(path.iterdir())):
                raise foreign(path)
        if self.split.exists() and not _is_own_split(self.split, source):
            raise foreign(self.split)
        if self.worlds.exists() and not _are_own_worlds(self.worlds, source):
            raise foreign(self.worlds)

    def check_model(self) -> None:
        """Refuse a folder `model` with other files in it, which the end of a run could not replace."""
        if self.model.exists() and not self.model.is_dir():
            raise foreign(self.model)
        if self.model.is_dir():
            for entry in sorted(self.model.iterdir()):
                if entry.name not in (TENSORS, CONTENT, MANIFEST):
                    raise foreign(entry)

    # The head.

    def write_head(self, model: Model, source: Source, **more: Any) -> None:
        """Write the description and the split of the run: once, before its first step."""
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
        self.write_data(source)
        with writing(self.head):  # last: it makes the folder a run
            write_json(self.head, content)

    def write_data(self, source: Source) -> None:
        """Write the split and the parsed data of the run."""
        with writing(self.split):
            write_json(self.split, _split_of(source), indent=None)
        with writing(self.worlds):
            keep_source(self.worlds, source)

    def record_data(self, data: DataConfig) -> None:
        """Record the new location of the data; the caller has checked that they are the same."""
        path = self.baseline if self.is_baseline else self.head
        content = checkpoint.read_json(path)
        content["config"]["data"] = data.to_dict()
        with writing(path):
            write_json(path, content)

    def read_head(self) -> RunHead:
        """Read the description of the run; refuses formats of newer versions of nmln."""
        refuse_links(self.path)
        refuse_baseline(self.path)
        if not self.is_run:
            raise InputError(
                "there is no run in this folder. Start one with nmln train.",
                str(self.path),
                kind="missing",
            )
        content = checkpoint.read_json(self.head)
        version = check_format(content, self.head)
        try:
            kind, program = content["kind"], content["program"]
            if str(kind) not in get_args(Kind) or not isinstance(program, str):
                raise TypeError("it must name a known kind of data and a program")
            config = configure(content["config"], str(self.head))
            return RunHead(content, config, kind, program, dropped_in(content))
        except InputError as error:
            if version == checkpoint.VERSION:
                raise
            raise InputError(
                f"{error.message} The run was started with nmln {version}, and this is nmln "
                f"{checkpoint.VERSION}: continue it with the version that it was started with.",
                str(self.head),
                kind=error.kind,
            ) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"this does not describe a run ({error}). Restore it from a copy, or restart the run.",
                str(self.head),
                kind="damaged",
            ) from None

    # The data and their split.

    def read_source(
        self, head: RunHead | None = None, data: DataConfig | str | None = None
    ) -> Source:
        """Read the data of the run, split as at its start; refuses data that have changed since.

        Places in a file mean nothing once its lines have moved: what was held out would count as
        learned. `data` is where the data are now, if they have moved. Data whose bytes are those of the
        start are not parsed again.
        """
        head = head or self.read_head()
        where = data if isinstance(data, DataConfig) else moved(head.config, data).data
        if not self.split.exists():
            raise InputError(
                f"this run must have a {self.split.name}, which records the held-out data, but it is "
                "missing. Restore it from a copy.",
                str(self.path),
                kind="damaged",
            )
        split = checkpoint.read_json(self.split)
        self._check_there(where)
        source = self._kept_source(head, where) or sources.load(where)
        if head.fingerprint is not None and head.fingerprint != source.fingerprint:
            raise self.other_data(source, where.source)
        try:
            train, test = (torch.tensor(split[p], dtype=torch.int64) for p in ("train", "test"))
            places = torch.cat([train, test]).sort().values
        except (KeyError, TypeError, ValueError, RuntimeError):
            raise InputError(
                "this must list the positions of training and test data, but does not. Restore it from "
                "a copy.",
                str(self.split),
                kind="damaged",
            ) from None
        if not torch.equal(places, torch.arange(len(source))):
            if head.fingerprint is None:
                raise self.other_data(source, where.source)
            raise InputError(
                f"this does not fit the data {where.source}: each world must be either in the training "
                "or in the test set. Restore it from a copy.",
                str(self.split),
                kind="damaged",
            )
        found = replace(source, train=train, test=test)
        if head.split not in (None, split_hash(found)):
            raise InputError(
                "this is not the split that the run started with: training data would count as held "
                "out. Restore it from a copy.",
                str(self.split),
                kind="damaged",
            )
        return found

    def _kept_source(self, head: RunHead, data: DataConfig) -> Source | None:
        """The data as they were parsed at the start, if reading them now would give the same."""
        kept = kept_source(self.worlds, head.program)
        if kept is None or kept.origin is None or kept.origin != sources.origin_of(data):
            return None
        found = (kept.fingerprint, kept.kind, kept.dropped)
        return kept if found == (head.fingerprint, head.kind, head.dropped) else None

    def _check_there(self, data: DataConfig) -> None:
        """Refuse data whose recorded path does not exist any more."""
        for name in (data.source, data.language):
            if name is not None and Path(name).is_absolute() and not Path(name).exists():
                flag = "--data" if name == data.source else "--language"
                raise InputError(
                    f"the data of this run are missing. If they have moved, name the new path: "
                    f"{self.resume_command} {flag} NEW_PATH",
                    name,
                    kind="missing",
                )

    def other_data(self, source: Source, name: str) -> InputError:
        """The error for a run whose data are no longer those that it started with."""
        reader = ", or this RDKit reads them differently" if source.kind == "molecules" else ""
        return InputError(
            f"the data {name} are not those that this run started with: their worlds, their order or "
            f"the language has changed{reader}. Restore the old data, or restart the run.",
            str(self.path),
            kind="conflict",
        )


def check_format(content: dict[str, Any], path: Path) -> str:
    """The version that wrote the description of a run; refuses formats of newer ones."""
    written = content.get("format", 1)
    version = str(content.get("nmln", "of an unknown version"))[:40]
    if not isinstance(written, int) or written > checkpoint.FORMAT:
        raise InputError(
            f"this run was started in format {str(written)[:40]} by nmln {version}, but nmln "
            f"{checkpoint.VERSION} reads formats up to {checkpoint.FORMAT}. Upgrade nmln.",
            str(path),
            kind="version",
        )
    return version


def foreign(path: Path) -> InputError:
    """The error for a file at a path that a run would write."""
    return InputError(
        "this was not written by a run in this folder, but a run would replace it. Move it away, or "
        "choose another folder (--output).",
        str(path),
        kind="exists",
    )


def split_hash(source: Source) -> str:
    """A hash of the split into training and held-out worlds."""
    return sha256(json.dumps(_split_of(source)).encode()).hexdigest()


def moved(config: Config, data: str | None, language: str | None = None) -> Config:
    """The configuration of a run with the new location of its data."""
    changes = {"source": data, "language": language}
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return config
    return replace(config, data=sources.located(replace(config.data, **given)))


@contextmanager
def writing(path: Path, again: str | None = None) -> Iterator[None]:
    """Report errors of the disk with the path of the file and the command that continues.

    `path` is a file in the folder of a run; `again` is the command that continues the run, if that is
    not nmln train.
    """
    try:
        yield
    except OSError as error:
        kept = ""
        if checkpoint.saved_steps(path.parent):
            command = again or RunFolder(path.parent).resume_command
            kept = f" The last checkpoint of the run is kept; afterwards continue with: {command}"
        raise InputError(
            f"{checkpoint.explain(error, path)}{kept}", str(path), kind="system"
        ) from error


def _text(value: object) -> str | None:
    """A hash of a head, which may have been received and hold anything."""
    return None if value is None else str(value)


def _looks_like_head(path: Path) -> bool:
    with suppress(InputError):
        return {"config", "program"} <= checkpoint.read_json(path).keys()
    return False


def _is_own_split(path: Path, source: Source | None) -> bool:
    """Whether a file is the split of a source; without a source, whether it is a split at all."""
    with suppress(InputError):
        found = checkpoint.read_json(path)
        return found == _split_of(source) if source else found.keys() == {"train", "test"}
    return False


def _are_own_worlds(path: Path, source: Source | None) -> bool:
    """Whether a file holds the worlds of a source; as long as that is not known, any parsed worlds."""
    kept = kept_source(path)
    return kept is not None and (source is None or kept.fingerprint == source.fingerprint)


def _split_of(source: Source) -> dict[str, list[int]]:
    return {"train": source.train.tolist(), "test": source.test.tolist()}


def dropped_in(content: dict[str, Any]) -> tuple[Dropped, ...]:
    """The dropped lines of the data of a run, by reason."""
    found = tuple(Dropped(**one) for one in content.get("dropped", ()))
    if not all(isinstance(one.count, int) for one in found):
        raise TypeError("the counts of dropped lines must be whole numbers")
    return found
