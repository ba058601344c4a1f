"""Filtered, tie-averaged ranks against ten lines of brute force."""

from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.knowledge.ranking import RankingQuality, rank

CONSTANTS, RELATIONS = 7, 3


@dataclass(frozen=True)
class Table:
    """Scores by head, relation and tail."""

    scores: Tensor

    def tails(self, heads: Tensor, relations: Tensor) -> Tensor:
        return self.scores[heads, relations]

    def heads(self, relations: Tensor, tails: Tensor) -> Tensor:
        return self.scores[:, relations, tails].T


def random_triples(count: int, seed: int) -> Tensor:
    every = torch.cartesian_prod(
        torch.arange(CONSTANTS), torch.arange(RELATIONS), torch.arange(CONSTANTS)
    )
    return every[torch.randperm(len(every), generator=Generator().manual_seed(seed))[:count]]


def brute_force(scores: Tensor, triple: list[int], known: list[list[int]], place: int) -> float:
    """The mean of the best and the worst place among the candidates that are not known."""
    own = float(scores[tuple(triple)])
    best = worst = 1
    for candidate in range(CONSTANTS):
        changed = [*triple[:place], candidate, *triple[place + 1 :]]
        if changed == triple or changed in known:
            continue
        best += float(scores[tuple(changed)]) > own
        worst += float(scores[tuple(changed)]) >= own
    return (best + worst) / 2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch", [1, 4, 100])
def test_ranks_are_those_of_brute_force(seed: int, batch: int) -> None:
    known = random_triples(60, seed)
    asked = known[torch.randperm(60, generator=Generator().manual_seed(seed))[:25]]
    rng = Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (CONSTANTS, RELATIONS, CONSTANTS), generator=rng).double()
    found = rank(Table(scores), asked, known, batch=batch)
    listed = known.tolist()
    for row, triple in enumerate(asked.tolist()):
        assert found.heads[row] == brute_force(scores, triple, listed, 0)
        assert found.tails[row] == brute_force(scores, triple, listed, 2)


def test_ties_share_the_mean_place() -> None:
    """A scorer that says the same of everything gets the middle of the candidates that are left."""
    known = torch.tensor([[0, 0, 1], [0, 0, 2]])
    found = rank(Table(torch.zeros(CONSTANTS, RELATIONS, CONSTANTS)), known[:1], known)
    assert found.tails.tolist() == [(1 + (CONSTANTS - 1)) / 2]  # one of the others is known
    assert found.heads.tolist() == [(1 + CONSTANTS) / 2]


def test_a_perfect_scorer_is_first_everywhere() -> None:
    known = random_triples(40, 1)
    scores = torch.zeros(CONSTANTS, RELATIONS, CONSTANTS)
    scores[tuple(known.T)] = 1.0
    both = rank(Table(scores), known, known).both
    assert (both.mrr, both.hits_at_1, both.hits_at_10, both.mean_rank) == (1, 1, 1, 1)
    assert both.queries == 80


def test_filtering_matters() -> None:
    """The same perfect scorer, judged as if nothing else were known, has to share its places."""
    known = torch.tensor([[0, 0, 1], [0, 0, 2], [0, 0, 3]])
    scores = torch.zeros(CONSTANTS, RELATIONS, CONSTANTS)
    scores[tuple(known.T)] = 1.0
    assert rank(Table(scores), known[:1], known).tails.tolist() == [1]
    assert rank(Table(scores), known[:1], known[:1]).tails.tolist() == [2]


def test_sides_are_reported_separately() -> None:
    scores = torch.zeros(CONSTANTS, RELATIONS, CONSTANTS)
    scores[0, 0] = torch.arange(CONSTANTS)  # the tail with the highest number wins
    triple = torch.tensor([[0, 0, CONSTANTS - 1]])
    summary = rank(Table(scores), triple, triple).summary()
    assert summary["tail"]["mrr"] == 1
    assert summary["head"]["mrr"] == 1
    scores[1, 0, CONSTANTS - 1] = 100.0
    summary = rank(Table(scores), triple, triple).summary()
    assert (summary["tail"]["mrr"], summary["head"]["mrr"]) == (1, 0.5)
    assert summary["both"]["mrr"] == 0.75


def test_the_measures_of_known_ranks() -> None:
    quality = RankingQuality.of(torch.tensor([1.0, 2.0, 4.0, 11.0], dtype=torch.float64))
    assert quality.mrr == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 11) / 4)
    assert (quality.hits_at_1, quality.hits_at_3, quality.hits_at_10) == (0.25, 0.5, 0.75)
    assert quality.mean_rank == 4.5


def test_progress_counts_every_triple_on_both_sides() -> None:
    known = random_triples(10, 0)
    seen: list[int] = []
    rank(Table(torch.zeros(CONSTANTS, RELATIONS, CONSTANTS)), known, known, tick=seen.append)
    assert sum(seen) == 20


def test_nothing_to_rank_and_no_numbers_are_refused() -> None:
    known = random_triples(3, 0)
    scores = torch.zeros(CONSTANTS, RELATIONS, CONSTANTS)
    with pytest.raises(InputError, match="at least one triple"):
        rank(Table(scores), known[:0], known).summary()
    with pytest.raises(InputError, match="NaN"):
        rank(Table(scores * float("nan")), known, known)
