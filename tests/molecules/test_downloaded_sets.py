"""What becomes of a downloaded file: filtered by size, kept, found by name."""

import gzip
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmln.errors import InputError
from nmln.molecules import downloads
from nmln.molecules.chemistry import Molecule, parse_all
from nmln.molecules.datasets import DIRECTORY, Molecules, describe, known, load
from nmln.molecules.downloads import (
    CACHE,
    SOURCES,
    PublicSource,
    cache_folder,
    count_heavy_atoms,
    fetch,
    select,
)
from nmln.molecules.smiles_files import read_smiles
from tests.molecules.download_server import Server

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


def serve(server: Server, source: PublicSource, content: str | bytes) -> PublicSource:
    server.content = content if isinstance(content, bytes) else content.encode()
    return replace(source, sha256=None)


def test_a_set_of_one_size_is_filtered_once_and_found_by_name(
    server: Server, source: PublicSource, monkeypatch: pytest.MonkeyPatch
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
    server: Server, source: PublicSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "small", serve(server, source, MIXED))
    fetch(SOURCES["small"])
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    (tmp_path / "small_3.smi.gz").write_bytes(gzip.compress(b"CCN\n"))
    assert load("small-3").smiles == ("CCN",)
    assert load("small-4").smiles == ("CC(N)O", "CCCC")


def test_a_new_file_makes_old_sets_void(server: Server, source: PublicSource) -> None:
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


def test_a_file_that_was_replaced_by_hand_makes_old_sets_void(
    server: Server, source: PublicSource
) -> None:
    old = serve(server, source, "smiles\nCCO\nCCN\nC\n")
    path = fetch(old).path
    for size, count in ((3, 2), (1, 1)):
        selected = select(old, size)
        assert selected is not None
        assert (selected.molecules, selected.lines) == (count, 3)
    new = b"smiles\nCCC\n"
    path.write_bytes(new)
    for size in (3, 1, 2):  # made before or not
        with pytest.raises(InputError, match="when it was fetched, but is"):
            select(old, size)
    fetch(old, sha256=hashlib.sha256(new).hexdigest())
    anew, again = select(old, 3), select(old, 3)
    assert anew is not None
    assert (anew.molecules, anew.lines) == (1, 1)
    assert again == replace(anew, lines=None, seconds=None)
    with pytest.raises(InputError, match="none of 1 lines"):
        select(old, 1)
    assert not (path.parent / "small_1.smi.gz").exists()


def test_a_set_without_the_file_is_taken_if_it_is_of_the_last_one(
    server: Server, source: PublicSource
) -> None:
    some = serve(server, source, "smiles\nCCO\nCC\n")
    path = fetch(some).path
    selected = select(some, 3)
    assert selected is not None
    path.unlink()
    assert select(some, 3) == replace(selected, lines=None, dropped=(), seconds=None)
    server.content = b"smiles\nCCC\n"
    fetch(some, sha256=hashlib.sha256(server.content).hexdigest())
    path.unlink()
    assert select(some, 3) is None  # that of the file before


def test_a_set_that_was_damaged_is_made_again(server: Server, source: PublicSource) -> None:
    some = serve(server, source, "smiles\nCCO\nCC\n")
    fetch(some)
    selected = select(some, 3)
    assert selected is not None
    whole = selected.path.read_bytes()
    for name in (selected.path.name, f"{selected.path.name}.sha256"):
        (cache_folder() / name).write_bytes(b"\xff")
        again = select(some, 3)
        assert again is not None
        assert again.lines == 2
        assert selected.path.read_bytes() == whole


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
    official = replace(SOURCES[name], sha256=None, megabytes=0)
    server.content = content
    fetch(official, url=server.url)
    selected = select(official, 3)
    assert selected is not None
    assert read_smiles(selected.path) == [(1, "CCO")]


def test_several_processes_filter_alike(
    server: Server, source: PublicSource, monkeypatch: pytest.MonkeyPatch
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
