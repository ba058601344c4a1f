"""Where worlds come from: molecules, `.db` files and graph files, read alike."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from nmln.buckets import Bucket, Bucketed, name_of, names_of
from nmln.checkpoint import VERSION
from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.files import check_readable
from nmln.formats.mln import Program
from nmln.formats.registry import FORMATS, Format, Kind, Parsed
from nmln.language import Attribute, Language
from nmln.logic import WeightedFormula
from nmln.molecules.datasets import Dropped, split
from nmln.space import Space

_SHOWN = 20  # domains in a sentence
_SETS = "smi"  # the format that reads names of sets, and says what is wrong with any other name


@dataclass(frozen=True)
class Source(Bucketed):
    """Worlds of one or several domains, split into training and held-out worlds.

    `train`, `test` and `names` are by position in the file, whatever the domain.
    """

    kind: Kind
    train: Int64[Tensor, " some"]
    test: Int64[Tensor, " others"]
    formulas: tuple[WeightedFormula, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)  # SMILES, for molecules
    dropped: tuple[Dropped, ...] = ()  # lines that were left out, by reason
    origin: dict[str, Any] | None = field(default=None, repr=False)  # as `origin_of` gives it
    notes: tuple[str, ...] = ()  # sentences about the choices that were made in reading

    @property
    def fingerprint(self) -> str:
        """A hash of the worlds, in their order, and of their language and domains."""
        digest = sha256()
        for bucket in self.buckets:
            meaning = str(Program(bucket.space.language, dict(bucket.space.domain)))
            digest.update(meaning.encode() + bucket.worlds.contiguous().numpy().tobytes())
        if len(self.buckets) > 1:
            digest.update(self.homes.contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def program(self) -> str:
        """The language, the first domain and the formulas as text."""
        return str(Program(self.space.language, dict(self.space.domain), self.formulas))

    @property
    def domains_in_words(self) -> str:
        """The number of worlds of every domain: `heavy atoms (molecules): 8 (120), 9 (300)`."""
        shown = [f"{name_of(one.space)} ({len(one.worlds):,})" for one in self.buckets]
        what = "heavy atoms (molecules)" if self.kind == "molecules" else "constants (worlds)"
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        return f"{what}: {', '.join(shown[:_SHOWN])}{more}"

    @property
    def learned(self) -> tuple[Bucket, ...]:
        """The training worlds."""
        return self.chosen(self.train)

    @property
    def held_out(self) -> tuple[Bucket, ...]:
        """The test worlds; buckets may be empty."""
        return self.chosen(self.test)


def load(config: DataConfig) -> Source:
    """Read what a configuration names, whatever its format."""
    origin = origin_of(config)  # before it is read: what changes meanwhile is another origin later
    found = format_of(config.source)
    parsed = found.read(config)
    if len(parsed) < 1:
        raise InputError("there are no worlds in it.", config.source, kind="missing")
    if not any(bool((space.sizes > 1).any()) for space in parsed.spaces):
        raise InputError(
            "only one world is possible here, so there is nothing to learn. Give data with more than "
            "one possible world.",
            config.source,
            kind="missing",
        )
    train, test = split_within(parsed.homes, config.split_seed, config.train_share)
    return Source(
        parsed.buckets, parsed.homes, found.kind, train, test, parsed.formulas, parsed.names,
        parsed.dropped, origin, (*parsed.notes, *_lone_worlds(parsed, config.train_share)),
    )  # fmt: skip


def _lone_worlds(parsed: Bucketed, share: float) -> tuple[str, ...]:
    """A note if some of several sizes have one world, where other sizes have held-out worlds."""
    lone = [bucket.space for bucket in parsed.buckets if len(bucket.worlds) == 1]
    if not lone or len(parsed.buckets) == 1 or share == 1:
        return ()
    if len(lone) == 1:
        return (f"size {name_of(lone[0])} has one world: none of it is held out.",)
    return (f"sizes {names_of(lone)} have one world each: none of them is held out.",)


def split_within(
    homes: Int64[Tensor, " worlds"], seed: int, share: float
) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
    """Positions for training and for testing, by the same share in every bucket.

    One bucket is split by `split`. Of several, each gives at least one world to learn from and, unless
    the share is 1 or it has only one world, at least one to test.
    """
    count = int(homes.max()) + 1
    if count == 1:
        return split(len(homes), seed, share)
    train, test = [], []
    for number in range(count):
        places = torch.nonzero(homes == number).flatten()
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
        most = len(places) if share == 1 else max(1, len(places) - 1)
        some = min(most, max(1, round(share * len(places))))
        train.append(places[order[:some]])
        test.append(places[order[some:]])
    return torch.cat(train), torch.cat(test)


def origin_of(config: DataConfig) -> dict[str, Any] | None:
    """All that the result of `load` depends on, as JSON: from equal origins come equal sources.

    These are the bytes of the data files and of the language file, each as a SHA-256, the format and
    the other settings of the data, and the versions of the code that reads them; where the files are is
    no part of it. None if a file cannot be read: then `load` raises the error.
    """
    with suppress(InputError, OSError):
        found = format_of(config.source)
        data = sha256()
        for path in found.files(config):
            data.update(f"{''.join(path.suffixes[-2:]).lower()} {_hash(path)}\n".encode())
        settings = config.to_dict()
        del settings["source"], settings["language"]
        return {
            "format": found.name,
            "data": data.hexdigest(),
            "language": None if config.language is None else _hash(Path(config.language)),
            "settings": settings,
            "versions": {"nmln": VERSION, **found.versions()},
        }
    return None


def _hash(path: Path) -> str:
    check_readable(path)
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def located(config: DataConfig) -> DataConfig:
    """The same data by their full path, so that a run finds them again from anywhere."""

    def full(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name and Path(name).exists() else name

    return replace(config, source=full(config.source) or "", language=full(config.language))


def kind_of(source: str) -> Kind:
    """The kind of worlds in a source, by its name."""
    return format_of(source).kind


def format_of(source: str) -> Format:
    """The format of a source that runs learn from, by its name and by the files in a folder."""
    check_readable(source)
    if not source.strip():
        raise InputError(
            "no data are named. Name a file, a folder of graphs or a set of molecules.",
            kind="empty",
        )
    path = Path(source)
    for one in FORMATS.values():
        if one.learnable and one.recognises(path):
            return one
    if path.is_dir():
        raise InputError(
            "this is a folder without a .graphml or .db file in it. Name a folder of graphs or worlds, "
            "or a file.",
            source,
        )
    if path.suffix.lower() == ".mln":
        raise InputError("a .mln file declares a language. Name it as data.language.", source)
    return FORMATS[_SETS]


def pick(worlds: Tensor, indices: Tensor) -> Tensor:
    """The worlds at some positions."""
    return worlds.index_select(0, torch.as_tensor(indices))


# The content of data files.


@dataclass(frozen=True)
class Contents:
    """The content of data files."""

    parsed: Parsed

    @property
    def language(self) -> Language:
        return self.parsed.space.language

    @property
    def largest(self) -> Space:
        """The domain with the largest space of worlds."""
        return max(self.parsed.spaces, key=lambda space: space.groups)

    @property
    def worlds_by_size(self) -> str:
        """How many worlds have how many constants, in words; empty if there is nothing to compare."""
        found, buckets = self.parsed, self.parsed.buckets
        if len(buckets) > 1:
            counts = Counter({name_of(one.space): len(one.worlds) for one in buckets})
            return f"worlds by their number of constants: {_in_words(counts)}"
        if len(set(found.named)) < 2:
            return ""
        sorts = list(found.space.domain)
        counts = Counter[str]()
        for numbers in sorted(found.named):
            named = zip(sorts, numbers, strict=True)
            counts[
                str(numbers[0])
                if len(sorts) == 1
                else " and ".join(f"{number} {sort}" for sort, number in named)
            ] += 1
        return f"worlds by the number of constants that they name: {_in_words(counts)}"

    def groups(self, attribute: Attribute) -> list[int]:
        """The number of groups of an attribute on every domain."""
        return [space.block(attribute.name).count for space in self.parsed.spaces]

    def constants(self, sort: str) -> list[int]:
        """The number of constants of a sort on every domain."""
        return [len(space.domain[sort]) for space in self.parsed.spaces]

    def true_atoms(self, attribute: Attribute) -> list[int]:
        """The number of tuples of an attribute that are neither false nor none, per world."""
        found = []
        for bucket in self.parsed.buckets:
            block = bucket.space.block(attribute.name)
            if attribute.null is None:
                found += [block.count] * len(bucket.worlds)
            else:
                values = bucket.worlds[:, block.groups]
                found += (values != attribute.null).sum(1).tolist()
        return found


def _in_words(counts: Mapping[str, int]) -> str:
    shown = [f"{size} ({count:,})" for size, count in counts.items()]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def inspect(paths: Sequence[Path]) -> Contents:
    """Read data files together: at most one `.mln`, any number of `.db` and `.nl`, or `.tsv`, or graphs.

    A folder stands for the `.graphml` or `.db` files in it.
    """
    paths = [file for path in paths for file in _unfolded(path)]
    languages = [path for path in paths if path.suffix.lower() == ".mln"]
    formats = {path: _inspected(path) for path in paths if path not in languages}
    for one in formats.values():
        if not one.declarable and (languages or len(set(formats.values())) > 1):
            raise InputError(
                f"{one.name} ({one.suffixes[0]}) carry their own language. Give them without other "
                "files."
            )
    if len(languages) > 1:
        raise InputError(f"one language at a time, but {len(languages)} .mln files are given.")
    gather = next(iter(formats.values()), FORMATS["db"]).gather
    assert gather is not None
    worlds = [path for path in paths if path in formats]
    found = gather(worlds, languages[0] if languages else None, paths[0])
    return Contents(found)


def _unfolded(path: Path) -> list[Path]:
    """The files of a folder of worlds, or the path itself."""
    if not path.is_dir():
        return [path]
    return list(format_of(str(path)).files(DataConfig(str(path))))


def _inspected(path: Path) -> Format:
    known = {one.suffixes[0]: one for one in FORMATS.values() if one.gather is not None}
    if path.suffix.lower() in known:
        return known[path.suffix.lower()]
    *others, last = ".mln", *known
    raise InputError(
        f"files ending in {path.suffix or 'nothing'} are not known here. Give {', '.join(others)} or "
        f"{last} files, or molecules as .smi or .csv (either may have .gz behind it).",
        str(path),
        kind="unsupported",
    )
