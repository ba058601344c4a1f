"""Public sets of molecules from their official files, kept in a cache and filtered by size.

A file is fetched once, by `nmln.http`: an interrupted download is resumed, and the bytes must have the
known hash of the file. If no hash is known, the first download must be a whole table with its column
of SMILES; its hash is written beside it and must hold from then on. A set such as `qm9-9` is selected
from the file when it is first needed, and kept as `qm9_9.smi.gz` beside it with the hash of the file:
if the file changes, the set is selected again.
"""

import csv
import gzip
import os
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nmln.dropped import DropCounter, Dropped
from nmln.errors import InputError
from nmln.extras import later
from nmln.files import check_readable, only_one, write_atomically, write_lines
from nmln.http import (
    InterruptedDownloadError,
    UnreachableError,
    WrongHashError,
    download,
    printable,
)
from nmln.molecules.chemistry import Refusal
from nmln.molecules.smiles_files import Watch, parse_stream, stream_smiles

if TYPE_CHECKING:
    import pooch
else:
    pooch = later("pooch")

CACHE, MIRROR = "NMLN_CACHE", "NMLN_MIRROR"
ELEMENTS = frozenset(("C", "N", "O", "F", "P", "S", "Cl", "I"))


@dataclass(frozen=True)
class PublicSource:
    """A public file of molecules: its address, hash, size and licence."""

    name: str
    title: str
    url: str
    sha256: str | None  # as several independent projects record it; None if none does
    megabytes: int
    licence: str
    column: str = "smiles"  # of the molecules; upper and lower case are the same

    @property
    def file(self) -> str:
        return Path(urlsplit(self.url).path).name

    @property
    def least(self) -> int:
        """The smallest number of bytes that a file without a known hash must have."""
        return self.megabytes * 10**5

    @property
    def most(self) -> int:
        """The largest number of bytes that is accepted; later versions of a set stay below it."""
        return (4 * self.megabytes + 100) * 10**6

    @property
    def most_unpacked(self) -> int:
        return 20 * self.most


# The hash of MOSES is the one that its own repository keeps for Git LFS. ChEMBL publishes
# checksums.txt beside its files; there is no independent record of a copy of it.
SOURCES = {
    source.name: source
    for source in (
        PublicSource(
            "qm9",
            "QM9, as a table by MoleculeNet",
            "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/qm9.csv",
            "3e668f8c34e4bc392a90d417a50a5eed3b64b842a817a633024bdc054c68ccb4",
            30,
            "CC0 (the figshare deposit of Ramakrishnan et al. 2014)",
        ),
        PublicSource(
            "zinc250k",
            "ZINC250k, of the repository aspuru-guzik-group/chemical_vae",
            "https://raw.githubusercontent.com/aspuru-guzik-group/chemical_vae/"
            "37b9f96470d4471c0593cffefa448e0a8a184ef6/models/zinc_properties/"
            "250k_rndm_zinc_drugs_clean_3.csv",
            "35e3f1a52b1badc0697e373d73a18ad773f415936ff992f4c6baa2e067b3e6ae",
            23,
            "Apache-2.0 (the repository); ZINC is free to use, large parts not to be passed on",
        ),
        PublicSource(
            "moses",
            "MOSES, of the repository molecularsets/moses",
            "https://media.githubusercontent.com/media/molecularsets/moses/master/data/dataset_v1.csv",
            "bb47a94d347afd476d3828b5e26dceeabc42a2d8cf92a791d00349f22fea0d8b",
            84,
            "MIT (the repository); molecules from ZINC",
        ),
        PublicSource(
            "chembl",
            "ChEMBL 36, by EMBL-EBI",
            "https://ftp.ebi.ac.uk/pub/databases/chembl/ChEMBLdb/releases/chembl_36/"
            "chembl_36_chemreps.txt.gz",
            None,
            274,
            "CC BY-SA 3.0",
            "canonical_smiles",
        ),
    )
}


@dataclass(frozen=True)
class Fetched:
    """A file in the cache; `known` says whether its hash was known before, or is recorded only now."""

    source: PublicSource
    path: Path
    sha256: str
    known: bool
    seconds: float | None  # None if it was there already


@dataclass(frozen=True)
class Selected:
    """The file of the molecules of one size; `lines` and `dropped` only if it was made just now."""

    path: Path
    molecules: int
    lines: int | None = None
    dropped: tuple[Dropped, ...] = ()
    seconds: float | None = None


def source_named(name: str) -> PublicSource:
    """The source of this name; upper and lower case are the same."""
    if name.lower() not in SOURCES:
        raise InputError(
            f"{name!r} is not a set that can be fetched. Take one of {', '.join(SOURCES)}.",
            token=name,
            kind="unknown",
        )
    return SOURCES[name.lower()]


def cache_folder() -> Path:
    """The folder of downloads: the one that NMLN_CACHE names, or else that of the operating system."""
    named = os.environ.get(CACHE)
    return (Path(named).expanduser() if named else Path(pooch.os_cache("nmln"))).absolute()


def fetch(
    source: PublicSource,
    url: str | None = None,
    sha256: str | None = None,
    watch: Watch | None = None,
    attempts: int = 3,
) -> Fetched:
    """The official file in the cache, fetched if it is not there.

    A file put into the cache by hand is checked and taken as it is. One process at a time fetches a
    file; another one is refused.

    Args:
        source: the file to fetch.
        url: another address of the same file; NMLN_MIRROR names a folder of all of them.
        sha256: the hash to require in place of the known one.
        watch: called as bytes arrive or are checked.
        attempts: how often a broken connection is tried, the first attempt included.
    """
    path = cache_folder() / source.file
    check_readable(path)
    expected = _checked_form(sha256) or _recorded(path) or source.sha256
    if not path.exists():
        with only_one(path.with_name(f".{path.name}.lock"), f"fetching {path.name}"):
            if not path.exists():  # another process may have fetched it meanwhile
                start = time.monotonic()
                _download(source, path, url or _mirrored(source), expected, watch, attempts)
                found = _hash(path)
                _record(path, found)
                return Fetched(source, path, found, expected is not None, time.monotonic() - start)

    found = _hash(path)
    if expected not in (None, found):
        raise InputError(
            f"its sha256 is {found}, but must be {expected}. Move it away to have it fetched again, or "
            "give --sha256 if it is the right one.",
            str(path),
            kind="hash",
        )
    if expected is None and (flaw := _flaw(path, source, watch)):
        raise InputError(
            f"this is not the official file: {flaw}. Move it away to have that one fetched, or give "
            "--sha256 if it is the right one.",
            str(path),
            kind="content",
        )
    _record(path, found)
    return Fetched(source, path, found, expected is not None, None)


def select(
    source: PublicSource, size: int, processes: int = 1, watch: Watch | None = None
) -> Selected | None:
    """The molecules of one size from the file in the cache; None if there is neither set nor file.

    Kept are neutral molecules of one fragment with exactly `size` heavy atoms out of C, N, O, F, P,
    S, Cl and I, without isotope labels or radicals, once each without their stereochemistry. Lines of
    another size are skipped by counting letters; the others go through RDKit, at about 1,000 to 3,000
    per second and process. A set that was selected before is taken if it comes from the current file,
    or, without one, from the last.

    Args:
        source: the file to select from.
        size: the number of heavy atoms.
        processes: the number of processes that parse.
        watch: called with the number of bytes read.
    """
    raw = cache_folder() / source.file
    check_readable(raw)
    path = raw.parent / f"{source.name}_{size}.smi.gz"
    start = time.monotonic()
    recorded = _recorded(raw)
    found = _hash(raw) if raw.exists() else recorded
    if recorded not in (None, found):
        raise InputError(
            f"its sha256 was {recorded} when it was fetched, but is {found} now. Move it away and "
            f"fetch it again: nmln data fetch {source.name}",
            str(raw),
            kind="hash",
        )
    if path.exists() and (found is None or _has(_beside(path), _origin(path, raw, found))):
        return Selected(path, sum(1 for _ in stream_smiles(path)))
    if found is None or not raw.exists():
        return None
    tally = DropCounter()
    kept, lines = _filtered(raw, size, processes, watch, tally)
    if not kept:
        path.unlink(missing_ok=True)  # selected from an older file
        raise InputError(
            f"none of {lines:,} lines is a neutral molecule of {size} heavy atoms. {tally}",
            str(raw),
            kind="empty",
        )
    write_atomically(path, lambda temporary: _pack(temporary, sorted(kept)))
    write_lines(_beside(path), _origin(path, raw, found))
    return Selected(path, len(kept), lines, tally.dropped(), time.monotonic() - start)


def count_heavy_atoms(smiles: str) -> int:
    """The number of atoms other than hydrogen in a SMILES, by its letters alone."""
    return len(_ATOM.findall(smiles)) - len(_HYDROGEN.findall(smiles))


_ATOM = re.compile(r"\[[^\]]*\]|Br|Cl|[BCNOPSFIbcnops*]")
_HYDROGEN = re.compile(r"\[\d*HH?(?:[+-]+\d*)?(?::\d+)?\]")


def _filtered(
    raw: Path, size: int, processes: int, watch: Watch | None, tally: DropCounter
) -> tuple[set[str], int]:
    lines = 0

    def of_this_size() -> Iterator[tuple[int, str]]:
        nonlocal lines
        for number, text in stream_smiles(raw, table=True, watch=watch):
            lines += 1
            if count_heavy_atoms(text) == size:
                yield number, text
            else:
                tally.add(number, "another size", text)

    kept: set[str] = set()
    for number, found in parse_stream(of_this_size(), processes):
        if isinstance(found, Refusal):
            tally.add(number, found.reason, found.detail)
        elif any("+" in name or "-" in name for name in found.atoms):
            tally.add(number, "charged atom", found.smiles)
        elif other := set(found.atoms) - ELEMENTS:
            tally.add(number, f"element {min(other)}", found.smiles)
        elif found.smiles in kept:
            tally.add(number, "duplicate", found.smiles)
        else:
            kept.add(found.smiles)
    return kept, lines


def _pack(path: Path, lines: list[str]) -> None:
    """Write lines as gzip without a time stamp, so that the same molecules give the same bytes."""
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


# Downloads.


def _download(
    source: PublicSource,
    path: Path,
    address: str,
    expected: str | None,
    watch: Watch | None,
    attempts: int,
) -> None:
    """Put the file of an address at `path`, after its hash or, without one, its content is checked."""
    unchecked = path.with_name(f"unchecked-{path.name}")  # stays if the check is interrupted
    try:
        download(
            address,
            unchecked,
            part=Path(f"{path}.part"),
            sha256=expected,
            most=source.most,
            watch=watch,
            attempts=attempts,
        )
    except InterruptedDownloadError as error:
        raise InputError(
            f"the connection to {address} broke after {error.received:,} bytes, which are kept. Run the "
            f"command again to continue, or put the whole file at {path} by hand.",
            kind="network",
        ) from None
    except WrongHashError as error:
        raise InputError(
            f"the file from {address} must have the sha256 {expected}, got {error.sha256}. It was "
            "deleted. The official file may have changed: if the new one is right, give --sha256.",
            kind="hash",
        ) from None
    except UnreachableError as error:
        raise InputError(
            f"{address} could not be fetched: {error.reason}. Without a network, put the file at {path} "
            f"by hand (or name a folder of such files, {MIRROR}=https://…), and run the command again.",
            kind="network",
        ) from None
    if expected is None and (flaw := _flaw(unchecked, source, watch)):
        unchecked.unlink()
        raise InputError(
            f"the file from {address} is not the official file: {flaw}. It was deleted. Try again "
            f"later, or put the file at {path} by hand and run the command again.",
            kind="content",
        )
    os.replace(unchecked, path)


def _flaw(path: Path, source: PublicSource, watch: Watch | None) -> str | None:
    """The reason why a file is not the whole table of a source; None if it is. Reads all of it."""
    column, size = source.column, path.stat().st_size
    begins = f"it starts with {printable(_first_line(path), 60)!r}"
    flaws = {
        "gzip": "it is not a whole gzip file",
        "encoding": "it is not UTF-8 text",
        "binary": "it is a binary file, not text",
        "size": f"it unpacks to more than {source.most_unpacked:,} characters",
        "columns": f"it has no column {column}",
    }
    try:
        rows = sum(
            1 for _ in stream_smiles(path, table=True, watch=watch, most=source.most_unpacked)
        )
    except InputError as error:
        where = "" if error.line is None else f" (line {error.line:,})"
        return f"{flaws.get(error.kind, 'it is not a table')}{where} ({begins})"
    except csv.Error as error:
        return f"{error} ({begins})"
    if not rows:
        return "it is empty, or has nothing below its header"
    cells = (cell.strip('" \r\n').lower() for cell in re.split("[,;\t]", _first_line(path)))
    if column not in cells:
        return f"it has no column {column} ({begins})"
    if size < source.least:
        return f"it has {size:,} bytes, but the official file has about {source.megabytes} MB"
    return None


def _first_line(path: Path) -> str:
    """The first line of a file as far as it can be read, and no more than a header may have."""
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            return file.readline(10_000).decode("utf-8-sig", "replace")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""


# Hashes.


def _hash(path: Path) -> str:
    return pooch.file_hash(str(path), "sha256")


def _beside(path: Path) -> Path:
    """The file that keeps the hash of a file, as `sha256sum --check` reads it."""
    return Path(f"{path}.sha256")


def _record(path: Path, sha256: str) -> None:
    line = f"{sha256}  {path.name}"
    if not _has(_beside(path), [line]):
        write_lines(_beside(path), [line])


def _recorded(path: Path) -> str | None:
    beside = _beside(path)
    if not beside.exists():
        return None
    text = beside.read_bytes().decode("utf-8", "replace")
    if not (found := re.match(r"\s*([0-9a-fA-F]{64})(?!\S)", text)):
        raise InputError(
            f"this must start with the sha256 of {path.name}, 64 hexadecimal digits, but starts with "
            f"{printable(text, 60)!r}. Delete it, or give the hash: --sha256 with nmln data fetch.",
            str(beside),
            kind="syntax",
        )
    return found[1].lower()


def _origin(path: Path, raw: Path, sha256: str) -> list[str]:
    """The lines kept beside a set: its own hash, and that of the file that it was selected from."""
    return [f"{_hash(path)}  {path.name}", f"{sha256}  {raw.name}"]


def _has(path: Path, lines: list[str]) -> bool:
    return path.exists() and path.read_bytes() == "".join(f"{line}\n" for line in lines).encode()


def _checked_form(sha256: str | None) -> str | None:
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise InputError(f"a sha256 must have 64 hexadecimal digits, got {sha256!r}.", token=sha256)
    return sha256.lower() if sha256 else None


def _mirrored(source: PublicSource) -> str:
    mirror = os.environ.get(MIRROR)
    return f"{mirror.rstrip('/')}/{source.file}" if mirror else source.url
