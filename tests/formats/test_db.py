from pathlib import Path

import pytest
import torch
from hypothesis import given

from nmln.errors import InputError
from nmln.formats.db import (
    encode_facts,
    format_worlds,
    from_text,
    infer_language,
    parse_facts,
    read_db,
    read_evidence,
    write_db,
)
from nmln.language import Attribute, Language, predicate
from nmln.logic import Literal
from nmln.space import Space
from nmln.worlds import to_text
from tests.strategies import random_worlds, spaces_with_worlds

LANGUAGE = Language(
    predicate("smokes", "person"),
    predicate("friends", "person", "person"),
    Attribute("lives", ("person",), ("Rome", "Oslo"), value_sort="town"),
    predicate("rain"),
)


def write(folder: Path, text: str | bytes, name: str = "w.db") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@given(spaces_with_worlds(count=3))
def test_worlds_read_back_from_db_text(drawn) -> None:
    space, worlds = drawn
    lines = "\n".join(format_worlds(space, worlds)).split("\n")
    facts = parse_facts(enumerate(lines, 1), "text")
    assert torch.equal(encode_facts(space, facts), worlds)


@given(spaces_with_worlds())
def test_a_world_reads_back_from_nl_text(drawn) -> None:
    space, worlds = drawn
    facts = parse_facts(enumerate(format_worlds(space, worlds, "nl"), 1), "text", "nl")
    assert torch.equal(encode_facts(space, facts), worlds)


@pytest.mark.parametrize("name", ["w.db", "w.nl"])
def test_files_round_trip(tmp_path: Path, name: str) -> None:
    space = Space(LANGUAGE, {"person": ("Anna", "Bob B.")})
    worlds = random_worlds(space, 1)
    write_db(tmp_path / name, space, worlds)
    read, back = read_db(tmp_path / name, LANGUAGE, space.domain)
    assert read == space
    assert torch.equal(back, worlds)


def test_comments_blank_lines_signs_and_separators(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeff// a comment\r\nsmokes(Anna)   // who else\r\n\r\n! smokes( Bob )\nrain\n"
        'lives(Anna, Rome)\n lives(Bob,"Oslo")\n---\nlives(Anna,Oslo)\nlives(Bob,Oslo)\nrain()\n',
    )
    space, worlds = read_db(path, LANGUAGE)
    assert space.domain == {"person": ("Anna", "Bob")}
    assert len(worlds) == 2
    assert worlds[:, -1].tolist() == [1, 1]
    assert worlds[:, :2].tolist() == [[1, 0], [0, 0]]


def test_without_a_header_every_name_is_a_predicate(tmp_path: Path) -> None:
    path = write(tmp_path, "Friends(Anna, Bob).\nSmokes(Bob).\n", "w.nl")
    space, worlds = read_db(path)
    assert [a.declaration() for a in space.language] == [
        "Friends(constant, constant)",
        "Smokes(constant)",
    ]
    assert int(worlds.sum()) == 2


def test_text_reads_back_without_a_file() -> None:
    space = Space(LANGUAGE, {"person": ("Anna", "Bob")})
    world = random_worlds(space, 1)
    assert torch.equal(from_text(space, to_text(space, world[0])), world)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"w\.db: there is only one world here"):
        read_db(write(tmp_path, "// nothing\n"))
    with pytest.raises(InputError, match="there is no world to write"):
        write_db(
            tmp_path / "x.db", Space(LANGUAGE, {"person": 1}), torch.zeros(0, 4, dtype=torch.uint8)
        )


def test_an_open_world_leaves_the_unsaid_unknown(tmp_path: Path) -> None:
    space = Space(LANGUAGE, {"person": ("Anna", "Bob")})
    path = write(tmp_path, "!smokes(Anna)\nlives(Bob, Rome)\nfriends(Anna, Bob)\n")
    assert read_evidence(path, space).counts.tolist() == [1, 2, 2, 1, 2, 2, 2, 1, 2]
    closed = read_evidence(path, space, closed=["friends"])
    assert closed.counts.tolist() == [1, 2, 1, 1, 1, 1, 2, 1, 2]


def test_the_short_cut_and_the_grammar_read_the_same() -> None:
    for line in ("p(a,b)", "!p(a)", " p( a , b ) ", "p(1,2)", "N+(x-y)", "p(Ünï)"):
        fast = parse_facts([(1, line)], "t")[0].literals
        slow = parse_facts([(1, f"{line} // x")], "t")[0].literals
        assert fast == slow
    assert parse_facts([(1, "p(a).")], "t", "nl")[0].literals == [Literal("p", ("a",))]


HOMES = "lives(A,Rome)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smokes(A)\ndrinks(A)", r"w\.db:2:1: unknown predicate drinks"),
        (HOMES + "smokes(A,A)", r"w\.db:2:1: smokes\(A, A\) has 2 arguments, but smokes takes 1"),
        (HOMES + "smokes(B)", r"w\.db:2:8: undeclared constant B"),
        (HOMES + "lives(A,Bonn)", r"w\.db:2:9: undeclared constant Bonn .*Rome, Oslo"),
        (HOMES + "\nlives(A,Oslo)", r"w\.db:3: .* cannot both be true"),
        (HOMES + "rain\n\n!rain", r"w\.db:4: !rain\(\) contradicts"),
        (HOMES + "smokes(A", r"w\.db:2:9: the line ends here; expected '\)' or ','"),
        (
            HOMES + "smokes(A).",
            r"w\.db:2:10: '\.' is not understood here; expected the end of .*\.nl file",
        ),
        (HOMES + 'smokes("A)', r"w\.db:2:8: '\"A\)' is not understood here; expected one of"),
        (HOMES + "smokes A", r"w\.db:2:8: 'A' is not understood here"),
        (b"smokes(A)\n\x00\x01\x02", r"w\.db:2:1: a zero byte: this is a binary or damaged file"),
        (b"smokes(A)\nr(\xff)", r"w\.db:2:3: byte 0xff is not UTF-8 text"),
        ("smokes(A)", r"w\.db: no value is given for lives\(A\)"),
        (HOMES + "---\nsmokes(A)", r"w\.db:3: no value is given for lives\(A\)"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_line(tmp_path: Path, text, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_db(write(tmp_path, text), LANGUAGE, {"person": ("A",)})


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.db: there is no such file"):
        read_db(tmp_path / "no.db")
    with pytest.raises(InputError, match="this is a directory"):
        read_db(tmp_path)


def test_evidence_is_about_one_world(tmp_path: Path) -> None:
    space = Space(LANGUAGE, {"person": ("A",)})
    with pytest.raises(InputError, match=r"w\.db: evidence is about one world, but 2"):
        read_evidence(write(tmp_path, "rain\n---\nrain"), space)
    with pytest.raises(InputError, match=r"w\.db: the evidence contradicts itself.*lives\(A\)"):
        read_evidence(write(tmp_path, "!lives(A,Rome)\n!lives(A,Oslo)"), space)


def test_an_arity_that_changes_is_refused_where_the_language_is_inferred() -> None:
    with pytest.raises(InputError, match=r"t:2: p\(a, b\) has 2 arguments, but p had 1 before"):
        infer_language(parse_facts([(1, "p(a)"), (2, "p(a,b)")], "t"))


def test_several_worlds_do_not_fit_into_nl(tmp_path: Path) -> None:
    space = Space(Language(predicate("p", "a")), {"a": 1})
    path = write(tmp_path, "old", "w.nl")
    with pytest.raises(InputError, match=r"a \.nl file holds one world, not 2"):
        write_db(path, space, random_worlds(space, 2))
    assert path.read_text() == "old", "a failed write must leave the old file"
    assert [p.name for p in tmp_path.iterdir()] == ["w.nl"]
