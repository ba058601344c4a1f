"""Worlds that are not molecules: packed while they are drawn, written in their format at the end."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from jaxtyping import Integer
from torch import Tensor

from nmln.formats.registry import Kind, standard_format
from nmln.runs.sample_rows import reading, unlike
from nmln.runs.specification import SamplingSettings
from nmln.space import Space

Drawn = tuple[Path, int]
"""The packed worlds of a block, and the size of the file."""


def check_kind(kind: Kind, space: Space) -> None:
    """Refuse a space whose worlds cannot be written as this kind."""
    standard_format(kind).check(space)


def packed(space: Space, worlds: Integer[Tensor, "worlds groups"]) -> bytes:
    return space.pack(worlds.detach().cpu().to(space.dtype)).contiguous().numpy().tobytes()


def read_worlds(
    settings: SamplingSettings, spaces: Sequence[Space], blocks: Sequence[Drawn]
) -> Iterator[Integer[Tensor, " groups"]]:
    """All worlds in the order of their numbers; the memory does not grow with their number."""
    sizes = [
        len(packed(space, torch.zeros(1, space.groups, dtype=space.dtype))) for space in spaces
    ]
    with ExitStack() as stack:
        files = [stack.enter_context(reading(*block)) for block in blocks]
        for draw in range(settings.draws):
            for block, file in enumerate(files):
                space, size = spaces[settings.home(block)], sizes[settings.home(block)]
                count = len(settings.wanted(block, draw))
                content = file.read(count * size)
                if len(content) != count * size:
                    raise unlike(blocks[block][0], f"draw {draw + 1} is not complete")
                if count:
                    table = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                    worlds = space.unpack(table.view(count, size))
                    if bool((worlds >= space.sizes).any()) or bool((worlds < 0).any()):
                        raise unlike(blocks[block][0], f"draw {draw + 1} has unknown categories")
                    yield from worlds
        for file, (path, _) in zip(files, blocks, strict=True):
            if file.read(1):
                raise unlike(path, "it has more worlds than were asked for")


def write_worlds(
    path: Path, settings: SamplingSettings, spaces: Sequence[Space], blocks: Sequence[Drawn]
) -> None:
    """Write worlds as they are read: to a `.db` file, or as numbered graphs into a folder.

    `spaces` are those of the domains that were sampled.
    """
    each = spaces[0] if len(spaces) == 1 else _spaces(settings, spaces)
    worlds = read_worlds(settings, spaces, blocks)
    standard_format(settings.kind).write(path, each, worlds)


def _spaces(settings: SamplingSettings, spaces: Sequence[Space]) -> Iterator[Space]:
    """The space of every world, in the order of their numbers."""
    for draw in range(settings.draws):
        for block in range(settings.parts):
            for _ in settings.wanted(block, draw):
                yield spaces[settings.home(block)]
