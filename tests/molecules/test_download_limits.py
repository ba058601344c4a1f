"""What a download may not be: larger than expected, tiny, unprotected, or a bomb."""

import gzip
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from requests.adapters import HTTPAdapter

from nmln.errors import InputError
from nmln.molecules import smiles_files
from nmln.molecules.downloads import SOURCES, PublicSource, cache_folder, fetch
from nmln.molecules.smiles_files import stream_lines
from tests.molecules.download_server import CONTENT, Server, left_over


@pytest.fixture
def tight(source: PublicSource, monkeypatch: pytest.MonkeyPatch) -> PublicSource:
    """A source of which only half is expected."""
    monkeypatch.setattr(PublicSource, "most", len(CONTENT) // 2)
    return source


@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_larger_than_expected_is_not_taken(
    server: Server, tight: PublicSource, lengths: bool
) -> None:
    server.lengths = lengths
    with pytest.raises(InputError, match=rf"could not be fetched: .*at most {tight.most:,} are"):
        fetch(tight)
    assert left_over() == set()
    assert len(server.asked) == 1


def test_a_part_that_grows_beyond_the_limit_is_thrown_away(
    server: Server, source: PublicSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.cut = 5000
    with pytest.raises(InputError, match="broke"):
        fetch(source, attempts=1)
    server.cut = None
    monkeypatch.setattr(PublicSource, "most", 6000)
    with pytest.raises(InputError, match=r"could not be fetched: .*at most 6,000 are expected"):
        fetch(source, attempts=1)
    assert left_over() == set()


def test_every_set_has_a_generous_limit() -> None:
    for source in SOURCES.values():
        assert 4 * source.megabytes * 10**6 < source.most < 2 * 10**9
        assert source.least < source.megabytes * 10**6


@pytest.mark.parametrize("url", ["http://example.org/small.csv", "HTTP://10.0.0.1/small.csv"])
def test_plain_http_is_refused_before_anything_is_asked(
    server: Server, source: PublicSource, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(HTTPAdapter, "send", None)
    with pytest.raises(InputError, match=r"http is not protected.*give an https address"):
        fetch(source, url=url)
    assert left_over() == set()


@pytest.mark.parametrize("end", ["http://example.org/small.csv", "http://127.0.0.1:1/small.csv"])
def test_a_redirect_from_https_to_http_is_not_followed(
    server: Server, source: PublicSource, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    asked: list[str] = []

    def answer(_: object, request: requests.PreparedRequest, **__: object) -> requests.Response:
        asked.append(str(request.url))
        response = requests.Response()
        response.url, response.request = str(request.url), request
        response.status_code = 302 if len(asked) == 1 else 200
        response.headers["Location"] = end
        response.raw = io.BytesIO(b"smiles\nC\n")
        return response

    monkeypatch.setattr(HTTPAdapter, "send", answer)
    with pytest.raises(InputError, match=f"could not be fetched: it redirects from https to {end}"):
        fetch(source, url="https://example.org/small.csv", attempts=1)
    assert asked == ["https://example.org/small.csv"]
    assert left_over() == set()


def test_a_redirect_away_from_this_machine_by_http_is_not_followed(
    server: Server, source: PublicSource
) -> None:
    server.redirect = "http://example.org/small.csv"
    with pytest.raises(InputError, match="http is not protected"):
        fetch(source, attempts=1)
    assert len(server.asked) == 1


def test_a_tiny_table_is_not_a_large_set(server: Server, source: PublicSource) -> None:
    chembl = replace(SOURCES["chembl"], url=server.url.replace("small.csv", "chembl.txt.gz"))
    server.content = gzip.compress(b"canonical_smiles\nCCO\n", mtime=0)
    with pytest.raises(InputError, match=r"not the official file: it has \d+ bytes.* 274 MB"):
        fetch(chembl)
    assert left_over() == set()


def test_a_packed_table_that_unpacks_to_too_much_is_refused(
    server: Server, source: PublicSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PublicSource, "most_unpacked", 100_000)
    server.content = gzip.compress(b"smiles\n" + b"CCO\n" * 50_000)
    url = server.url.replace("small.csv", "small.csv.gz")
    with pytest.raises(InputError, match="unpacks to more than 100,000 characters"):
        fetch(replace(source, url=url, sha256=None))
    assert left_over() == set()


def test_a_file_that_unpacks_to_very_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smiles_files, "_LARGE", 10**6)
    path = tmp_path / "bomb.smi.gz"
    path.write_bytes(gzip.compress(b"C\n" * 10**6, 9))
    with pytest.raises(InputError, match=r"bomb\.smi\.gz: this unpacks to more than"):
        list(stream_lines(path))


@pytest.mark.parametrize("packed", [True, False])
def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, packed: bool) -> None:
    content = b"C" * (2**24 + 2)
    path = tmp_path / ("long.smi.gz" if packed else "long.smi")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    with pytest.raises(InputError, match="this line has more than 16,777,216 characters"):
        list(stream_lines(path))


def test_what_is_no_file_in_the_cache_is_named(server: Server, source: PublicSource) -> None:
    cache_folder().mkdir()
    os.mkfifo(cache_folder() / source.file)
    with pytest.raises(InputError, match="not a regular file"):
        fetch(source)
