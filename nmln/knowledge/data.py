"""Knowledge bases from files: triples for training, validation and test over one space."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.files import read_lines
from nmln.formats.triples import ENTITY, read_triples
from nmln.space import Space

SPLITS = ("train", "valid", "test")
DIRECTORY = "NMLN_DATA"  # environment variable: a directory of data sets
NAMES = {"nations": "nations", "kinship": "kinships", "umls": "umls"}  # our name: PyKEEN's name

Triples = Int64[Tensor, "_ 3"]
"""Head, relation and tail, as positions among the constants and relations."""


@dataclass(frozen=True)
class KnowledgeBase:
    """Triples in three splits; those for validation and test may be empty.

    Constants and relations are those of the training triples, in alphabetical order. `notes` are
    sentences about the files, to be shown to the user.
    """

    name: str
    space: Space
    train: Triples
    valid: Triples
    test: Triples
    notes: tuple[str, ...] = ()
    source: str = field(default="", compare=False)

    @staticmethod
    def read(where: str | Path) -> "KnowledgeBase":
        """Read a folder with train.tsv and optionally valid.tsv and test.tsv (or .txt), or a known name.

        The known names are nations, kinship and umls. A folder of that name takes precedence; then come
        kb/NAME in the directory that NMLN_DATA names, and the files of the installed package PyKEEN.
        """
        folder = _folder(where)
        paths = {split: path for split in SPLITS if (path := _file(folder, split))}
        if "train" not in paths:
            found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "no files"
            raise InputError(
                f"the folder must contain train.tsv (or train.txt), got {found}. Put the training "
                "triples there, one per line: head, relation, tail, separated by tabs.",
                str(folder),
                kind="missing",
            )
        try:
            space, worlds = read_triples(paths["train"])
        except InputError as error:
            raise error if error.source else error.at(str(paths["train"])) from None
        notes: list[str] = []
        triples = {"train": _read(paths["train"], space, worlds[0], notes)}
        for split in SPLITS[1:]:
            triples[split] = torch.zeros(0, 3, dtype=torch.int64)
            if split in paths:
                triples[split] = _read_other(paths[split], space, notes)
        notes += _overlaps(triples)
        name = folder.resolve().name if str(where) not in NAMES else str(where)
        return KnowledgeBase(name, space, **triples, notes=tuple(notes), source=str(folder))

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of the constants; triples refer to them by position."""
        return self.space.domain[ENTITY]

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of the relations; triples refer to them by position."""
        return tuple(attribute.name for attribute in self.space.language)

    @property
    def known(self) -> Triples:
        """All triples of the three splits."""
        return torch.cat([self.train, self.valid, self.test]).unique(dim=0)

    def world(self, triples: Triples) -> Integer[Tensor, " groups"]:
        """The world in which exactly these triples are true."""
        n = len(self.constants)
        heads, relations, tails = triples.T
        world = torch.zeros(self.space.groups, dtype=self.space.dtype)
        world[(relations * n + heads) * n + tails] = 1
        return world

    def text(self, triple: tuple[int, int, int]) -> tuple[str, str, str]:
        """The names of head, relation and tail."""
        head, relation, tail = triple
        return self.constants[head], self.relations[relation], self.constants[tail]

    @property
    def sizes(self) -> str:
        """Name and sizes, as one sentence."""
        counts = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in SPLITS)
        return (
            f"{self.name}: {len(self.constants):,} constants, {len(self.relations):,} relations, "
            f"{self.space.groups:,} ground atoms; triples: {counts}"
        )


def _folder(where: str | Path) -> Path:
    """The folder of a knowledge base that is given by path or by name."""
    folder = Path(where)
    if not str(where).strip():
        raise InputError(
            f"a knowledge base must be named. Name a folder of triples, or one of {', '.join(NAMES)}.",
            kind="missing",
        )
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(
            "a knowledge base must be a folder, got a file. Name the folder that contains train.tsv.",
            str(where),
        )
    name = str(where)
    if name not in NAMES:
        guess = get_close_matches(name, NAMES, 1)
        hint = f" Did you mean {guess[0]}?" if guess else ""
        raise InputError(
            f"neither a folder nor a known knowledge base has this name.{hint} Name a folder that "
            f"contains train.tsv, or one of {', '.join(NAMES)}.",
            name,
            token=name,
            kind="unknown",
        )
    if DIRECTORY in os.environ:
        folder = Path(os.environ[DIRECTORY]) / "kb" / name
        if folder.is_dir():
            return folder
    package = find_spec("pykeen")  # does not import it
    for place in (package.submodule_search_locations or []) if package else []:
        folder = Path(place) / "datasets" / NAMES[name]
        if folder.is_dir():
            return folder
    raise InputError(
        f"the triples of {name} were not found. Install the package that ships them (pip install "
        f"'nmln[knowledge]'), or put train.tsv, valid.tsv and test.tsv into kb/{name} of a directory "
        f"and set {DIRECTORY} to that directory.",
        token=name,
        kind="missing",
    )


def _file(folder: Path, split: str) -> Path | None:
    """The file of a split, if there is one."""
    both = [folder / f"{split}{ending}" for ending in (".tsv", ".txt")]
    # Anything but a directory: the reader refuses pipes with an error of its own.
    found = [path for path in both if path.exists() and not path.is_dir()]
    if len(found) > 1:
        raise InputError(
            f"the folder must contain only one of {found[0].name} and {found[1].name}, got both. "
            "Remove one.",
            str(folder),
            kind="conflict",
        )
    return found[0] if found else None


def _read(path: Path, space: Space, world: Integer[Tensor, " groups"], notes: list[str]) -> Triples:
    """The triples of a world that was read from a file; repeated lines are noted."""
    n, relations = len(space.domain[ENTITY]), len(space.language)
    grid = world.reshape(relations, n, n)
    triples = grid.nonzero()[:, [1, 0, 2]].contiguous()
    lines = sum(1 for _, line in read_lines(path) if line.strip())
    if twice := lines - len(triples):
        notes.append(f"{path.name} repeats {twice:,} of its {lines:,} triples; each counts once.")
    return triples


def _read_other(path: Path, space: Space, notes: list[str]) -> Triples:
    """Validation or test triples; their names must occur in the training triples."""
    if not any(line.strip() for _, line in read_lines(path)):
        return torch.zeros(0, 3, dtype=torch.int64)
    own = read_triples(path)[0]
    names = {"constant": space.codes[ENTITY], "relation": {a.name: 0 for a in space.language}}
    used = {"constant": own.domain[ENTITY], "relation": [a.name for a in own.language]}
    for kind, known in names.items():
        if unknown := {name for name in used[kind] if name not in known}:
            raise _unknown(path, kind, unknown, known)
    return _read(path, space, read_triples(path, space=space)[1][0], notes)


def _unknown(path: Path, kind: str, unknown: set[str], known: Mapping[str, int]) -> InputError:
    """The error for the first line with a name that no training triple has."""
    places = (1,) if kind == "relation" else (0, 2)
    for number, line in read_lines(path):
        fields = [part.strip() for part in line.split("\t")]
        for place in places:
            if len(fields) == 3 and fields[place] in unknown:
                near = get_close_matches(fields[place], known, 1, cutoff=0.0)
                return InputError(
                    f"every name must occur in a training triple, got the {kind} {fields[place]}. The "
                    f"nearest {kind} there is {near[0]}. Correct the line, or remove it.",
                    str(path),
                    number,
                    token=fields[place],
                    kind="unknown",
                )
    raise AssertionError(f"no line of {path} contains {unknown}")


def _overlaps(triples: Mapping[str, Triples]) -> list[str]:
    """Notes on validation and test triples that are training triples too."""
    train = set(map(tuple, triples["train"].tolist()))
    notes = []
    for split in SPLITS[1:]:
        both = sum(tuple(triple) in train for triple in triples[split].tolist())
        if both:
            notes.append(f"{both:,} triples of {split} are training triples too: too easy a test.")
    return notes
