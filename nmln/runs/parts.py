"""Parts of a sampling that were drawn apart, on one machine or several, and belong together."""

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
    """The second of eight is written 2/8."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(
            f"a part is written as 2/8, the second of eight, but this is {text!r}.", kind="syntax"
        )
    return Part(int(found[1]), int(found[2]))


def check_part(part: Part, settings: SamplingSettings) -> None:
    """Refuse more parts than there are blocks: some would be empty."""
    if part.total > settings.parts:
        raise InputError(
            f"{settings.chains} chains in blocks of {settings.block} make {settings.parts} "
            f"block{'s' if settings.parts > 1 else ''}, too few for {part.total} parts. Ask for "
            f"--chains {part.total * settings.block} or more, or for a smaller --block-size."
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

    The parts lie beside the samples, unless folders are named: of parts, or folders that hold some.
    Parts beside the samples are removed once these are in place; others are left.
    """
    with only_sampler(place):
        check_own(place)
        tidy(place)
        parts = _collect(place, folders)
        found = [_begun(part, model) for part in parts]
        for part, one in zip(parts, found, strict=True):
            if one.settings != found[0].settings:
                told = differences(one.settings, found[0].settings)
                raise InputError(
                    f"this part is of another sampling than {parts[0].work} ({told}). Draw it again, "
                    "or join it with its own.",
                    str(part.work),
                    kind="conflict",
                )
        for part, one in zip(parts, found, strict=True):
            _check_done(part, model, one)
        told = {**found[0].about, **(about or {})}
        sources = [one.work.absolute() for one in found]
        return begin(place, model, found[0].settings, told, overwrite=overwrite, sources=sources)


def _collect(place: SamplePlace, folders: Sequence[Path]) -> list[SamplePlace]:
    """All parts, in their order; refuses duplicates and gaps."""
    found: list[SamplePlace] = []
    for folder in folders or [place.home]:
        match = re.fullmatch(r"(?:(.+)\.)?part-([1-9]\d{0,8})-of-([1-9]\d{0,8})", folder.name)
        if match is None:
            here = parts_in(place, folder)
        else:
            output = folder.parent / match[1] if match[1] else folder.parent
            here = [SamplePlace(place.kind, output, Part(int(match[2]), int(match[3])))]
        if not here:
            done = " It is finished." if place.results() and not folders else ""
            raise InputError(
                f"there is no part of a sampling here to join.{done} Draw one with --part 1/2, or name "
                "the folders of parts with --from.",
                str(folder),
                kind="missing",
            )
        found += here
    places: dict[Part, SamplePlace] = {}
    for one in found:
        assert one.part is not None
        if one.part in places:
            raise InputError(
                f"this part is there twice, in {places[one.part].work} too. Leave one of them out.",
                str(one.work),
                kind="exists",
            )
        places[one.part] = one
    counts = sorted({part.total for part in places})
    if len(counts) > 1:
        raise InputError(
            f"these parts are not of one division: some are of {counts[0]}, some of {counts[1]}. Name "
            "those that belong together with --from.",
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
            "this part holds no sampling. Draw it again.", str(part.work), kind="missing"
        )
    if found.settings.model != fingerprint(model):
        raise InputError(
            "this part is of another model. Draw it again.", str(part.work), kind="conflict"
        )
    return found


def _check_done(part: SamplePlace, model: Model, found: Begun) -> None:
    job = SamplingJob.of(part, model, found)
    if any(job.sweeps_done(block) < job.settings.sweeps for block in job.blocks):
        raise InputError(
            f"this part is not done yet. Continue with: {job.again}",
            str(part.work),
            kind="conflict",
        )
