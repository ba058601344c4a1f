"""Answers: numbers with standard errors, and warnings where they are not reliable."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, isnan

import torch

from nmln.diagnostics import GOOD_RHAT, Diagnostics

FEW = 100  # effective draws below which a standard error is not reliable
ROUNDING = 1e-3  # nats of rounding in a score above which a warning is given


@dataclass(frozen=True)
class Answer:
    """The probability of a query, or the mean of a function, with its Monte Carlo standard error.

    Exact answers have the error 0, an infinite effective size and an R-hat of 1.
    """

    text: str
    value: float
    error: float = 0.0
    ess: float = float("inf")
    rhat: float = 1.0

    @property
    def exact(self) -> bool:
        return self.ess == float("inf")

    @property
    def doubtful(self) -> bool:
        """Whether its diagnostics show that it is not reliable."""
        if self.exact:
            return False
        return isnan(self.rhat) or self.rhat >= GOOD_RHAT or isnan(self.ess) or self.ess < FEW

    def __str__(self) -> str:
        if self.exact:
            return f"{self.text}: {self.value:.4f}"
        return (
            f"{self.text}: {self.value:.4f} +- {self.error:.4f} (ESS {self.ess:,.0f}, R-hat "
            f"{self.rhat:.3f})"
        )


@dataclass(frozen=True)
class Answers:
    """The answers in the order of the queries, how they were found, and warnings about them."""

    answers: tuple[Answer, ...]
    method: str  # a sentence
    warnings: tuple[str, ...] = ()
    log_z: float | None = None  # known if exact
    diagnostics: Diagnostics | None = None  # of the chains, if sampled

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, text: str) -> Answer:
        for answer in self.answers:
            if answer.text == text:
                return answer
        raise KeyError(f"{text!r} was not asked. Available, for example: {self.answers[0].text!r}.")

    @property
    def exact(self) -> bool:
        return self.diagnostics is None

    def __str__(self) -> str:
        warned = [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([*map(str, self.answers), self.method, *warned])


def lost_digits(largest: float, dtype: torch.dtype) -> list[str]:
    """A warning where scores are so large that rounding hides differences between worlds."""
    rounding = largest * torch.finfo(dtype).eps
    if rounding <= ROUNDING:
        return []
    return [
        f"scores reach {largest:.3g} nats, of which {str(dtype).removeprefix('torch.')} keeps no more "
        f"than {rounding:.1g}: smaller differences between worlds are lost. Make formulas with very "
        "large weights hard (a '.' at the end instead of the weight)."
    ]


def warnings_about(
    answers: tuple[Answer, ...], findings: list[str], error: float | None
) -> list[str]:
    """Warnings about sampled answers, the worst first."""
    said: list[str] = []
    doubtful = sorted((one for one in answers if one.doubtful), key=_badness, reverse=True)
    if doubtful:
        worst = doubtful[0]
        rest = f" and {len(doubtful) - 1} more" if len(doubtful) > 1 else ""
        said.append(
            f"{worst.text}{rest} cannot be trusted: the chains have not agreed (R-hat "
            f"{worst.rhat:.2f}, {worst.ess:.0f} effective draws). Take more sweeps or levels."
        )
    above = [one for one in answers if error is not None and one.error > error]
    if above and not doubtful:
        largest = max(above, key=lambda one: one.error)
        said.append(
            f"the standard error of {largest.text} is {largest.error:.4f}, above the {error:g} that was "
            "asked for. Allow more sweeps."
        )
    return said + findings


def _badness(answer: Answer) -> float:
    return answer.rhat if isfinite(answer.rhat) else float("inf")
