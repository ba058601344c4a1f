"""Worlds with constants of their own, in one file or in several, and graphs of several sizes."""

from pathlib import Path

import networkx as nx
import pytest
import torch

from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.formats.db import from_text
from nmln.formats.graphs import parse_graphs, to_networkx
from nmln.formats.registry import FORMATS, Parsed
from nmln.runs import data as sources
from nmln.worlds import true_atoms

LANGUAGE = """smokes(person)
friends(person, person) symmetric irreflexive
lives(person, city!)
"""
WORLDS = [
    "smokes(Anna)\nfriends(Anna, Bob)\nlives(Anna, Rome)\nlives(Bob, Oslo)",
    "friends(Carl, Dora)\nfriends(Dora, Eve)\nlives(Carl, Rome)\nlives(Dora, Rome)\nlives(Eve, Oslo)",
    "lives(Gil, Oslo)\nlives(Hal, Rome)\nsmokes(Gil)\nfriends(Hal, Gil)",
    "lives(Bob, Oslo)\n!smokes(Bob)\n!smokes(Anna)\nlives(Anna, Oslo)",
]


def read(folder: Path, worlds: list[str], cities: str = "city = {Oslo, Rome}\n") -> Parsed:
    (folder / "people.mln").write_text(cities + LANGUAGE)
    (folder / "people.db").write_text("\n---\n".join(worlds) + "\n")
    config = DataConfig(str(folder / "people.db"), str(folder / "people.mln"), domains="each")
    return FORMATS["db"].read(config)


def test_every_world_has_its_own_constants(tmp_path: Path) -> None:
    found = read(tmp_path, WORLDS)
    assert [len(space.domain["person"]) for space in found.spaces] == [2, 3]
    assert found.homes.tolist() == [0, 1, 0, 0]
    two, three = found.spaces
    assert three.domain["person"] == ("Carl", "Dora", "Eve")
    assert two.domain == {"person": ("0", "1")}
    text = "smokes(0)\nfriends(0, 1)\nlives(0, Rome)\nlives(1, Oslo)"
    assert torch.equal(found.buckets[0].worlds[:1], from_text(two, text))
    text = "lives(0, Oslo)\nlives(1, Rome)\nsmokes(0)\nfriends(1, 0)"
    assert torch.equal(found.buckets[0].worlds[1:2], from_text(two, text))


def test_names_that_all_worlds_of_a_size_share_are_kept(tmp_path: Path) -> None:
    found = read(tmp_path, [WORLDS[0], WORLDS[1], WORLDS[3]])
    two, _ = found.spaces
    assert two.domain["person"] == ("Anna", "Bob")
    atoms = set(map(str, true_atoms(two, found.buckets[0].worlds[1])))
    assert atoms >= {"lives(Bob, Oslo)", "lives(Anna, Oslo)"}


def test_worlds_of_one_size_are_one_bucket(tmp_path: Path) -> None:
    found = read(tmp_path, [WORLDS[0], WORLDS[2]])
    assert len(found.buckets) == 1
    assert found.worlds.shape == (2, found.space.groups)


def test_sorts_that_are_declared_are_common(tmp_path: Path) -> None:
    worlds = ["\n".join(line for line in one.split("\n") if "lives" not in line) for one in WORLDS]
    (tmp_path / "people.mln").write_text(
        "person = {Anna, Bob, Carl, Dora, Eve, Gil, Hal}\n" + LANGUAGE
    )
    text = (tmp_path / "people.mln").read_text().replace("lives(person, city!)\n", "")
    (tmp_path / "people.mln").write_text(text)
    (tmp_path / "people.db").write_text("\n---\n".join(worlds) + "\n")
    paths = str(tmp_path / "people.db"), str(tmp_path / "people.mln")
    found = FORMATS["db"].read(DataConfig(*paths, domains="each"))
    common = FORMATS["db"].read(DataConfig(*paths))
    assert found.space == common.space
    assert torch.equal(found.worlds, common.worlds)


def test_a_folder_of_files_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "worlds"
    folder.mkdir()
    for name, text in zip(("c.db", "a.db", "b.db"), WORLDS, strict=False):
        (folder / name).write_text(text.replace("lives(Anna, Rome)\n", "") + "\n")
    (tmp_path / "people.mln").write_text(
        "city = {Oslo, Rome}\n" + LANGUAGE.replace("city!", "city?")
    )
    config = DataConfig(str(folder), str(tmp_path / "people.mln"), domains="each")
    source = sources.load(config)
    assert source.homes.tolist() == [1, 0, 0]
    assert [len(bucket.worlds) for bucket in source.buckets] == [2, 1]
    first = sources.origin_of(config)
    (folder / "b.db").write_text("lives(Hal, Rome)\n")
    assert sources.origin_of(config) not in (None, first)


def test_a_file_without_the_setting_has_common_constants(tmp_path: Path) -> None:
    read(tmp_path, WORLDS)
    config = DataConfig(str(tmp_path / "people.db"), str(tmp_path / "people.mln"))
    with pytest.raises(InputError, match="lives"):  # Anna lives nowhere in the second world
        FORMATS["db"].read(config)


def test_an_error_of_one_world_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, [WORLDS[0], "lives(Zoe, Oslo)\nfriends(Zoe, Zoe)"])
    assert (error.value.line, error.value.source) == (7, str(tmp_path / "people.db"))


# Graphs.


def test_graphs_of_several_sizes_share_a_language() -> None:
    graphs = [nx.path_graph(5), nx.cycle_graph(3), nx.star_graph(4), nx.complete_graph(4)]
    nx.set_node_attributes(graphs[1], dict.fromkeys(graphs[1], "red"), "colour")
    found = parse_graphs(graphs)
    assert [len(space.domain["node"]) for space in found.spaces] == [3, 4, 5]
    assert found.homes.tolist() == [2, 0, 2, 1]
    assert len({space.language for space in found.spaces}) == 1
    for number, graph in enumerate(graphs):
        (bucket,) = [one for one in found.chosen(torch.tensor([number])) if len(one.worlds)]
        (back,) = to_networkx(bucket.space, bucket.worlds)
        assert nx.is_isomorphic(back, graph)
        assert dict(back.nodes(data="colour", default=None)) == {
            str(node): colour for node, colour in graph.nodes(data="colour", default=None)
        }


def test_directions_must_agree_across_sizes() -> None:
    with pytest.raises(InputError, match="some graphs are directed"):
        parse_graphs([nx.path_graph(3), nx.path_graph(4, nx.DiGraph)])


def test_a_folder_of_graphs_of_several_sizes_is_data(tmp_path: Path) -> None:
    for number in range(8):
        nx.write_graphml(nx.path_graph(3 + number % 2), tmp_path / f"{number}.graphml")
    source = sources.load(DataConfig(str(tmp_path)))
    assert [len(one.worlds) for one in source.buckets] == [4, 4]
    assert source.homes.tolist() == [0, 1] * 4
    assert [len(one.worlds) for one in source.held_out] == [1, 1]
