"""The weights of one potential in another: of nearby levels, and of values that both languages have."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmln.errors import InputError
from nmln.potentials.base import BasePotential, Labels, by_level


@torch.no_grad()
def inherit(new: BasePotential, old: BasePotential, levels: Sequence[int]) -> None:
    """Give a potential the weights of another one of the same form, as far as they fit.

    Rows and columns of values that only the new language has keep the weights that they have, and those
    of values that only the old one has are left out. So a world of common values has the same score in
    both. Parts that the old potential lacks stay as they are.

    Args:
        new: the potential whose weights are replaced.
        old: a potential on the same domain, over a language with the same declarations.
        levels: the level of the old potential for each level of the new one.
    """
    mine, theirs = labels_of(new), labels_of(old)
    weights = dict(old.named_parameters())
    for name, parameter in new.named_parameters():
        if name not in weights:
            continue
        known = weights[name].detach()
        if by_level(parameter, new.levels) and by_level(known, old.levels):
            known = known[list(levels)]
        _copy(name, parameter, known, mine.get(name, {}), theirs.get(name, {}))


def labels_of(potential: BasePotential) -> dict[str, dict[int, Labels]]:
    """The labels of all parameters, those of the parts included."""
    return {
        f"{place}.{name}".lstrip("."): axes
        for place, part in potential.named_modules()
        if isinstance(part, BasePotential)
        for name, axes in part.labels().items()
    }


def _copy(
    name: str,
    parameter: nn.Parameter,
    known: Tensor,
    mine: dict[int, Labels],
    theirs: dict[int, Labels],
) -> None:
    """Copy what two parameters have in common, axis by axis."""
    places = []
    for axis, size in enumerate(parameter.shape):
        if axis in mine:
            there = {label: place for place, label in enumerate(theirs[axis])}
            common = [place for place, label in enumerate(mine[axis]) if label in there]
            chosen = [there[mine[axis][place]] for place in common]
            known = known.index_select(axis, torch.tensor(chosen, dtype=torch.int64))
        elif size == known.shape[axis]:
            common = list(range(size))
        else:
            raise InputError(
                f"the weights {name} are of shape {list(known.shape)} there, but must be of shape "
                f"{list(parameter.shape)} here. Start from a run with the same form of network.",
                token=name,
                kind="conflict",
            )
        places.append(torch.tensor(common, dtype=torch.int64))
    parameter[torch.meshgrid(*places, indexing="ij")] = known.to(parameter)
