"""Completion: the most probable triples that are missing from a knowledge base."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from nmln.errors import InputError
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential
from nmln.knowledge.ranking import WorldScorer, scorer


@dataclass(frozen=True)
class MissingTriple:
    """A triple that is not a training triple, with its probability given all training triples.

    `base_rate` is the share of all pairs for which its relation is known to hold. `split` is valid or
    test if the triple was held out there, else empty.
    """

    head: str
    relation: str
    tail: str
    probability: float
    log_odds: float
    base_rate: float
    split: str

    @property
    def surprise(self) -> float:
        """The log-odds minus those of the base rate, in nats."""
        rate = min(max(self.base_rate, 1e-9), 1 - 1e-9)
        return self.log_odds - float(torch.logit(torch.tensor(rate, dtype=torch.float64)))


def complete(
    potential: KnowledgePotential,
    base: KnowledgeBase,
    *,
    top: int = 20,
    relations: tuple[str, ...] = (),
    unseen: bool = True,
    surprising: bool = False,
    batch: int = 64,
    tick: Callable[[], None] = lambda: None,
) -> list[MissingTriple]:
    """The missing triples with the highest conditional probability, the highest first.

    Args:
        potential: the trained potential.
        base: the knowledge base that it was trained on.
        top: how many triples.
        relations: only triples of these relations; all relations if empty.
        unseen: leave out validation and test triples too.
        surprising: sort by how far the log-odds exceed those of the relation's base rate.
        batch: queries (head and relation) that are scored at once.
        tick: called after each batch.
    """
    if top < 1:
        raise InputError(f"top must be at least 1, got {top}.")
    for name in relations:
        if name not in base.space.language:
            raise InputError(
                f"{name} is not a relation of {base.name}. "
                f"Available: {', '.join(base.relations)[:200]}.",
                token=name,
                kind="unknown",
            )
    known = _marks(base, base.known if unseen else base.train)
    chosen = [r for r, name in enumerate(base.relations) if not relations or name in relations]
    rates = _marks(base, base.train).double().mean((1, 2))
    best: list[tuple[float, float, tuple[int, int, int]]] = []  # sort key, log-odds, triple
    with torch.no_grad():
        asked = scorer(potential, base)
        for heads, kinds, odds in _all_log_odds(asked, len(base.constants), chosen, batch):
            odds = odds.masked_fill(known[kinds, heads], -torch.inf)
            value = odds - rates[kinds, None].clamp(1e-9).logit() if surprising else odds
            highest = value.flatten().topk(min(top, value.numel()))
            for place, worth in zip(highest.indices.tolist(), highest.values.tolist(), strict=True):
                row, tail = divmod(place, len(base.constants))
                triple = (int(heads[row]), int(kinds[row]), tail)
                best.append((worth, float(odds[row, tail]), triple))
            best.sort(key=lambda one: (-one[0], one[2]))
            del best[top:]
            tick()
    splits = {tuple(t): split for split in ("test", "valid") for t in getattr(base, split).tolist()}
    return [
        MissingTriple(
            *base.text(triple),
            probability=float(torch.tensor(odds, dtype=torch.float64).sigmoid()),
            log_odds=odds,
            base_rate=float(rates[triple[1]]),
            split=splits.get(triple, ""),
        )
        for _, odds, triple in best
        if odds > -torch.inf
    ]


def batches(base: KnowledgeBase, relations: int, batch: int = 64) -> int:
    """How many times `complete` calls `tick`."""
    return -(-len(base.constants) * relations // batch)


def _marks(
    base: KnowledgeBase, triples: Int64[Tensor, "triples 3"]
) -> Bool[Tensor, "relations heads tails"]:
    """Which atoms are among some triples."""
    n = len(base.constants)
    return base.world(triples).reshape(len(base.relations), n, n).bool()


def _all_log_odds(
    asked: WorldScorer, constants: int, relations: list[int], batch: int
) -> Iterator[tuple[Tensor, Tensor, Float[Tensor, "queries constants"]]]:
    """Heads, relations and the log-odds of all tails, in batches."""
    queries = torch.cartesian_prod(torch.tensor(relations), torch.arange(constants))
    for part in queries.split(batch):
        kinds, heads = part.T
        yield heads, kinds, asked.tails(heads, kinds).double()
