"""The base term: marginals of worlds, counted in parts that fit the memory."""

import pytest
import torch
from torch import Generator

from nmln.buckets import Bucket
from nmln.config import configure
from nmln.language import Attribute, Language
from nmln.model import Model, assembly
from nmln.noise import uniform
from nmln.potentials import independent
from nmln.potentials.independent import IndependentPotential
from nmln.space import Space

LANGUAGE = Language(
    Attribute("kind", ("node",), ("a", "b", "c")),
    Attribute("tie", ("node", "node"), ("none", "weak", "strong"), symmetric=True, reflexive=False),
)
SPACE = Space(LANGUAGE, {"node": 4})


def test_marginals_do_not_depend_on_the_parts_that_they_are_counted_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = uniform(SPACE, 2, 101, Generator().manual_seed(0))
    whole = IndependentPotential.fit(SPACE, values).table
    for together in (1, 7 * 2 * SPACE.entries):  # one world at a time, and seven
        monkeypatch.setattr(independent, "_TOGETHER", together)
        assert torch.equal(IndependentPotential.fit(SPACE, values).table, whole)


def test_large_worlds_are_fitted_to_as_many_copies_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = uniform(SPACE, 1, 5, Generator().manual_seed(0))[0]
    config = configure({"ladder": {"rates": [0.1, 0.01]}, "model": {"layers": 1, "hidden": 4}})
    seen: list[int] = []
    chosen = assembly._chosen
    monkeypatch.setattr(
        assembly,
        "_chosen",
        lambda *given: seen.append(len(found := chosen(*given))) or found,
    )
    Model.build([Bucket(SPACE, worlds)], config=config)
    monkeypatch.setattr(assembly, "_MOST_BYTES", 30 * 2 * SPACE.groups)
    Model.build([Bucket(SPACE, worlds)], config=config)
    monkeypatch.setattr(assembly, "_MOST_BYTES", 1)
    Model.build([Bucket(SPACE, worlds)], config=config)
    assert seen == [2000, 30, 1]
