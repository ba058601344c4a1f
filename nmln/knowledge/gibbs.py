"""Blocked Gibbs updates of a knowledge base: all pairs of constants that do not meet, at once.

Fragments of two constants meet only in the loops r(a, a): given these, all pairs are independent. In
fragments of three, pairs without a common constant are. So the atoms r(a, b) of such pairs can be
redrawn together, one relation and direction after the other, and only what belongs to the pairs
themselves changes meanwhile: the first layer is kept up to date instead of being computed again.
"""

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from nmln.knowledge.parts import Bits
from nmln.knowledge.potential import KnowledgePotential

Pairs = Int64[Tensor, "pairs 2"]


def rounds(constants: int, together: bool) -> list[Pairs]:
    """All pairs a < b in sets that are independent given the rest: one set, if they are `together`.

    Otherwise sets of disjoint pairs, as the rounds of a tournament in which everybody meets once.
    """
    if together:
        return [torch.combinations(torch.arange(constants))]
    seats = constants + constants % 2  # with an odd number one sits out
    found = []
    for turn in range(seats - 1):
        ring = [(turn + place) % (seats - 1) for place in range(seats - 1)]
        table = [(seats - 1, ring[0])]
        table += [(ring[i], ring[seats - 1 - i]) for i in range(1, seats // 2)]
        met = [sorted(pair) for pair in table if max(pair) < constants]
        found.append(torch.tensor(met, dtype=torch.int64).reshape(-1, 2))
    return found


@torch.no_grad()
def sweep(
    potential: KnowledgePotential, bits: Bits, rng: Generator, loops: int | None = None
) -> Bits:
    """A world in which every atom between two constants has been redrawn once.

    The atoms r(a, a) of `loops` random constants are redrawn too, those of all by default. Leaves the
    distribution of the potential unchanged.
    """
    bits = bits.clone()
    n, relations = bits.shape[0], bits.shape[2]
    for pairs in rounds(n, potential.pairwise):
        world = potential.prepare(bits)
        for relation in range(relations):
            kind = torch.full((len(pairs),), relation)
            for heads, tails in ((pairs[:, 0], pairs[:, 1]), (pairs[:, 1], pairs[:, 0])):
                true = _draw(world.log_odds(heads, kind, tails), rng)
                world.change(heads, kind, tails, true - bits[heads, tails, kind])
                bits[heads, tails, kind] = true
    world = potential.prepare(bits)
    count = n if loops is None else min(loops, n)
    for constant in torch.randperm(n, generator=rng)[:count].split(1):
        for relation in range(relations):
            kind = torch.tensor([relation])
            true = _draw(world.loops(constant, kind), rng)
            world.change(constant, kind, constant, true - bits[constant, constant, kind])
            bits[constant, constant, kind] = true
    return bits


def _draw(odds: Float[Tensor, " atoms"], rng: Generator) -> Float[Tensor, " atoms"]:
    chance = torch.rand(odds.shape, generator=rng, dtype=torch.float64)
    return (chance < odds.double().sigmoid()).to(odds.dtype)
