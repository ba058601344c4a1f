"""A distribution given evidence, ready for queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Integer
from torch import Generator, Tensor

from nmln.counting import more_than
from nmln.devices import generator, move
from nmln.errors import InputError
from nmln.evidence import Evidence, VirtualEvidence
from nmln.inference import exact, search
from nmln.inference.answers import Answer, Answers, lost_digits
from nmln.inference.chains import Plan, sampled
from nmln.inference.exact import LIMIT, Progress, Statistic
from nmln.inference.likelihood import LogProbabilities, estimated
from nmln.inference.queries import Questions, read_queries
from nmln.inference.search import Best
from nmln.ladders import LadderLike, Temperatures
from nmln.logic import WeightedFormula
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.tempered import TemperedPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space

LEVELS, HOTTEST = 6, 10.0
SLOW_LIMIT = 2**16  # worlds enumerated by default where a network scores them
_ALMOST = (
    1 - 2**-20
)  # a strength at which hard formulas cost their penalty, and weights all but count


@dataclass(frozen=True)
class Conditional:
    """The worlds that agree with evidence, with their probabilities under a model.

    Made by `of_formulas`, `of_potential`, or `Model.given`. `potential` has every level that chains run
    at, `target` the last one alone, and `crossable` is the target with hard formulas softened.
    Everything is exact where at most `limit` worlds agree with the evidence, and sampled otherwise.
    """

    target: BasePotential
    potential: BasePotential
    crossable: BasePotential
    evidence: Evidence
    ladder: LadderLike | None = None
    limit: int = LIMIT

    @property
    def space(self) -> Space:
        return self.target.space

    @property
    def enumerable(self) -> bool:
        return not more_than(self.evidence.counts, self.limit)

    @staticmethod
    def of_formulas(
        space: Space,
        formulas: Sequence[WeightedFormula],
        evidence: Evidence | None = None,
        virtual: VirtualEvidence | None = None,
        *,
        levels: int = LEVELS,
        hottest: float = HOTTEST,
    ) -> "Conditional":
        """A Markov logic network. Chains run at `levels` temperatures from `hottest` down to 1.

        At temperatures above 1 a violated hard formula costs a finite penalty, so that chains can cross.
        """
        ladder = Temperatures.geometric(hottest, levels)
        strengths = [1 / temperature for temperature in ladder]
        penalty = _penalty(formulas)

        def build(some: Sequence[float]) -> BasePotential:
            return FormulaPotential(
                space, formulas, len(some), strengths=some, penalty=penalty, dtype=torch.float64
            )

        return Conditional._of(
            build([1.0]), build(strengths), build([_ALMOST]), strengths, evidence, virtual, ladder
        )

    @staticmethod
    def of_potential(
        potential: BasePotential,
        evidence: Evidence | None = None,
        virtual: VirtualEvidence | None = None,
        *,
        levels: int = LEVELS,
        hottest: float = HOTTEST,
    ) -> "Conditional":
        """Any potential of one level, at several temperatures."""
        ladder = Temperatures.geometric(hottest, levels)
        strengths = [1 / temperature for temperature in ladder]
        tempered = TemperedPotential(potential, ladder)
        return Conditional._of(potential, tempered, potential, strengths, evidence, virtual, ladder)

    @staticmethod
    def of_levels(
        target: BasePotential,
        potential: BasePotential,
        ladder: LadderLike,
        formulas: Sequence[WeightedFormula] = (),
        evidence: Evidence | None = None,
        virtual: VirtualEvidence | None = None,
    ) -> "Conditional":
        """A trained model with a potential for every level, and formulas added to it.

        Formulas act in full at the target, weaker the noisier the level.
        """
        space, levels = target.space, potential.levels
        strengths = [1.0] * levels
        crossable = target
        if formulas:
            rising = [(level + 1) / levels for level in range(levels)]
            penalty = _penalty(formulas)

            def build(some: Sequence[float]) -> BasePotential:
                return FormulaPotential(
                    space, formulas, len(some), strengths=some, penalty=penalty, dtype=torch.float64
                )

            crossable = TotalPotential([target]).add(build([_ALMOST]))
            target = TotalPotential([target]).add(build([1.0]))
            potential = TotalPotential([potential]).add(build(rising))
        return Conditional._of(target, potential, crossable, strengths, evidence, virtual, ladder)

    @staticmethod
    def _of(
        target: BasePotential,
        potential: BasePotential,
        crossable: BasePotential,
        strengths: Sequence[float],
        evidence: Evidence | None,
        virtual: VirtualEvidence | None,
        ladder: LadderLike | None,
    ) -> "Conditional":
        evidence = evidence or Evidence.none(target.space)
        for name, given in (("evidence", evidence), ("virtual evidence", virtual)):
            if given is not None and given.space != target.space:
                raise InputError(
                    f"this {name} is about another space than the model's. Make it with the model's "
                    "space.",
                    kind="conflict",
                )
        local = target.ties(evidence.free) is not None
        if virtual is not None and bool(virtual.table.any()):
            target = _with(target, virtual, [1.0])
            crossable = _with(crossable, virtual, [1.0])
            potential = _with(potential, virtual, strengths)
        limit = LIMIT if local else SLOW_LIMIT
        return Conditional(target, potential, crossable, evidence, ladder, limit)

    def to(self, device: torch.device) -> "Conditional":
        """This distribution with its potentials moved to a device."""
        target, potential, crossable = (
            move(one, device) for one in (self.target, self.potential, self.crossable)
        )
        return replace(self, target=target, potential=potential, crossable=crossable)

    def marginals(
        self,
        query: str,
        rng: Generator | None = None,
        *,
        functions: Mapping[str, Statistic] | None = None,
        plan: Plan | None = None,
        exactly: bool | None = None,
        progress: Progress | None = None,
    ) -> Answers:
        """The probability of every query in a text, and the mean of every function, given the evidence.

        `exactly` True insists on enumeration, False on chains; None enumerates where that is quick.
        """
        questions = Questions(self.space, read_queries(query, self.space))
        return self._ask(questions, functions or {}, rng, plan, exactly, progress)

    def expectations(
        self,
        functions: Mapping[str, Statistic],
        rng: Generator | None = None,
        *,
        plan: Plan | None = None,
        exactly: bool | None = None,
        progress: Progress | None = None,
    ) -> Answers:
        """The means of functions of worlds, each (levels, chains, groups) to (levels, chains)."""
        if not functions:
            raise InputError(
                "there is no function to take the mean of. Give {'name': function}.", kind="empty"
            )
        return self._ask(Questions(self.space, ()), functions, rng, plan, exactly, progress)

    def _ask(
        self,
        questions: Questions,
        functions: Mapping[str, Statistic],
        rng: Generator | None,
        plan: Plan | None,
        exactly: bool | None,
        progress: Progress | None,
    ) -> Answers:
        if self._enumerate(exactly):
            found = exact.enumerated(
                self.target, self.evidence, questions, functions, limit=2**24, progress=progress
            )
            texts = [*(query.text for query in questions.queries), *functions]
            numbers = torch.cat([found.probabilities, found.expectations]).tolist()
            answers = tuple(Answer(*pair) for pair in zip(texts, numbers, strict=True))
            warned = tuple(lost_digits(found.largest, self.target.dtype))
            how = f"Exact: {found.worlds:,} worlds enumerated."
            return Answers(answers, how, warned, found.log_z)
        return sampled(
            self.potential, self.evidence, self.ladder, questions, functions,
            rng or generator(self.target.device), plan or Plan(), progress,
        )  # fmt: skip

    def most_probable(
        self,
        rng: Generator | None = None,
        *,
        restarts: int = 50,
        steps: int = 200,
        exactly: bool | None = None,
        progress: Progress | None = None,
    ) -> Best:
        """The most probable world given the evidence (MAP); hard formulas hold in it."""
        if self._enumerate(exactly):
            found = exact.enumerated(self.target, self.evidence, limit=2**24, progress=progress)
            warned = tuple(lost_digits(found.largest, self.target.dtype))
            return Best(found.best, found.best_score, exact=True, warnings=warned)
        return search.searched(
            self.target, self.crossable, self.evidence, rng or generator(self.target.device),
            restarts=restarts, steps=steps, progress=progress,
        )  # fmt: skip

    @torch.no_grad()
    def log_probability(
        self,
        worlds: Integer[Tensor, "worlds groups"],
        rng: Generator | None = None,
        *,
        chains: int = 100,
        steps: int = 300,
        sweeps: int = 200,
        exactly: bool | None = None,
        progress: Progress | None = None,
    ) -> LogProbabilities:
        """log P of worlds given the evidence; minus infinity for those that it or a formula forbids."""
        scores = self.target.score(worlds[None])[0].double()
        scores = scores.masked_fill(~self.evidence.allows(worlds), float("-inf"))
        if self._enumerate(exactly):
            found = exact.enumerated(self.target, self.evidence, limit=2**24, progress=progress)
            return LogProbabilities(
                scores, found.log_z, found.log_z, best=found.best_score, log_sum=found.log_sum,
                warnings=tuple(lost_digits(found.largest, self.target.dtype)),
            )  # fmt: skip
        low, high, low_error, high_error = estimated(
            self.target, self.potential, self.evidence, rng or generator(self.target.device),
            chains=chains, steps=steps, sweeps=sweeps, progress=progress,
        )  # fmt: skip
        warned = tuple(lost_digits(exact.size_of(scores), self.target.dtype))
        return LogProbabilities(
            scores, low, high, low_error, high_error, exact=False, warnings=warned
        )

    def _enumerate(self, exactly: bool | None) -> bool:
        """Whether to enumerate; without a free group there is no other way."""
        settled = not bool(self.evidence.free.any())
        return settled or (self.enumerable if exactly is None else exactly)


def _with(
    potential: BasePotential, virtual: VirtualEvidence, strengths: Sequence[float]
) -> BasePotential:
    table = torch.tensor(strengths, dtype=torch.float64)[:, None] * virtual.table
    return TotalPotential([potential]).add(IndependentPotential(potential.space, table))


def _penalty(formulas: Sequence[WeightedFormula]) -> float:
    """The cost of a violated hard formula where chains may cross: more than any weight can offset."""
    return 10.0 + 2 * max((abs(one.weight or 0.0) for one in formulas), default=0.0)
