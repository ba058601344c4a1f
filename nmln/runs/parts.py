"""Parts of one sampling that were drawn separately, on one or several machines, and their union."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmln.errors import InputError
from nmln.model import Model
from nmln.runs.blocks import SamplingJob
from nmln.runs.specification import SamplingSettings, fingerprint
from nmln.runs.stream import begin, differences
from nmln.runs.workspace import (
    Begun,
    Part,
    SamplePlace,
    check_own,
    only_sampler,
    parts_in,
    read_marker,
    tidy,
)


def read_part(text: str) -> Part:
    """Parse a part: 2/8 is the second of eight."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(
            f"--part must be K/N with K from 1 to N, got {text!r}. Write, for example, 2/8.",
            kind="syntax",
        )
    return Part(int(found[1]), int(found[2]))


def check_part(part: Part, settings: SamplingSettings) -> None:
    """Refuse more parts than blocks: some would be empty."""
    if part.total > settings.parts:
        raise InputError(
            f"{settings.chains} chains in blocks of {settings.block} make {settings.parts} "
            f"block{'s' if settings.parts > 1 else ''}, too few for {part.total} parts. Use --chains "
            f"{part.total * settings.block} or more, or a smaller --block-size."
        )


def join(
    place: SamplePlace,
    model: Model,
    folders: Sequence[Path] = (),
    about: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> SamplingJob:
    """A sampling whose blocks are those of parts, ready for `finish`.

    The parts lie beside the samples, unless folders are named: those of parts, or folders that hold
    parts. Parts beside the samples are removed once the samples are in place; others are left alone.
    """
    with only_sampler(place):
        check_own(place)
        tidy(place)
        parts = _collect(place, folders)
        found = [_begun(part, model) for part in parts]
        for part, one in zip(parts, found, strict=True):
            if one.settings != found[0].settings:
                other = differences(one.settings, found[0].settings)
                raise InputError(
                    f"this part belongs to another sampling than {parts[0].work} ({other}). Draw it "
                    "again, or join it with the parts of its own sampling.",
                    str(part.work),
                    kind="conflict",
                )
        for part, one in zip(parts, found, strict=True):
            _check_done(part, model, one)
        joined = {**found[0].about, **(about or {})}
        sources = [one.work.absolute() for one in found]
        return begin(place, model, found[0].settings, joined, overwrite=overwrite, sources=sources)


def _collect(place: SamplePlace, folders: Sequence[Path]) -> list[SamplePlace]:
    """All parts in order; refuses duplicates and gaps."""
    found: list[SamplePlace] = []
    for folder in folders or [place.home]:
        match = re.fullmatch(r"(?:(.+)\.)?part-([1-9]\d{0,8})-of-([1-9]\d{0,8})", folder.name)
        if match is None:
            here = parts_in(place, folder)
        else:
            output = folder.parent / match[1] if match[1] else folder.parent
            here = [SamplePlace(place.kind, output, Part(int(match[2]), int(match[3])))]
        if not here:
            done = " The sampling is finished." if place.results() and not folders else ""
            raise InputError(
                f"there are no parts to join here.{done} Draw one with --part 1/2, or name the folders "
                "of parts with --from.",
                str(folder),
                kind="missing",
            )
        found += here
    places: dict[Part, SamplePlace] = {}
    for one in found:
        assert one.part is not None
        if one.part in places:
            raise InputError(
                f"this part is given twice, also in {places[one.part].work}. Leave one of them out.",
                str(one.work),
                kind="exists",
            )
        places[one.part] = one
    counts = sorted({part.total for part in places})
    if len(counts) > 1:
        raise InputError(
            f"all parts must have the same total, got {counts[0]} and {counts[1]}. Name those that "
            "belong together with --from.",
            str(place.output),
            kind="conflict",
        )
    missing = [str(n) for n in range(1, counts[0] + 1) if Part(n, counts[0]) not in places]
    if missing:
        raise InputError(
            f"part{'s' if len(missing) > 1 else ''} {', '.join(missing[:9])} of {counts[0]} "
            f"{'are' if len(missing) > 1 else 'is'} missing. Draw with --part "
            f"{missing[0]}/{counts[0]}, or name the folders of all parts with --from.",
            str(place.output),
            kind="missing",
        )
    return [places[part] for part in sorted(places)]


def _begun(part: SamplePlace, model: Model) -> Begun:
    check_own(part)
    found = read_marker(part)
    if found is None:
        raise InputError(
            "there is no sampling in this part. Draw it again.", str(part.work), kind="missing"
        )
    if found.settings.model != fingerprint(model):
        raise InputError(
            "this part was drawn from another model. Draw it again.",
            str(part.work),
            kind="conflict",
        )
    return found


def _check_done(part: SamplePlace, model: Model, found: Begun) -> None:
    job = SamplingJob.of(part, model, found)
    if any(map(job.sweeps_left, job.blocks)):
        raise InputError(
            f"this part is not finished. Continue with: {job.again}",
            str(part.work),
            kind="conflict",
        )
