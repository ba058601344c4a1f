"""Knowledge bases in files: triples for training, validation and test, over one space."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from nmln.files import InputError, read_lines
from nmln.formats.triples import ENTITY, read_triples
from nmln.space import Space

SPLITS = ("train", "valid", "test")
DIRECTORY = "NMLN_DATA"  # the variable that names a directory of data
NAMES = {"nations": "nations", "kinship": "kinships", "umls": "umls"}  # as PyKEEN calls them

Triples = Int64[Tensor, "_ 3"]
"""Head, relation and tail, as positions among the constants and relations."""


@dataclass(frozen=True)
class KnowledgeBase:
    """Triples of the three splits; validation and test may be empty.

    Constants and relations are those of the training triples, in alphabetical order. `notes` are
    sentences about the files that a user should read.
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
        """A folder with train.tsv and perhaps valid.tsv and test.tsv (or .txt), or a known name.

        nations, kinship and umls are looked for under kb/ in the directory that NMLN_DATA names, then
        in the installed package PyKEEN, which ships them. A folder of that name goes first.
        """
        folder = _folder(where)
        paths = {split: path for split in SPLITS if (path := _file(folder, split))}
        if "train" not in paths:
            found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
            raise InputError(
                f"there is no train.tsv (or train.txt) in this folder, only {found}. Put the triples "
                "there, one a line: head, relation, tail, separated by tabs.",
                str(folder),
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
        return self.space.domain[ENTITY]

    @property
    def relations(self) -> tuple[str, ...]:
        return tuple(attribute.name for attribute in self.space.language)

    @property
    def known(self) -> Triples:
        """All triples of the three splits."""
        return torch.cat([self.train, self.valid, self.test]).unique(dim=0)

    def world(self, triples: Triples) -> Integer[Tensor, " groups"]:
        """The world in which these triples are true and nothing else."""
        n = len(self.constants)
        heads, relations, tails = triples.T
        world = torch.zeros(self.space.groups, dtype=self.space.dtype)
        world[(relations * n + heads) * n + tails] = 1
        return world

    def text(self, triple: tuple[int, int, int]) -> tuple[str, str, str]:
        """A triple by its names."""
        head, relation, tail = triple
        return self.constants[head], self.relations[relation], self.constants[tail]

    @property
    def sizes(self) -> str:
        """How large it is, in a sentence."""
        counts = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in SPLITS)
        return (
            f"{self.name}: {len(self.constants):,} constants, {len(self.relations):,} relations, "
            f"{self.space.groups:,} ground atoms; triples: {counts}"
        )


def _folder(where: str | Path) -> Path:
    folder = Path(where)
    if not str(where).strip():
        raise InputError(
            f"no data are named. Name a folder of triples, or one of {', '.join(NAMES)}."
        )
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError("this is a file. Name the folder that has train.tsv in it.", str(where))
    name = str(where)
    if name not in NAMES:
        guess = get_close_matches(name, NAMES, 1)
        hint = f" Did you mean {guess[0]}?" if guess else ""
        raise InputError(
            f"there is no such folder, and no knowledge base of this name.{hint} Name a folder with "
            f"train.tsv in it, or one of {', '.join(NAMES)}.",
            name,
        )
    if DIRECTORY in os.environ:
        folder = Path(os.environ[DIRECTORY]) / "kb" / name
        if folder.is_dir():
            return folder
    package = find_spec("pykeen")  # finds it without running any of it
    for place in (package.submodule_search_locations or []) if package else []:
        folder = Path(place) / "datasets" / NAMES[name]
        if folder.is_dir():
            return folder
    raise InputError(
        f"the triples of {name} are not here. Install the package that ships them (pip install "
        f"'nmln[knowledge]'), or put train.tsv, valid.tsv and test.tsv into kb/{name} of a directory "
        f"and let {DIRECTORY} name that."
    )


def _file(folder: Path, split: str) -> Path | None:
    both = [folder / f"{split}{ending}" for ending in (".tsv", ".txt")]
    found = [
        path for path in both if path.exists() and not path.is_dir()
    ]  # a pipe is refused later
    if len(found) > 1:
        raise InputError(
            f"{found[0].name} and {found[1].name} are both there. Keep one.", str(folder)
        )
    return found[0] if found else None


def _read(path: Path, space: Space, world: Integer[Tensor, " groups"], notes: list[str]) -> Triples:
    n, relations = len(space.domain[ENTITY]), len(space.language)
    grid = world.reshape(relations, n, n)
    triples = grid.nonzero()[:, [1, 0, 2]].contiguous()
    lines = sum(1 for _, line in read_lines(path) if line.strip())
    if twice := lines - len(triples):
        notes.append(f"{path.name} repeats {twice:,} of its {lines:,} triples; each counts once.")
    return triples


def _read_other(path: Path, space: Space, notes: list[str]) -> Triples:
    """Validation or test triples, over names that the training triples have."""
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
    """The first line with a name that the training triples do not have."""
    places = (1,) if kind == "relation" else (0, 2)
    for number, line in read_lines(path):
        fields = [part.strip() for part in line.split("\t")]
        for place in places:
            if len(fields) == 3 and fields[place] in unknown:
                near = get_close_matches(fields[place], known, 1, cutoff=0.0)
                return InputError(
                    f"no training triple has the {kind} {fields[place]}, so nothing can be said of it. "
                    f"The nearest name there is {near[0]}. Correct it, or leave the line out.",
                    str(path),
                    number,
                )
    raise AssertionError(f"{unknown} come from nowhere")


def _overlaps(triples: Mapping[str, Triples]) -> list[str]:
    """What is told to be held out but is known from training."""
    train = set(map(tuple, triples["train"].tolist()))
    notes = []
    for split in SPLITS[1:]:
        both = sum(tuple(triple) in train for triple in triples[split].tolist())
        if both:
            notes.append(f"{both:,} triples of {split} are training triples too: too easy a test.")
    return notes
