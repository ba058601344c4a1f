"""Gibbs sampling of a DeepSet potential, against its formula written as loops."""

from itertools import combinations, permutations

import torch

from nmln.potentials.fragment import DeepSetPotential
from tests.kernels.test_exactness import SPACE, peaked, random_gibbs, systematic

PAIRS = list(combinations(range(3), 2))  # in the order of a world


def plain_deep_set(potential: DeepSetPotential, world: dict[str, list[int]]) -> float:
    """The score of a world: the top network of the summed features of all ordered pairs of nodes."""
    total = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    pairs = {frozenset(pair): bond for pair, bond in zip(PAIRS, world["bond"], strict=True)}
    for x, y in permutations(range(3), 2):
        kinds = torch.eye(3).double()[[world["type"][x], world["type"][y]]].flatten()
        bond = torch.eye(2).double()[pairs[frozenset((x, y))]]
        seen = torch.cat([kinds, bond])[None, None, None]
        total += potential.networks[0](seen).clamp(min=0)
    return potential.top(total[:, :, 0]).item()


@torch.no_grad()
def test_gibbs_on_a_deep_set_has_the_distribution_of_its_formula() -> None:
    potential = peaked(kind="deepset")
    assert isinstance(potential, DeepSetPotential)
    worlds = SPACE.enumerate().tolist()
    scores = [plain_deep_set(potential, {"type": one[:3], "bond": one[3:]}) for one in worlds]
    pi = torch.tensor(scores, dtype=torch.float64).softmax(0)
    for matrix in (random_gibbs(potential, None), systematic(potential, None)):
        assert (pi @ matrix - pi).abs().max() < 1e-12
        settled = torch.linalg.matrix_power(matrix, 2**14)[0]
        assert (settled - pi).abs().max() < 1e-9  # and no other distribution is kept
