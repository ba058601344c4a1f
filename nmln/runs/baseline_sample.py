"""Samples of a baseline, in the files that `nmln sample` writes for a model with one level.

Batches have random streams of their own, so a sampling that was interrupted, even by SIGKILL, continues
after the last checkpoint with the same samples.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nmln import checkpoint
from nmln.baselines.digress_common import GraphGenerator
from nmln.dropped import Dropped
from nmln.errors import InputError, InterruptedRunError
from nmln.files import write_json
from nmln.molecules.chemistry import FRAGMENTS, NORMALISED, STATUSES, Refusal, parse_all
from nmln.molecules.sample_files import judge
from nmln.runs.baseline import OpenedBaseline
from nmln.runs.folder import RunFolder
from nmln.runs.replacing import check_free, swap, writing
from nmln.runs.sample_rows import (
    RowCounter,
    SampleFile,
    checked_rows,
    join_rows,
    unlike,
    write_counts,
)
from nmln.runs.specification import SamplingSettings
from nmln.runs.workspace import (
    COUNTS,
    ROWS,
    SAMPLES,
    SUMMARY,
    Begun,
    SamplePlace,
    check_own,
    discard,
    only_sampler,
    read_marker,
    tidy,
    unfinished,
    write_marker,
)
from nmln.signals import GivenUpError, give_way, interruption

SAVE_EVERY = 20.0  # seconds
_REMEMBERED = 500_000  # texts whose molecule is kept; beyond that they are parsed again
_NOTHING = Refusal("nothing", "the baseline wrote no molecule.")
_REASONS = {FRAGMENTS: "disconnected", NORMALISED: "normalised"}  # the statuses of other reasons


@dataclass
class _Drawn:
    """How far a sampling has come: the content of its checkpoint."""

    batches: int = 0
    offset: int = 0
    pending: bytes = b""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    decoding: float = 0.0  # part of `cpu_seconds`
    refused: dict[str, list[Any]] = field(default_factory=dict)  # by reason: count, first, example

    def ended(self, settings: SamplingSettings) -> bool:
        """Whether the processor time of the settings is used up; one batch is always drawn."""
        limit = 60 * settings.minutes
        return bool(limit and self.batches and self.cpu_seconds >= limit)

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Count a sample that is not valid."""
        found = self.refused.setdefault(refusal.reason, [0, number, refusal.detail])
        found[0] += 1


def sample(
    opened: OpenedBaseline,
    count: int,
    output: Path | None = None,
    *,
    seed: int = 0,
    size: int | None = None,
    steps: int | None = None,
    minutes: float = 0.0,
    overwrite: bool = False,
    again: str = "the same command",
    about: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    save_every: float = SAVE_EVERY,
) -> dict[str, Any]:
    """Draw molecules and write them; the same sampling is continued if it was interrupted.

    Args:
        opened: a trained baseline.
        count: the number of samples.
        output: the folder of the samples; by default `samples` in that of the run.
        seed: the seed of all random numbers.
        size: heavy atoms of the samples, which must be those of the training molecules.
        steps: steps of denoising, for baselines that have them; by default as their settings say.
        minutes: after which processor time to end with what was drawn; 0: no limit.
        overwrite: whether older samples may be replaced, once the new ones are complete.
        again: the command that continues the sampling.
        about: entries for the summary, such as the command.
        progress: called with the number of samples drawn, and of all.
        save_every: seconds between two checkpoints.

    Returns:
        The content of sampling.json.
    """
    if count < 1:
        raise InputError(f"the number of samples must be at least 1, got {count}.", kind="empty")
    sizes = opened.head.sizes
    if size is not None and sizes != (size,):
        known = " or ".join(map(str, sizes))
        raise InputError(
            f"this baseline draws molecules of all its sizes, {known} heavy atoms, by their shares in "
            "the data. Leave --size out, or train another one on molecules of that size."
            if size in sizes
            else f"this baseline was trained on molecules of {known} heavy atoms, but {size} are asked "
            "for. Train another one on molecules of that size.",
            str(opened.folder),
            token=str(size),
            kind="unsupported",
        )
    if steps is not None:
        _set_steps(opened, steps)
    place = SamplePlace("molecules", output or RunFolder(opened.folder).samples)
    settings = SamplingSettings(
        count, chains=1, burn_in=0, moves=steps or 0, seed=seed, block=1, model=opened.fingerprint,
        minutes=float(minutes),
    )  # fmt: skip
    with only_sampler(place):
        begun = _begin(place, settings, about or {}, overwrite)
        drawn = _read(begun)
        with interruption(True) as interrupted, _giving_way(opened.generator.network):
            _draw(opened, begun, drawn, interrupted, again, progress, save_every)
        return _finish(opened, place, begun, drawn)


def _set_steps(opened: OpenedBaseline, steps: int) -> None:
    if not isinstance(opened.generator, GraphGenerator):
        raise InputError(
            f"{opened.head.name} has no steps of denoising: only DiGress and ConGress have. Leave "
            "--steps out.",
            str(opened.folder),
            token="--steps",
            kind="unsupported",
        )
    opened.generator.draw_in(steps)


def _begin(
    place: SamplePlace, settings: SamplingSettings, about: dict[str, Any], overwrite: bool
) -> Begun:
    """Start a sampling, or continue the same one; another unfinished one needs `overwrite`."""
    check_own(place)
    tidy(place)
    try:
        found = read_marker(place)
        if found is not None and found.settings != settings and _kept_anything(found):
            raise InputError(
                "another sampling was started in this folder and is not finished. Choose another folder "
                "(--output), or give --overwrite.",
                str(place.output),
                kind="conflict",
            )
    except InputError:
        if not overwrite:
            raise
        found = None
    if found is not None and found.settings == settings:
        if found.overwrite:  # already checked
            return found
        check_free(place, found.work, (), overwrite)
        return write_marker(place, settings, about, (), overwrite) if overwrite else found
    check_free(place, place.work, (), overwrite)
    for folder in unfinished(place):
        discard(place, folder)
    return write_marker(place, settings, about, (), overwrite)


def _kept_anything(found: Begun) -> bool:
    return bool(checkpoint.saved_steps(_block(found)))


# Drawing.


def _draw(
    opened: OpenedBaseline,
    begun: Begun,
    drawn: _Drawn,
    interrupted: Callable[[], bool],
    again: str,
    progress: Callable[[int, int], None] | None,
    save_every: float,
) -> None:
    generator, settings, names = opened.generator, begun.settings, _Names(opened.head.sizes)
    saved, batches = time.monotonic(), -(-settings.samples // generator.at_once)
    with SampleFile(_rows(begun), drawn.offset, drawn.pending) as rows:
        while drawn.batches < batches and not drawn.ended(settings):
            began = time.monotonic(), time.process_time()
            first = drawn.batches * generator.at_once
            try:
                found = generator.batch(drawn.batches, settings.seed)
            except GivenUpError:  # this batch is drawn again
                _keep(begun, drawn, rows)
                raise _stopped(drawn, batches, again) from None
            before = time.process_time()
            rows.add(_lines(names, drawn, first, found[: settings.samples - first]))
            now = time.process_time()
            drawn.batches += 1
            drawn.decoding += now - before
            drawn.cpu_seconds += now - began[1]
            drawn.seconds += time.monotonic() - began[0]
            if progress is not None:
                progress(min(settings.samples, first + len(found)), settings.samples)
            last = drawn.batches == batches or drawn.ended(settings)
            stop = interrupted()
            if last:
                rows.end_member()
            if last or stop or time.monotonic() - saved >= save_every:
                _keep(begun, drawn, rows)
                saved = time.monotonic()
            if stop and not last:
                raise _stopped(drawn, batches, again)


def _lines(
    names: "_Names", drawn: _Drawn, first: int, texts: Sequence[str | Refusal | None]
) -> Iterator[str]:
    """The rows of samples; those that are not valid are counted by reason."""
    for number, found in enumerate(names.of(texts), first):
        if isinstance(found, str):
            yield f"{number},0,valid,{found}"
            continue
        drawn.refuse(number, found)
        yield f"{number},0,{_REASONS.get(found.reason, 'invalid')},"


class _Names:
    """The canonical names of generated texts, or the reasons why they are not valid; remembers them."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self._known: dict[str, str | Refusal] = {}

    def of(self, texts: Sequence[str | Refusal | None]) -> list[str | Refusal]:
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        written = (
            text for text in texts if text and isinstance(text, str) and text not in self._known
        )
        new = list(dict.fromkeys(written))
        for text, found in zip(new, parse_all(new), strict=True):
            self._known[text] = judge(found, *self.sizes)
        return [
            self._known[one] if isinstance(one, str) else one or _NOTHING
            for one in (text or None for text in texts)
        ]


@contextmanager
def _giving_way(network: nn.Module) -> Iterator[None]:
    """Let a signal end a long batch between two calls of the network or of its parts."""

    def check(*_: object) -> None:
        give_way()

    modules = dict.fromkeys([network, *network.children()])
    hooks = [module.register_forward_pre_hook(check) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _stopped(drawn: _Drawn, batches: int, again: str) -> InterruptedRunError:
    return InterruptedRunError(
        f"stopped after batch {drawn.batches} of {batches}. The progress is kept.", again
    )


# Checkpoints.


def _block(begun: Begun) -> Path:
    return begun.work / f"{begun.blocks}-0"


def _rows(begun: Begun) -> Path:
    return _block(begun) / ROWS


def _keep(begun: Begun, drawn: _Drawn, rows: SampleFile) -> None:
    rows.synchronise()
    drawn.offset, drawn.pending = rows.offset, bytes(rows.pending)
    pending = torch.from_numpy(np.frombuffer(drawn.pending, dtype=np.uint8).copy())
    tree = {**asdict(drawn), "pending": pending, "settings": begun.settings.digest}
    checkpoint.save(_block(begun), drawn.batches, *checkpoint.flatten(tree), keep=2)


def _read(begun: Begun) -> _Drawn:
    """The last checkpoint of a sampling; refuses one of another sampling."""
    folder = _block(begun)
    if not checkpoint.saved_steps(folder):
        return _Drawn()
    kept = checkpoint.load(folder)
    try:
        tree = checkpoint.unflatten(kept.tensors, kept.content)
        if tree.pop("settings") != begun.settings.digest:
            raise ValueError("its settings are those of another sampling")
        found = _Drawn(**{**tree, "pending": tree["pending"].numpy().tobytes()})
        if found.batches != kept.step or type(found.offset) is not int or found.offset < 0:
            raise ValueError("its numbers do not fit together")
        for count, first, example in found.refused.values():
            if (type(count), type(first), type(example)) != (int, int, str):
                raise ValueError("its counts are not numbers")
        return found
    except checkpoint.FOREIGN as error:
        raise InputError(
            f"this checkpoint does not belong to this sampling ({error}). Restart with --overwrite.",
            str(kept.path),
            kind="damaged",
        ) from None


# The results.


def _finish(
    opened: OpenedBaseline, place: SamplePlace, begun: Begun, drawn: _Drawn
) -> dict[str, Any]:
    """Count the rows, write all files, and move them over older ones."""
    settings, tally = begun.settings, RowCounter([0])
    attempts = min(settings.samples, drawn.batches * opened.generator.at_once)
    if drawn.pending:
        raise unlike(_rows(begun), "its last rows are missing")
    expected = ((number, 0) for number in range(attempts))
    tally.count(checked_rows(_rows(begun), drawn.offset, expected))
    level = {
        "level": 0,
        "rate": 0.0,
        **{name: tally.statuses[0][name] for name in STATUSES},
        "unique": len(tally.molecules[0]),
    }
    summary = {
        "run": opened.folder.name,
        "baseline": opened.head.name,
        **begun.about,
        "attempts": attempts,
        "levels": [level],
        "settings": settings.described(),
        "not_valid": [asdict(one) for one in _reasons(drawn)],
        "processes": 1,
        "seconds": drawn.seconds,
        "cpu_seconds": drawn.cpu_seconds,
        "samples_per_second": attempts / max(drawn.seconds, 1e-9),
        "decoding_share": drawn.decoding / max(drawn.cpu_seconds, 1e-9),
        "findings": [],
    }
    with writing(place, begun.work) as folder:
        join_rows(folder / SAMPLES, [_rows(begun)])
        write_counts(folder / COUNTS, tally.most_frequent(0))
        write_json(folder / SUMMARY, summary)
    if not begun.overwrite:  # otherwise it was checked at the start
        check_free(place, begun.work, (), overwrite=False)
    swap(place, begun.work)
    discard(place, begun.work)
    return summary


def _reasons(drawn: _Drawn) -> list[Dropped]:
    """Why samples are not valid, the most frequent reason first."""
    found = [Dropped(reason, *details) for reason, details in drawn.refused.items()]
    return sorted(found, key=lambda one: (-one.count, one.reason))
