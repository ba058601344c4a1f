"""Two ways to learn from one world that lacks facts: conditionals of its atoms, or its likelihood.

Both yield one loss after the other; whoever asks for the next one has taken a step on the last.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor
from torch.nn.functional import softplus

from nmln.knowledge.gibbs import sweep
from nmln.knowledge.potential import KnowledgePotential, World
from nmln.knowledge.terms import Bits, Dropout

_LOOPS = (
    0.125  # the share of queries that also ask of r(a, a), which costs as much as all the others
)


class Queries(NamedTuple):
    """Questions for the tails of (head, relation), or for the heads of (relation, tail).

    `true` are the answers that the training triples give; `answers` is one of them for each, if the
    questions stand for single facts.
    """

    tails: bool
    given: Int64[Tensor, " queries"]
    relations: Int64[Tensor, " queries"]
    true: Bool[Tensor, "queries constants"]
    answers: Int64[Tensor, " queries"] | None = None

    @staticmethod
    def of(bits: Bits, tails: bool, answered: bool = True) -> "Queries":
        """All questions that have an answer, or all that have none."""
        asked = bits if tails else bits.transpose(0, 1)
        given, relations = ((asked.sum(1) > 0) == answered).nonzero().T
        return Queries(tails, given, relations, asked[given, :, relations] > 0)

    def some(self, rows: Int64[Tensor, " some"]) -> "Queries":
        answers = None if self.answers is None else self.answers[rows]
        return Queries(self.tails, self.given[rows], self.relations[rows], self.true[rows], answers)

    def one_by_one(self) -> "Queries":
        """The same questions once for every right answer."""
        row, answer = self.true.nonzero().T
        return self.some(row)._replace(answers=answer)

    def atoms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Head, relation and tail of every right answer, or of the one in question."""
        if self.answers is None:
            row, answer = self.true.nonzero().T
        else:
            row, answer = torch.arange(len(self.given)), self.answers
        ends = (self.given[row], answer) if self.tails else (answer, self.given[row])
        return ends[0], self.relations[row], ends[1]

    def log_odds(
        self, world: World, loops: Bool[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """The log-odds of all answers; that of r(a, a) is minus infinity but for some queries."""
        if self.tails:
            odds = world.of_tails(self.given, self.relations)
        else:
            odds = world.of_heads(self.relations, self.given)
        loops = loops | self.true.gather(1, self.given[:, None])[:, 0]
        chosen = loops.nonzero()[:, 0]
        own = odds.new_full((len(odds),), -inf)
        if len(chosen):
            own[chosen] = world.loops(self.given[chosen], self.relations[chosen])
        return odds.scatter(1, self.given[:, None], own[:, None])


def conditional_loss(
    odds: Float[Tensor, "queries constants"],
    true: Bool[Tensor, "queries constants"],
    calibration: float,
) -> Float[Tensor, ""]:
    """How badly conditionals explain the right answers, per right answer.

    A right answer against all wrong ones, given that exactly one of them is true: what a ranking asks.
    That leaves a constant free, so `calibration` times the pseudo-likelihood of every atom is added,
    which makes the log-odds those of probabilities.
    """
    wrong = odds.masked_fill(true, -inf).logsumexp(1, keepdim=True)
    against = softplus(torch.where(true, wrong - odds, -inf)).sum()
    alone = softplus(torch.where(true, -odds, odds)).sum()
    return (against + calibration * alone) / true.sum()


def sampled_loss(
    world: World,
    queries: Queries,
    loops: Bool[Tensor, " queries"],
    negatives: int,
    calibration: float,
    rng: Generator,
) -> Float[Tensor, ""]:
    """The conditional loss of single facts, with a few wrong answers that stand for all of them."""
    assert queries.answers is not None
    chance = torch.rand(queries.true.shape, generator=rng)
    own = torch.where(loops, 2.0, -1.0)[:, None]  # r(a, a) surely or not at all
    chance = chance.scatter(1, queries.given[:, None], own).masked_fill(queries.true, -1.0)
    drawn = chance.topk(min(negatives, chance.shape[1]), dim=1)
    candidates = torch.cat([queries.answers[:, None], drawn.indices], 1)
    given = queries.given[:, None].expand_as(candidates).flatten()
    relations = queries.relations[:, None].expand_as(candidates).flatten()
    ends = (given, candidates.flatten()) if queries.tails else (candidates.flatten(), given)
    odds = world.log_odds(ends[0], relations, ends[1]).reshape(candidates.shape)
    right, wrong = odds[:, 0], torch.where(drawn.values >= 0, odds[:, 1:], -inf)
    stands_for = (chance >= 0).sum(1) / (drawn.values >= 0).sum(1).clamp(min=1)
    against = softplus(wrong.logsumexp(1) + stands_for.clamp(min=1e-9).log() - right)
    share = stands_for / queries.true.sum(1)  # a question with many answers comes as often
    alone = softplus(-right) + share * softplus(wrong).sum(1)
    return (against + calibration * alone).mean()


def blank_loss(world: World, blank: Queries, count: int, rng: Generator) -> Float[Tensor, ""]:
    """The pseudo-likelihood of all atoms of the questions without an answer, from some of them.

    Without it a relation that holds of few constants would seem to hold of many: a question that has no
    answer is never asked otherwise. The atoms r(a, a) are left out.
    """
    if not len(blank.given):
        return torch.zeros(())
    n = blank.true.shape[1]
    rows = torch.randint(len(blank.given), (count,), generator=rng)
    given, others = blank.given[rows], torch.randint(n - 1, (count,), generator=rng)
    others = others + (others >= given)
    ends = (given, others) if blank.tails else (others, given)
    odds = world.log_odds(ends[0], blank.relations[rows], ends[1])
    return softplus(odds).mean() * (len(blank.given) * (n - 1))


def conditional_losses(
    potential: KnowledgePotential,
    bits: Bits,
    rng: Generator,
    *,
    batch: int = 256,
    hide: float = 0.0,
    dropout: float = 0.0,
    calibration: float = 1.0,
    penalty: float = 0.0,
    negatives: int = 0,
) -> Iterator[Float[Tensor, ""]]:
    """One epoch over all questions that the training triples answer, `batch` at a time.

    The answers are explained by the other facts, of which a share `hide` is hidden, anew for every
    batch: when the model is asked for missing facts, others are missing too. All wrong answers are
    negative examples; the facts that are to be found are among them, so nothing may be learnt by heart.
    With `negatives` an epoch goes over facts, each on both sides, with so many random wrong answers.
    """
    facts = bits.nonzero(as_tuple=True)
    sides = [Queries.of(bits, tails) for tails in (True, False)]
    blanks = [Queries.of(bits, tails, answered=False) for tails in (True, False)]
    if negatives:
        sides = [side.one_by_one() for side in sides]
    batches = [
        (side, blank, rows)
        for side, blank in zip(sides, blanks, strict=True)
        for rows in torch.randperm(len(side.given), generator=rng).split(batch)
    ]
    for number in torch.randperm(len(batches), generator=rng).tolist():
        side, blank, rows = batches[number]
        queries = side.some(rows)
        shown = torch.zeros_like(bits)
        shown[facts] = (torch.rand(len(facts[0]), generator=rng) >= hide).to(bits.dtype)
        world = potential.prepare(shown, Dropout(dropout, rng))
        loops = torch.rand(len(rows), generator=rng) < _LOOPS
        if negatives:
            loss = sampled_loss(world, queries, loops, negatives, calibration, rng)
        else:
            loss = conditional_loss(queries.log_odds(world, loops), queries.true, calibration)
        if calibration:
            answers = len(rows) if negatives else int(queries.true.sum())
            count = len(rows) * (1 if negatives else 8)
            share = calibration * len(rows) / len(side.given)
            loss = loss + share / answers * blank_loss(world, blank, count, rng)
        if penalty:
            loss = loss + penalty * potential.penalty(*queries.atoms())
        yield loss


class Chains:
    """Persistent chains of worlds at the model's distribution, for the gradient of the likelihood."""

    def __init__(self, bits: Bits, chains: int, rng: Generator) -> None:
        self.bits, self.rng = bits, rng
        self.worlds = torch.stack([bits] * chains)

    def losses(
        self, potential: KnowledgePotential, *, sweeps: int = 1, steps: int = 10
    ) -> Iterator[Float[Tensor, ""]]:
        """Losses whose gradient is that of minus the log-likelihood, per true fact.

        Before each, every chain takes some sweeps of blocked updates.
        """
        facts = max(1.0, float(self.bits.sum()))
        loops = max(1, len(self.bits) // 8)
        for _ in range(steps):
            for chain, world in enumerate(self.worlds):
                for _ in range(sweeps):
                    world = sweep(potential, world, self.rng, loops)
                self.worlds[chain] = world
            yield likelihood_loss(potential, self.bits, self.worlds) / facts


def likelihood_loss(
    potential: KnowledgePotential,
    bits: Bits,
    worlds: Float[Tensor, "chains heads tails relations"],
) -> Float[Tensor, ""]:
    """The mean score of the model's own worlds minus that of the data."""
    each = [potential.total(world[None])[0] for world in worlds]
    return torch.stack(each).mean() - potential.total(bits[None])[0]
