"""What has next to no probability is not taken: coins are tossed in double precision."""

import pytest
import torch
from torch import Generator, Tensor

from nmln.exchange import decide, exchange, log_swap_ratio, start_walkers
from nmln.kernels.moves import accept
from nmln.knowledge.objectives import _draw
from nmln.language import Language, predicate
from nmln.potentials.function import ValuesPotential
from nmln.space import Space
from nmln.types import State

SEED, CHAINS = 1233, 2**14  # its first uniform numbers of single precision have a zero among them
SPACE = Space(Language(predicate("p", "n")), {"n": 1})


def rng() -> Generator:
    return Generator().manual_seed(SEED)


def taken_in_single_precision(log_ratio: float) -> Tensor:
    """The broken twin: uniform numbers of single precision."""
    return torch.rand(CHAINS, generator=rng()) < torch.full((CHAINS,), log_ratio).exp()


def pair(dtype: torch.dtype = torch.float32) -> tuple[State, State]:
    values = torch.zeros(1, CHAINS, 1, dtype=torch.uint8)
    scores = torch.zeros(1, CHAINS, dtype=dtype)
    return State(values, scores), State(values + 1, scores - 30)


@pytest.mark.parametrize("log_ratio", [-17.0, -30.0, -80.0])
def test_a_move_of_next_to_no_probability_is_not_taken(log_ratio: float) -> None:
    assert int(taken_in_single_precision(log_ratio).sum()) == 1, "the check rejects the twin"
    old, new = pair()
    state, info = accept(old, new, torch.full((1, CHAINS), log_ratio), rng())
    assert not bool(state.values.any())
    assert info.acceptance.dtype == torch.float32


def test_a_swap_of_next_to_no_probability_is_not_taken() -> None:
    assert not bool(decide(torch.full((1, CHAINS), -30.0).exp(), rng()).any())

    def score(values: Tensor) -> Tensor:
        return values[..., 0] * torch.tensor([[0.0], [30.0]])

    potential = ValuesPotential(SPACE, score, levels=2)
    values = torch.tensor([0, 1], dtype=torch.uint8)[:, None, None].repeat(1, CHAINS, 1)
    state = State(values, potential.score(values))
    found = exchange(potential, state, start_walkers(values), 0, rng())
    assert torch.equal(found.state.values, values)
    assert found.info.probabilities.dtype == state.scores.dtype


def test_an_atom_of_next_to_no_probability_is_not_drawn() -> None:
    assert not bool(_draw(torch.full((CHAINS,), -30.0), rng()).any())


@pytest.mark.parametrize("chance", [0.3, 2.0**-10])
def test_what_is_probable_is_taken_as_often_as_it_should_be(chance: float) -> None:
    many = 2**20
    share = float(decide(torch.full((1, many), chance), rng()).double().mean())
    assert abs(share - chance) < 5 * (chance / many) ** 0.5


def test_scores_of_single_precision_are_subtracted_in_double() -> None:
    """A sum in single precision loses what the difference of two large scores is about."""
    scores = torch.tensor([[2.0**24], [2.0**24 + 2]])
    cross = torch.tensor([[2.0**24 + 2], [2.0**24 + 4]])
    assert float(cross[0] + cross[1] - scores[0] - scores[1]) == 6.0, "the check rejects the twin"
    assert float(log_swap_ratio(scores, cross, (0,))) == 4.0
