"""Optional dependencies: the extra that installs a module, and the error where it is missing.

`pip install nmln` installs what worlds, potentials, sampling, training and inference need. Everything
else belongs to an extra of pyproject.toml and is imported through this module, so that a missing one
ends in one line with the command that installs it.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from nmln.errors import InputError

EXTRAS: dict[str, dict[str, str]] = {
    "molecules": {"rdkit": "RDKit", "pooch": "Pooch", "requests": "Requests"},
    "report": {"matplotlib": "Matplotlib", "tensorboard": "TensorBoard", "arviz": "ArviZ"},
    "metrics": {"fcd_torch": "fcd_torch"},
    "knowledge": {"pykeen": "PyKEEN"},
    "baselines": {"selfies": "SELFIES"},
}
"""The modules of every extra, each with the name that its authors write."""

_SUBJECTS = {
    "molecules": "molecules need",
    "report": "figures and exports need",
    "metrics": "the Fréchet ChemNet distance needs",
    "knowledge": "known knowledge bases need",
    "baselines": "baselines need",
}
_HOMES = {module: extra for extra, modules in EXTRAS.items() for module in modules}


class MissingExtraError(InputError):
    """Optional packages must be installed for this and are not.

    `modules` are the missing ones, `extras` are those that install them, in the order of `EXTRAS`.
    """

    def __init__(self, subject: str, modules: Sequence[str]) -> None:
        homes = {_HOMES[module] for module in modules}
        self.modules, self.extras = tuple(modules), tuple(one for one in EXTRAS if one in homes)
        super().__init__(
            f"{subject} {_listed([EXTRAS[_HOMES[module]][module] for module in modules])}. "
            f"Install {'it' if len(modules) == 1 else 'them'} with: {install_command(*self.extras)}",
            token=modules[0],
            kind="extra",
        )


def install_command(*extras: str) -> str:
    """The command that installs some extras."""
    return f"pip install 'nmln[{','.join(extras)}]'"


def available(module: str) -> bool:
    """Whether an optional module is installed; it is not imported."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(what: str, *modules: str) -> None:
    """Refuse to start `what`, the subject of the sentence, unless all these modules are installed."""
    if missing := [module for module in modules if not available(module)]:
        raise MissingExtraError(f"{what} needs", missing)


def load(name: str) -> Any:
    """Import an optional module, or a module inside it; where it is missing, name its extra."""
    top = name.partition(".")[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != top:  # installed, but without something it needs
            raise
        raise MissingExtraError(_SUBJECTS[_HOMES[top]], [top]) from None


class _Later(ModuleType):
    """Stands for a module until one of its attributes is used; each is looked up once."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # asked by tools, which must not import anything
            raise AttributeError(f"{self.__name__} has not been imported yet: no {attribute}")
        found = getattr(load(self.__name__), attribute)
        setattr(self, attribute, found)
        return found


def later(name: str) -> Any:
    """An optional module that is imported when one of its attributes is first used.

    Modules that name it at their top can be imported without it.
    """
    return _Later(name)


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
