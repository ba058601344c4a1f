import pytest
import torch
from torch import Generator, nn

from nmln.config import configure
from nmln.formats.mln import parse_formula
from nmln.language import Language, predicate
from nmln.model import Model
from nmln.space import Space
from nmln.training.optimiser import (
    BETAS,
    CommonAdam,
    draw_together,
    make_optimiser,
    next_pace,
    paced,
)

LEVELS = 3


def parameters() -> list[nn.Parameter]:
    rng = Generator().manual_seed(0)
    shapes = ((LEVELS, 4, 2), (LEVELS,), (5,), ())
    return [nn.Parameter(torch.randn(shape, generator=rng)) for shape in shapes]


def give_gradients(given: list[nn.Parameter], rng: Generator) -> None:
    for one in given:
        one.grad = torch.randn(one.shape, generator=rng)


def test_without_a_common_step_it_is_adam() -> None:
    ours, theirs = parameters(), parameters()
    mine = CommonAdam(ours, 0.01, LEVELS, 0.0, weight_decay=0.1)
    other = torch.optim.AdamW(theirs, lr=0.01, betas=BETAS, weight_decay=0.1)
    rng, again = Generator().manual_seed(1), Generator().manual_seed(1)
    for _ in range(5):
        give_gradients(ours, rng)
        give_gradients(theirs, again)
        mine.step()
        other.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two)


def test_the_common_step_is_that_of_adam_on_the_mean_gradient() -> None:
    ours, own = parameters(), parameters()
    shared = [nn.Parameter(torch.zeros_like(one[0])) for one in own[:2]]
    mine = CommonAdam(ours, 0.01, LEVELS, 0.5)
    parts = torch.optim.AdamW(own, lr=0.01, betas=BETAS, weight_decay=0.0)
    whole = torch.optim.AdamW(shared, lr=0.005, betas=BETAS, weight_decay=0.0)
    rng, again = Generator().manual_seed(1), Generator().manual_seed(1)
    for _ in range(5):
        give_gradients(ours, rng)
        give_gradients(own, again)
        for common, one in zip(shared, own, strict=False):
            assert one.grad is not None
            common.grad = one.grad.mean(0)
        mine.step()
        parts.step()
        whole.step()
    for one, two, common in zip(ours, own, shared, strict=False):
        torch.testing.assert_close(one, two + common)
    for one, two in zip(ours[2:], own[2:], strict=True):  # they belong to all levels already
        torch.testing.assert_close(one, two)


def test_one_level_has_nothing_in_common_with_others() -> None:
    config = configure({}).optimiser
    assert isinstance(make_optimiser(parameters(), config, LEVELS), CommonAdam)
    assert isinstance(make_optimiser(parameters(), config, 1), torch.optim.AdamW)


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_levels_begin_alike_if_they_step_in_common(common: float) -> None:
    space = Space(
        Language(predicate("red", "node"), predicate("edge", "node", "node")), {"node": 3}
    )
    formulas = [parse_formula("0.5 red(x) => edge(x, y)", space.language)]
    config = configure(
        {
            "ladder": {"rates": [0.2, 0.1, 0.05]},
            "model": {"layers": 1, "hidden": 4, "base": False},
            "optimiser": {"common": common},
        }
    )
    model = Model.build(space, torch.zeros(4, space.groups, dtype=space.dtype), config, formulas)
    values = (torch.rand(5, space.groups, generator=Generator().manual_seed(0)) < 0.5).to(
        space.dtype
    )
    scores = model.potential.score(values.expand(3, -1, -1)).detach()
    assert torch.equal(scores[0], scores[2]) == bool(common)


def test_each_level_goes_at_its_own_pace_whatever_moves_it() -> None:
    slow, fast = parameters(), parameters()
    rng, again = Generator().manual_seed(1), Generator().manual_seed(1)
    give_gradients(slow, rng)
    give_gradients(fast, again)
    before = [one.detach().clone() for one in slow]
    torch.optim.SGD(fast, lr=0.1).step()
    with paced(slow, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)):
        torch.optim.SGD(slow, lr=0.1).step()
    for level, share in enumerate((0.0, 0.5, 1.0)):
        for one, other, old in zip(slow[:2], fast, before, strict=False):
            torch.testing.assert_close(
                one[level] - old[level], share * (other[level] - old[level]), atol=1e-6, rtol=1e-4
            )
    for one, other in zip(slow[2:], fast[2:], strict=True):  # those of all levels
        assert torch.equal(one, other)


def test_the_pace_settles_where_the_wanted_share_of_chains_counts() -> None:
    spread = torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)  # of the scores, at full pace
    pace = torch.ones(3, dtype=torch.float64)
    for _ in range(300):
        pace = next_pace(pace, (-((pace * spread) ** 2)).exp(), 0.5)
    shares = (-((pace * spread) ** 2)).exp()
    assert pace[0] == 1  # it can go as far as it likes
    torch.testing.assert_close(shares[1:], torch.full((2,), 0.5, dtype=torch.float64))


def test_neighbouring_levels_are_drawn_together_and_keep_their_mean() -> None:
    given = parameters()
    before = [one.detach().clone() for one in given]
    draw_together(given, LEVELS, 0.1)
    a, b, c = before[0]
    torch.testing.assert_close(given[0][0], a + 0.1 * (b - a))
    torch.testing.assert_close(given[0][1], b + 0.1 * (a - b) + 0.1 * (c - b))
    torch.testing.assert_close(given[0].mean(0), before[0].mean(0))
    for one, old in zip(given[2:], before[2:], strict=True):  # they belong to all levels
        torch.testing.assert_close(one, old, rtol=0, atol=0)
    for _ in range(200):
        draw_together(given, LEVELS, 1e9)  # as far as neighbours may go
    torch.testing.assert_close(given[0], before[0].mean(0).expand_as(given[0]))


def test_a_frozen_parameter_is_not_drawn() -> None:
    one = nn.Parameter(torch.arange(6.0).reshape(LEVELS, 2), requires_grad=False)
    draw_together([one], LEVELS, 0.1)
    assert one.tolist() == [[0, 1], [2, 3], [4, 5]]
