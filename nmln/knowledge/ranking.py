"""Filtered ranking: the rank of the right constant among all candidates.

For a triple (h, r, t) every constant is a candidate for the tail, and then for the head. Candidates that
form another known triple are left out. Candidates of equal score share their mean rank, so a scorer that
gives all candidates one score ranks as a random guess does on average. `rank` works with any `Scorer`;
`scorer` makes one from a knowledge-base potential.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from nmln.errors import InputError
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential, PreparedWorld

HITS = (1, 3, 10)


@runtime_checkable
class Scorer(Protocol):
    """Gives every constant a score as the tail or as the head of a query."""

    def tails(
        self, heads: Int64[Tensor, " queries"], relations: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """One score per candidate for the tail of (head, relation)."""
        ...

    def heads(
        self, relations: Int64[Tensor, " queries"], tails: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """One score per candidate for the head of (relation, tail)."""
        ...


@dataclass(frozen=True)
class WorldScorer:
    """Scores a candidate by the log-odds of its atom given the rest of a world."""

    world: PreparedWorld

    def tails(
        self, heads: Int64[Tensor, " queries"], relations: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """The log-odds of r(head, b) for every constant b."""
        own = self.world.loops(heads, relations)[:, None]
        return self.world.of_tails(heads, relations).scatter(1, heads[:, None], own)

    def heads(
        self, relations: Int64[Tensor, " queries"], tails: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """The log-odds of r(a, tail) for every constant a."""
        own = self.world.loops(tails, relations)[:, None]
        return self.world.of_heads(relations, tails).scatter(1, tails[:, None], own)


def scorer(potential: KnowledgePotential, base: KnowledgeBase) -> WorldScorer:
    """Scores given the world in which exactly the training triples are true."""
    return WorldScorer(potential.prepare(potential.bits(base.world(base.train))))


@dataclass(frozen=True)
class RankingQuality:
    """Mean reciprocal rank, the share of ranks up to 1, 3 and 10, and the mean rank."""

    mrr: float
    hits_at_1: float
    hits_at_3: float
    hits_at_10: float
    mean_rank: float
    queries: int

    @staticmethod
    def of(ranks: Float64[Tensor, " ranks"]) -> "RankingQuality":
        """The measures of some ranks, of which there must be at least one."""
        if not len(ranks):
            raise InputError("there must be at least one triple to rank, got none.", kind="empty")
        hits = [float((ranks <= most).double().mean()) for most in HITS]
        return RankingQuality(
            float((1 / ranks).mean()), *hits, mean_rank=float(ranks.mean()), queries=len(ranks)
        )


@dataclass(frozen=True)
class Ranking:
    """The rank of the true tail and of the true head of every triple."""

    triples: Int64[Tensor, "triples 3"]
    tails: Float64[Tensor, " triples"]
    heads: Float64[Tensor, " triples"]

    @property
    def both(self) -> RankingQuality:
        """The quality over heads and tails together, as it is usually published."""
        return RankingQuality.of(torch.cat([self.heads, self.tails]))

    def summary(self) -> dict[str, dict[str, float]]:
        """The qualities by side, for a JSON file."""
        sides = {
            "both": self.both,
            "head": RankingQuality.of(self.heads),
            "tail": RankingQuality.of(self.tails),
        }
        return {side: asdict(quality) for side, quality in sides.items()}


def rank(
    scorer: Scorer,
    triples: Int64[Tensor, "triples 3"],
    known: Int64[Tensor, "known 3"],
    *,
    batch: int = 64,
    tick: Callable[[int], None] = lambda done: None,
) -> Ranking:
    """Rank both sides of some triples.

    Equal queries are scored only once. Memory is that of the scorer for one batch, plus one score per
    query of the batch and constant.

    Args:
        scorer: scores the candidates.
        triples: the triples to rank.
        known: the triples of all splits, which are left out as candidates.
        batch: queries that are scored at once.
        tick: called after each batch with the number of ranks found in it.
    """
    tails = _ranks(lambda h, r: scorer.tails(h, r), triples, known, (0, 1, 2), batch, tick)
    heads = _ranks(lambda t, r: scorer.heads(r, t), triples, known, (2, 1, 0), batch, tick)
    return Ranking(triples, tails, heads)


def _ranks(
    score: Callable[[Tensor, Tensor], Tensor],
    triples: Int64[Tensor, "triples 3"],
    known: Int64[Tensor, "known 3"],
    columns: tuple[int, int, int],
    batch: int,
    tick: Callable[[int], None],
) -> Float64[Tensor, " triples"]:
    """The ranks of one side; `columns` are those of the given constant, relation and answer."""
    given, relation, asked = columns
    queries, of = triples[:, [given, relation]].unique(dim=0, return_inverse=True)
    answers: dict[tuple[int, int], list[int]] = {}
    for row in known[:, [given, relation, asked]].tolist():
        answers.setdefault((row[0], row[1]), []).append(row[2])
    ranks = torch.zeros(len(triples), dtype=torch.float64)
    order = of.argsort(stable=True)
    done = 0
    for start in range(0, len(queries), batch):
        part = queries[start : start + batch]
        scores = score(part[:, 0], part[:, 1])
        if bool(scores.isnan().any()):
            raise InputError(
                "scores must be numbers to be ranked, got NaN. Train the model again.",
                kind="numeric",
            )
        left_out = torch.zeros(scores.shape, dtype=torch.bool)
        for row, (constant, its) in enumerate(part.tolist()):
            left_out[row, answers.get((constant, its), [])] = True
        rows = order[done : done + int(((of >= start) & (of < start + batch)).sum())]
        query, right = of[rows] - start, triples[rows, asked]
        own = scores[query, right][:, None]
        others = ~left_out[query]
        others[torch.arange(len(rows)), right] = False
        better = ((scores[query] > own) & others).sum(1)
        equal = ((scores[query] == own) & others).sum(1)
        ranks[rows] = 1 + better.double() + equal.double() / 2
        done += len(rows)
        tick(len(rows))
    return ranks
