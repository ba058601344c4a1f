"""Worlds as SMILES: the results of `Model.generate` for molecules."""

from collections.abc import Callable

from jaxtyping import Integer
from torch import Tensor

from nmln.space import Space


def smiles_decoder(
    space: Space,
) -> Callable[[Integer[Tensor, "worlds groups"]], list[str | None]] | None:
    """A function from worlds to canonical SMILES, with None for a world that is not a valid molecule.

    The result is None for a space of anything but molecules.
    """
    if {attribute.name for attribute in space.language} != {"atom", "bond"}:
        return None
    from nmln.molecules.decoding import Decoder, is_molecular

    if not is_molecular(space):
        return None
    decoder = Decoder(space)
    return lambda worlds: [one.smiles for one in decoder.decode(worlds)]
