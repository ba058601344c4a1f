"""The links of a world: where a binary attribute is anything but none or false."""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from nmln.potentials.wiring import number_nodes
from nmln.space import Block, Space

Links = Int64[Tensor, "four links"]
"""The two nodes of each possible link, its group, and the category of the group that is no link."""


def linking(space: Space) -> list[Block]:
    """The binary attributes that can say none or false."""
    return [b for b in space.blocks if b.attribute.arity == 2 and b.attribute.null is not None]


def links_of(space: Space) -> Links:
    """All possible links between the constants of a space, numbered through all sorts."""
    first, _ = number_nodes(space)
    found = [np.zeros((4, 0), dtype=np.int64)]
    for block in linking(space):
        places = space.tuples(block, np.arange(block.count))
        ends = [at + first[sort] for at, sort in zip(places, block.attribute.sorts, strict=True)]
        groups = np.arange(block.count) + block.first_group
        found.append(np.stack([*ends, groups, np.full(block.count, block.attribute.null)]))
    return torch.from_numpy(np.concatenate(found, 1)).long().contiguous()
