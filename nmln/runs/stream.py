"""Millions of samples from a trained model: streamed to files, resumable, in several processes.

The chains are divided into blocks of a fixed size, see `blocks`. Any process can draw a block, on one
machine or several; in the end the blocks are merged, counted and moved over older samples.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from nmln import checkpoint
from nmln.buckets import labels_of, name_of
from nmln.diagnostics import Diagnostics, diagnose
from nmln.errors import InputError, InterruptedRunError
from nmln.extras import available, install_command
from nmln.files import only_one, write_json
from nmln.model import Model
from nmln.molecules.chemistry import STATUSES
from nmln.recording import joined, longest
from nmln.report.summary import write_summary
from nmln.runs.blocks import (
    REMEMBERED,
    SAVE_EVERY,
    Kept,
    SamplingJob,
    chains_of,
    check_start,
    decoders_of,
    work_on,
)
from nmln.runs.replacing import check_free, swap, writing
from nmln.runs.sample_rows import (
    Row,
    RowCounter,
    checked_rows,
    join_rows,
    write_counts,
    write_rows,
)
from nmln.runs.specification import SamplingSettings, fingerprint, start_of
from nmln.runs.train import interruption
from nmln.runs.workspace import (
    COUNTS,
    SAMPLES,
    SUMMARY,
    Begun,
    SamplePlace,
    check_idle,
    check_own,
    damaged,
    discard,
    only_sampler,
    read_marker,
    tidy,
    unfinished,
    write_marker,
)
from nmln.runs.world_files import write_worlds

__all__ = [
    "COUNTS",
    "REMEMBERED",
    "SAMPLES",
    "SUMMARY",
    "Generated",
    "Kept",
    "SamplePlace",
    "SamplingJob",
    "SamplingSettings",
    "attend",
    "begin",
    "chains_of",
    "finish",
    "only_sampler",
    "resume",
    "work",
]


def begin(
    place: SamplePlace,
    model: Model,
    settings: SamplingSettings,
    about: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
    sources: Sequence[Path] = (),
) -> SamplingJob:
    """Start a sampling at a place, or continue the same one; other files are never damaged.

    Another unfinished sampling is discarded if none of its blocks has a checkpoint, or with `overwrite`;
    otherwise it is refused. Finished samples stay until `finish` replaces them. `sources` are the
    working folders of parts to join.
    """
    with only_sampler(place):
        check_own(place)
        tidy(place)
        found: Begun | None = None
        job: SamplingJob | None = None
        try:
            if (found := read_marker(place)) is not None:
                job = _same(place, model, found, settings, sources)
        except InputError:
            if not overwrite and (found is None or _kept_anything(found)):
                raise
            for folder in unfinished(place):
                check_idle(folder)
        if job is not None:
            return _gone_on_with(job, overwrite)
        job = SamplingJob(place, model, settings)
        check_free(place, place.work, job.counted, overwrite)
        settings.check(model)
        check_start(job)
        for folder in unfinished(place):
            discard(place, folder)
        begun = write_marker(place, settings, about or {}, sources, overwrite)
        return SamplingJob.of(place, model, begun)


def _gone_on_with(job: SamplingJob, overwrite: bool = False) -> SamplingJob:
    """The same job, if its place is still free or `overwrite` allows older samples to be replaced."""
    if (
        job.overwrite or job.place.part is not None
    ):  # already checked, or a part, which replaces nothing
        return job
    check_free(job.place, job.work, job.counted, overwrite)
    if overwrite:
        sources = dict.fromkeys(one.parent for one in job.folders) if job.joins else {}
        write_marker(job.place, job.settings, job.about, tuple(sources), overwrite)
    return replace(job, overwrite=overwrite)


def resume(place: SamplePlace | Path, model: Model) -> SamplingJob:
    """Continue the sampling at a place, or in a folder of molecules."""
    if isinstance(place, Path):
        place = SamplePlace("molecules", place)
    with only_sampler(place):
        check_own(place)
        tidy(place)
        return _gone_on_with(attend(place, model))


def attend(place: SamplePlace, model: Model) -> SamplingJob:
    """Open the sampling that another process manages; nothing is changed."""
    found = read_marker(place)
    if found is None:
        done = " The last one is finished." if place.results() else ""
        raise InputError(
            f"there is no interrupted sampling here.{done} Sample without --resume.",
            str(place.output),
            kind="missing",
        )
    return _checked(place, model, found)


def _checked(place: SamplePlace, model: Model, found: Begun) -> SamplingJob:
    """The recorded sampling, checked against the model."""
    begun = found.settings
    if begun.model != fingerprint(model) or begun.start not in ("", start_of(model)):
        raise InputError(
            "the model has changed since this sampling was started. Restart with --overwrite, or choose "
            "another folder (--output).",
            str(place.output),
            kind="conflict",
        )
    try:
        found.settings.check(model)
    except ValueError as error:
        raise damaged(found.work, error) from None
    return SamplingJob.of(place, model, found)


def _same(
    place: SamplePlace,
    model: Model,
    found: Begun,
    settings: SamplingSettings,
    sources: Sequence[Path],
) -> SamplingJob:
    """The recorded sampling, if it has the same settings."""
    job = _checked(place, model, found)
    if not found.settings.block:  # divided by the processes of an earlier version
        settings = replace(settings, parts=found.settings.parts, block=0)
    if found.settings != settings or list(found.sources) != [one.absolute() for one in sources]:
        other = differences(found.settings, settings) or "other parts to join"
        raise InputError(
            f"a sampling with other settings was started in this folder ({other}). Continue it "
            "(--resume), choose another folder (--output), or give --overwrite.",
            str(place.output),
            kind="conflict",
        )
    return job


def _kept_anything(found: Begun) -> bool:
    """Whether there is a checkpoint; blocks without one are restarted in any case."""
    return any(checkpoint.saved_steps(one) for one in found.work.glob(f"{found.blocks}-*"))


def differences(before: SamplingSettings, now: SamplingSettings) -> str:
    names = [entry.name for entry in fields(SamplingSettings)]
    changed = [
        f"{name} {getattr(before, name)!r} instead of {getattr(now, name)!r}"
        for name in names
        if getattr(before, name) != getattr(now, name)
    ]
    return ", ".join(changed)


def work(
    job: SamplingJob,
    blocks: Sequence[int] | None = None,
    tick: Callable[[], None] | None = None,
    save_every: float = SAVE_EVERY,
) -> None:
    """Draw blocks (by default all) to their end, or until a signal arrives."""
    chosen = job.blocks if blocks is None else blocks
    alone = len(chosen) == len(job.blocks)
    if job.joins:
        return
    decoders = decoders_of(job)
    with interruption(alone) as interrupted:
        for block in chosen:
            with only_one(job.lock(block), "sampling"), _said_alike(job, alone):
                kept = Kept.load(job, block)
                if not kept.finished(job, block):
                    decoder = decoders[job.settings.home(block)]
                    work_on(job, block, kept, decoder, interrupted, tick, save_every)


@contextmanager
def _said_alike(job: SamplingJob, alone: bool) -> Iterator[None]:
    """Give the messages of several interrupted processes the same text, so that it is printed once."""
    try:
        yield
    except InterruptedRunError:
        if alone:
            raise
        raise InterruptedRunError("stopped. The progress is kept.", job.again) from None


# All blocks together.


@dataclass(frozen=True)
class Generated:
    """The results. `summary` is the content of sampling.json, which only molecules have."""

    summary: dict[str, Any]
    written: tuple[Path, ...]

    @property
    def valid(self) -> float:
        """The share of valid molecules at the target."""
        return self.summary["levels"][-1]["valid"] / self.summary["attempts"]


def finish(job: SamplingJob, processes: int = 1) -> Generated:
    """Merge the blocks, count, diagnose the chains, and remove the working folder.

    `processes` is the number of processes that drew them, for the samples per second. If it is
    interrupted it can be repeated: inputs are removed only after all results are in place.
    """
    with only_sampler(job.place):
        check_own(job.place)
        kept = [_done(job, block) for block in range(job.settings.parts)]
        job = _as_far(job, kept)
        judged = _judge(job, kept, processes)
        with writing(job.place, job.work) as folder:
            summary, written = _write(job, kept, processes, judged, folder)
        if not job.overwrite:  # otherwise it was checked at the start
            check_free(job.place, job.work, job.counted, overwrite=False)
        swap(job.place, job.work)
        discard(job.place, job.work)
    return Generated(summary, tuple(job.place.home / path.name for path in written))


def _done(job: SamplingJob, block: int) -> Kept:
    kept = Kept.load(job, block)
    if not kept.finished(job, block) or kept.pending:
        raise InputError(
            f"block {block} of {job.settings.parts} is not finished. Continue with: {job.again}",
            str(job.folder),
            kind="conflict",
        )
    return kept


def _as_far(job: SamplingJob, kept: Sequence[Kept]) -> SamplingJob:
    """The sampling with as many samples as were drawn before its minutes were over.

    Every chain has the same number of them, so blocks that came further give some up.
    """
    if not job.settings.minutes:
        return job
    draws = min(one.draws(job.settings) for one in kept)
    samples = min(job.settings.samples, draws * job.settings.chains)
    return replace(job, settings=replace(job.settings, samples=samples))


Judged = dict[str, Diagnostics]
"""Diagnostics of the chains by the name of their domain; without those that are too short."""


def _judge(job: SamplingJob, kept: Sequence[Kept], processes: int) -> Judged:
    found = {}
    names = labels_of([model.space for model in job.models])
    for name, own in zip(names, job.settings.sections, strict=True):
        blocks = kept[own.first_block : own.first_block + own.parts]
        recorders = [one.recorder for one in blocks if one.recorder is not None]
        if min((recorder.seen for recorder in recorders), default=0) >= 2:
            recording = joined([recorder.recording() for recorder in recorders], processes)
            found[name] = diagnose(recording, job.model.method.ladder)
    return found


def _findings(job: SamplingJob, judged: Judged) -> list[str]:
    """What is wrong with the chains; of several domains with the size."""
    several = len(job.models) > 1
    return [
        f"size {name}: {text}" if several else text
        for name, one in judged.items()
        for text in one.findings()
    ]


def _write(
    job: SamplingJob, kept: Sequence[Kept], processes: int, judged: Judged, folder: Path
) -> tuple[dict[str, Any], list[Path]]:
    """Write all results into a folder; the samples are listed first."""
    page: list[Path] = []
    if judged:
        title = f"Chains of {job.about.get('run', job.folder.name)}"
        if available("matplotlib"):
            shown = judged if len(job.models) > 1 else next(iter(judged.values()))
            page += write_summary(folder / job.place.pages[0].name, shown, title)
        else:
            warnings.warn(
                "no page about the chains is written, because Matplotlib is not installed. Install it "
                f"with: {install_command('report')}",
                stacklevel=2,
            )
    common = _summary(job, kept, processes, judged)
    if job.settings.kind == "molecules":
        summary, written = _write_molecules(job, kept, common, folder)
        return summary, [*written[:3], *page, *written[3:]]
    target = folder / job.place.target.name
    drawn = [(job.data(block), one.offset) for block, one in enumerate(kept)]
    write_worlds(target, job.settings, [model.space for model in job.models], drawn)
    return common, [target, *page]


def _write_molecules(
    job: SamplingJob, kept: Sequence[Kept], common: dict[str, Any], folder: Path
) -> tuple[dict[str, Any], list[Path]]:
    settings, tally = job.settings, RowCounter(job.levels)
    whole = not settings.minutes

    def rows(block: int) -> Iterator[Row]:
        expected = _expected(job, block)
        return checked_rows(job.data(block), kept[block].offset, expected, whole=whole)

    by_domain = [RowCounter(job.levels) for _ in job.models]
    for block in range(settings.parts):
        by_domain[settings.home(block)].count(rows(block))
    for one in by_domain:
        tally.merge(one)
    written = [folder / SAMPLES, folder / COUNTS, folder / SUMMARY]
    if whole:
        join_rows(written[0], [job.data(block) for block in range(settings.parts)])
    else:
        write_rows(written[0], chain.from_iterable(map(rows, range(settings.parts))))
    write_counts(written[1], tally.most_frequent(job.levels[-1]))
    for level in job.levels if settings.all_levels else ():
        written.append(folder / f"counts-{level}.csv")
        write_counts(written[-1], tally.most_frequent(level))
    about = {name: value for name, value in job.about.items() if name != "resume"}
    counted = {"attempts": settings.samples, "levels": _levels(job, tally)}
    if settings.domains:
        for content, one in zip(common["sizes"], by_domain, strict=True):
            content["levels"] = _levels(job, one)
    summary = {**about, **counted, **common}
    write_json(written[2], summary)
    return summary, written


def _levels(job: SamplingJob, tally: RowCounter) -> list[dict[str, Any]]:
    """The counts of every level."""
    rates = job.model.method.ladder.rates
    return [
        {
            "level": level,
            "rate": rates[level],
            **{name: tally.statuses[level][name] for name in STATUSES},
            "unique": len(tally.molecules[level]),
        }
        for level in job.levels
    ]


def _sizes(job: SamplingJob) -> dict[str, Any]:
    """The domains of the samples, if there may be several; those not in the data are marked."""
    if not job.settings.domains:
        return {}
    known = [job.model.space, *(one.space for one in job.model.domains)]
    each = zip(job.models, job.settings.domains, job.settings.sections, strict=True)
    found = [
        {
            "size": name_of(model.space),
            "share": one.share,
            "attempts": own.samples,
            "chains": own.chains,
            "extrapolation": model.space not in known,
        }
        for model, one, own in each
    ]
    return {"sizes": found}


def _expected(job: SamplingJob, block: int) -> Iterator[tuple[int, int]]:
    """The sample and the level of each row of a block."""
    for draw in range(job.settings.sections[job.settings.home(block)].draws):
        wanted = job.settings.wanted(block, draw)
        for level in job.levels:
            for row in wanted:
                yield row, level


def _summary(
    job: SamplingJob, kept: Sequence[Kept], processes: int, judged: Judged
) -> dict[str, Any]:
    settings = job.settings
    counted = [one.snapshot.evaluations for one in kept if one.snapshot is not None]
    seconds = [one.seconds for one in kept]
    whole = longest(seconds, processes)
    moves = settings.moves or job.model.config.sampling.moves
    return {
        "attempts": settings.samples,
        "settings": settings.described(),
        "moves_per_sample": settings.thin * moves,
        "moves_before_the_first": settings.burn_in * moves,
        "evaluations": {
            "scores": sum(one.scores for one in counted),
            "slopes": sum(one.slopes for one in counted),
        },
        "processes": processes,
        "seconds": whole,
        "cpu_seconds": sum(one.cpu_seconds for one in kept),
        "samples_per_second": settings.samples / whole,
        "decoding_share": sum(one.decoding for one in kept) / sum(seconds),
        "findings": _findings(job, judged),
        **_sizes(job),
    }
