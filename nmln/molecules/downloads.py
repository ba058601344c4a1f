"""Public sets of molecules from their official files, kept in a cache and filtered by size.

A file is fetched once, through pooch: what is cut off goes on where it stopped, and the bytes must
have the hash that is known for the file. Where none is known, the first download must be a whole
table with its column of SMILES; its hash is written beside it and must hold from then on. A set such
as `qm9-9` is picked out of the file when it is first asked for, and kept as `qm9_9.smi.gz` beside it
with the hash of the file: out of another file it is picked anew.
"""

import csv
import gzip
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nmln.extras import later
from nmln.files import InputError, check_readable, only_one, write_atomically, write_lines
from nmln.molecules.chemistry import Refusal
from nmln.molecules.resuming import InterruptedDownloadError, Resuming, UnreachableError
from nmln.molecules.smiles_files import Watch, parse_stream, stream_smiles
from nmln.molecules.tally import Dropped, Tally

if TYPE_CHECKING:
    import pooch
else:
    pooch = later("pooch")

CACHE, MIRROR = "NMLN_CACHE", "NMLN_MIRROR"
ELEMENTS = frozenset(("C", "N", "O", "F", "P", "S", "Cl", "I"))


@dataclass(frozen=True)
class Source:
    """A public file of molecules: where it is, what it must be, and under which licence."""

    name: str
    title: str
    url: str
    sha256: str | None  # as several independent projects record it; None: nobody reliable does
    megabytes: int
    licence: str
    column: str = "smiles"  # of the molecules, in any case

    @property
    def file(self) -> str:
        return Path(urlsplit(self.url).path).name

    @property
    def least(self) -> int:
        """Bytes that a file must have where no hash vouches for it."""
        return self.megabytes * 10**5

    @property
    def most(self) -> int:
        """Bytes that are taken from a server: later versions of a set are larger, but not this much."""
        return (4 * self.megabytes + 100) * 10**6

    @property
    def most_unpacked(self) -> int:
        return 20 * self.most


# The hash of MOSES is the one that its own repository keeps for Git LFS. ChEMBL publishes
# checksums.txt beside its files; nothing here vouches for a copy of it.
SOURCES = {
    source.name: source
    for source in (
        Source(
            "qm9",
            "QM9, as a table by MoleculeNet",
            "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/qm9.csv",
            "3e668f8c34e4bc392a90d417a50a5eed3b64b842a817a633024bdc054c68ccb4",
            30,
            "CC0 (the figshare deposit of Ramakrishnan et al. 2014)",
        ),
        Source(
            "zinc250k",
            "ZINC250k, of the repository aspuru-guzik-group/chemical_vae",
            "https://raw.githubusercontent.com/aspuru-guzik-group/chemical_vae/"
            "37b9f96470d4471c0593cffefa448e0a8a184ef6/models/zinc_properties/"
            "250k_rndm_zinc_drugs_clean_3.csv",
            "35e3f1a52b1badc0697e373d73a18ad773f415936ff992f4c6baa2e067b3e6ae",
            23,
            "Apache-2.0 (the repository); ZINC is free to use, large parts not to be passed on",
        ),
        Source(
            "moses",
            "MOSES, of the repository molecularsets/moses",
            "https://media.githubusercontent.com/media/molecularsets/moses/master/data/dataset_v1.csv",
            "bb47a94d347afd476d3828b5e26dceeabc42a2d8cf92a791d00349f22fea0d8b",
            84,
            "MIT (the repository); molecules from ZINC",
        ),
        Source(
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
    """A file in the cache; `known` says whether its hash was expected or is recorded only now."""

    source: Source
    path: Path
    sha256: str
    known: bool
    seconds: float | None  # None: it was there already


@dataclass(frozen=True)
class Selected:
    """The molecules of one size out of a file, or their file alone if it was there already."""

    path: Path
    molecules: int
    lines: int | None = None
    dropped: tuple[Dropped, ...] = ()
    seconds: float | None = None


def source_named(name: str) -> Source:
    """The source of this name, in any case."""
    if name.lower() not in SOURCES:
        raise InputError(
            f"{name!r} is no set that can be fetched. Take one of {', '.join(SOURCES)}."
        )
    return SOURCES[name.lower()]


def cache_folder() -> Path:
    """Where downloads are kept: the directory that NMLN_CACHE names, or the system's place for it."""
    named = os.environ.get(CACHE)
    return (Path(named).expanduser() if named else Path(pooch.os_cache("nmln"))).absolute()


def fetch(
    source: Source,
    url: str | None = None,
    sha256: str | None = None,
    watch: Watch | None = None,
    attempts: int = 3,
) -> Fetched:
    """The official file in the cache, fetched if it is not there.

    `url` is another address of the same file (or NMLN_MIRROR names a folder of all of them), `sha256`
    the hash to demand in place of the known one. A file put into the cache by hand is checked and
    taken as it is. A connection that breaks is resumed, `attempts` times in all. One process at a
    time fetches a file; another one is refused.
    """
    path = cache_folder() / source.file
    check_readable(path)
    expected = _checked_form(sha256) or _recorded(path) or source.sha256
    if not path.exists():
        with only_one(path.with_name(f".{path.name}.lock"), f"fetching {path.name}"):
            if not path.exists():  # nor has it come meanwhile
                start = time.monotonic()
                _download(source, path, url or _mirrored(source), expected, watch, attempts)
                found = _hash(path)
                _record(path, found)
                return Fetched(source, path, found, expected is not None, time.monotonic() - start)

    found = _hash(path)
    if expected not in (None, found):
        raise InputError(
            f"its sha256 is {found}, but {expected} is expected. Move it away to have it fetched "
            "again, or give --sha256 if it is the right one.",
            str(path),
        )
    if expected is None and (flaw := _flaw(path, source, watch)):
        raise InputError(
            f"this is not the official file: {flaw}. Move it away to have that one fetched, or give "
            "--sha256 if it is the right one.",
            str(path),
        )
    _record(path, found)
    return Fetched(source, path, found, expected is not None, None)


def select(
    source: Source, size: int, processes: int = 1, watch: Watch | None = None
) -> Selected | None:
    """The molecules of a size out of the file in the cache; None if neither is there.

    Kept are neutral molecules of one fragment with exactly `size` heavy atoms out of C, N, O, F, P,
    S, Cl and I, without isotope labels or radicals, once each without their stereochemistry. Lines
    of another size are passed over by counting letters; the others go through RDKit, some 1,000 to
    3,000 a second and process. What was picked before is taken if it is out of the file that is
    there, or was there last.
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
        )
    if path.exists() and (found is None or _has(_beside(path), _origin(path, raw, found))):
        return Selected(path, sum(1 for _ in stream_smiles(path)))
    if found is None or not raw.exists():
        return None
    tally = Tally()
    kept, lines = _filtered(raw, size, processes, watch, tally)
    if not kept:
        path.unlink(missing_ok=True)  # out of an older file
        raise InputError(
            f"none of {lines:,} lines is a neutral molecule of {size} heavy atoms. {tally}",
            str(raw),
        )
    write_atomically(path, lambda temporary: _pack(temporary, sorted(kept)))
    write_lines(_beside(path), _origin(path, raw, found))
    return Selected(path, len(kept), lines, tally.dropped(), time.monotonic() - start)


def count_heavy_atoms(smiles: str) -> int:
    """How many atoms other than hydrogen a SMILES names, by its letters alone."""
    return len(_ATOM.findall(smiles)) - len(_HYDROGEN.findall(smiles))


_ATOM = re.compile(r"\[[^\]]*\]|Br|Cl|[BCNOPSFIbcnops*]")
_HYDROGEN = re.compile(r"\[\d*HH?(?:[+-]+\d*)?(?::\d+)?\]")


def _filtered(
    raw: Path, size: int, processes: int, watch: Watch | None, tally: Tally
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
    """Without a time stamp, so that the same molecules give the same bytes."""
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


# Downloads.


def _download(
    source: Source,
    path: Path,
    address: str,
    expected: str | None,
    watch: Watch | None,
    attempts: int,
) -> None:
    """Put the file of an address at `path`, once its hash or else its content is as it must be."""
    unchecked = path.with_name(f"unchecked-{path.name}")  # stays if the check is cut off
    _forget_damaged_version(path)
    downloader = Resuming(path, expected, source.most, watch, attempts)
    pooch.get_logger().setLevel(logging.WARNING)  # it would print; the command line does
    try:
        pooch.retrieve(
            address, expected, unchecked.name, path.parent, downloader=downloader  # type: ignore[arg-type]
        )  # fmt: skip
    except InterruptedDownloadError as error:
        raise InputError(
            f"the connection to {address} broke {error}. What came is kept: run the command again to "
            f"go on, or put the whole file at {path} by hand."
        ) from None
    except (UnreachableError, ValueError) as error:
        if downloader.sha256 is not None:
            unchecked.unlink(missing_ok=True)
            raise InputError(
                f"what came from {address} has the sha256 {downloader.sha256}, but {expected} is "
                "expected. It was thrown away. The file may have changed: if the new one is right, "
                "demand it with --sha256."
            ) from None
        raise InputError(  # a ValueError: the server names an address that is none
            f"{address} could not be fetched: {_one_line(str(error))}. Without a network, put the file "
            f"at {path} by hand (or name a folder of such files, {MIRROR}=https://…), and run the "
            "command again."
        ) from None
    if expected is None and (flaw := _flaw(unchecked, source, watch)):
        unchecked.unlink()
        raise InputError(
            f"what came from {address} is not the official file: {flaw}. Nothing was kept: try again "
            f"later, or put the file at {path} by hand and run the command again."
        )
    os.replace(unchecked, path)


def _forget_damaged_version(path: Path) -> None:
    """What no server can have named does not say what the bytes belong to, nor fit into a header."""
    version = Path(f"{path}.part.version")
    if version.exists():
        text = version.read_bytes().decode("utf-8", "replace")
        if not re.fullmatch(r"[!-~\xa1-\xff][ -~\xa0-\xff]*", text):
            version.unlink()


def _flaw(path: Path, source: Source, watch: Watch | None) -> str | None:
    """Why a file is not the whole table of a source; None if it is one. Reads all of it."""
    column, size = source.column, path.stat().st_size
    begins = f"it begins with {_one_line(_first_line(path), 60)!r}"
    try:
        rows = sum(
            1 for _ in stream_smiles(path, table=True, watch=watch, most=source.most_unpacked)
        )
    except InputError as error:
        return f"{error.message.split('. ')[0]} ({begins})"
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
    """As far as it can be read, and no more than a header may have."""
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            return file.readline(10_000).decode("utf-8-sig", "replace")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""


def _one_line(text: str, most: int = 200) -> str:
    """What a server says, for a message: printable, and not too much of it."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else f"{line[:most]}…"


# Hashes.


def _hash(path: Path) -> str:
    return pooch.file_hash(str(path), "sha256")


def _beside(path: Path) -> Path:
    """Where the hash of a file is kept, as `sha256sum --check` reads it."""
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
            f"this must begin with the sha256 of {path.name}, 64 hexadecimal digits, but begins with "
            f"{_one_line(text, 60)!r}. Delete it, or give the hash: --sha256 with nmln data fetch.",
            str(beside),
        )
    return found[1].lower()


def _origin(path: Path, raw: Path, sha256: str) -> list[str]:
    """What is kept beside a set: its own hash, and that of the file that it was picked out of."""
    return [f"{_hash(path)}  {path.name}", f"{sha256}  {raw.name}"]


def _has(path: Path, lines: list[str]) -> bool:
    return path.exists() and path.read_bytes() == "".join(f"{line}\n" for line in lines).encode()


def _checked_form(sha256: str | None) -> str | None:
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise InputError(f"a sha256 is 64 hexadecimal digits, but {sha256!r} is given.")
    return sha256.lower() if sha256 else None


def _mirrored(source: Source) -> str:
    mirror = os.environ.get(MIRROR)
    return f"{mirror.rstrip('/')}/{source.file}" if mirror else source.url
