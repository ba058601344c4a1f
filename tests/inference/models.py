"""Small random models whose marginals can be enumerated."""

from dataclasses import dataclass

import torch
from torch import Generator

from nmln.evidence import Evidence
from nmln.formats.mln import parse_mln
from nmln.inference import Conditional
from nmln.logic import Literal, WeightedFormula
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space

PROGRAM = parse_mln("""
kind = {A, B, C}
type(node, kind!)
mark(node)
link(node, node) symmetric irreflexive
1 type(x, A) => mark(x)
1 link(x, y) => (mark(x) <=> mark(y))
1 link(x, y) ^ type(x, B)
1 EXIST y link(x, y)
1 type(x, C) v mark(x)
1 mark(x) ^ mark(y) ^ !(x = y)
""")
SPACE = Space(PROGRAM.language, {"node": ("0", "1", "2")})
QUERY = (
    "type, mark, link, mark(0) ^ mark(1), mark(1) ^ link(1, 2), type(0, A) ^ type(1, A), "
    "EXIST x mark(x), link(0, 1) v link(1, 2), mark(0) ^ !mark(2), type(1, B) v link(0, 2)"
)


@dataclass(frozen=True)
class Case:
    name: str
    conditional: Conditional


def weighted(seed: int, scale: float = 1.2) -> list[WeightedFormula]:
    rng = Generator().manual_seed(seed)
    weights = (scale * torch.randn(len(PROGRAM.formulas), generator=rng)).tolist()
    return [
        WeightedFormula(one.formula, weight)
        for one, weight in zip(PROGRAM.formulas, weights, strict=True)
    ]


def network(seed: int, scale: float = 25.0) -> BasePotential:
    potential = FragmentPotential(SPACE, 1, 2, (8,), rng=Generator().manual_seed(seed)).double()
    with torch.no_grad():
        potential.networks[0].layers[-1].weight.mul_(scale / 4)  # pyright: ignore
    return potential


def some_evidence(seed: int) -> Evidence:
    rng = Generator().manual_seed(1000 + seed)
    node, other = torch.randperm(3, generator=rng)[:2].tolist()
    return Evidence.of(
        SPACE,
        [
            Literal("mark", (str(node),), bool(torch.randint(2, (), generator=rng))),
            Literal("type", (str(other), "B"), False),
        ],
    )


def random_case(seed: int) -> Case:
    """One of twenty and more: formulas, a network, or both, every other time with evidence."""
    evidence = some_evidence(seed) if seed % 2 else None
    kind = ("formulas", "network", "both")[seed % 3]
    if kind == "formulas":
        return Case(
            kind, Conditional.of_formulas(SPACE, weighted(seed), evidence, levels=4, hottest=5.0)
        )
    potential = network(seed)
    if kind == "both":
        formulas = FormulaPotential(SPACE, weighted(seed, 0.6), dtype=torch.float64)
        potential = TotalPotential([potential]).add(formulas)
    return Case(kind, Conditional.of_potential(potential, evidence, levels=4, hottest=5.0))
