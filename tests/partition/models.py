"""Models of 4,096 worlds whose log Z is known, and draws from them."""

from collections.abc import Sequence

import pytest
import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from nmln.evidence import Evidence
from nmln.formats.mln import parse_formula
from nmln.language import Attribute, Language, predicate
from nmln.partition import (
    Ratios,
)
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.function import ValuesPotential
from nmln.potentials.total import TotalPotential
from nmln.sampler import sample
from nmln.space import Space
from nmln.types import Kernel

BOOLEAN = Space(Language(predicate("up", "site")), {"site": tuple("ABCDEFGHIJKL")})  # 4,096 worlds
MIXED = Space(Language(Attribute("k", ("a",), tuple("wxyz"), value_sort="v")), {"a": 6})  # 4,096
SPACES = (BOOLEAN, pytest.param(MIXED, marks=pytest.mark.slow))
STRENGTHS = (0.3, 0.5, 0.75, 1.0)


def coupled(
    space: Space, strengths: Sequence[float] = STRENGTHS
) -> Float64[Tensor, "levels worlds"]:
    """Scores of all worlds: pairs and single groups, the stronger the lower the level, and a part that
    each level has for itself. The target's likeliest world has about a sixth of the probability.
    """
    rng = Generator().manual_seed(0)
    onehot = space.one_hot(space.enumerate(), torch.float64)
    pairs = torch.randn(space.entries, space.entries, generator=rng, dtype=torch.float64)
    own = torch.randn(len(strengths), space.entries, generator=rng, dtype=torch.float64)
    shared = (onehot @ pairs * onehot).sum(1)
    return torch.tensor(strengths)[:, None].double() * shared / 2 + own @ onehot.T / 4


def looked_up(space: Space, table: Float64[Tensor, "levels worlds"]) -> ValuesPotential:
    level = torch.arange(len(table))[:, None]
    return ValuesPotential(space, lambda values: table[level, space.index(values)], len(table))


def all_scores(potential: BasePotential) -> Float64[Tensor, "levels worlds"]:
    worlds = potential.space.enumerate().expand(potential.levels, -1, -1)
    with torch.no_grad():
        return potential.score(worlds).double()


def exact(potential: BasePotential, evidence: Evidence | None = None) -> Float64[Tensor, " levels"]:
    """log Z of every level by enumeration."""
    scores = all_scores(potential)
    if evidence is not None:
        scores = scores[:, evidence.allows(potential.space.enumerate())]
    return scores.logsumexp(1)


def independent(
    potential: BasePotential, number: int, seed: int, evidence: Evidence | None = None
) -> Tensor:
    """Independent draws from the exact distribution of every level."""
    worlds = potential.space.enumerate()
    scores = all_scores(potential)
    if evidence is not None:
        scores = scores.masked_fill(~evidence.allows(worlds), float("-inf"))
    rng = Generator().manual_seed(seed)
    return worlds[torch.multinomial(scores.softmax(1), number, replacement=True, generator=rng)]


def recorded(
    potential: BasePotential, kernel: Kernel, chains: int, draws: int, moves: int, seed: int = 1
) -> list[Tensor]:
    """What chains of a run pass through, started from independent draws."""
    start = independent(potential, chains, seed)
    rng = Generator().manual_seed(seed)
    runs = sample(potential, kernel, start, draws, rng, moves=moves)
    return [sweep.state.values for sweep in runs]


def assert_close(found: Tensor, error: Tensor, truth: Tensor, most: float = 0.03) -> None:
    """Within four standard errors, and within `most`; and the standard errors are no excuse."""
    off = (found - truth).abs()
    assert (off <= 4 * error + 1e-12).all(), (off, error)
    assert (off < most).all(), off
    assert (error < most).all(), error


def assert_ratios(found: Ratios, log_z: Tensor, most: float = 0.03) -> None:
    assert_close(found.forward, found.forward_error, log_z.diff(), most)
    assert_close(found.reverse, found.reverse_error, log_z.diff(), most)
    whole = log_z[-1:] - log_z[0]
    for total, error in (
        (found.forward_sum, found.forward_sum_error),
        (found.reverse_sum, found.reverse_sum_error),
    ):
        assert_close(torch.tensor([total]), torch.tensor([error]), whole, most)


CLAUSES = ("!up(A) v !up(B).", "up(C) v up(D).")


def steered(hard: Sequence[int]) -> TotalPotential:
    """The coupled model with clauses that hold strictly at some levels and not at all at others."""
    formulas = [parse_formula(clause, BOOLEAN.language) for clause in CLAUSES]
    part = FormulaPotential(BOOLEAN, formulas, len(hard), dtype=torch.float64)
    return TotalPotential([looked_up(BOOLEAN, coupled(BOOLEAN)).double()]).add(part, hard)
