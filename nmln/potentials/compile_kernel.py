"""Compiles the optional kernel of potentials and of fast moves, while the package is being installed.

Imports nothing but the standard library, because the build sees neither torch nor the package.
"""

import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

SOURCES = (
    "graph_kernel.c",
    "graph_passes.h",
    "graph_tiles.h",
    "links_kernel.c",
    "local_kernel.c",
    "neighbourhoods.h",
    "walk_kernel.c",
)
LIBRARY = "graph_kernel.compiled"  # not .so: it is no module that Python could import
# The order of additions is kept, so that a world has the same score in any batch. Each instruction set
# is chosen when the library runs: what is compiled on one machine works on others.
OPTIONS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fPIC", "-shared")
FOLDER = Path(__file__).parent


def fingerprint(folder: Path = FOLDER) -> int | None:
    """A number that changes with the sources; None if they are not there."""
    try:
        parts = [(folder / name).read_bytes() for name in SOURCES]
    except OSError:
        return None
    return zlib.crc32(b"".join(parts) + " ".join(OPTIONS).encode())


def find_compiler() -> str | None:
    """The compiler that CC names, or the first known one on the path."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((found for name in names if (found := shutil.which(name))), None)


def compile_kernel(folder: Path = FOLDER, library: Path | None = None) -> str | None:
    """Write the library beside its sources, all at once; None, or why there is none."""
    library = library or folder / LIBRARY
    compiler = find_compiler()
    if compiler is None:
        return "no C compiler was found"
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / LIBRARY
        source = f"-DNMLN_SOURCE={fingerprint(folder)}u"
        files = [str(folder / name) for name in SOURCES if name.endswith(".c")]
        command = [compiler, *OPTIONS, source, "-o", str(made), *files, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{compiler} failed: {error}"
        if done.returncode or not made.exists():
            return f"{compiler} failed: {(done.stderr.strip() or 'no message').splitlines()[0]}"
        made.replace(library)
    return None
