"""Log-odds of candidates given the training facts, as the ranking asks for them."""

from dataclasses import dataclass

from jaxtyping import Float, Int64
from torch import Tensor

from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential, PreparedWorld


@dataclass(frozen=True)
class WorldScorer:
    """The score of a candidate is the log-odds of its atom given the rest of a world."""

    world: PreparedWorld

    def tails(
        self, heads: Int64[Tensor, " queries"], relations: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        own = self.world.loops(heads, relations)[:, None]
        return self.world.of_tails(heads, relations).scatter(1, heads[:, None], own)

    def heads(
        self, relations: Int64[Tensor, " queries"], tails: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        own = self.world.loops(tails, relations)[:, None]
        return self.world.of_heads(relations, tails).scatter(1, tails[:, None], own)


def scorer(potential: KnowledgePotential, base: KnowledgeBase) -> WorldScorer:
    """Scores given that the training triples are true and nothing else is."""
    return WorldScorer(potential.prepare(potential.bits(base.world(base.train))))
