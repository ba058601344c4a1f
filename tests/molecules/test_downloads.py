"""Downloads, against a server in a thread: cut off, resumed, refused, out of reach."""

import gzip
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from nmln.errors import InputError
from nmln.molecules.downloads import (
    MIRROR,
    SOURCES,
    PublicSource,
    cache_folder,
    fetch,
    select,
    source_named,
)
from tests.molecules.download_server import CONTENT, SHA256, Server, left_over

# What should happen.


def test_a_file_is_fetched_once_with_its_hash_beside_it(
    server: Server, source: PublicSource
) -> None:
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


def test_an_interrupted_download_continues_where_it_stopped(
    server: Server, source: PublicSource
) -> None:
    server.cut = 5000
    with pytest.raises(
        InputError, match=r"broke after 5,000 bytes.*Run the command again.*cache/small\.csv"
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


def test_where_no_length_is_sent_the_hash_shows_that_something_is_missing(
    server: Server, source: PublicSource
) -> None:
    server.cut, server.lengths = 5000, False
    with pytest.raises(InputError, match="must have the sha256"):
        fetch(source)
    assert left_over() == set()


def test_one_command_survives_several_cuts(server: Server, source: PublicSource) -> None:
    server.cut = len(CONTENT) // 3 + 1
    assert fetch(source, attempts=3).path.read_bytes() == CONTENT
    assert [asked.get("Range") for asked in server.asked] == [
        None, f"bytes={server.cut}-", f"bytes={2 * server.cut}-",
    ]  # fmt: skip


def test_a_server_without_ranges_is_asked_for_the_whole_file(
    server: Server, source: PublicSource
) -> None:
    server.cut, server.ranges = 5000, False
    with pytest.raises(InputError, match="broke after 5,000 bytes"):
        fetch(source, attempts=1)
    server.cut = None
    assert fetch(source, attempts=1).path.read_bytes() == CONTENT
    assert server.asked[-1]["Range"] == "bytes=5000-"


def test_a_file_that_changed_meanwhile_is_downloaded_again(
    server: Server, source: PublicSource
) -> None:
    server.cut = 5000
    unknown = replace(source, sha256=None)
    with pytest.raises(InputError, match="broke"):
        fetch(unknown, attempts=1)
    changed = CONTENT.replace(b"C", b"O")
    server.cut, server.version, server.content = None, '"second"', changed
    assert fetch(unknown, attempts=1).path.read_bytes() == changed


def test_without_a_version_and_a_hash_nothing_is_put_together(
    server: Server, source: PublicSource
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
    server: Server, source: PublicSource, there: int, asked: int
) -> None:
    cache_folder().mkdir()
    (cache_folder() / "small.csv.part").write_bytes((CONTENT + b"further")[:there])
    assert fetch(source).path.read_bytes() == CONTENT
    assert len(server.asked) == asked


def test_the_mirror_and_another_address_serve_the_same_file(
    server: Server, source: PublicSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = replace(source, url="http://127.0.0.1:9/other/small.csv")
    assert fetch(gone, url=server.url).path.read_bytes() == CONTENT
    (cache_folder() / "small.csv").unlink()
    monkeypatch.setenv(MIRROR, server.url.rsplit("/", 1)[0] + "/")
    assert fetch(gone).path.read_bytes() == CONTENT


def test_a_second_process_does_not_fetch_the_same_file(
    server: Server, source: PublicSource
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        go_on.wait(30)

    server.pause = pause
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(fetch, source)
        try:
            assert begun.wait(30)
            with pytest.raises(
                InputError, match=r"cache: another process is fetching small\.csv.*Wait for it"
            ):
                fetch(source)
        finally:
            go_on.set()
        assert first.result().path.read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert fetch(source).seconds is None


# Hashes.


def test_a_wrong_hash_is_refused_and_nothing_is_left(server: Server, source: PublicSource) -> None:
    server.content = CONTENT + b"more\n"
    found = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(InputError, match=f"{SHA256}, got {found}"):
        fetch(source)
    assert left_over() == set()
    assert fetch(source, sha256=found.upper()).sha256 == found
    assert fetch(source).seconds is None  # what was demanded once is the recorded hash now


def test_an_unknown_hash_is_recorded_at_first_and_checked_from_then_on(
    server: Server, source: PublicSource
) -> None:
    unknown = replace(source, sha256=None)
    assert not fetch(unknown).known
    assert fetch(unknown).known
    (cache_folder() / "small.csv").write_bytes(b"smiles\nC\n")
    with pytest.raises(InputError, match=f"small.csv: its sha256 is .*{SHA256}"):
        fetch(unknown)
    with pytest.raises(InputError, match=f"was {SHA256} when it was fetched"):
        select(unknown, 1)
    (cache_folder() / "small.csv").unlink()
    server.content = b"smiles\nC\n"
    with pytest.raises(InputError, match=f"must have the sha256 {SHA256}"):
        fetch(unknown)
    assert "small.csv" not in left_over()


def test_a_hash_that_is_none_is_refused(source: PublicSource) -> None:
    with pytest.raises(InputError, match="64 hexadecimal digits"):
        fetch(source, sha256="abc")


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"none\n", b"abc" * 50])
def test_a_damaged_record_of_a_hash_is_named_with_its_cure(
    server: Server, source: PublicSource, content: bytes
) -> None:
    fetch(source)
    record = cache_folder() / "small.csv.sha256"
    record.write_bytes(content)
    for read in (lambda: fetch(source), lambda: select(source, 3)):
        with pytest.raises(InputError, match=r"small\.csv\.sha256: .*Delete it, or give") as caught:
            read()
        assert "\n" not in str(caught.value)
    assert fetch(source, sha256=SHA256).known
    assert record.read_text() == f"{SHA256}  small.csv\n"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'"fir\nst"', "\u0416".encode(), b" x"])
def test_a_damaged_version_counts_as_none(
    server: Server, source: PublicSource, content: bytes, known: bool
) -> None:
    server.cut = 5000
    wanted = source if known else replace(source, sha256=None)
    with pytest.raises(InputError, match="broke"):
        fetch(wanted, attempts=1)
    (cache_folder() / "small.csv.part.version").write_bytes(content)
    server.cut = None
    assert fetch(wanted, attempts=1).path.read_bytes() == CONTENT
    assert server.asked[-1].get("Range") == ("bytes=5000-" if known else None)
    assert "If-Range" not in server.asked[-1]


# A first download that no hash vouches for.

TABLE = b"chembl_id\tcanonical_smiles\nX1\tCCO\n" + b"".join(b"X\tC%d\n" % i for i in range(9999))


@pytest.fixture
def unvouched(source: PublicSource) -> PublicSource:
    url = source.url.replace("small.csv", "small.txt.gz")
    return replace(source, url=url, sha256=None, column="canonical_smiles")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html>\n<p>Sorry", r"whole gzip file.*starts with '<!DOCTYPE html>'"),
        (b"<p>" + b"Sorry" * 50_000, r"whole gzip file.*starts with '<p>SorrySorry.{,60}…'"),
        (TABLE, r"whole gzip file.*starts with 'chembl_id canonical_smiles'"),
        (gzip.compress(TABLE, mtime=0)[:-9], "whole gzip file"),
        (gzip.compress(TABLE, mtime=0)[:40], "whole gzip file"),
        (gzip.compress(TABLE, mtime=0)[:-8] + bytes(8), "whole gzip file"),
        (b"\x1f\x8b" + bytes(50), "whole gzip file"),
        (gzip.compress(b"", mtime=0), "it is empty"),
        (gzip.compress(TABLE[:27], mtime=0), "nothing below its header"),
        (gzip.compress(b"name,logP\nx,1\n", mtime=0), "starts with 'name,logP'"),
        (gzip.compress(b"CCO\nCCN\n", mtime=0), "no column canonical_smiles .it starts with 'CCO'"),
        (gzip.compress(b"<p>No smiles here</p>\nx\n", mtime=0), "no column canonical_smiles"),
        (gzip.compress(b"<p>" + b"Sorry" * 50_000, mtime=0), "starts with '<p>Sorry"),
        (gzip.compress(b"canonical_smiles\nC\0\n", mtime=0), "binary file"),
    ],
)
def test_what_is_not_a_whole_table_of_smiles_is_not_recorded(
    server: Server, unvouched: PublicSource, content: bytes, found: str
) -> None:
    server.content = content
    path = cache_folder() / "small.txt.gz"
    with pytest.raises(InputError, match=f"not the official file: .*{found}") as caught:
        fetch(unvouched)
    message = str(caught.value)
    assert caught.value.kind == "content"
    assert f"put the file at {path} by hand" in message
    assert "\n" not in message
    assert len(message) < 600
    assert left_over() == set()

    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{path.name}: this is not .*{found}.*Move it away"):
        fetch(unvouched)
    assert left_over() == {path.name}  # what the user put there is the user's
    path.unlink()

    server.content = gzip.compress(TABLE)
    assert not fetch(unvouched).known
    assert fetch(unvouched).known
    assert left_over() == {path.name, f"{path.name}.sha256"}


def test_a_required_hash_vouches_for_any_content(server: Server, unvouched: PublicSource) -> None:
    server.content = b"anything"
    assert fetch(unvouched, sha256=hashlib.sha256(b"anything").hexdigest()).known


def test_a_check_that_is_cut_off_is_made_again_without_the_server(
    server: Server, unvouched: PublicSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    server.content = gzip.compress(TABLE)
    with monkeypatch.context() as patched:
        patched.setattr("nmln.molecules.downloads.stream_smiles", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch(unvouched)
    assert left_over() == {"unchecked-small.txt.gz"}
    assert not fetch(unvouched).known
    assert left_over() == {"small.txt.gz", "small.txt.gz.sha256"}
    assert len(server.asked) == 1


# Without a network.


def test_a_refused_connection_says_where_to_put_the_file(
    server: Server, source: PublicSource
) -> None:
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
def test_a_server_that_refuses_is_quoted(server: Server, source: PublicSource, status: int) -> None:
    server.status = status
    with pytest.raises(
        InputError, match=rf"small\.csv could not be fetched: the server says {status}"
    ):
        fetch(source)
    assert left_over() == set()


def test_an_address_that_is_none_is_one_message(server: Server, source: PublicSource) -> None:
    for url in ("nonsense", "ftp://127.0.0.1/x.csv"):
        with pytest.raises(InputError, match="could not be fetched"):
            fetch(source, url=url)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    "redirect", ["http://[bad", "http://127.0.0.1:99999/x", "file:///etc/passwd"]
)
def test_a_redirect_to_an_address_that_is_none_is_one_message(
    server: Server, source: PublicSource, redirect: str, there: bool
) -> None:
    if there:
        server.cut = 5000
        with pytest.raises(InputError, match="broke"):
            fetch(source, attempts=1)
    before = left_over()
    server.redirect = redirect
    with pytest.raises(InputError, match=r"small\.csv could not be fetched: .*by hand") as caught:
        fetch(source, attempts=1)
    assert "\n" not in str(caught.value)
    assert left_over() == before


@pytest.mark.parametrize(
    "says",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 9999 X\r\n\r\n",
        b"\x1b[31mred\nblue\r\n",
        b"HTTP/1.1 404 Not\x1b[31m\x07here\r\nContent-Length: 0\r\n\r\n",
        b"x" * 5000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb23\r\n\r\nabc",
    ],
)
def test_whatever_a_server_says_the_message_is_one_printable_line(
    server: Server, source: PublicSource, says: bytes
) -> None:
    server.says = says
    with pytest.raises(InputError, match=r"could not be fetched|must have the sha256") as caught:
        fetch(source, attempts=1)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


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
