"""DiGress continuous: variances, an exact inversion, symmetric noise, and the protocol."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmln.baselines import base
from nmln.baselines.congress import Congress, GaussianNoise, Signal, normal_like
from nmln.baselines.digress_common import cosine_schedule, descending_times
from nmln.baselines.digress_network import GraphTransformer

TINY = {
    "layers": 1, "heads": 2, "node_width": 8, "edge_width": 4, "whole_width": 4,
    "node_feedforward": 8, "edge_feedforward": 4, "whole_feedforward": 8,
    "node_hidden": 8, "edge_hidden": 8, "whole_hidden": 8,
}  # fmt: skip
TRAIN = ["CCO", "CCN", "C=CO", "CCC"]


def tiny() -> Congress:
    made = base.new("congress-s", **TINY, batch=4, times=8, sampling_steps=4)
    assert isinstance(made, Congress)
    return made


@pytest.fixture
def noise() -> GaussianNoise:
    return GaussianNoise(cosine_schedule(500, 0.999))


def test_the_smallest_noise_is_the_published_one(noise: GaussianNoise) -> None:
    assert float(1 - noise.squares[0]) ** 0.5 == pytest.approx(0.0093, abs=5e-5)


def test_the_variance_of_noisy_signals_is_the_mixture(noise: GaussianNoise) -> None:
    torch.manual_seed(0)
    clean = (3 * torch.randn(20_000, 2, 3).double(), torch.randn(20_000, 1, 4).double() / 2)
    for time in (0, 200, 400):
        noisy = noise.noisy(clean, normal_like(clean), torch.full((20_000,), time))
        for before, after in zip(clean, noisy, strict=True):
            alpha2 = float(noise.squares[time])
            expected = alpha2 * float(before.var()) + 1 - alpha2
            assert float(after.var()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("steps", [500, 100])
def test_with_the_exact_noise_of_one_point_it_is_recovered(
    noise: GaussianNoise, steps: int
) -> None:
    torch.manual_seed(0)
    point = torch.tensor([[0.5, 0.0]] * 2).double(), torch.tensor([[0.0, 1.0, 0.0, 0.0]]).double()

    def exact(signal: Signal, times: Tensor) -> Signal:
        alpha, sigma = (
            root.sqrt()[:, None, None] for root in (noise.squares[times], 1 - noise.squares[times])
        )
        return (signal[0] - alpha * point[0]) / sigma, (signal[1] - alpha * point[1]) / sigma

    like = tuple(part.expand(500, -1, -1).clone() for part in point)
    found = noise.draw((like[0], like[1]), descending_times(500, steps), exact)
    sigma = float((1 - noise.squares[0]) / noise.squares[0]) ** 0.5
    for part, right in zip(found, point, strict=True):
        # Only the noise of the last step is left.
        assert float((part - right).std()) == pytest.approx(sigma, rel=0.1)
        assert float((part - right).mean().abs()) < sigma / 5
        assert torch.equal(part.argmax(-1), right.argmax(-1).expand(500, -1))


def test_noise_is_symmetric_with_a_diagonal_of_zeros() -> None:
    made = tiny()
    made.build(TRAIN)
    torch.manual_seed(0)
    clean = made.signal(made.worlds)
    bonds = made.graphs.symmetric(normal_like(clean)[1])
    assert torch.equal(bonds, bonds.transpose(1, 2))
    assert not bonds.diagonal(dim1=1, dim2=2).any()
    assert float(clean[0].max()) == 0.5
    assert float(clean[1].max()) == 1


def test_the_network_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        network = GraphTransformer(base.BASELINES["congress"].settings, (4, 5, 1), (4, 5))
    assert sum(one.numel() for one in network.parameters()) == 5_496_329


def test_training_lowers_the_loss_and_a_saved_model_draws_the_same(tmp_path: Path) -> None:
    made, losses = tiny(), []
    made.fit(TRAIN, base.Budget(updates=60), progress=lambda *report: losses.append(report[2]))
    assert sum(losses[-20:]) < sum(losses[:20])
    made.save(tmp_path / "model")
    again = base.load(tmp_path / "model")
    assert list(again.generate(20, seed=3)) == list(made.generate(20, seed=3))
    assert made.log_prob(["CCO"]) is None
