"""Notes of a new run about its data: constants that differ, lone worlds; and `nmln data info`."""

from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from typer.testing import CliRunner

from nmln.cli import app
from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.runs import data as sources
from nmln.runs import train as training
from tests.molecules.test_sizes import LINES, ONE
from tests.runs.runs import settings
from tests.runs.several_domains import write_graphs, write_people

DIFFER = (
    "the worlds name different constants: 3 of 4 are common to all. Every world has all of them; "
    "--domains each takes those of each world."
)


class Notes(training.Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def trained(source: Path, **changes: Any) -> Notes:
    """The notes of a run of one step, and none when it is resumed."""
    config = settings(source, chains__replicas=16, training__batch=16, training__steps=1, **changes)
    seen, again, folder = Notes(), Notes(), source.parent / "run"
    training.run(training.begin(folder, config), seen)
    training.run(training.resume(folder), again)
    assert again.notes == []
    return seen


def test_constants_that_differ_between_worlds_are_noted(tmp_path: Path) -> None:
    assert trained(write_people(tmp_path / "people.db")).notes == [DIFFER]


def test_constants_that_differ_between_files_are_noted(tmp_path: Path) -> None:
    whole = write_people(tmp_path / "people.db").read_text().strip().split("\n---\n")
    folder = tmp_path / "worlds"
    folder.mkdir()
    for number, world in enumerate(whole):
        (folder / f"{number:02d}.db").write_text(world + "\n")
    assert sources.load(DataConfig(str(folder))).notes == (DIFFER,)
    assert sources.load(DataConfig(str(folder), domains="each")).notes == ()


def test_worlds_with_the_same_constants_have_no_note(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    path.write_text("smokes(Anna)\n!smokes(Bob)\n---\nsmokes(Bob)\n!smokes(Anna)\n")
    assert sources.load(DataConfig(str(path))).notes == ()
    (tmp_path / "people.mln").write_text("person = {Anna, Bob, Carl}\nsmokes(person)\n")
    path.write_text("smokes(Anna)\n---\nsmokes(Bob)\n")
    declared = DataConfig(str(path), language=str(tmp_path / "people.mln"))
    assert sources.load(declared).notes == ()


def test_constants_are_counted_by_sort(tmp_path: Path) -> None:
    path = tmp_path / "owners.db"
    path.write_text("owns(Anna, Car)\n---\nowns(Bob, Car)\nowns(Anna, Cat)\n")
    (tmp_path / "owners.mln").write_text("owns(person, thing)\n")
    (note,) = sources.load(DataConfig(str(path), language=str(tmp_path / "owners.mln"))).notes
    assert "1 of 2 person and 1 of 2 thing are common to all" in note


def test_a_size_with_one_world_is_noted(tmp_path: Path) -> None:
    folder = write_graphs(tmp_path / "graphs")
    nx.write_graphml(nx.path_graph(7), folder / "99.graphml")
    assert trained(folder).notes == ["size 7 has one world: none of it is held out."]
    nx.write_graphml(nx.path_graph(8), folder / "98.graphml")
    said = "sizes 7, 8 have one world each: none of them is held out."
    assert sources.load(DataConfig(str(folder))).notes == (said,)
    assert sources.load(DataConfig(str(folder), train_share=1.0)).notes == ()


def test_one_world_alone_is_no_size_of_several(tmp_path: Path) -> None:
    (tmp_path / "one.db").write_text("smokes(Anna)\n")
    assert sources.load(DataConfig(str(tmp_path / "one.db"), domains="each")).notes == ()


def test_sizes_of_molecules_that_are_left_out_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "mixed.smi"
    path.write_text("\n".join([*LINES, ONE]) + "\n")
    (note,) = trained(path).notes
    assert note.startswith("sizes left out (heavy atoms: molecules): 7: 1 (fewer than 2")


# nmln data info.


def info(*paths: Path) -> str:
    done = CliRunner().invoke(app, ["data", "info", *map(str, paths)])
    assert done.exit_code == 0, (done.output, done.exception)
    return " ".join(done.output.split())


def test_worlds_are_counted_by_their_constants(tmp_path: Path) -> None:
    said = info(write_people(tmp_path / "people.db"))
    assert "worlds: 20 formulas: 0 constants: constant 4" in said
    assert "worlds by the number of constants that they name: 3 (10), 4 (10)" in said
    assert f"note: {DIFFER}" in said


@pytest.mark.parametrize("single", [False, True])
def test_graphs_are_shown_by_their_numbers_of_nodes(tmp_path: Path, single: bool) -> None:
    folder = write_graphs(tmp_path / "graphs")
    said = info(*(sorted(folder.glob("*")) if single else [folder]))
    assert "at most 15 groups" in said
    assert "worlds: 12 formulas: 0 constants: node 4 to 6" in said
    assert "worlds by their number of constants: 4 (4), 5 (4), 6 (4)" in said
    assert "6 to 15" in said


def test_a_folder_of_worlds_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "worlds"
    folder.mkdir()
    (folder / "a.db").write_text("smokes(Anna)\n")
    (folder / "b.db").write_text("smokes(Anna)\nsmokes(Bob)\n")
    assert "worlds by the number of constants that they name: 1 (1), 2 (1)" in info(folder)
    (tmp_path / "people.mln").write_text("person = {Anna, Bob}\nsmokes(person)\n")
    assert "that they name" not in info(tmp_path / "people.mln", folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"without a \.graphml or \.db file"):
        sources.inspect([tmp_path / "empty"])
