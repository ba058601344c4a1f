"""Settings of a training: the defaults that suit the data, and the memory that they need."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from nmln.errors import InputError
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import Shape
from nmln.memory import bytes_text, machine_memory

OBJECTIVES = ("conditional", "likelihood")
_FASTEST = 1e6  # the largest step size; far smaller ones already prevent learning

DENSE = (
    2.0  # facts per ordered pair of constants, above which the facts of a pair predict each other
)
_DENSE_SHAPE = {"hidden": 128}
_DENSE_SETTINGS = {"dropout": 0.6, "hide": 0.4, "penalty": 0.03}

_NUMBER = 4  # bytes
_KEPT = 6  # copies of a hidden layer that a backward pass needs, as measured
_MOST_RANKING = 2**28  # bytes that a batch of the ranking may need


@dataclass(frozen=True)
class KnowledgeSettings:
    """How to train; `recommended` adapts some of the defaults to the data.

    Args:
        objective: conditional or likelihood.
        epochs: the most epochs.
        minutes: the most minutes; training ends after the epoch in which they are over.
        batch: queries per step of the conditional objective.
        rate: step size of the optimiser (AdamW).
        decay: weight decay of the optimiser.
        average: decay of the running mean of the parameters, which is what is ranked and kept;
            0 uses the parameters themselves.
        hide: conditional objective: share of the facts that are hidden in a step.
        dropout: conditional objective: share of the features that are dropped in a step.
        calibration: conditional objective: weight of the pseudo-likelihood of single atoms.
        penalty: conditional objective: weight of the regulariser of the factors.
        negatives: conditional objective: wrong answers drawn per fact; 0 uses all.
        chains: likelihood: number of persistent chains.
        sweeps: likelihood: sweeps of every chain per step.
        check_every: epochs between two rankings of the validation triples.
        patience: rankings without an improvement after which training ends.
        seed: of all random draws of the training.
    """

    objective: str = "conditional"
    epochs: int = 300
    minutes: float = inf
    batch: int = 256
    rate: float = 0.015
    decay: float = 0.0
    average: float = 0.98
    hide: float = 0.2
    dropout: float = 0.4
    calibration: float = 1.0
    penalty: float = 0.01
    negatives: int = 0
    chains: int = 1
    sweeps: int = 1
    check_every: int = 5
    patience: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(
                f"objective must be conditional or likelihood, got {self.objective!r}.",
                token=str(self.objective),
                kind="unknown",
            )
        for name in ("hide", "dropout", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} must be at least 0 and below 1, got {getattr(self, name)}.",
                    token=name,
                )
        for name in ("epochs", "batch", "chains", "sweeps", "check_every", "patience"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} must be at least 1, got {getattr(self, name)}.", token=name
                )
        for name in ("penalty", "calibration", "decay"):
            if not 0 <= getattr(self, name) < inf:
                raise InputError(
                    f"{name} must be finite and not negative, got {getattr(self, name)}.",
                    token=name,
                )
        if self.negatives < 0:
            raise InputError(
                f"negatives must be 0 or more, got {self.negatives}.", token="negatives"
            )
        if self.rate > _FASTEST:
            raise InputError(f"rate must be at most {_FASTEST:g}, got {self.rate}.", token="rate")
        if not self.rate > 0 or not self.minutes > 0:
            raise InputError(
                f"rate and minutes must be positive, got {self.rate} and {self.minutes}."
            )


def recommended(
    base: KnowledgeBase,
    shape: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Shape, KnowledgeSettings]:
    """A shape and settings that suit a knowledge base; given values override them.

    They did best on the validation triples of public data sets. Where a pair has several facts (nine in
    Nations), each fact is easily predicted from the others, so more facts are hidden and more features
    dropped. Where a pair has at most one (Kinship, UMLS), the vectors of the constants matter most, and
    the plain defaults do best.
    """
    dense = facts_per_pair(base) > DENSE
    sizes = {**(_DENSE_SHAPE if dense else {}), **(shape or {})}
    training = {**(_DENSE_SETTINGS if dense else {}), **(settings or {})}
    return Shape(**sizes), KnowledgeSettings(**training)


def facts_per_pair(base: KnowledgeBase) -> float:
    """Training facts per ordered pair of different constants."""
    n = len(base.constants)
    return len(base.train) / max(1, n * (n - 1))


def expected_bytes(base: KnowledgeBase, shape: Shape, settings: KnowledgeSettings) -> int:
    """The approximate peak memory of a training step in bytes, without the program itself."""
    n, relations = len(base.constants), len(base.relations)
    pairs = n * n
    total = 6 * pairs * relations
    if shape.hidden:
        tables = 1 if shape.width == 2 else 3
        total += 3 * tables * pairs * shape.hidden
        candidates = settings.batch * (1 + settings.negatives if settings.negatives else n)
        if settings.objective == "conditional":
            fragments = 2 * candidates if shape.width == 2 else 6 * candidates * n
            loops = settings.batch // 8 * shape.width * n ** (shape.width - 1)
            total += _KEPT * (fragments + loops) * shape.hidden
        elif shape.width == 3:
            total += _KEPT * n * pairs * shape.hidden
        total += _KEPT * (n + shape.width * shape.hidden) * shape.embedding
    if shape.paths:
        total += (18 * pairs + 12 * settings.batch * n) * shape.paths
    total += 8 * (n + relations) * shape.rank * _KEPT
    return total * _NUMBER + _MOST_RANKING


def check_memory(base: KnowledgeBase, shape: Shape, settings: KnowledgeSettings) -> int:
    """The expected memory in bytes; an error if the machine does not have that much."""
    needed, available = expected_bytes(base, shape, settings), machine_memory()
    if needed > available * 0.9:
        cure = "Use a smaller --batch, --hidden, --embedding, --rank or --paths"
        if shape.width == 3 and not settings.negatives:
            cure += ", or --negatives 16"
        raise InputError(
            f"{base.sizes}. A training step of this shape needs about {bytes_text(needed)}, but "
            f"the machine has {bytes_text(available)}. {cure}.",
            kind="size",
        )
    return needed
