from pathlib import Path

import pytest

from nmln.files import InputError, read_lines, write_atomically, write_lines


def test_lines_round_trip_with_any_line_end(tmp_path: Path) -> None:
    write_lines(tmp_path / "deep" / "t.txt", ["a", "ü", ""])
    assert list(read_lines(tmp_path / "deep" / "t.txt")) == [(1, "a"), (2, "ü"), (3, "")]
    (tmp_path / "w.txt").write_bytes(b"a\r\nb")
    assert list(read_lines(tmp_path / "w.txt")) == [(1, "a"), (2, "b")]


def test_a_write_that_fails_leaves_the_old_file_and_no_debris(tmp_path: Path) -> None:
    target = tmp_path / "t.txt"
    write_lines(target, ["old"])

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, fail)
    assert target.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_tells_its_place() -> None:
    error = InputError("wrong.", token="b").at("f.db", 7, "ab(\n b)")
    assert str(error) == "f.db:8:2: wrong."
    assert (error.line, error.column) == (8, 2)
    assert str(InputError("wrong.").at("f.db", 7)) == "f.db:7: wrong."
