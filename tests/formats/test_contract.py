"""What every format promises. A new one is added to CASES and passes all of this."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import pytest
import torch

from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.formats.graphs import from_networkx
from nmln.formats.mln import Program, write_mln
from nmln.formats.registry import FORMATS, Format, Kind, Parsed, standard_format
from nmln.language import Attribute, Language, predicate
from nmln.molecules.chemistry import encode_all, space_for
from nmln.runs.data import format_of
from nmln.space import Space
from tests.strategies import random_worlds

PEOPLE = Space(
    Language(
        predicate("smokes", "person"),
        predicate("friends", "person", "person", symmetric=True, reflexive=False),
        Attribute("lives", ("person",), ("Rome", "Oslo"), optional=True, value_sort="town"),
    ),
    {"person": ("Anna", "Bob", "Carl d")},
)
MOLECULES = space_for(("C", "N", "O"), 4)
SMILES = (
    "CCCO",
    "CCCN",
    "C=CCO",
    "C1CCC1",
)  # canonical, so that they are read back as the same worlds
RELATIONS = Space(
    Language(predicate("knows", "entity", "entity"), predicate("owes", "entity", "entity")),
    {"entity": ("Anna", "Bob")},
)
BARE = Space(Language(predicate("rain")), {})  # neither molecules nor graphs nor triples


def people(count: int) -> Parsed:
    return Parsed.of(PEOPLE, random_worlds(PEOPLE, count))


def molecules() -> Parsed:
    encoded = encode_all(MOLECULES, SMILES)
    assert encoded.smiles == SMILES
    return Parsed.of(MOLECULES, encoded.worlds, names=SMILES)


def graphs() -> Parsed:
    drawn = [nx.path_graph(4), nx.cycle_graph(4)]
    for graph in drawn:
        nx.set_node_attributes(graph, {node: "ab"[node % 2] for node in graph}, "kind")
        nx.set_edge_attributes(graph, {edge: "xy"[edge[0] % 2] for edge in graph.edges}, "bond")
    return Parsed.of(*from_networkx(drawn))


def relations() -> Parsed:
    return Parsed.of(RELATIONS, torch.tensor([[0, 1, 1, 0, 0, 1, 0, 0]], dtype=RELATIONS.dtype))


@dataclass(frozen=True)
class Case:
    """A format by its name, worlds that it can hold, and a space that it cannot hold, if any."""

    name: str
    worlds: Callable[[], Parsed]
    refused: Space | None = None


CASES = [
    Case("csv", molecules, refused=PEOPLE),
    Case("db", lambda: people(5)),
    Case("graphml", graphs, refused=BARE),
    Case("nl", lambda: people(1)),
    Case("smi", molecules, refused=PEOPLE),
    Case("triples", relations, refused=PEOPLE),
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def written(case: Case, folder: Path) -> tuple[Format, Parsed, DataConfig]:
    """The worlds of a case, written one after the other, and the settings that read them."""
    one, parsed = FORMATS[case.name], case.worlds()
    path = folder / f"worlds{'' if one.folder else one.suffixes[0]}"
    one.write(path, parsed.space, iter(parsed.worlds))
    language = None
    if one.declarable:
        language = str(folder / "language.mln")
        write_mln(language, Program(parsed.space.language, dict(parsed.space.domain)))
    return one, parsed, DataConfig(source=str(path), language=language)


@EVERY
def test_worlds_that_are_written_are_read_back(case: Case, tmp_path: Path) -> None:
    one, parsed, config = written(case, tmp_path)
    back = one.read(config)
    assert back.space == parsed.space
    assert torch.equal(back.worlds, parsed.worlds)
    assert back.worlds.dtype == back.space.dtype
    assert back.names == parsed.names
    assert not back.dropped


@EVERY
def test_the_same_worlds_give_the_same_bytes(case: Case, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        one, _, config = written(case, tmp_path / name)
        contents.append([path.read_bytes() for path in one.files(config)])
    assert contents[0] == contents[1]


@EVERY
def test_a_written_file_is_recognised(case: Case, tmp_path: Path) -> None:
    one, _, config = written(case, tmp_path)
    assert one.recognises(Path(config.source))
    if one.learnable:
        assert format_of(config.source) is one
        assert format_of(config.source.upper()) is one or one.folder


@EVERY
def test_its_files_are_those_that_it_reads(case: Case, tmp_path: Path) -> None:
    one, parsed, config = written(case, tmp_path)
    files = list(one.files(config))
    assert len(files) == (len(parsed.worlds) if one.folder else 1)
    for path in files:
        path.unlink()
    with pytest.raises(InputError, match=r"no \.graphml file|no such file"):
        one.read(config)


@EVERY
def test_it_refuses_spaces_that_it_cannot_hold(case: Case) -> None:
    FORMATS[case.name].check(case.worlds().space)
    if case.refused is not None:
        with pytest.raises(InputError):
            FORMATS[case.name].check(case.refused)


@EVERY
def test_several_files_are_gathered_over_one_space(case: Case, tmp_path: Path) -> None:
    one, parsed, config = written(case, tmp_path)
    if one.gather is not None:
        path = Path(config.source)
        language = None if config.language is None else Path(config.language)
        found = one.gather([path, path], language, path)
        assert found.space == parsed.space
        assert torch.equal(found.worlds, torch.cat([parsed.worlds, parsed.worlds]))


@pytest.mark.parametrize("kind", ["molecules", "db", "graphs"])
def test_one_format_stands_for_each_kind(kind: Kind) -> None:
    assert standard_format(kind).kind == kind


def test_no_two_formats_have_an_ending_in_common() -> None:
    endings = [suffix for one in FORMATS.values() for suffix in one.suffixes]
    assert len(endings) == len(set(endings))
    assert all(name == one.name for name, one in FORMATS.items())


def test_a_world_that_is_no_molecule_is_not_written(tmp_path: Path) -> None:
    apart = torch.zeros(1, MOLECULES.groups, dtype=MOLECULES.dtype)
    with pytest.raises(InputError, match="world 0 is disconnected"):
        FORMATS["smi"].write(tmp_path / "x.smi", MOLECULES, iter(apart))
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="packed"):
        FORMATS["smi"].write(tmp_path / "x.smi.gz", MOLECULES, iter(apart))


@pytest.mark.parametrize("name", ["nl", "triples"])
def test_a_file_of_one_world_refuses_two(name: str, tmp_path: Path) -> None:
    worlds = torch.zeros(2, RELATIONS.groups, dtype=RELATIONS.dtype)
    with pytest.raises(InputError, match="one world, not 2"):
        FORMATS[name].write(tmp_path / "x.nl", RELATIONS, iter(worlds))
