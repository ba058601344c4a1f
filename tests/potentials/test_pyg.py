import pytest
import torch

pytest.importorskip("torch_geometric")

from benchmarks.molecules_like import space_of, sparse_worlds
from benchmarks.pyg import GeometricNetwork, batch_of
from nmln.potentials.graph import GraphPotential


@pytest.mark.parametrize("fast", [False, True])
def test_the_network_agrees_with_pytorch_geometric(fast: bool) -> None:
    space = space_of(7)
    potential = GraphPotential(space, 5, 3, 32)
    with torch.no_grad():
        for bias in [*potential.hear_bias, *potential.update_bias]:
            bias.normal_(generator=torch.Generator().manual_seed(0))
        values = sparse_worlds(space, 20, torch.Generator().manual_seed(1))
        scores = potential.score(values)
        for level, worlds in enumerate(values):
            theirs = GeometricNetwork(potential, level, fast)(batch_of(potential, worlds))
            assert torch.allclose(theirs, scores[level], atol=1e-4)
