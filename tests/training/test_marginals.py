"""Noise by marginals and a local part in training: levels, domains, resuming and predictions."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from nmln.buckets import Bucket
from nmln.config import Config, configure, override
from nmln.errors import InputError
from nmln.ladders import Ladder
from nmln.language import Language, predicate
from nmln.marginals import SMOOTHING, changes_of, shares_of, swap_prediction
from nmln.model import Model
from nmln.potentials.independent import IndependentPotential
from nmln.potentials.local import LocalPotential
from nmln.potentials.total import TotalPotential, base_of
from nmln.space import Space
from nmln.training import Trainer
from nmln.training.chains import effective_share, initial_draws
from nmln.training.method import Method
from nmln.training.rates import CHANGES, LEAST_REDRAWN, MOST_REDRAWN, predicted_of, with_rates
from tests.model.test_domains import buckets

SETTINGS: dict[str, dict[str, Any]] = {
    "ladder": {"noise": "marginals", "rates": [0.25, 0.05, 0.003]},
    "model": {"layers": 1, "hidden": 4, "local": True, "pieces": True},
    "chains": {"replicas": 16, "moves": 2},
    "training": {"steps": 4, "batch": 16},
}


def config(**changes: Any) -> Config:
    return override(configure(SETTINGS), {k.replace("__", "."): v for k, v in changes.items()})


def trainer(settings: Config, data: list[Bucket]) -> Trainer:
    model = Model.build(data, config=settings)
    return Trainer(model.potential, data, model.config)


def numbers(one: Trainer) -> list[Tensor]:
    chains = [part.chains.values for block in one.blocks for part in block.parts]
    return [*(tensor.detach() for tensor in one.potential.state_dict().values()), *chains]


def same(one: Trainer, other: Trainer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(numbers(one), numbers(other), strict=True))


@pytest.mark.parametrize("method", ["noising", "tempering", "single"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("corruption", ["step", "epoch"])
def test_a_run_continues_from_its_tree_bit_for_bit(
    method: str, several: bool, corruption: str
) -> None:
    data = buckets() if several else buckets()[1:2]
    settings = config(ladder__method=method, training__corruption=corruption)
    whole, first, second = (trainer(settings, data) for _ in range(3))
    for _ in range(2):
        whole.step()
        first.step()
    second.restore(first.tree())
    for _ in range(2):
        whole.step()
        second.step()
    assert same(whole, second)


def test_the_same_blocks_give_the_same_run(tmp_path: Path) -> None:
    data = buckets()
    one, other = (trainer(config(training__blocks=2), data) for _ in range(2))
    for _ in range(2):
        one.step()
        other.step()
    assert same(one, other)
    assert not same(one, trainer(config(training__blocks=2, model__seed=5), data))


def test_every_domain_redraws_from_its_own_frequencies() -> None:
    run = trainer(config(), buckets())
    found = [part.shares for part in run.blocks[0].parts]
    for bucket, shares, part in zip(buckets(), found, run.blocks[0].parts, strict=True):
        assert shares is not None
        there = part.chains.frequencies
        assert there is not None
        assert torch.equal(there, shares)
        bond = bucket.space.block("bond")
        seen = float((bucket.worlds[:, bond.groups] == 0).double().mean())
        own = float(shares[bond.entries][0])
        assert own == pytest.approx((1 - SMOOTHING) * seen + SMOOTHING / bond.size, abs=0.03)
    assert all(
        not torch.equal(a[: len(b)], b)
        for a, b in pairwise(found)
        if a is not None and b is not None
    )


def test_corrupted_data_keep_their_number_of_bonds() -> None:
    """Which uniform noise of the same rate does not."""
    data = buckets()[2:]
    bond = data[0].space.block("bond")
    means = []
    for noise in ("marginals", "uniform"):
        model = Model.build(data, config=config(ladder__noise=noise))
        shares = model.method.shares(model.potential)
        assert (shares is None) == (noise == "uniform")
        worlds = data[0].worlds.repeat(400, 1)
        rng = Generator().manual_seed(0)
        values = model.method.corrupt(data[0].space, worlds, rng, shares)
        means.append((values[..., bond.groups] != 0).double().sum(-1).mean(1))
    clean = float((data[0].worlds[:, bond.groups] != 0).double().sum(-1).mean())
    assert torch.allclose(means[0], torch.tensor(clean).double(), atol=0.15)
    assert float(means[1][0]) > clean + 0.5


def test_the_ladder_follows_the_frequencies() -> None:
    data = buckets()
    settings = config(ladder__rates="auto", ladder__swap=0.6)
    chosen = with_rates(settings, data)
    rates = chosen.ladder.rates
    assert rates != "auto"
    assert rates[0] == MOST_REDRAWN
    run = trainer(chosen, data)
    predicted = predicted_of(run)
    assert len(predicted) == len(rates) - 1
    shares = run.blocks[0].parts[-1].shares
    assert shares is not None
    assert rates[-1] == LEAST_REDRAWN
    overlap = partial(swap_prediction, data[-1].space, shares)
    even = Ladder.even(10, 0.6, rates[0], rates[-1], overlap)
    assert len(even) == len(rates), "as many as even predictions need"
    assert predicted[-1] > predicted[0], "closer near the target"
    assert predicted == tuple(
        swap_prediction(data[-1].space, shares, *pair) for pair in pairwise(rates)
    )
    assert with_rates(chosen, data) == chosen
    single = with_rates(replace(settings, ladder=replace(settings.ladder, method="single")), data)
    assert single.ladder.rates == rates[-1:]
    tempered = trainer(config(ladder__method="tempering"), data)
    assert predicted_of(tempered) == ()


@pytest.mark.parametrize(("lamps", "capped"), [(2, True), (100, False)])
def test_as_many_groups_change_at_the_target_whatever_their_number(
    lamps: int, capped: bool
) -> None:
    space = Space(Language(predicate("lit", "lamp")), {"lamp": lamps})
    worlds = torch.randint(2, (50, lamps), generator=Generator().manual_seed(0))
    data = [Bucket(space, worlds)]
    chosen = with_rates(config(ladder__rates="auto", ladder__method="single"), data)
    (rate,) = Method.of(chosen.ladder).noise
    shares = shares_of(space, IndependentPotential.fit(space, worlds[None]).table[0])
    changes = rate * changes_of(space, shares)
    assert rate == LEAST_REDRAWN if capped else changes == pytest.approx(CHANGES, rel=0.05)


def test_a_prediction_that_needs_too_many_levels_is_refused_with_what_is_possible() -> None:
    def overlap(rate: float, other: float) -> float:
        return max(0.0, 1 - 150 * abs(rate**0.5 - other**0.5))

    with pytest.raises(InputError, match="a ladder may have 100") as error:
        Ladder.even(10**6, 0.4, 0.25, 0.003, overlap)
    assert (error.value.kind, error.value.token) == ("size", "ladder.swap")
    assert "needs about 113 levels" in str(error.value)
    assert len(Ladder.even(10**6, 0.2, 0.25, 0.003, overlap)) <= 100


def test_a_model_is_saved_loaded_and_put_on_other_sizes(tmp_path: Path) -> None:
    model = Model.build(buckets(), config=config())
    for part in model.potential.modules():
        if isinstance(part, LocalPotential):
            with torch.no_grad():
                part.each[0].node_weight.normal_(generator=Generator().manual_seed(0))
    model.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    assert loaded.config == model.config
    for bucket in buckets():
        values = bucket.worlds[:5].expand(3, -1, -1)
        here, there = model.on(bucket.space), loaded.on(bucket.space)
        scores = here.potential.score(values)
        assert torch.equal(there.potential.score(values), scores)
        assert torch.equal(here.level(1).score(values[[1]]), scores[[1]])
        one, other = (each.method.shares(each.potential) for each in (here, there))
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_the_first_log_z_is_that_of_the_local_part_too() -> None:
    data = buckets()[:1]
    settings = config(model__pieces=False)
    model = Model.build(data, config=settings)
    everything = data[0].space.enumerate()
    scores = model.potential.score(everything.expand(3, -1, -1)).detach().double()
    draws, weights = initial_draws(model.potential, 1000)
    assert draws.shape[1] == weights.shape[1]
    found = weights.logsumexp(1) - torch.tensor(weights.shape[1]).log()
    assert torch.allclose(found, scores.logsumexp(1), atol=0.3)


def test_chains_that_start_as_draws_of_the_model_are_not_all_alike() -> None:
    run = trainer(config(chains__start="model", chains__replicas=100), buckets()[2:])
    chains = run.blocks[0].chains
    for level in range(3):
        assert len(chains.values[level].unique(dim=0)) > 5
    weights = initial_draws(run.potential, 1000)[1]
    assert weights.shape[1] == 200, "annealed"
    assert float(effective_share(weights.softmax(1)).min()) > 0.02


def test_settings_of_earlier_versions_have_neither() -> None:
    old = configure({"model": {"layers": 2}}).to_dict()
    assert "noise" not in old["ladder"]
    assert "local" not in old["model"]
    new = config()
    assert configure(new.to_dict()) == new
    assert not Method.of(configure({"ladder": {"rates": [0.1]}}).ladder).marginal


def test_frequencies_are_those_of_the_base_term_of_a_potential() -> None:
    model = Model.build(buckets()[1:2], config=config())
    base = base_of(model.potential)
    assert isinstance(base, IndependentPotential)
    shares = model.method.shares(model.potential)
    assert shares is not None
    assert torch.equal(shares, shares_of(base.space, base.table[0]))
    assert torch.equal(base.table, base.table[:1].expand_as(base.table))
    assert isinstance(model.potential, TotalPotential)
    assert base_of(model.potential.parts[0]) is None  # pyright: ignore[reportArgumentType]
