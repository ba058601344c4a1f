"""Shapes and settings that did best on validation triples, by how dense the facts are."""

from collections.abc import Mapping
from typing import Any

from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import Shape
from nmln.knowledge.training import Settings

DENSE = 2.0  # facts for each ordered pair of constants, from where on pairs explain themselves
_SHAPE = {"hidden": 128}
_SETTINGS = {"dropout": 0.6, "hide": 0.4, "penalty": 0.03}


def recommended(
    base: KnowledgeBase,
    shape: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Shape, Settings]:
    """A shape and settings for a knowledge base; what is given goes first.

    Where a pair has several facts (Nations: nine), each follows from the others all too easily: more of
    them are hidden, and more of the features left out. Where a pair has one or none (Kinship, UMLS), the
    constants must be known well, and the plain defaults do best.
    """
    dense = facts_per_pair(base) > DENSE
    chosen = {**(_SHAPE if dense else {}), **(shape or {})}
    ways = {**(_SETTINGS if dense else {}), **(settings or {})}
    return Shape(**chosen), Settings(**ways)


def facts_per_pair(base: KnowledgeBase) -> float:
    """Training facts for each ordered pair of different constants."""
    n = len(base.constants)
    return len(base.train) / max(1, n * (n - 1))
