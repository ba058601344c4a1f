import subprocess
import sys
from pathlib import Path

import pytest

from nmln.files import InputError, only_one, read_lines, write_atomically, write_lines


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


def test_only_one_process_works_in_a_folder(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from nmln.files import only_one\n"
        "with only_one(Path(sys.argv[1]), 'training'): pass"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run" / "lock")]
    with only_one(tmp_path / "run" / "lock", "training"):
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "another process is training in this folder" in other.stderr
    subprocess.run(command, check=True)


def test_a_folder_that_cannot_be_written_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with only_one(tmp_path / "file" / "lock", "training"):
        pass
