import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nmln.errors import InputError
from nmln.formats.triples import read_triples, write_triples
from nmln.language import Attribute, Language, predicate
from nmln.space import Space
from tests.strategies import random_worlds


def test_triples_become_worlds_over_the_names_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x\tr\ty\nx\ts t\tx\n")
    (tmp_path / "b.tsv").write_text("z\tr\tx\r\n\n")
    space, worlds = read_triples(tmp_path / "a.tsv", tmp_path / "b.tsv")
    assert space.domain == {"entity": ("x", "y", "z")}
    assert [a.name for a in space.language] == ["r", "s t"]
    assert worlds.sum(1).tolist() == [2, 1]
    again, valid = read_triples(tmp_path / "b.tsv", space=space)
    assert again is space
    assert torch.equal(valid[0], worlds[1])


cells = st.text(max_size=6).filter(
    lambda t: t and t == t.strip() and len(t.splitlines()) == 1 and "\t" not in t
)


@given(
    st.lists(cells, min_size=1, max_size=3, unique=True),
    st.lists(cells, min_size=1, max_size=4, unique=True),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_triples_round_trip(relations, entities, symmetric: bool, seed: int) -> None:
    assume(not any("\0" in name for name in relations + entities))
    language = Language(*(predicate(name, "e", "e", symmetric=symmetric) for name in relations))
    space = Space(language, {"e": entities})
    world = random_worlds(space, 1, seed)[0]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "w.tsv"
        write_triples(path, space, world)
        assert torch.equal(read_triples(path, space=space)[1][0], world)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tr\tb\na\tr\n", r"t\.tsv:2: a line .* three fields .* but this one has 2"),
        ("a r b\n", "but this one has 1"),
        ("a\t\tb\n", r"t\.tsv:1: a line .* three fields .* but this one has an empty one"),
        ("", "no triples in"),
    ],
)
def test_bad_triples_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.tsv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_triples(tmp_path / "t.tsv")


def test_what_is_no_triple_cannot_be_written(tmp_path: Path) -> None:
    space = Space(Language(Attribute("p", ("a", "a"), ("x", "y"))), {"a": 2})
    with pytest.raises(InputError, match="is not a Boolean binary predicate"):
        write_triples(tmp_path / "t.tsv", space, random_worlds(space, 1)[0])
    space = Space(Language(predicate("r", "e", "e")), {"e": ("tab\there",)})
    with pytest.raises(InputError, match="has a tab or a line end in a name"):
        write_triples(tmp_path / "t.tsv", space, torch.ones(1, dtype=torch.uint8))
    assert not (tmp_path / "t.tsv").exists()


@pytest.mark.skipif("NMLN_DATA" not in os.environ, reason="set NMLN_DATA to the data directory")
@pytest.mark.parametrize(
    ("name", "sizes", "entities", "relations"),
    [
        ("nations", [1592, 199, 201], 14, 55),
        ("kinship", [8544, 1068, 1074], 104, 25),
        ("umls", [5216, 652, 661], 135, 46),
    ],
)
def test_real_knowledge_bases_are_read_whole(name, sizes, entities, relations) -> None:
    folder = Path(os.environ["NMLN_DATA"]) / "kb" / name
    space, worlds = read_triples(*(folder / f"{split}.tsv" for split in ("train", "valid", "test")))
    assert worlds.sum(1, dtype=torch.int64).tolist() == sizes
    assert (len(space.domain["entity"]), len(space.language)) == (entities, relations)
