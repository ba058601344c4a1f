"""Registries: things of one kind by name, each registered by the file that defines it."""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from nmln.errors import InputError

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing]):
    """The things that the files of some packages register, in the order of their names.

    A file calls `add` when it is imported. The first look-up imports every file of the `rooms`, so
    that a new file needs no line anywhere else, and nothing is imported before it is needed. A room may
    stand above the registry in the layers of imports, because it is known by its name only.
    """

    def __init__(self, what: str, *rooms: str) -> None:
        self.what, self.rooms = what, rooms
        self._things: dict[str, Thing] = {}
        self._complete = False

    def add(self, name: str, thing: Thing) -> Thing:
        """Register a thing under a name that is not taken, and return it."""
        if name in self._things:
            raise InputError(
                f"the {self.what} {name!r} is registered twice. Choose another name.",
                token=name,
                kind="twice",
            )
        self._things[name] = thing
        return thing

    def named(self, name: str) -> Thing:
        """The thing of this name; an unknown name is an error that lists the known ones."""
        if name not in self:
            raise InputError(
                f"there is no {self.what} {name!r}. Take one of {', '.join(self)}.",
                token=name,
                kind="unknown",
            )
        return self[name]

    def __getitem__(self, name: str) -> Thing:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, Thing]:
        if not self._complete:
            for room in self.rooms:
                for module in pkgutil.iter_modules(import_module(room).__path__):
                    import_module(f"{room}.{module.name}")
            self._complete = True
        return self._things
