"""Public sets of molecules from their official files, kept in a cache and filtered by size.

A file is fetched once, through pooch: what is cut off goes on where it stopped, and the bytes must
have the hash that is known for the file. Where none is known, the hash of the first download is
written beside it and must hold from then on. A set such as `qm9-9` is picked out of the file when
it is first asked for, and kept as `qm9_9.smi.gz` beside it.
"""

import gzip
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pooch

from nmln.files import InputError, write_atomically, write_lines
from nmln.molecules.chemistry import Refusal
from nmln.molecules.resuming import InterruptedDownloadError, Resuming, UnreachableError
from nmln.molecules.smiles_files import Watch, parse_stream, stream_smiles
from nmln.molecules.tally import Dropped, Tally

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

    @property
    def file(self) -> str:
        return Path(urlsplit(self.url).path).name


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
    taken as it is. A connection that breaks is resumed, `attempts` times in all.
    """
    path = cache_folder() / source.file
    recorded = _recorded(path)
    expected = _checked_form(sha256) or recorded or source.sha256
    if path.exists():
        found = _hash(path)
        if expected not in (None, found):
            raise InputError(
                f"its sha256 is {found}, but {expected} is expected. Move it away to have it fetched "
                "again, or give --sha256 if it is the right one.",
                str(path),
            )
        _record(path, found)
        return Fetched(source, path, found, expected is not None, None)

    start = time.monotonic()
    address = url or _mirrored(source)
    downloader = Resuming(path, expected, watch, attempts)
    pooch.get_logger().setLevel(logging.WARNING)  # it would print; the command line does
    try:
        pooch.retrieve(
            address, expected, path.name, path.parent, downloader=downloader  # type: ignore[arg-type]
        )  # fmt: skip
    except UnreachableError as error:
        raise InputError(
            f"{address} could not be fetched: {error}. Without a network, put the file at {path} by "
            f"hand (or name a folder of such files, {MIRROR}=https://…), and run the command again."
        ) from None
    except InterruptedDownloadError as error:
        raise InputError(
            f"the connection to {address} broke {error}. What came is kept: run the command again to "
            f"go on, or put the whole file at {path} by hand."
        ) from None
    except ValueError:
        if downloader.sha256 in (None, expected):
            raise
        raise InputError(
            f"what came from {address} has the sha256 {downloader.sha256}, but {expected} is expected. "
            "It was thrown away. The file may have changed: if the new one is right, demand it with "
            "--sha256."
        ) from None
    for old in path.parent.glob(f"{source.name}_*.smi.gz"):
        old.unlink()  # picked out of another file
    found = _hash(path)
    _record(path, found)
    return Fetched(source, path, found, expected is not None, time.monotonic() - start)


def select(
    source: Source, size: int, processes: int = 1, watch: Watch | None = None
) -> Selected | None:
    """The molecules of a size out of the file in the cache; None if neither is there.

    Kept are neutral molecules of one fragment with exactly `size` heavy atoms out of C, N, O, F, P,
    S, Cl and I, without isotope labels or radicals, once each without their stereochemistry. Lines
    of another size are passed over by counting letters; the others go through RDKit, some 1,000 to
    3,000 a second and process.
    """
    raw = cache_folder() / source.file
    path = raw.parent / f"{source.name}_{size}.smi.gz"
    if path.exists():
        return Selected(path, sum(1 for _ in stream_smiles(path)))
    if not raw.exists():
        return None
    start = time.monotonic()
    if (recorded := _recorded(raw)) is not None and recorded != (found := _hash(raw)):
        raise InputError(
            f"its sha256 was {recorded} when it was fetched, but is {found} now. Move it away and "
            f"fetch it again: nmln data fetch {source.name}",
            str(raw),
        )
    tally = Tally()
    kept, lines = _filtered(raw, size, processes, watch, tally)
    if not kept:
        raise InputError(
            f"none of {lines:,} lines is a neutral molecule of {size} heavy atoms. {tally}",
            str(raw),
        )
    write_atomically(path, lambda temporary: _pack(temporary, sorted(kept)))
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


# Hashes.


def _hash(path: Path) -> str:
    return pooch.file_hash(str(path), "sha256")


def _record(path: Path, sha256: str) -> None:
    """Beside the file, as `sha256sum --check` reads it."""
    write_lines(f"{path}.sha256", [f"{sha256}  {path.name}"])


def _recorded(path: Path) -> str | None:
    beside = Path(f"{path}.sha256")
    return beside.read_text(encoding="utf-8").split()[0] if beside.exists() else None


def _checked_form(sha256: str | None) -> str | None:
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise InputError(f"a sha256 is 64 hexadecimal digits, but {sha256!r} is given.")
    return sha256.lower() if sha256 else None


def _mirrored(source: Source) -> str:
    mirror = os.environ.get(MIRROR)
    return f"{mirror.rstrip('/')}/{source.file}" if mirror else source.url
