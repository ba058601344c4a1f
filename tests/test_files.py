import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmln.errors import InputError
from nmln.files import (
    only_one,
    open_regular,
    read_lines,
    refuse_links,
    write_atomically,
    write_lines,
)


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


def test_an_error_names_its_place() -> None:
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


@pytest.mark.parametrize("mode", ["rb", "wb", "ab", "r+b"])
def test_a_link_or_pipe_is_never_opened(tmp_path: Path, mode: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "link").symlink_to(precious)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="links within a run folder"):
        open_regular(tmp_path / "link", mode)
    with pytest.raises((InputError, OSError)):
        open_regular(tmp_path / "pipe", mode)
    assert precious.read_text() == "mine"


def test_a_folder_with_a_link_or_pipe_deep_inside_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "run" / "one" / "two"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    refuse_links(tmp_path / "alias")
    refuse_links(tmp_path / "absent")
    (deep / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="dangling: links"):
        refuse_links(tmp_path / "alias")
    (deep / "dangling").unlink()
    os.mkfifo(deep / "pipe")
    with pytest.raises(InputError, match="pipe: this is not a regular file"):
        refuse_links(tmp_path / "run")


def test_a_folder_deeper_than_python_can_call_is_looked_through(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    handles = [os.open(tmp_path / "run", os.O_RDONLY)]
    try:
        for _ in range(1200):
            os.mkdir("d", dir_fd=handles[-1])
            handles.append(os.open("d", os.O_RDONLY, dir_fd=handles[-1]))
            if len(handles) > 2:
                os.close(handles.pop(-2))
        os.symlink("elsewhere", "link", dir_fd=handles[-1])
        with pytest.raises(InputError, match="link: links within a run folder"):
            refuse_links(tmp_path / "run")
    finally:
        for handle in handles:
            os.close(handle)
        subprocess.run(["rm", "-r", tmp_path / "run"], check=True)  # nor can Python remove it


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    target, killed, other = tmp_path / "a.png", ".a.png.abcdefgh.partial", ".a.png.user.partial"
    (tmp_path / killed).touch()
    (tmp_path / other).touch()

    def write(temporary: Path) -> None:
        # A writer that is still alive keeps its file, also when another one begins.
        write_lines(target, ["first"])
        temporary.write_text("second")

    write_atomically(target, write)
    assert target.read_text() == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == [other, "a.png"]
