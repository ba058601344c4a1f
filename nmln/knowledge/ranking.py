"""Filtered ranking: at which place does the right constant stand among all candidates?

For a triple (h, r, t) every constant is tried as the tail, and then as the head. Candidates that make
another known triple are left out. Equal scores share the mean of their places, so that a scorer which
cannot tell candidates apart gets what guessing gets. Nothing here knows how the scores come about.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from nmln.files import InputError

HITS = (1, 3, 10)


@runtime_checkable
class Scorer(Protocol):
    """Gives every constant a score as the tail, or as the head, of some queries."""

    def tails(
        self, heads: Int64[Tensor, " queries"], relations: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]: ...

    def heads(
        self, relations: Int64[Tensor, " queries"], tails: Int64[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]: ...


@dataclass(frozen=True)
class Quality:
    """Mean reciprocal rank, and the share of ranks up to 1, 3 and 10."""

    mrr: float
    hits_at_1: float
    hits_at_3: float
    hits_at_10: float
    mean_rank: float
    queries: int

    @staticmethod
    def of(ranks: Float64[Tensor, " ranks"]) -> "Quality":
        if not len(ranks):
            raise InputError("there is nothing to rank: the triples are empty.")
        hits = [float((ranks <= most).double().mean()) for most in HITS]
        return Quality(
            float((1 / ranks).mean()), *hits, mean_rank=float(ranks.mean()), queries=len(ranks)
        )


@dataclass(frozen=True)
class Ranking:
    """The rank of the true tail and of the true head of every triple."""

    triples: Int64[Tensor, "triples 3"]
    tails: Float64[Tensor, " triples"]
    heads: Float64[Tensor, " triples"]

    @property
    def both(self) -> Quality:
        """Of heads and tails together: the number that is usually published."""
        return Quality.of(torch.cat([self.heads, self.tails]))

    def summary(self) -> dict[str, dict[str, float]]:
        """The qualities by side, for a file."""
        sides = {"both": self.both, "head": Quality.of(self.heads), "tail": Quality.of(self.tails)}
        return {side: asdict(quality) for side, quality in sides.items()}


def rank(
    scorer: Scorer,
    triples: Int64[Tensor, "triples 3"],
    known: Int64[Tensor, "known 3"],
    *,
    batch: int = 64,
    tick: Callable[[int], None] = lambda done: None,
) -> Ranking:
    """Rank both sides of some triples; `known` are those of all splits, to filter by.

    Queries are asked `batch` at a time, the same one only once. Memory is that of the scorer for a
    batch, plus its scores of all constants. `tick` is told how many triples are behind.
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
    """The ranks of one side; `columns` say which constant is given, the relation and what is asked."""
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
            raise InputError("a score is not a number, so nothing can be ranked. Train again.")
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
