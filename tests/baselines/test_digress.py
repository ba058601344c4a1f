"""DiGress discrete: noise and kernels, likelihood by enumeration, and the protocol of baselines."""

from itertools import pairwise, product
from math import log
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmln.baselines import base
from nmln.baselines.digress import Diffusion, Digress, Noise, draw_categories
from nmln.baselines.digress_common import Graphs, cosine_schedule, descending_times
from nmln.errors import InputError
from nmln.molecules.chemistry import encode_all
from nmln.molecules.likelihood import Structures
from tests.baselines.test_digress_network import TINY

TRAIN = ["CCO", "CCN", "C=CO", "CCC", "C1CC1", "C#CN"]


def tiny(**changes: object) -> Digress:
    made = base.new("digress-s", **TINY, batch=4, times=8, sampling_steps=4, **changes)
    assert isinstance(made, Digress)
    return made


def exactly(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def noise() -> Noise:
    return Noise(cosine_schedule(12, 0.9999), exactly(0.5, 0.3, 0.15, 0.05))


def matrix(noise: Noise, time: int, earlier: int | None = None) -> Tensor:
    """Q from `earlier` (or clean) to `time`, written out."""
    kept = noise.kept[time] / (1 if earlier is None else noise.kept[earlier])
    size = len(noise.stationary)
    return kept * torch.eye(size).double() + (1 - kept) * noise.stationary.expand(size, -1)


# Noise and kernels.


def test_the_cosine_schedule_has_the_published_values() -> None:
    kept = cosine_schedule(500, 0.9999)
    assert len(kept) == 501
    assert 1 - float(kept[0]) == pytest.approx(8.72e-5, rel=1e-3)
    assert float(kept[250]) == pytest.approx(0.492, abs=5e-4)
    assert float(kept[-1]) == pytest.approx(9.7e-10, rel=5e-3)


def test_single_steps_compose_to_the_whole_noise_and_keep_the_marginals(noise: Noise) -> None:
    composed = matrix(noise, 0)
    for time in range(13):
        if time:
            composed = composed @ matrix(noise, time, time - 1)
        written = noise.forward(torch.arange(4)[None], time)[0]
        torch.testing.assert_close(composed, written)
        torch.testing.assert_close(written.sum(1), torch.ones(4).double())
        torch.testing.assert_close(noise.stationary @ written, noise.stationary)


def kernel_of(noise: Noise, guess: Tensor, earlier: int, time: int) -> Tensor:
    """p(z_s | z_t) of one site; `guess` are probabilities of x, the same or by z_t (rows)."""
    guesses = guess.expand(4, 4)[:, None]
    return noise.backward(guesses, torch.arange(4)[:, None], earlier, time)[:, 0]


@pytest.mark.parametrize("clean", range(4))
def test_a_skipped_step_back_is_the_composition_of_single_steps(noise: Noise, clean: int) -> None:
    known = torch.eye(4).double()[clean]
    skipped = kernel_of(noise, known, 3, 6)
    single = [kernel_of(noise, known, time - 1, time) for time in (6, 5, 4)]
    torch.testing.assert_close(single[0] @ single[1] @ single[2], skipped)
    for kernel in (*single, skipped):
        torch.testing.assert_close(kernel.sum(1), torch.ones(4).double())
    noisy, earlier = (noise.forward(torch.tensor([[clean]]), time)[0, 0] for time in (6, 3))
    torch.testing.assert_close(noisy @ skipped, earlier)
    # Composed in another order they are another kernel.
    assert float((single[2] @ single[1] @ single[0] - skipped).abs().max()) > 1e-3


@pytest.mark.parametrize(("earlier", "time"), [(5, 6), (3, 6), (0, 12)])
def test_if_the_data_have_the_marginals_a_step_back_is_a_step_of_noise(
    noise: Noise, earlier: int, time: int
) -> None:
    odds = noise.stationary[:, None] * noise.forward(torch.arange(4)[None], time)[0]
    guesses = (odds / odds.sum(0)).T  # of x, by what is seen of it
    kernel = kernel_of(noise, guesses, earlier, time)
    torch.testing.assert_close(kernel, matrix(noise, time, earlier))  # a reversible chain
    torch.testing.assert_close(kernel.sum(1), torch.ones(4).double())
    torch.testing.assert_close(noise.stationary @ kernel, noise.stationary)


@pytest.mark.parametrize(("earlier", "time"), [(0, 1), (5, 6), (2, 9), (0, 12)])
def test_the_backward_kernel_is_the_formula_of_bayes(noise: Noise, earlier: int, time: int) -> None:
    guess = torch.rand(4, generator=torch.Generator().manual_seed(1)).double().softmax(0)
    for noisy in range(4):
        # Joint probabilities of z_s (columns) and the observed z_t given every x (rows).
        joint = matrix(noise, earlier) * matrix(noise, time, earlier)[:, noisy]
        posterior = joint / joint.sum(1, keepdim=True)
        seen = torch.tensor([[noisy]])
        for clean in range(4):
            known = torch.eye(4).double()[clean][None, None]
            found = noise.backward(known, seen, earlier, time)[0, 0]
            torch.testing.assert_close(found, posterior[clean])
        found = noise.backward(guess[None, None], seen, earlier, time)[0, 0]
        torch.testing.assert_close(found, guess @ posterior)


def chi_square(counts: Tensor, odds: Tensor) -> float:
    expected = odds * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_noisy_categories_have_the_frequencies_of_the_noise(noise: Noise) -> None:
    torch.manual_seed(0)
    for time in (1, 6, 11):
        drawn = noise.noisy(torch.full((1, 40_000), 2), torch.tensor([time]))
        counts = drawn.flatten().bincount(minlength=4)
        assert chi_square(counts, matrix(noise, time)[2]) < 21.1  # 3 degrees, p = 1e-4
        assert chi_square(counts, matrix(noise, time - 1)[2]) > 21.1


def published_bound_kernel(noise: Noise, guess: Tensor, seen: int, s: int, t: int) -> Tensor:
    """The kernel of the published likelihood, which is not the one that draws."""
    joint = matrix(noise, s) * matrix(noise, t, s)[:, seen]
    return guess @ joint / (guess @ joint).sum()


@pytest.mark.parametrize("steps", [12, 5, 3])
def test_with_the_best_denoiser_one_site_is_drawn_as_in_the_data(noise: Noise, steps: int) -> None:
    data = exactly(0.1, 0.2, 0.0, 0.7)
    ours, theirs = data @ matrix(noise, 12), data @ matrix(noise, 12)
    for time, earlier in pairwise(descending_times(12, steps)):
        guesses = (data[:, None] * matrix(noise, time)).T
        guesses = guesses / guesses.sum(1, keepdim=True)
        kernel = noise.backward(guesses[:, None], torch.arange(4)[:, None], earlier, time)[:, 0]
        ours = ours @ kernel
        theirs = theirs @ torch.stack(
            [published_bound_kernel(noise, guesses[z], z, earlier, time) for z in range(4)]
        )
    torch.testing.assert_close(ours, data @ matrix(noise, 0))
    assert float((theirs - data @ matrix(noise, 0)).abs().max()) > 1e-3


def test_drawn_categories_follow_their_probabilities() -> None:
    torch.manual_seed(0)
    odds = torch.tensor([0.0, 0.25, 0.0, 0.75]).double()
    counts = draw_categories(odds.expand(1, 20_000, 4)).flatten().bincount(minlength=4)
    assert counts[0] == counts[2] == 0
    assert chi_square(counts[[1, 3]], odds[[1, 3]]) < 15.1  # 1 degree, p = 1e-4


# The likelihood, by enumeration of all worlds of three nodes.

STEPS = [3, 2, 0]  # one of them skips a time


@pytest.fixture(scope="module")
def small() -> tuple[Diffusion, Tensor]:
    kept = cosine_schedule(3, 0.9999)
    nodes, pairs = exactly(0.7, 0.3), exactly(0.6, 0.4)
    worlds = torch.tensor(list(product(range(2), repeat=6)))
    return Diffusion(3, 3, Noise(kept, nodes), Noise(kept, pairs)), worlds


def denoise(worlds: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """A denoiser that looks at the whole world and the time."""
    rng = torch.Generator().manual_seed(3)
    weights = torch.randn(6, 12, generator=rng).double()
    found = (2 * worlds.double() - 1) @ weights / (1 + times.double()[:, None])
    return found[:, :6].unflatten(1, (3, 2)).softmax(-1), found[:, 6:].unflatten(1, (3, 2)).softmax(
        -1
    )


def world_odds(odds: tuple[Tensor, Tensor], worlds: Tensor) -> Tensor:
    """Probabilities of all worlds (columns) by those of their sites."""
    sites = torch.cat(odds, 1)
    return torch.stack([sites[:, place, worlds[:, place]] for place in range(6)]).prod(0)


def exact(diffusion: Diffusion, worlds: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of every world and its bound, summed over all noisy worlds."""
    stationary = (
        diffusion.of_nodes.stationary.expand(1, 3, -1),
        diffusion.of_pairs.stationary.expand(1, 3, -1),
    )

    def forward(time: int) -> Tensor:
        first, rest = worlds[:, :3], worlds[:, 3:]
        odds = diffusion.of_nodes.forward(first, time), diffusion.of_pairs.forward(rest, time)
        return world_odds(odds, worlds)

    drawn = world_odds(stationary, worlds)[0]
    ends = forward(STEPS[0])
    bound = -(ends * (ends.log() - drawn.log())).sum(1)
    eye = torch.eye(2).double()
    for time, earlier in pairwise(STEPS):
        guess = denoise(worlds, torch.full((len(worlds),), time))
        kernel = world_odds(diffusion.backward(guess, worlds, earlier, time), worlds)
        drawn = drawn @ kernel
        for place, clean in enumerate(worlds):
            if earlier:
                both = eye[clean].expand(len(worlds), 6, 2)
                known = both[:, :3], both[:, 3:]
                truth = world_odds(diffusion.backward(known, worlds, earlier, time), worlds)
            else:
                truth = torch.eye(len(worlds)).double()[place].expand(len(worlds), -1)
            apart = (torch.xlogy(truth, truth) - torch.xlogy(truth, kernel)).sum(1)
            bound[place] -= forward(time)[place] @ apart
    return drawn, bound


def test_the_probabilities_of_all_worlds_sum_to_one_and_are_above_their_bounds(
    small: tuple[Diffusion, Tensor],
) -> None:
    drawn, bound = exact(*small)
    assert float(drawn.sum()) == pytest.approx(1, abs=1e-12)
    assert bool((bound < drawn.log()).all())
    assert float((drawn.log() - bound).max()) < 5  # the bound says something

    diffusion, worlds = small
    torch.manual_seed(0)
    copies = worlds[5].expand(20_000, -1)
    estimate = diffusion.bound(copies, STEPS, denoise)
    error = float(estimate.std()) / len(copies) ** 0.5
    assert abs(float(estimate.mean() - bound[5])) < 4 * error < 0.2


def test_worlds_are_drawn_with_their_exact_probabilities(small: tuple[Diffusion, Tensor]) -> None:
    diffusion, worlds = small
    drawn, _ = exact(diffusion, worlds)
    torch.manual_seed(0)
    found = diffusion.draw(40_000, STEPS, denoise)
    places = (found * 2 ** torch.arange(5, -1, -1)).sum(1)
    counts = places.bincount(minlength=64)
    assert chi_square(counts, drawn) < 113.5  # 63 degrees, p = 1e-4
    other = diffusion.draw(40_000, [3, 0], denoise)
    counts = (other * 2 ** torch.arange(5, -1, -1)).sum(1).bincount(minlength=64)
    assert chi_square(counts, drawn) > 113.5


def test_skipped_steps_of_worlds_are_the_composition_of_single_steps(
    small: tuple[Diffusion, Tensor],
) -> None:
    worlds, kept = small[1], cosine_schedule(12, 0.9999)
    diffusion = Diffusion(3, 3, Noise(kept, exactly(0.7, 0.3)), Noise(kept, exactly(0.6, 0.4)))

    def kernel(clean: Tensor, earlier: int, time: int) -> Tensor:
        known = torch.eye(2).double()[clean].expand(len(worlds), 6, 2)
        odds = diffusion.backward((known[:, :3], known[:, 3:]), worlds, earlier, time)
        return world_odds(odds, worlds)

    def noisy(clean: Tensor, time: int) -> Tensor:
        first, rest = clean[None, :3], clean[None, 3:]
        odds = diffusion.of_nodes.forward(first, time), diffusion.of_pairs.forward(rest, time)
        return world_odds(odds, worlds)[0]

    for clean in worlds[[0, 21, 38, 63]]:
        skipped = kernel(clean, 3, 6)
        single = kernel(clean, 5, 6) @ kernel(clean, 4, 5) @ kernel(clean, 3, 4)
        torch.testing.assert_close(single, skipped)
        torch.testing.assert_close(skipped.sum(1), torch.ones(64).double())
        torch.testing.assert_close(noisy(clean, 6) @ skipped, noisy(clean, 3))


# The protocol.


def test_training_counts_what_it_cannot_learn_and_lowers_the_loss() -> None:
    made, losses = tiny(), []
    dropped = made.fit(
        [*TRAIN, "not a molecule"],
        base.Budget(updates=40),
        progress=lambda *report: losses.append(report[2]),
    )
    assert [one.count for one in dropped] == [1]
    assert made.size == len(TRAIN)
    assert sum(losses[-10:]) < sum(losses[:10])


def test_a_saved_model_draws_and_scores_the_same(tmp_path: Path) -> None:
    made = tiny()
    made.fit(TRAIN, base.Budget(updates=2))
    made.save(tmp_path / "model")
    again = base.load(tmp_path / "model")
    assert list(again.generate(120, seed=3)) == list(made.generate(120, seed=3))
    assert list(made.generate(20, seed=3)) != list(made.generate(20, seed=4))
    one, other = made.log_prob(["CCO", "OCC"]), again.log_prob(["CCO", "OCC"])
    assert other is not None
    assert torch.equal(one.values, other.values)
    assert not torch.equal(one.values, made.log_prob(["CCO", "OCC"], seed=1).values)
    assert not one.exact


def test_the_bound_of_a_molecule_counts_its_worlds() -> None:
    """With a denoiser that knows nothing, the probability of a world is that of its parts."""
    made = tiny(transitions="uniform", bound_draws=10)
    made.fit(TRAIN, base.Budget(updates=1))
    sizes = 3, 4  # C, N, O; bonds
    made.denoise = lambda worlds, times: (
        torch.full((len(worlds), 3, 3), 1 / sizes[0]).double(),
        torch.full((len(worlds), 3, 4), 1 / sizes[1]).double(),
    )
    copies = 200
    found = made.log_prob([one for one in ("CCO", "CCC", "C1CC1") for _ in range(copies)]).values
    chain, carbons, ring = found.unflatten(0, (3, copies))
    # A uniform denoiser over uniform noise leaves every world equally probable.
    for each, worlds in ((chain, 6), (carbons, 3), (ring, 1)):
        assert bool((each <= log(worlds) - 3 * log(sizes[0]) - 3 * log(sizes[1]) + 1e-9).all())
    # The bounds of their worlds have the same mean, so that only the numbers of worlds differ.
    for more, less, ratio in ((chain, carbons, 2), (carbons, ring, 3)):
        error = float((more.var() + less.var()) / copies) ** 0.5
        assert abs(float(more.mean() - less.mean()) - log(ratio)) < 4 * error < 0.1
    others = made.log_prob(["CCCC", "CCS"])
    assert others.values.tolist() == [float("-inf")] * 2
    assert float(made.log_prob([]).values.numel()) == 0


def test_the_bound_of_a_molecule_is_the_mean_of_those_of_its_worlds() -> None:
    made = tiny(bound_draws=5)
    made.fit(TRAIN, base.Budget(updates=30))
    found = float(made.log_prob(["CCO"] * 600).values.mean())
    first = encode_all(made.graphs.space, ["CCO"]).worlds.long()
    torch.manual_seed(1)
    worlds = made.graphs.renumbered(first.expand(200, -1)).unique(dim=0)
    assert len(worlds) == 6  # all numberings, and a single structure
    with torch.no_grad():
        each = made.diffusion.bound(worlds.repeat(500, 1), made.steps, made.denoise)
    expected = log(6) + float(each.mean())
    error = 2 * float(each.std()) / 3000**0.5
    assert abs(found - expected) < 3 * error < 0.4


def test_the_bound_draws_structures_and_numberings_evenly() -> None:
    graphs = Graphs(("C", "N"), 7)
    structures = Structures.of_smiles(graphs.space, ["Cc1ccccn1"])
    assert len(structures.worlds) == 2
    torch.manual_seed(0)
    copies = graphs.renumbered(structures.worlds[:1].long().expand(50, -1))
    assert len(copies.unique(dim=0)) == 50
    assert set(graphs.decode(copies)) == {"Cc1ccccn1"}


def test_single_atoms_are_refused() -> None:
    with pytest.raises(InputError, match="at least two"):
        tiny().fit(["C", "O"], base.Budget(updates=1))


@pytest.mark.parametrize(
    "changes",
    [{"sampling_steps": 0}, {"sampling_steps": 501}, {"transitions": "other"}, {"heads": 3},
     {"bound_draws": 0}, {"dropout": 1.0}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        base.new("digress-s", **changes)
