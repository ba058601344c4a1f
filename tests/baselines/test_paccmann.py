"""PaccMann SVAE: its stack, its losses and the bound on its log-probabilities."""

from dataclasses import replace
from itertools import pairwise, product
from math import exp, log

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from nmln.baselines.base import new
from nmln.baselines.notations import END
from nmln.baselines.paccmann import SVAE, SVAENetwork, SVAESettings, kl_to_prior, moved
from nmln.baselines.strings import draw_codes

SMALL = SVAESettings(units=6, latent=1, width=3, depth=4, draws=4)
CODES = torch.tensor([[1, 2, 0, 0], [2, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])


def network(settings: SVAESettings = SMALL, tokens: int = 2) -> SVAENetwork:
    torch.manual_seed(0)
    return SVAENetwork(tokens, settings).double().eval()


def test_the_network_has_the_published_size() -> None:
    model = SVAENetwork(40 - 2, SVAESettings())
    assert sum(part.numel() for part in model.parameters()) == 5_476_498


def test_a_hard_stack_is_a_list() -> None:
    torch.manual_seed(0)
    depth, width = 5, 2
    stack, listed = torch.zeros(depth, 1, width), [torch.zeros(width)] * depth
    for move in torch.randint(3, (60,)).tolist():
        value = torch.randn(1, width)
        stack = moved(stack, value, torch.eye(3)[move][None])
        if move == 0:
            listed = [value[0], *listed][:depth]
        elif move == 1:
            listed = [*listed[1:], torch.zeros(width)]
        assert torch.equal(stack[:, 0], torch.stack(listed))


def test_soft_moves_are_a_mixture_of_hard_ones() -> None:
    torch.manual_seed(0)
    stack, value = torch.randn(4, 3, 2), torch.randn(3, 2)
    weights = torch.rand(3, 3).softmax(-1)
    hard = [moved(stack, value, torch.eye(3)[move].expand(3, 3)) for move in range(3)]
    mixed = sum(weights[:, move, None] * hard[move] for move in range(3))
    assert torch.allclose(moved(stack, value, weights), torch.as_tensor(mixed))


def test_the_kl_in_closed_form() -> None:
    torch.manual_seed(0)
    mean, log_variance = torch.randn(2, 3, 4).double()
    spread = (0.5 * log_variance).exp()
    found = kl_to_prior(mean, log_variance)
    expected = kl_divergence(Normal(mean, spread), Normal(0.0, 1.0)).sum(-1)
    assert torch.allclose(found, expected)
    z = mean + spread * torch.randn(40_000, 3, 4).double()
    ratios = (Normal(mean, spread).log_prob(z) - Normal(0.0, 1.0).log_prob(z)).sum(-1)
    error = ratios.std(0) / 200
    assert bool(((ratios.mean(0) - found).abs() < 5 * error).all())
    assert not bool(((ratios.mean(0) - 0.5 * found).abs() < 5 * error).all())


@torch.no_grad()
def test_strings_of_a_batch_do_not_see_each_other() -> None:
    model = network()
    rows = model.rows(CODES)
    mean, log_variance = (part[rows.back] for part in model.encode(rows))
    z = torch.randn(len(CODES), 1).double()
    together = model.decode(rows, z[rows.back.argsort()]).sum(0)[rows.back]
    for place, codes in enumerate(CODES.split(1)):
        alone = model.rows(codes)
        one, other = model.encode(alone)
        assert torch.allclose(mean[place], one[0])
        assert torch.allclose(log_variance[place], other[0])
        assert torch.allclose(together[place], model.decode(alone, z[place : place + 1]).sum())


@torch.no_grad()
def test_the_cross_entropy_is_that_of_the_steps_that_sampling_takes() -> None:
    model = network()
    z = torch.randn(1, 1).double()
    each = model.decode(model.rows(CODES[1:2]), z)[:, 0]
    last, state = torch.tensor([model.start]), model._from(z)
    for place, code in enumerate(CODES[1].tolist()):
        logits, state = model.step(last, state)
        assert each[place].item() == pytest.approx(-logits.log_softmax(-1)[0, code].item())
        last = torch.tensor([code])


@torch.no_grad()
def exact_log_prob(model: SVAENetwork, temperature: float) -> Tensor:
    """log of the integral of p(s | z) p(z) over the line, by the rectangle rule."""
    grid = torch.linspace(-9, 9, 301).double()
    rows = model.rows(CODES.repeat(len(grid), 1))
    z = grid.repeat_interleave(len(CODES))[rows.back.argsort(), None]
    nats = model.decode(rows, z, temperature).sum(0)[rows.back].unflatten(0, (len(grid), -1))
    prior = Normal(0.0, 1.0).log_prob(grid)[:, None]
    return (prior - nats).logsumexp(0) + log(float(grid[1] - grid[0]))


@torch.no_grad()
def test_the_bound_grows_with_the_number_of_draws_to_the_exact_value() -> None:
    model = network()
    torch.manual_seed(1)
    weights = model.log_weights(CODES.repeat(1024, 1), 1, temperature=0.8)[0].unflatten(
        0, (1024, -1)
    )
    exact = exact_log_prob(model, temperature=0.8)
    bounds = []
    for draws in (
        1,
        4,
        32,
        1024,
    ):  # the same draws in larger groups: Jensen's inequality holds exactly
        groups = weights.unflatten(0, (-1, draws))
        bounds.append((groups.logsumexp(1) - log(draws)).mean(0))
    for smaller, larger in pairwise(bounds):
        assert bool((smaller < larger).all())
    assert bool((bounds[0] < exact).all())
    assert torch.allclose(bounds[-1], exact, atol=0.02)
    assert not torch.allclose(bounds[-1], exact_log_prob(model, temperature=1.0), atol=0.02)


@torch.no_grad()
def exact_bound(model: SVAENetwork, temperature: float) -> Tensor:
    """The bound of a single draw, E_q log p(s | z) - KL, by the rectangle rule."""
    order = model.rows(CODES).back
    mean, log_variance = (part[order] for part in model.encode(model.rows(CODES)))
    spread = (0.5 * log_variance).exp()
    grid = torch.linspace(-9, 9, 301).double()
    z = mean + spread * grid  # strings, points
    rows = model.rows(CODES.repeat_interleave(len(grid), 0))
    nats = model.decode(rows, z.flatten()[rows.back.argsort(), None], temperature).sum(0)
    weights = Normal(0.0, 1.0).log_prob(grid).exp() * (grid[1] - grid[0])
    expected = nats[rows.back].unflatten(0, (-1, len(grid))) @ weights
    return -expected - kl_to_prior(mean, log_variance)


@torch.no_grad()
@pytest.mark.parametrize(("draws", "copies"), [(1, 20_000), (256, 20)])
def test_nats_are_those_of_the_bound_with_the_draws_of_the_settings(
    draws: int, copies: int
) -> None:
    model = network(replace(SMALL, draws=draws, temperature=0.8))
    model.mean.bias.add_(0.7)  # away from the prior
    model.log_variance.bias.add_(0.4)
    torch.manual_seed(1)
    found = model.nats(CODES.repeat(copies, 1)).unflatten(0, (copies, -1))
    exact = exact_log_prob(model, temperature=0.8)
    error = found.std(0) / copies**0.5
    assert bool((error < 0.01).all())
    if draws == 1:
        bound = exact_bound(model, temperature=0.8)
        assert bool(((found.mean(0) + bound).abs() < 5 * error).all())
        assert bool((found.mean(0) + exact > 5 * error).all())  # the bound is not tight
    else:  # what is left between bound and exact value is far below the error
        assert bool(((found.mean(0) + exact).abs() < 5 * error).all())


@torch.no_grad()
def test_the_probabilities_of_strings_sum_to_one_over_all_that_end_in_time() -> None:
    model = network()
    z = torch.randn(1, 1).double()
    strings = [[], [1], [2], [1, 1], [1, 2], [2, 1], [2, 2]]
    codes = torch.tensor([[*one, *[END] * (3 - len(one))] for one in strings])
    rows = model.rows(codes)
    finished = model.decode(rows, z.expand(7, 1)).sum(0).neg().exp().sum().item()
    unfinished = 0.0
    for one in product((1, 2), repeat=3):
        last, state, total = torch.tensor([model.start]), model._from(z), 0.0
        for code in one:
            logits, state = model.step(last, state)
            total += logits.log_softmax(-1)[0, code].item()
            last = torch.tensor([code])
        unfinished += exp(total)
    assert finished + unfinished == pytest.approx(1, abs=1e-12)


def test_the_start_is_never_written() -> None:
    torch.manual_seed(0)
    model = SVAENetwork(2, SMALL).eval()
    assert draw_codes(model, 300, 15).max() == 2


@torch.no_grad()
def test_both_losses_are_those_of_their_formulas() -> None:
    given = ["CCO", "C", "C#CC", "CCCN"]
    for name in ("svae", "svae-per-molecule"):
        baseline = new(name, units=6, latent=2, width=3, depth=4, word_dropout=0.0, dropout=0.0)
        assert isinstance(baseline, SVAE)
        torch.manual_seed(0)
        baseline.build(given)
        baseline.updates = 8000
        for update in (0, 3000, 5000, 8000):
            torch.manual_seed(7)
            found = baseline.loss(torch.arange(4), update).item()
            model = baseline.network
            rows = model.rows(baseline.codes(torch.arange(4)))
            mean, log_variance = model.encode(rows)
            torch.manual_seed(7)
            z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
            each, kl = model.decode(rows, z), kl_to_prior(mean, log_variance)
            if name == "svae":
                steps = [float(row[row > 0].mean()) for row in each]
                expected = sum(steps) + float(kl.sum()) / (1 + exp(15 - 0.003 * update))
            else:
                expected = float(each.sum() / 4 + min(1.0, update / 4000) * kl.mean())
            assert found == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_words_are_left_out_in_training_only() -> None:
    model = network(
        SVAESettings(units=6, latent=1, width=3, depth=4, dropout=0.0, word_dropout=0.5)
    )
    rows, z = model.rows(CODES), torch.zeros(len(CODES), 1).double()
    assert torch.equal(model.decode(rows, z), model.decode(rows, z))
    model.train()
    assert not torch.equal(model.decode(rows, z), model.decode(rows, z))
