"""Replacing older results by new ones, once these are complete."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nmln import checkpoint
from nmln.errors import InputError
from nmln.files import open_regular
from nmln.runs.workspace import (
    PLACING,
    REPLACED,
    RESULT,
    SUMMARY,
    WRITING,
    SamplePlace,
    check_graphs,
    foreign,
    inside,
)


def check_free(place: SamplePlace, work: Path, levels: Sequence[int], overwrite: bool) -> None:
    """Refuse a place with files that the samples of these levels would replace.

    With `overwrite`, samples may be replaced, and so may files that this sampling wrote itself before it
    was interrupted. Counts of levels that no sampling wrote are never replaced.
    """
    if (work / PLACING).exists():
        return
    counts = [one for one in _counts(place, levels) if os.path.lexists(one)]
    there = [*place.results(), *counts]
    if there and not overwrite:
        raise InputError(
            f"this folder already holds samples ({there[0].name}). Choose another one (--output), or "
            "give --overwrite.",
            str(place.home),
            kind="exists",
        )
    before = _written_before(place)
    for path in counts:
        if path not in before:
            raise foreign(path)


def _counts(place: SamplePlace, levels: Sequence[int]) -> list[Path]:
    """Files that only samplings of all levels write."""
    return [place.home / f"counts-{level}.csv" for level in levels]


@contextmanager
def writing(place: SamplePlace, work: Path) -> Iterator[Path]:
    """A new folder for results, which are complete once the block ends without an error."""
    for name in (WRITING, RESULT):
        for path in inside(work / name):
            if path.is_dir():
                path.rmdir()
            elif place.owns(place.work / path.relative_to(work)):
                path.unlink()
            else:
                raise foreign(path)
    folder = work / WRITING
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    os.replace(folder, work / RESULT)


def swap(place: SamplePlace, work: Path) -> None:
    """Move complete results over older ones, and remove older files that have no new version.

    The summary is removed first and written last, so that it never lies beside samples of another run.
    The caller has checked that the place is free.
    """
    result = work / RESULT
    open_regular(work / PLACING, "ab").close()
    names = sorted(path.name for path in result.iterdir())
    stale = [path for path in _written_before(place) if path.name not in names]
    if SUMMARY in names:
        (place.home / SUMMARY).unlink(missing_ok=True)
    for path in stale:
        path.unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == SUMMARY):
        target = place.home / name
        if (result / name).is_dir() and os.path.lexists(target):
            check_graphs(place)
            os.rename(target, work / REPLACED)
        os.replace(result / name, target)
    result.rmdir()


def _written_before(place: SamplePlace) -> list[Path]:
    """Files that an earlier sampling wrote to this place and this one may not write."""
    if place.kind != "molecules":
        return list(place.pages)
    try:
        summary = checkpoint.read_json(place.home / SUMMARY)
        every = bool(summary["settings"]["all_levels"])
        levels = [one["level"] for one in summary["levels"]] if every else []
    except (InputError, OSError, KeyError, TypeError):
        return []
    return [*_counts(place, [level for level in levels if type(level) is int]), *place.pages]
