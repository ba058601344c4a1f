"""Training objectives: the conditionals of atoms given the rest, or the likelihood of the world.

The data are one world in which facts are missing. An objective gives one loss per training step and
expects an optimiser step after each loss. Its `tree` holds its state within an epoch; together with
the generator, that is all it needs to continue.

The likelihood needs worlds drawn from the model. `sweep` draws them by blocked Gibbs updates: it
redraws the atoms of many pairs of constants at once. With fragments of two constants all pairs are
independent given the loops r(a, a). With fragments of three, pairs that share no constant are
independent given all other atoms. While one such set of pairs is redrawn, one relation and direction
after the other, the first layer is updated in place instead of being computed again.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor
from torch.nn.functional import softplus

from nmln.knowledge.parts import Bits, Dropout
from nmln.knowledge.potential import KnowledgePotential, PreparedWorld

Pairs = Int64[Tensor, "pairs 2"]

_LOOPS = 0.125  # the share of queries that also score r(a, a), which costs as much as all others


@runtime_checkable
class Objective(Protocol):
    """What training minimises: an epoch takes the losses of steps 0 to `steps - 1`, in order."""

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        ...

    def loss(self, step: int) -> Float[Tensor, ""]:
        """The loss of one step of an epoch, differentiable in the parameters."""
        ...

    def tree(self) -> dict[str, Any]:
        """The state within an epoch, beside the generator."""
        ...

    def restore(self, tree: dict[str, Any]) -> None:
        """Continue from a tree; one that does not fit raises a ValueError."""
        ...


class Queries(NamedTuple):
    """Queries for the tails of (head, relation), or for the heads of (relation, tail).

    `true` marks the answers that are facts. `answers` holds one of them per query, where each query
    stands for a single fact.
    """

    tails: bool
    given: Int64[Tensor, " queries"]
    relations: Int64[Tensor, " queries"]
    true: Bool[Tensor, "queries constants"]
    answers: Int64[Tensor, " queries"] | None = None

    @staticmethod
    def of(bits: Bits, tails: bool, answered: bool = True) -> "Queries":
        """All queries that have an answer among the facts, or all that have none."""
        asked = bits if tails else bits.transpose(0, 1)
        given, relations = ((asked.sum(1) > 0) == answered).nonzero().T
        return Queries(tails, given, relations, asked[given, :, relations] > 0)

    def some(self, rows: Int64[Tensor, " some"]) -> "Queries":
        """The queries in some rows."""
        answers = None if self.answers is None else self.answers[rows]
        return Queries(self.tails, self.given[rows], self.relations[rows], self.true[rows], answers)

    def one_by_one(self) -> "Queries":
        """The same queries, repeated once per right answer."""
        row, answer = self.true.nonzero().T
        return self.some(row)._replace(answers=answer)

    def atoms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Head, relation and tail of every right answer, or of the single facts in `answers`."""
        if self.answers is None:
            row, answer = self.true.nonzero().T
        else:
            row, answer = torch.arange(len(self.given)), self.answers
        ends = (self.given[row], answer) if self.tails else (answer, self.given[row])
        return ends[0], self.relations[row], ends[1]

    def log_odds(
        self, world: PreparedWorld, loops: Bool[Tensor, " queries"]
    ) -> Float[Tensor, "queries constants"]:
        """The log-odds of all candidates.

        r(a, a) is scored only where `loops` says so or where it is a fact; elsewhere its log-odds are
        minus infinity.
        """
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
    """The negative conditional log-likelihood of the right answers, per right answer.

    Each right answer competes with all wrong ones, given that exactly one of them is true: that is what
    a ranking measures. This determines the log-odds only up to a constant per query, so `calibration`
    times the negative log-pseudo-likelihood of every atom is added, which calibrates them.
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
    """The conditional loss of single facts, with a random sample of the wrong answers, reweighted."""
    assert queries.answers is not None
    chance = torch.rand(queries.true.shape, generator=rng)
    own = torch.where(loops, 2.0, -1.0)[:, None]  # always or never draw r(a, a)
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
    share = stands_for / queries.true.sum(1)  # a query is repeated once per right answer
    alone = softplus(-right) + share * softplus(wrong).sum(1)
    return (against + calibration * alone).mean()


def blank_loss(
    world: PreparedWorld, blank: Queries, count: int, rng: Generator
) -> Float[Tensor, ""]:
    """The negative log-pseudo-likelihood of the atoms of all queries without an answer, estimated.

    The estimate comes from `count` random atoms; atoms r(a, a) are left out. Without this term a
    relation that holds for few constants would seem to hold for many, because queries without an
    answer enter no other loss.
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


@dataclass(eq=False)
class ConditionalObjective:
    """The conditional loss of every query that has an answer, once per epoch, in batches.

    The answers are predicted from the other facts. A fresh random share of the facts is hidden in every
    batch, because facts are missing when the model is used, too. All wrong answers are negative
    examples. The missing facts are among them, so the model must not memorise the training triples.

    Args:
        potential: the potential to train.
        bits: the world of the training triples.
        rng: draws batches, hidden facts, dropout and negatives.
        batch: queries per step.
        hide: share of the facts that are hidden in a step.
        dropout: share of the features that are dropped in a step.
        calibration: weight of the pseudo-likelihood of single atoms.
        penalty: weight of the regulariser of the factors.
        negatives: wrong answers drawn per fact; an epoch then visits every fact from both sides.
            0 uses all wrong answers.
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
        """Batches per epoch."""
        return len(self.order)

    def loss(self, step: int) -> Float[Tensor, ""]:
        """The loss of one batch; step 0 shuffles the batches of the epoch."""
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
        """For batch `number`: all queries of its side, those without an answer, and its rows."""
        for side, blank, rows in zip(self.sides, self.blanks, self.rows, strict=True):
            batches = rows.split(self.batch)
            if number < len(batches):
                return side, blank, batches[number]
            number -= len(batches)
        raise AssertionError("the number must be below that of the batches of an epoch")

    def tree(self) -> dict[str, Any]:
        """The order of the epoch."""
        return {"rows": list(self.rows), "order": self.order}

    def restore(self, tree: dict[str, Any]) -> None:
        """Continue with the order of an epoch; it must be a permutation of the queries."""
        for found, own in zip(
            [*tree["rows"], tree["order"]], [*self.rows, self.order], strict=True
        ):
            if not torch.equal(found.sort().values, own.sort().values):
                raise ValueError("the order must be a permutation of the queries of the triples")
        self.rows, self.order = list(tree["rows"]), tree["order"]


def rounds(constants: int, together: bool) -> list[Pairs]:
    """All pairs a < b, in sets of pairs that can be redrawn at once.

    With `together` there is one set of all pairs. Otherwise the pairs of a set are disjoint, as in the
    rounds of a round-robin tournament.
    """
    if together:
        return [torch.combinations(torch.arange(constants))]
    seats = constants + constants % 2  # with an odd number, one constant sits out each round
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
    """Redraw every atom between two different constants once; the given world is not changed.

    The atoms r(a, a) of `loops` random constants are redrawn too; None means all constants. A sweep
    leaves the distribution of the potential invariant.
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
    """Draw atoms true (1) or false (0), in double precision so that rare atoms stay rare."""
    chance = torch.rand(odds.shape, generator=rng, dtype=torch.float64)
    return (chance < odds.double().sigmoid()).to(odds.dtype)


@dataclass(eq=False)
class LikelihoodObjective:
    """The negative log-likelihood of the world per true fact, by persistent chains of worlds.

    Every chain takes some sweeps of blocked Gibbs updates before each loss. The gradient of the loss
    estimates that of the negative log-likelihood.

    Args:
        potential: the potential to train.
        bits: the world of the training triples, where all chains start.
        rng: draws the moves of the chains.
        chains: number of persistent chains.
        sweeps: sweeps of every chain per step.
        steps: steps per epoch.
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
        """Move the chains, then compare their mean score with that of the data."""
        loops = max(1, len(self.bits) // 8)
        for chain, world in enumerate(self.worlds):
            for _ in range(self.sweeps):
                world = sweep(self.potential, world, self.rng, loops)
            self.worlds[chain] = world
        facts = max(1.0, float(self.bits.sum()))
        return likelihood_loss(self.potential, self.bits, self.worlds) / facts

    def tree(self) -> dict[str, Any]:
        """The current worlds of the chains."""
        return {"worlds": self.worlds}

    def restore(self, tree: dict[str, Any]) -> None:
        """Continue with the worlds of saved chains, whose number and size must be the same."""
        if tree["worlds"].shape != self.worlds.shape:
            raise ValueError(
                f"the chains must have shape {list(self.worlds.shape)}, "
                f"got {list(tree['worlds'].shape)}"
            )
        self.worlds.copy_(tree["worlds"])  # in place: other strides could change the order of sums


def likelihood_loss(
    potential: KnowledgePotential,
    bits: Bits,
    worlds: Float[Tensor, "chains heads tails relations"],
) -> Float[Tensor, ""]:
    """The mean score of worlds drawn from the model minus the score of the data."""
    each = [potential.total(world[None])[0] for world in worlds]
    return torch.stack(each).mean() - potential.total(bits[None])[0]
