"""The methods of the grid: NMLNs by their presets, and every registered baseline.

A baseline that a new file registers is compared in every recall figure, beside the graph models if it
generates graphs and beside the string models otherwise; it needs no line here.
"""

from dataclasses import dataclass, replace
from typing import Literal

from nmln.baselines.base import BASELINES
from nmln.baselines.digress_common import GraphGenerator
from nmln.errors import InputError
from nmln.reproduction.budgets import Budget
from nmln.reproduction.datasets import DataSet

Kind = Literal["nmln", "graphs", "strings"]


@dataclass(frozen=True)
class Method:
    """A way to learn from molecules and to generate new ones.

    Args:
        name: its name in cells.
        title: its name in figures.
        kind: NMLNs, or baselines that generate graphs or strings.
        preset: of an NMLN, the settings that it starts from.
        settings: of an NMLN, changes to the preset, as `--set` takes them.
        levels: of an NMLN, how many levels its ladder has, 0 if that depends on the molecules.
        like_others: of an NMLN, whether it samples with the chains, burn-in and start of the ablations.
        update: seconds of an update at ten atoms, for estimates.
        per_second: samples per second at ten atoms, for estimates.
    """

    name: str
    title: str
    kind: Kind = "nmln"
    preset: str = ""
    settings: tuple[str, ...] = ()
    levels: int = 1
    like_others: bool = True
    update: float = 1.0
    per_second: float = 300.0

    @property
    def has_ladder(self) -> bool:
        return self.kind == "nmln" and self.levels != 1


OURS = Method(
    "ours", "NMLN*, preset molecules", preset="molecules", levels=0, like_others=False,
    update=0.5, per_second=150,
)  # fmt: skip
PAPER = Method(
    "paper", "NMLN*, settings of the paper", preset="paper", levels=5, update=8, per_second=30
)
STAR = Method(
    "star", "NMLN* (GNN + parallel noising)", preset="star", levels=5, update=0.41, per_second=300
)
ABLATION = (
    Method("s1", "s.1 (DeepSet, 8 chains)", preset="s1", update=0.74, per_second=21),
    Method("s2", "s.2 (DeepSet, 40 chains)", preset="s2", update=3.7, per_second=21),
    Method("s3", "s.3 (GNN + Gibbs, 8 chains)", preset="s3", update=0.03, per_second=1500),
    Method("s4", "s.4 (GNN + Gibbs, 100 chains)", preset="s4", update=0.09, per_second=1500),
    Method("s5", "s.5 (GNN + Gibbs, 500 chains)", preset="s5", update=0.35, per_second=1500),
    STAR,
)
LADDERS = (
    replace(
        STAR, name="star-3-levels", title="3 levels, 100 replicas", levels=3,
        settings=("ladder.rates=[0.1,0.01,0.001]",), update=0.25, per_second=500,
    ),
    replace(
        STAR, name="star-9-levels", title="9 levels, 100 replicas", levels=9,
        settings=("ladder.rates=[0.1,0.05,0.02,0.01,0.007,0.005,0.0025,0.0015,0.001]",),
        update=0.75, per_second=170,
    ),
    replace(
        STAR, name="star-20-replicas", title="5 levels, 20 replicas",
        settings=("chains.replicas=20",), update=0.12,
    ),
    replace(
        STAR, name="star-300-replicas", title="5 levels, 300 replicas",
        settings=("chains.replicas=300",), update=1.2,
    ),
)  # fmt: skip
"""Other ladders and numbers of replicas than those of `STAR`, which is the middle of both rows."""

FULL_NETWORK = ("model.layers=10", "model.hidden=128", "model.initial_scale=0.45")
"""What the GNNs of the ablation have at the paper's size; below it they have 4 layers of 64."""


@dataclass(frozen=True)
class Role:
    """What the grid does with a baseline that it knows.

    Args:
        when: in the grid below full size (`small`), at full size (`full`), in both, or never.
        families: data sets that it is for; empty: all.
        per_minute: molecules that a minute carries through a published schedule, which is compared
            only where it ends by itself; 0: it is compared everywhere.
        per_second: samples per second at ten atoms.
    """

    when: Literal["both", "small", "full", "never"] = "both"
    families: tuple[str, ...] = ()
    per_minute: int = 0
    per_second: float = 300.0


ROLES = {
    "digress-s": Role("small", per_second=28),
    "congress-s": Role("small", per_second=22),
    "digress-5l": Role("full", ("chembl", "zinc250k"), per_second=0.5),
    "digress-9l": Role("full", ("qm9",), per_second=0.3),
    "digress-12l": Role("full", ("moses",), per_second=0.15),
    "congress": Role("full", per_second=0.5),
    "digress-uniform-s": Role("never"),
    "gru": Role("never"),
    "rnn-char": Role(per_minute=600, per_second=500),
    "rnn-char-converged": Role(per_second=500),
    "rnn-regex": Role(per_minute=600, per_second=500),
    "rnn-regex-converged": Role(per_second=500),
    "rnn-selfies": Role(per_minute=600, per_second=500),
    "rnn-selfies-converged": Role(per_second=500),
    "rnn-randomised": Role(per_second=450),
    "svae": Role(per_minute=120, per_second=420),
    "svae-per-molecule": Role(per_second=420),
}
"""The baselines that the paper compares with, and two that it does not have (`never`)."""


def baselines(data: DataSet, budget: Budget) -> tuple[Method, ...]:
    """The baselines of a recall figure: those of the paper, and all that the grid does not know."""
    found = []
    learned = None if data.paper is None else round(0.8 * data.paper)
    for name in BASELINES:
        role = ROLES.get(name, Role())
        if role.when not in ("both", "full" if budget.full else "small"):
            continue
        if role.families and (data.family if data.paper else "chembl") not in role.families:
            continue
        if role.per_minute and not budget.published(learned, role.per_minute):
            continue
        found.append(baseline(name))
    return tuple(found)


def baseline(name: str) -> Method:
    """A registered baseline as a method of the grid."""
    named, role = BASELINES.named(name), ROLES.get(name, Role())
    kind: Kind = "graphs" if issubclass(named.family, GraphGenerator) else "strings"
    return Method(name, named.title, kind, per_second=role.per_second)


def method(name: str) -> Method:
    """The method of a name that a cell or a result names."""
    for one in (OURS, PAPER, *ABLATION, *LADDERS):
        if one.name == name:
            return one
    if name not in BASELINES:
        raise InputError(
            f"there is no method {name!r} in the grid. nmln baseline list shows the baselines.",
            token=name,
            kind="unknown",
        )
    return baseline(name)
