"""Downloads, against a server in a thread: cut off, resumed, refused, out of reach."""

import hashlib
from dataclasses import replace

import pytest

from nmln.files import InputError
from nmln.molecules.downloads import (
    MIRROR,
    SOURCES,
    Source,
    cache_folder,
    fetch,
    select,
    source_named,
)
from tests.molecules.download_server import CONTENT, SHA256, Server, left_over

# What should happen.


def test_a_file_is_fetched_once_with_its_hash_beside_it(server: Server, source: Source) -> None:
    told: list[tuple[int, int | None]] = []
    fetched = fetch(source, watch=lambda done, total: told.append((done, total)))
    assert fetched.path.read_bytes() == CONTENT
    assert fetched.sha256 == SHA256
    assert fetched.known
    assert fetched.seconds is not None
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert (cache_folder() / "small.csv.sha256").read_text() == f"{SHA256}  small.csv\n"
    assert server.asked[0]["Accept-Encoding"] == "identity"
    again = fetch(source)
    assert again.path == fetched.path
    assert again.seconds is None
    assert len(server.asked) == 1
    assert left_over() == {"small.csv", "small.csv.sha256"}


def test_an_interrupted_download_goes_on_where_it_stopped(server: Server, source: Source) -> None:
    server.cut = 5000
    with pytest.raises(
        InputError, match=r"broke after 5,000 bytes.*run the command again.*cache/small\.csv"
    ):
        fetch(source, attempts=1)
    assert left_over() == {"small.csv.part", "small.csv.part.version"}
    with pytest.raises(InputError, match=r"broke after 5,000 bytes"):
        fetch(source, url="http://127.0.0.1:9/small.csv", attempts=1)  # offline meanwhile
    server.cut = None
    assert fetch(source, attempts=1).path.read_bytes() == CONTENT
    assert server.asked[-1]["Range"] == "bytes=5000-"
    assert server.asked[-1]["If-Range"] == '"first"'
    assert left_over() == {"small.csv", "small.csv.sha256"}


def test_where_no_length_is_told_the_hash_knows_that_something_is_missing(
    server: Server, source: Source
) -> None:
    server.cut, server.lengths = 5000, False
    with pytest.raises(InputError, match=r"is expected\. It was thrown away"):
        fetch(source)
    assert left_over() == set()


def test_one_command_survives_several_cuts(server: Server, source: Source) -> None:
    server.cut = len(CONTENT) // 3 + 1
    assert fetch(source, attempts=3).path.read_bytes() == CONTENT
    assert [asked.get("Range") for asked in server.asked] == [
        None, f"bytes={server.cut}-", f"bytes={2 * server.cut}-",
    ]  # fmt: skip


def test_a_server_without_ranges_is_asked_for_the_whole_file(
    server: Server, source: Source
) -> None:
    server.cut, server.ranges = 5000, False
    with pytest.raises(InputError, match="broke after 5,000 bytes"):
        fetch(source, attempts=1)
    server.cut = None
    assert fetch(source, attempts=1).path.read_bytes() == CONTENT
    assert server.asked[-1]["Range"] == "bytes=5000-"


def test_a_file_that_changed_meanwhile_is_begun_anew(server: Server, source: Source) -> None:
    server.cut = 5000
    unknown = replace(source, sha256=None)
    with pytest.raises(InputError, match="broke"):
        fetch(unknown, attempts=1)
    server.cut, server.version, server.content = None, '"second"', CONTENT[::-1]
    assert fetch(unknown, attempts=1).path.read_bytes() == CONTENT[::-1]


def test_without_a_version_and_a_hash_nothing_is_put_together(
    server: Server, source: Source
) -> None:
    server.cut, server.version = 5000, None
    unknown = replace(source, sha256=None)
    with pytest.raises(InputError, match="broke"):
        fetch(unknown, attempts=1)
    server.cut = None
    assert fetch(unknown, attempts=1).path.read_bytes() == CONTENT
    assert "Range" not in server.asked[-1]


@pytest.mark.parametrize(("there", "asked"), [(len(CONTENT), 1), (len(CONTENT) + 7, 2)])
def test_a_part_that_is_whole_or_too_long_is_noticed(
    server: Server, source: Source, there: int, asked: int
) -> None:
    cache_folder().mkdir()
    (cache_folder() / "small.csv.part").write_bytes((CONTENT + b"further")[:there])
    assert fetch(source).path.read_bytes() == CONTENT
    assert len(server.asked) == asked


def test_the_mirror_and_another_address_serve_the_same_file(
    server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = replace(source, url="http://127.0.0.1:9/other/small.csv")
    assert fetch(gone, url=server.url).path.read_bytes() == CONTENT
    (cache_folder() / "small.csv").unlink()
    monkeypatch.setenv(MIRROR, server.url.rsplit("/", 1)[0] + "/")
    assert fetch(gone).path.read_bytes() == CONTENT


# Hashes.


def test_a_wrong_hash_is_refused_and_nothing_is_left(server: Server, source: Source) -> None:
    server.content = CONTENT + b"more\n"
    found = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(InputError, match=f"{found}, but {SHA256} is expected"):
        fetch(source)
    assert left_over() == set()
    assert fetch(source, sha256=found.upper()).sha256 == found
    assert fetch(source).seconds is None  # what was demanded once is the recorded hash now


def test_an_unknown_hash_is_recorded_at_first_and_checked_from_then_on(
    server: Server, source: Source
) -> None:
    unknown = replace(source, sha256=None)
    assert not fetch(unknown).known
    assert fetch(unknown).known
    (cache_folder() / "small.csv").write_bytes(b"smiles\nC\n")
    with pytest.raises(InputError, match=f"small.csv: its sha256 is .*, but {SHA256} is expected"):
        fetch(unknown)
    with pytest.raises(InputError, match=f"was {SHA256} when it was fetched"):
        select(unknown, 1)
    (cache_folder() / "small.csv").unlink()
    server.content = b"smiles\nC\n"
    with pytest.raises(InputError, match=f"but {SHA256} is expected. It was thrown away"):
        fetch(unknown)
    assert "small.csv" not in left_over()


def test_a_hash_that_is_none_is_refused(source: Source) -> None:
    with pytest.raises(InputError, match="64 hexadecimal digits"):
        fetch(source, sha256="abc")


# Without a network.


def test_a_refused_connection_says_where_to_put_the_file(server: Server, source: Source) -> None:
    gone = replace(source, url="http://127.0.0.1:9/small.csv")
    path = cache_folder() / "small.csv"
    with pytest.raises(InputError) as caught:
        fetch(gone)
    message = str(caught.value)
    assert message.startswith(
        "http://127.0.0.1:9/small.csv could not be fetched: connection refused."
    )
    assert f"put the file at {path} by hand" in message
    assert "\n" not in message
    path.write_bytes(CONTENT)  # as told
    assert fetch(gone).sha256 == SHA256
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="its sha256 is"):
        fetch(gone)
    assert path.exists()  # what the user put there is the user's


@pytest.mark.parametrize("status", [404, 503])
def test_a_server_that_refuses_is_quoted(server: Server, source: Source, status: int) -> None:
    server.status = status
    with pytest.raises(
        InputError, match=rf"small\.csv could not be fetched: the server says {status}"
    ):
        fetch(source)
    assert left_over() == set()


def test_an_address_that_is_none_is_one_message(server: Server, source: Source) -> None:
    for url in ("nonsense", "ftp://127.0.0.1/x.csv"):
        with pytest.raises(InputError, match="could not be fetched"):
            fetch(source, url=url)


def test_a_name_that_is_none_lists_the_names() -> None:
    with pytest.raises(InputError, match="qm9, zinc250k, moses, chembl"):
        source_named("zinc")
    assert source_named("ChEMBL").name == "chembl"


def test_the_sources_are_complete() -> None:
    for source in SOURCES.values():
        assert source.url.startswith("https://")
        assert source.file.endswith((".csv", ".txt.gz"))
        assert source.licence
        assert source.sha256 is None or len(source.sha256) == 64
    assert len({source.file for source in SOURCES.values()}) == len(SOURCES)
