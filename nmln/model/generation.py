"""Decoded results of a model: SMILES, graphs or sets of atoms, by its language."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from jaxtyping import Integer
from torch import Tensor

from nmln.errors import InputError
from nmln.space import Space
from nmln.worlds import true_atoms

Decode = Callable[[Integer[Tensor, "worlds groups"]], list[Any]]
"""One result per world; None for a world that has none, such as a molecule that is not valid."""

DECODERS = {
    "molecules": "nmln.molecules.smiles:smiles_decoder",
    "graphs": "nmln.formats.graphs:graph_decoder",
    "atoms": "nmln.model.generation:atom_decoder",
}
"""The kinds of results, in the order in which they are tried for a language.

An entry is `module:function`. The function takes a space and gives its `Decode`, or None if the worlds
of the space are not of its kind. It is imported when it is needed: `nmln.molecules` is a higher layer,
and other models need no RDKit.
"""

MOST_TRIES = 100
"""Attempts per result that are made unless a number is given."""


def decoder_for(space: Space, kind: str | None = None) -> Decode:
    """The decoder of a kind, or of the first kind that the language fits."""
    if kind is not None and kind not in DECODERS:
        raise InputError(
            f"kind must be one of {', '.join(DECODERS)}, got {kind!r}. Leave it out to derive it from "
            "the language.",
            token=kind,
            kind="unknown",
        )
    for entry in DECODERS.values() if kind is None else [DECODERS[kind]]:
        module, _, name = entry.partition(":")
        decode = getattr(import_module(module), name)(space)
        if decode is not None:
            return decode
    raise InputError(
        f"worlds over {', '.join(one.name for one in space.language)} cannot be decoded as {kind}. "
        "Leave kind out, or take kind='atoms'.",
        token=kind,
        kind="unsupported",
    )


def atom_decoder(space: Space) -> Decode:
    """Worlds as frozen sets of their true ground atoms."""
    return lambda worlds: [frozenset(true_atoms(space, world)) for world in worlds]


def collect(
    batches: Iterable[Integer[Tensor, "worlds groups"]],
    decode: Decode,
    count: int,
    valid_only: bool,
) -> list[Any]:
    """The first results of batches of worlds; refuses to give fewer than were asked for."""
    found: list[Any] = []
    attempts = 0
    for worlds in batches:
        results = decode(worlds)
        attempts += len(results)
        found += [one for one in results if one is not None or not valid_only]
        if len(found) >= count:
            return found[:count]
    raise InputError(
        f"{count} valid results are asked for, but {attempts} attempts gave {len(found)}. Raise "
        "attempts, train the model longer, or take valid_only=False to see every attempt."
    )
