"""Formats by name: the kinds of files that worlds are read from and written to."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Integer
from torch import Tensor

from nmln.buckets import Bucket, Bucketed
from nmln.config import DataConfig
from nmln.dropped import Dropped
from nmln.logic import WeightedFormula
from nmln.registry import Registry
from nmln.space import Space
from nmln.worlds import Spaces

Kind = Literal["molecules", "db", "graphs"]
"""The kinds of worlds that a run can learn from; the head of a run records one."""


@dataclass(frozen=True)
class Parsed(Bucketed):
    """What a file holds: worlds of one or several domains, and what else stands beside them."""

    formulas: tuple[WeightedFormula, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)  # one per world; SMILES, for molecules
    dropped: tuple[Dropped, ...] = ()  # lines that were left out, by reason
    notes: tuple[str, ...] = ()  # sentences about the choices that were made in reading
    named: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    # how many constants of each sort a world names, one per world, where all worlds have the same

    @staticmethod
    def of(
        space: Space,
        worlds: Integer[Tensor, "worlds groups"],
        formulas: tuple[WeightedFormula, ...] = (),
        names: tuple[str, ...] = (),
        dropped: tuple[Dropped, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> "Parsed":
        """The worlds of a file that are all of one domain."""
        homes = torch.zeros(len(worlds), dtype=torch.int64)
        return Parsed((Bucket(space, worlds),), homes, formulas, names, dropped, notes)


def _only_source(config: DataConfig) -> Iterator[Path]:
    yield Path(config.source)


def _any_space(space: Space) -> None:
    """Accept every space."""


@dataclass(frozen=True)
class Format:
    """How files of one kind are recognised, read and written.

    Args:
        name: the name in the registry, which the documentation uses.
        kind: the kind of the worlds. All formats of a kind give the same kind of model.
        suffixes: how the names of such files end, in small letters.
        read: the worlds that the settings name.
        write: writes worlds one after the other as they come, atomically where it is one file. Those
            of several domains come with a space for each.
        check: refuses a space whose worlds the format cannot hold.
        recognise: whether a path is of this format; by default its ending decides.
        files: the files that `read` reads, apart from the language; each is used before the next is
            asked for.
        versions: the versions of other packages on which the result of `read` depends.
        gather: reads several files together, for `nmln data info`: the files, the file of the language,
            and the file that errors without a place name.
        declarable: whether a `.mln` file may declare the language of the worlds.
        learnable: whether `nmln train` reads it.
        standard: whether it stands for its kind, as one format of each kind does. Sampled worlds are
            checked by it and written in it, but molecules are written as rows of a table.
        folder: whether `write` makes a folder, with one file per world.
    """

    name: str
    kind: Kind
    suffixes: tuple[str, ...]
    read: Callable[[DataConfig], Parsed]
    write: Callable[[Path, Spaces, Iterable[Integer[Tensor, " groups"]]], None]
    check: Callable[[Space], object] = _any_space
    recognise: Callable[[Path], bool] | None = None
    files: Callable[[DataConfig], Iterator[Path]] = _only_source
    versions: Callable[[], dict[str, str]] = dict
    gather: Callable[[Sequence[Path], Path | None, Path], Parsed] | None = None
    declarable: bool = False
    learnable: bool = True
    standard: bool = False
    folder: bool = False

    def names(self, path: Path) -> bool:
        """Whether a path ends like a file of this format."""
        return "".join(path.suffixes).lower().endswith(self.suffixes)

    def recognises(self, path: Path) -> bool:
        """Whether a path is of this format."""
        return self.names(path) if self.recognise is None else self.recognise(path)


FORMATS: Registry[Format] = Registry("format", "nmln.formats", "nmln.molecules")
"""Registered by the files that define them."""


def register(made: Format) -> Format:
    """Add a format to the registry under its own name."""
    return FORMATS.add(made.name, made)


def standard_format(kind: str) -> Format:
    """The format that stands for a kind, by which sampled worlds are checked and written."""
    (found,) = (one for one in FORMATS.values() if one.kind == kind and one.standard)
    return found
