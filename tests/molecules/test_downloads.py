"""Downloads, against a server in a thread: cut off, resumed, refused, out of reach."""

import gzip
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nmln.files import InputError
from nmln.molecules import downloads
from nmln.molecules.chemistry import Molecule, parse_all
from nmln.molecules.datasets import DIRECTORY, Molecules, describe, known, load
from nmln.molecules.downloads import (
    CACHE,
    MIRROR,
    SOURCES,
    Source,
    cache_folder,
    count_heavy_atoms,
    fetch,
    select,
    source_named,
)
from nmln.molecules.smiles_files import read_smiles

CONTENT = b"smiles,y\n" + b"".join(b"C%s,%d\n" % (b"C" * (i % 7), i) for i in range(2000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """Serves one file and remembers what it was asked; the fields make it misbehave."""

    content: bytes = CONTENT
    version: str | None = '"first"'
    cut: int | None = None  # bytes after which it hangs up
    ranges: bool = True
    lengths: bool = True
    status: int = 200
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(dict(handler.headers))
        if self.status != 200:
            return handler.send_error(self.status)
        wanted, begin = handler.headers.get("Range"), 0
        same = handler.headers.get("If-Range") in (None, self.version)
        if wanted and self.ranges and same:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if begin and begin >= len(self.content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(self.content)}")
            handler.send_header("Content-Length", "0")
            return handler.end_headers()
        handler.send_response(206 if begin else 200)
        body = self.content[begin:]
        if begin:
            span = f"bytes {begin}-{len(self.content) - 1}/{len(self.content)}"
            handler.send_header("Content-Range", span)
        if self.version is not None:
            handler.send_header("ETag", self.version)
        if self.lengths:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body if self.cut is None else body[: self.cut])
        return None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}/small.csv"
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(MIRROR, raising=False)
    monkeypatch.delenv(DIRECTORY, raising=False)
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def source(server: Server, monkeypatch: pytest.MonkeyPatch) -> Source:
    found = Source("small", "a small set", server.url, SHA256, 1, "none")
    monkeypatch.setitem(SOURCES, "small", found)
    return found


def left_over() -> set[str]:
    folder = cache_folder()
    return {file.name for file in folder.iterdir()} if folder.exists() else set()


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


# Filtering by size.

MIXED = (
    "smiles,logP\n"
    '"CCO\n",1.0\n'  # as ZINC250k has them: a line end within the quotes
    "OCC,1\n"
    "C[C@H](O)N,2\n"
    "CC.O,3\n"
    "CC[O-],4\n"
    "CCBr,5\n"
    "[13CH3]CO,6\n"
    "C[CH]O,7\n"
    "CCCC,8\n"
    "CC(,9\n"
    "ClCI,10\n"
)


def serve(server: Server, source: Source, content: str | bytes) -> Source:
    server.content = content if isinstance(content, bytes) else content.encode()
    return replace(source, sha256=None)


def test_a_set_of_one_size_is_filtered_once_and_found_by_name(
    server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = serve(server, source, MIXED)
    monkeypatch.setitem(SOURCES, "small", mixed)
    assert select(mixed, 3) is None
    with pytest.raises(InputError, match="Fetch it: nmln data fetch small --size 3"):
        load("small-3")
    with pytest.raises(InputError, match="nmln data fetch small"):
        describe("small")
    fetch(mixed)
    selected = select(mixed, 3)
    assert selected is not None
    assert selected.molecules == 2
    assert selected.lines == 11
    assert {(drop.reason, drop.count, drop.line) for drop in selected.dropped} == {
        ("another size", 3, 5), ("duplicate", 1, 4), ("several fragments", 1, 6), ("radical", 1, 10),
        ("charged atom", 1, 7), ("element Br", 1, 8), ("isotope label", 1, 9),
    }  # fmt: skip
    assert gzip.decompress(selected.path.read_bytes()) == b"CCO\nClCI\n"
    assert select(mixed, 3) == replace(selected, lines=None, dropped=(), seconds=None)
    assert load("small-3").smiles == ("CCO", "ClCI")
    assert Molecules.read("small", size=3).smiles == ("CCO", "ClCI")
    assert load("small-4").smiles == ("CC(N)O", "CCCC")
    assert describe("small").sizes[3] > 2  # of any kind
    assert {(one.name, one.place) for one in known()} >= {
        ("small-3", "cache"), ("small-SIZE", "cache"), ("qm9-SIZE", "nmln data fetch qm9"),
    }  # fmt: skip
    with pytest.raises(InputError, match="none of 11 lines is a neutral molecule of 40"):
        load("small-40")


def test_the_directory_goes_before_the_cache(
    server: Server, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "small", serve(server, source, MIXED))
    fetch(SOURCES["small"])
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    (tmp_path / "small_3.smi.gz").write_bytes(gzip.compress(b"CCN\n"))
    assert load("small-3").smiles == ("CCN",)
    assert load("small-4").smiles == ("CC(N)O", "CCCC")


def test_a_new_file_makes_old_sets_void(server: Server, source: Source) -> None:
    old = serve(server, source, "smiles\nCCO\n")
    fetch(old)
    assert select(old, 3) is not None
    (cache_folder() / "small.csv").unlink()
    (cache_folder() / "small.csv.sha256").unlink()
    server.content = b"smiles\nCCN\nCCC\n"
    fetch(old)
    selected = select(old, 3)
    assert selected is not None
    assert selected.molecules == 2


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"chembl_id\tcanonical_smiles\tstandard_inchi\nX1\tCCO\tInChI=1S/C2H6O,3H\n"),
        b"mol_id,smiles,A\ngdb_1,CCO,1.5\n",
        b"SMILES,SPLIT\nCCO,train\n",
        b'smiles,logP,qed,SAS\n"CCO\n",1.0,0.7,2.0\n',
    ],
    ids=["chembl", "qm9", "moses", "zinc250k"],
)
def test_the_layouts_of_the_official_files_are_read(
    server: Server, content: bytes, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    official = replace(SOURCES[name], sha256=None)
    server.content = content
    fetch(official, url=server.url)
    selected = select(official, 3)
    assert selected is not None
    assert read_smiles(selected.path) == [(1, "CCO")]


def test_several_processes_filter_alike(
    server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    parcels: list[int] = []

    class Workers:
        """Stands in for processes, which take seconds to start."""

        def __enter__(self) -> "Workers":
            return self

        def __exit__(self, *_: object) -> None: ...

        def map(self, work: Callable[[list[str]], Any], texts: list[list[str]]) -> Iterator[Any]:
            parcels.extend(map(len, texts))
            return map(work, texts)

    monkeypatch.setattr("nmln.molecules.smiles_files.PARCEL", 10)
    monkeypatch.setattr("nmln.molecules.smiles_files.start_workers", lambda _: Workers())
    lines = [f"{'C' * (3 + i % 40)}O" for i in range(500)]
    many = serve(server, source, "smiles\n" + "\n".join(lines))
    fetch(many)
    one = select(many, 10)
    assert one is not None
    assert parcels == []
    one.path.unlink()
    assert select(many, 10, processes=2) is not None  # too few of this size to be worth it
    assert parcels == []
    server.content = ("smiles\n" + "C" * 9 + "O\n" + ("O" + "C" * 9 + "\n") * 400).encode()
    (cache_folder() / "small.csv").unlink()
    (cache_folder() / "small.csv.sha256").unlink()
    fetch(many)
    two = select(many, 10, processes=2)
    assert two is not None
    assert (two.molecules, two.lines) == (1, 401)
    assert sum(parcels) == 401


@pytest.mark.parametrize(
    ("smiles", "count"),
    [
        ("CCO", 3), ("c1ccccc1Cl", 7), ("[nH]1cccc1Br", 6), ("[H]C([H])([H])O", 2), ("[2H]C", 1),
        ("[13C@@H](F)(Cl)[Si](C)C", 6), ("[Na+].[Cl-]", 2), ("C%12CC%12", 3), ("[Hg]", 1), ("*C", 2),
        ("[H+].[OH-]", 1), ("C[N+](=O)[O-]", 4), ("[se]1cccc1", 5),
    ],
)  # fmt: skip
def test_heavy_atoms_are_counted_by_letters(smiles: str, count: int) -> None:
    assert count_heavy_atoms(smiles) == count


needs_directory = pytest.mark.skipif(
    not os.environ.get(DIRECTORY), reason=f"{DIRECTORY} does not name a directory of molecules"
)
FOLDER = Path(os.environ.get(DIRECTORY, "."))
SLOW = ("chembl_9", "chembl_15", "zinc250k_15", "moses_15", "qm9_9")


@needs_directory
@pytest.mark.parametrize(
    "name",
    ["zinc250k_10", "chembl_10", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)],
)
def test_the_filter_gives_the_sets_of_the_directory_out_of_the_unfiltered_ones(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    family, size = name.split("_")
    texts = [text for _, text in read_smiles(FOLDER / "unfiltered" / f"{name}.smi.gz")]
    assert {count_heavy_atoms(text) for text in texts} == {int(size)}
    raw = tmp_path / SOURCES[family].file
    content = ("smiles\n" + "".join(f"{text}\n" for text in texts)).encode()
    raw.write_bytes(gzip.compress(content) if raw.suffix == ".gz" else content)
    selected = downloads.select(SOURCES[family], int(size))
    assert selected is not None
    wanted = parse_all([text for _, text in read_smiles(FOLDER / f"{name}.smi.gz")])
    expected = sorted(one.smiles for one in wanted if isinstance(one, Molecule))
    assert [text for _, text in read_smiles(selected.path)] == expected
