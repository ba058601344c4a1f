"""Two ways to learn from one world that lacks facts: conditionals of its atoms, or its likelihood.

Both tell one loss after the other; whoever asks for the next one has taken a step on the last. What they
need to go on in the middle of an epoch, beside their generator, is in their trees.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor
from torch.nn.functional import softplus

from nmln.knowledge.gibbs import sweep
from nmln.knowledge.parts import Bits, Dropout
from nmln.knowledge.potential import KnowledgePotential, PreparedWorld

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
        self, world: PreparedWorld, loops: Bool[Tensor, " queries"]
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
    world: PreparedWorld,
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


def blank_loss(
    world: PreparedWorld, blank: Queries, count: int, rng: Generator
) -> Float[Tensor, ""]:
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


@runtime_checkable
class Objective(Protocol):
    """What training makes small. An epoch asks for its losses one by one, from 0 to below `steps`."""

    @property
    def steps(self) -> int: ...

    def loss(self, step: int) -> Float[Tensor, ""]: ...

    def tree(self) -> dict[str, Any]: ...

    def restore(self, tree: dict[str, Any]) -> None: ...


@dataclass(eq=False)
class Conditionals:
    """All questions that the training triples answer once an epoch, `batch` at a time.

    The answers are explained by the other facts, of which a share `hide` is hidden, anew for every
    batch: when the model is asked for missing facts, others are missing too. All wrong answers are
    negative examples; the facts that are to be found are among them, so nothing may be learnt by heart.
    With `negatives` an epoch goes over facts, each on both sides, with so many random wrong answers.
    """

    potential: KnowledgePotential
    bits: Bits
    rng: Generator
    batch: int = 256
    hide: float = 0.0
    dropout: float = 0.0
    calibration: float = 1.0
    penalty: float = 0.0
    negatives: int = 0

    def __post_init__(self) -> None:
        self.facts = self.bits.nonzero(as_tuple=True)
        sides = [Queries.of(self.bits, tails) for tails in (True, False)]
        self.blanks = [Queries.of(self.bits, tails, answered=False) for tails in (True, False)]
        self.sides = [side.one_by_one() for side in sides] if self.negatives else sides
        self.rows = [torch.arange(len(side.given)) for side in self.sides]
        self.order = torch.arange(sum(len(rows.split(self.batch)) for rows in self.rows))

    @property
    def steps(self) -> int:
        return len(self.order)

    def loss(self, step: int) -> Float[Tensor, ""]:
        """The loss of one batch; the first one of an epoch shuffles them all."""
        if step == 0:
            self.rows = [torch.randperm(len(rows), generator=self.rng) for rows in self.rows]
            self.order = torch.randperm(len(self.order), generator=self.rng)
        side, blank, rows = self.asked(int(self.order[step]))
        queries = side.some(rows)
        shown = torch.zeros_like(self.bits)
        chance = torch.rand(len(self.facts[0]), generator=self.rng)
        shown[self.facts] = (chance >= self.hide).to(self.bits.dtype)
        world = self.potential.prepare(shown, Dropout(self.dropout, self.rng))
        loops = torch.rand(len(rows), generator=self.rng) < _LOOPS
        if self.negatives:
            loss = sampled_loss(world, queries, loops, self.negatives, self.calibration, self.rng)
        else:
            loss = conditional_loss(queries.log_odds(world, loops), queries.true, self.calibration)
        if self.calibration:
            answers = len(rows) if self.negatives else int(queries.true.sum())
            count = len(rows) * (1 if self.negatives else 8)
            share = self.calibration * len(rows) / len(side.given)
            loss = loss + share / answers * blank_loss(world, blank, count, self.rng)
        if self.penalty:
            loss = loss + self.penalty * self.potential.penalty(*queries.atoms())
        return loss

    def asked(self, number: int) -> tuple[Queries, Queries, Int64[Tensor, " rows"]]:
        """The questions of a side, those of it without an answer, and which of the first to ask."""
        for side, blank, rows in zip(self.sides, self.blanks, self.rows, strict=True):
            batches = rows.split(self.batch)
            if number < len(batches):
                return side, blank, batches[number]
            number -= len(batches)
        raise AssertionError("an epoch has no such batch")

    def tree(self) -> dict[str, Any]:
        return {"rows": list(self.rows), "order": self.order}

    def restore(self, tree: dict[str, Any]) -> None:
        """Take over the order of the epoch; anything but an order of these questions is refused."""
        for found, own in zip(
            [*tree["rows"], tree["order"]], [*self.rows, self.order], strict=True
        ):
            if not torch.equal(found.sort().values, own.sort().values):
                raise ValueError("the order of the questions is not one of these triples")
        self.rows, self.order = list(tree["rows"]), tree["order"]


@dataclass(eq=False)
class Chains:
    """The likelihood, by persistent chains of worlds at the model's distribution.

    Before each loss every chain takes some sweeps of blocked updates. The gradient of a loss is that of
    minus the log-likelihood, per true fact.
    """

    potential: KnowledgePotential
    bits: Bits
    rng: Generator
    chains: int = 1
    sweeps: int = 1
    steps: int = 10

    def __post_init__(self) -> None:
        self.worlds = torch.stack([self.bits] * self.chains)

    def loss(self, step: int) -> Float[Tensor, ""]:
        loops = max(1, len(self.bits) // 8)
        for chain, world in enumerate(self.worlds):
            for _ in range(self.sweeps):
                world = sweep(self.potential, world, self.rng, loops)
            self.worlds[chain] = world
        facts = max(1.0, float(self.bits.sum()))
        return likelihood_loss(self.potential, self.bits, self.worlds) / facts

    def tree(self) -> dict[str, Any]:
        return {"worlds": self.worlds}

    def restore(self, tree: dict[str, Any]) -> None:
        if tree["worlds"].shape != self.worlds.shape:
            raise ValueError(f"the chains are {list(tree['worlds'].shape)} in size")
        self.worlds.copy_(tree["worlds"])  # in place: other strides could add up in another order


def likelihood_loss(
    potential: KnowledgePotential,
    bits: Bits,
    worlds: Float[Tensor, "chains heads tails relations"],
) -> Float[Tensor, ""]:
    """The mean score of the model's own worlds minus that of the data."""
    each = [potential.total(world[None])[0] for world in worlds]
    return torch.stack(each).mean() - potential.total(bits[None])[0]
