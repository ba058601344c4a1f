"""Compiles the optional kernel of the graph potential while the package is being built.

Without a C compiler, or if it fails, the package is built without the kernel and says so.
"""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("nmln") / "potentials"


class KernelHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / FOLDER
        kernel = _load(folder / "compile_kernel.py")
        library = folder / kernel.LIBRARY
        library.unlink(missing_ok=True)
        problem = kernel.compile_kernel(folder)
        if problem is not None:
            self.app.display_warning(f"nmln is built without its compiled kernel: {problem}.")
            return
        build_data["artifacts"].append(f"/{(FOLDER / kernel.LIBRARY).as_posix()}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def _load(path: Path) -> Any:
    """A module of the package, which cannot be imported as such: torch is not there yet."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
