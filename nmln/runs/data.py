"""Where worlds come from: molecules, `.db` files and graph files, read alike."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import networkx as nx
import torch
from jaxtyping import Integer
from torch import Tensor

from nmln.config import DataConfig
from nmln.errors import InputError, placed
from nmln.files import check_readable
from nmln.formats.db import encode_facts, infer_domain, infer_language, read_facts
from nmln.formats.graphs import from_networkx, read_graphml
from nmln.formats.mln import Program, read_mln
from nmln.formats.triples import read_triples
from nmln.language import Attribute
from nmln.logic import WeightedFormula
from nmln.molecules.datasets import Dropped, split
from nmln.molecules.datasets import load as load_molecules
from nmln.molecules.decoding import Decoder
from nmln.space import Space
from nmln.types import Worlds

Kind = Literal["molecules", "db", "graphs"]


@dataclass(frozen=True)
class Source:
    """Worlds over one domain, split into training and held-out worlds."""

    kind: Kind
    space: Space
    worlds: Integer[Tensor, "worlds groups"]
    train: Integer[Tensor, " some"]
    test: Integer[Tensor, " others"]
    formulas: tuple[WeightedFormula, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)  # SMILES, for molecules
    dropped: tuple[Dropped, ...] = ()  # lines that were left out, by reason

    @property
    def fingerprint(self) -> str:
        """A hash of the worlds, in their order, and of their language and domain."""
        meaning = str(Program(self.space.language, dict(self.space.domain)))
        return sha256(meaning.encode() + self.worlds.contiguous().numpy().tobytes()).hexdigest()


def load(config: DataConfig) -> Source:
    """Read what a configuration names, whatever its format."""
    path = Path(config.source)
    kind = kind_of(config.source)
    formulas: tuple[WeightedFormula, ...] = ()
    names: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    if kind == "molecules":
        found = load_molecules(config.source, config.nodes)
        space, worlds, names, dropped = found.space, found.worlds, found.smiles, found.dropped
    elif kind == "db":
        program = None if config.language is None else read_mln(config.language)
        facts = read_facts(path)
        language = program.language if program else infer_language(facts)
        with placed(config.language or path):
            space = Space(
                language, infer_domain(facts, language, program.domain if program else None)
            )
        worlds = encode_facts(space, facts)
        formulas = program.formulas if program else ()
    else:
        space, worlds = from_networkx(read_graphs(path))
    if len(worlds) < 1:
        raise InputError("there are no worlds in it.", config.source, kind="missing")
    if not bool((space.sizes > 1).any()):
        raise InputError(
            "only one world is possible here, so there is nothing to learn. Give data with more than "
            "one possible world.",
            config.source,
            kind="missing",
        )
    train, test = split(len(worlds), config.split_seed, config.train_share)
    return Source(kind, space, worlds, train, test, formulas, names, dropped)


def located(config: DataConfig) -> DataConfig:
    """The same data by their full path, so that a run finds them again from anywhere."""

    def full(name: str | None) -> str | None:
        return str(Path(name).resolve()) if name and Path(name).exists() else name

    return replace(config, source=full(config.source) or "", language=full(config.language))


def kind_of(source: str) -> Kind:
    """What a source is, by its name."""
    check_readable(source)
    if not source.strip():
        raise InputError(
            "no data are named. Name a file, a folder of graphs or a set of molecules.",
            kind="empty",
        )
    path = Path(source)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] in ([".db"], [".nl"]):
        return "db"
    if path.is_dir() and not any(path.glob("*.graphml")):
        raise InputError(
            "this is a folder without a .graphml file in it. Name a folder of graphs, or a file.",
            source,
        )
    if suffixes[-1:] == [".graphml"] or path.is_dir():
        return "graphs"
    if suffixes[-1:] == [".mln"]:
        raise InputError("a .mln file declares a language. Name it as data.language.", source)
    return "molecules"


def read_graphs(path: Path) -> list[nx.Graph]:
    """The graph in a GraphML file, or those of a folder in the order of their names."""
    files = sorted(path.glob("*.graphml")) if path.is_dir() else [path]
    if not files:
        raise InputError("there is no .graphml file in this folder.", str(path), kind="missing")
    for file in files:
        check_readable(file)
    graphs = []
    for file in files:
        graph = read_graphml(file)
        graphs.append(nx.DiGraph(graph) if graph.is_directed() else nx.Graph(graph))
    sizes = sorted({len(graph) for graph in graphs})
    if len(sizes) > 1:
        found = ", ".join(
            f"{size} ({sum(len(g) == size for g in graphs)} graphs)" for size in sizes
        )
        raise InputError(
            f"one model is over one domain, but these graphs have different numbers of nodes: {found}. "
            "Keep graphs of one size.",
            str(path),
        )
    return graphs


class Quality:
    """A measure of the quality of worlds: the share of valid molecules; empty for other kinds."""

    def __init__(self, decoder: Decoder | None, known: frozenset[str] = frozenset()) -> None:
        self.decoder, self.known = decoder, known

    @staticmethod
    def of(kind: Kind, space: Space, known: Sequence[str] = ()) -> "Quality":
        return Quality(Decoder(space) if kind == "molecules" else None, frozenset(known))

    def measure(self, worlds: Integer[Tensor, "worlds groups"]) -> dict[str, float]:
        if self.decoder is None or not len(worlds):
            return {}
        decoded: Sequence = list(self.decoder.decode(worlds))
        valid = [one.smiles for one in decoded if one.status == "valid"]
        found = {"valid": len(valid) / len(decoded)}
        if self.known:
            found["known"] = sum(smiles in self.known for smiles in valid) / len(decoded)
        return found


def pick(worlds: Tensor, indices: Tensor) -> Tensor:
    """The worlds at some positions."""
    return worlds.index_select(0, torch.as_tensor(indices))


# The content of data files.


@dataclass(frozen=True)
class Contents:
    """The content of data files."""

    space: Space
    worlds: Worlds
    formulas: int

    def true_atoms(self, attribute: Attribute) -> list[int]:
        """The number of tuples of an attribute that are neither false nor none, per world."""
        block = self.space.block(attribute.name)
        if attribute.null is None:
            return [block.count] * len(self.worlds)
        values = self.worlds[:, block.groups]
        return [int(n) for n in (values != attribute.null).sum(1)]


def inspect(paths: Sequence[Path]) -> Contents:
    """Read data files together: at most one `.mln`, any number of `.db` and `.nl`, or `.tsv`."""
    kinds = {".mln", ".db", ".nl", ".tsv"}
    by_kind: dict[str, list[Path]] = {kind: [] for kind in kinds}
    for path in paths:
        if path.suffix.lower() not in kinds:
            raise InputError(
                f"files ending in {path.suffix or 'nothing'} are not known here. Give .mln, .db, .nl "
                "or .tsv files, or molecules as .smi or .csv (either may have .gz behind it).",
                str(path),
                kind="unsupported",
            )
        by_kind[path.suffix.lower()].append(path)
    if by_kind[".tsv"]:
        if len(by_kind[".tsv"]) < len(paths):
            raise InputError(
                "triples (.tsv) carry their own language. Give them without other files."
            )
        space, worlds = read_triples(*by_kind[".tsv"])
        return Contents(space, worlds, 0)
    if len(by_kind[".mln"]) > 1:
        raise InputError(
            f"one language at a time, but {len(by_kind['.mln'])} .mln files are given."
        )
    program = read_mln(by_kind[".mln"][0]) if by_kind[".mln"] else None
    facts = [world for path in paths if path.suffix.lower() != ".mln" for world in read_facts(path)]
    language = program.language if program else infer_language(facts)
    with placed(paths[0]):
        space = Space(language, infer_domain(facts, language, program.domain if program else None))
    return Contents(space, encode_facts(space, facts), len(program.formulas) if program else 0)
