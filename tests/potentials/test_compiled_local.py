"""Scores of neighbourhoods by the compiled kernel against those by torch."""

import pytest
import torch
from torch import Generator

from nmln.language import Attribute, Language, predicate
from nmln.potentials import compiled
from nmln.potentials.local import LocalPotential
from nmln.space import Space
from tests.strategies import random_worlds

MOLECULES = Language(
    Attribute("atom", ("node",), tuple("CNO")),
    Attribute("bond", ("node", "node"), ("none", "single", "double"), True, False),
)
SORTS = Language(
    predicate("tall", "person"),
    Attribute("size", ("city",), ("small", "large", "huge")),
    predicate("knows", "person", "person", symmetric=True, reflexive=True),
    Attribute("road", ("city", "city"), ("wide", "none", "narrow"), True, False),
    predicate("lives", "person", "city"),
)
SPACES = [
    Space(MOLECULES, {"node": 6}),
    Space(SORTS, {"person": 4, "city": 3}),
    Space(Language(predicate("edge", "node", "node", symmetric=True)), {"node": 5}),
]


@pytest.mark.parametrize("space", SPACES, ids=["molecules", "two sorts", "no kinds"])
def test_the_kernel_scores_as_torch_does(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NMLN_COMPILED", raising=False)
    if compiled.library() is None:
        pytest.skip("the kernel was not compiled")
    potential, rng = LocalPotential(space, 2), Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*potential.parameters(), *potential.buffers()):
            if tensor.is_floating_point() and len(tensor) == 2 and tensor.ndim == 2:
                tensor.add_(torch.rand(tensor.shape, generator=rng))
        values = random_worlds(space, 60, 1).view(2, 30, -1)
        scores = potential.score(values)
        single = torch.cat([potential.score(values[:, [c]]) for c in range(30)], dim=1)
        monkeypatch.setenv("NMLN_COMPILED", "0")
        plain = potential.score(values)
    assert torch.equal(scores, single)
    assert torch.allclose(scores, plain, rtol=1e-5)
    assert plain.std() > 0.1
