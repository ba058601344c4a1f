from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Generator, Tensor

from nmln.checkpoint import flatten, unflatten
from nmln.config import Config, configure, override
from nmln.distributed import Ranks
from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.language import Language, predicate
from nmln.model import Model
from nmln.space import Space
from nmln.training import DivergenceError, Metrics, Return, Trainer, train
from nmln.training.chains import effective_share, tempered_weights
from nmln.training.method import Method

SPACE = Space(
    Language(
        predicate("red", "node"), predicate("edge", "node", "node", symmetric=True, reflexive=False)
    ),
    {"node": 5},
)


def worlds(count: int = 40) -> Tensor:
    return (torch.rand(count, SPACE.groups, generator=Generator().manual_seed(0)) < 0.3).to(
        SPACE.dtype
    )


def settings(changes: dict | None = None) -> Config:
    small = {
        "ladder": {"rates": [0.2, 0.05]},
        "model": {"layers": 1, "hidden": 8},
        "chains": {"moves": 2, "replicas": 12},
        "training": {"steps": 30, "batch": 10},
    }
    return override(configure(small), changes or {})


def trainer(changes: dict | None = None, ranks: Ranks | None = None) -> Trainer:
    config = settings(changes)
    model = Model.build(SPACE, worlds(), config)
    return Trainer(model.potential, worlds(), config, ranks)


def same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
    return one == other


def state(run: Trainer) -> dict:
    return untimed(run.tree())


def untimed(tree: dict) -> dict:
    """All but how long evaluations took, which is not part of a run."""
    return {**tree, "ranks": [{**part, "evaluations": None} for part in tree["ranks"]]}


VARIANTS = [
    {},
    {"optimiser.common": 0.0, "optimiser.trust": 0.9},
    {"training.corruption": "epoch"},
    {"chains.kernel": "langevin"},
    {"chains.renewal": 0.2, "chains.sweeps": 2, "chains.phases": "alternate"},
    {"chains.start": "noise", "optimiser.method": "sgd", "optimiser.average": 0.0},
    {"ladder.method": "tempering", "ladder.temperatures": [2.0, 1.0]},
    {"ladder.method": "single"},
    {"chains.weighted": True, "chains.start": "model"},
    {"chains.changes": 5.0},
    {"training.warm_start": 4},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_a_run_continues_from_its_tree_bit_for_bit(changes: dict) -> None:
    whole = trainer(changes)
    for _ in range(6):
        whole.step()
    begun = trainer(changes)
    for _ in range(3):
        begun.step()
    tensors, content = flatten(begun.tree())
    resumed = trainer({**changes, "training.seed": 0})
    resumed.restore(unflatten(tensors, content))
    for _ in range(3):
        resumed.step()
    assert same(state(whole), state(resumed))


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    one, again, other = trainer(), trainer(), trainer({"training.seed": 1})
    for run in (one, again, other):
        for _ in range(3):
            run.step()
    assert same(state(one), state(again))
    assert not same(one.tree()["potential"], other.tree()["potential"])


@pytest.mark.parametrize(
    ("method", "trained", "running"), [("noising", 2, 2), ("tempering", 1, 5), ("single", 1, 1)]
)
def test_methods_differ_in_their_levels(method: str, trained: int, running: int) -> None:
    run = trainer({"ladder.method": method})
    assert run.potential.levels == trained
    assert run.values.shape == (running, 12, SPACE.groups)
    metrics = run.step()
    assert len(metrics.gap) == trained
    assert len(metrics.acceptance) == running
    assert len(metrics.swaps) == running - 1
    negative = Method.of(run.config.ladder).negative(run.values)
    assert torch.equal(negative, run.values[-trained:])


def test_tempering_and_single_train_on_data_at_the_target_rate() -> None:
    rng = Generator().manual_seed(0)
    many = torch.zeros(4000, SPACE.groups, dtype=SPACE.dtype)
    for method in ("tempering", "single"):
        config = settings({"ladder.method": method})
        corrupted = Method.of(config.ladder).corrupt(SPACE, many, rng, None)
        assert corrupted.shape[0] == 1
        assert float(corrupted.double().mean()) == pytest.approx(0.05, abs=0.004)


def test_metrics_come_for_every_step() -> None:
    run = trainer()
    metrics = [found for found in train(run) if isinstance(found, Metrics)]
    assert [found.step for found in metrics] == list(range(1, 31))
    rates = [found.learning_rate for found in metrics]
    assert rates[-1] < rates[10]
    counted = [found.evaluations for found in metrics]
    assert all(a < b for a, b in pairwise(counted))


def test_a_run_that_diverges_goes_back_and_then_gives_up_with_an_explanation() -> None:
    wild = {"optimiser.learning_rate": 1e6, "optimiser.clip": 0.0, "model.bound": 0.0}
    wild |= {"training.retries": 1, "optimiser.trust": 0.0}
    run = trainer({**wild, "training.steps": 200})
    seen: list[Metrics | Return] = []
    with pytest.raises(DivergenceError, match=r"diverged 2 times.*smaller learning rate"):
        seen.extend(train(run))
    told = [str(found) for found in seen if isinstance(found, Return)]
    assert len(told) == 1
    assert "back to step 0 with half the learning rate" in told[0]
    assert run.slowed == 0.5


def test_steps_that_are_too_long_for_the_chains_are_shortened() -> None:
    wild = {"optimiser.learning_rate": 0.2, "optimiser.clip": 0.0, "optimiser.warm_up": 0}
    wild |= {"model.bound": 0.0, "chains.replicas": 200, "chains.kernel": "gradients"}
    wild |= {"chains.sweeps": 1}

    def steps(trust: float) -> tuple[float, float]:
        shares, paces = [], []
        for seed in range(3):  # one run alone is a matter of luck
            run = trainer({**wild, "optimiser.trust": trust, "training.seed": seed})
            found = [run.step() for _ in range(10)]
            shares += [one.effective_share for one in found[4:]]
            paces += [pace for one in found for pace in one.pace]
        return sum(shares) / len(shares), min(paces)

    free, pace = steps(0.0)
    assert pace == 1
    held, pace = steps(0.99)
    assert pace < 0.9
    assert held > free + 0.02


def test_a_run_can_go_back_to_one_state_again_and_again() -> None:
    run = trainer()
    for _ in range(3):
        run.step()
    kept, found = deepcopy(run.tree()), []
    for _ in range(3):
        run.restore(kept)
        for _ in range(2):
            run.step()
        found.append(deepcopy(state(run)))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_settings_that_make_no_sense_together_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"which only noising fits to them\. Set chains\.renewal to 0"
    ):
        trainer({"ladder.method": "single", "chains.renewal": 0.1})
    with pytest.raises(
        InputError, match="12 replicas and a batch of 10 cannot be dealt into 20 blocks"
    ):
        trainer(ranks=Ranks(19, 20))
    with pytest.raises(InputError, match="steps without chains"):
        settings({"training.warm_start": 5, "chains.weighted": True})
    rule = parse_formula("red(x).", SPACE.language)
    model = Model.build(SPACE, worlds(), settings(), [rule])
    with pytest.raises(InputError, match=r"a hard formula \(red\(x\)\.\) forbids data"):
        Trainer(model.potential, worlds(), settings())


def test_chains_wait_during_a_warm_start_and_then_continue() -> None:
    run = trainer({"training.warm_start": 2})
    first, before = run.values.clone(), run.potential.score(run.values)
    assert [run.step().moves for _ in range(2)] == [0, 0]
    assert torch.equal(run.values, first)
    assert not torch.equal(run.potential.score(first), before)  # the parameters have moved
    assert torch.equal(run.blocks[0].chains.scores, run.potential.score(first))
    assert run.step().moves > 0
    assert not torch.equal(run.values, first)


def test_renewal_leaves_the_weights_alone() -> None:
    still = {"optimiser.learning_rate": 1e-12, "chains.weighted": True, "chains.renewal": 0.5}
    run = trainer(still)
    for _ in range(4):
        run.step()
    assert run.blocks[0].chains.effective_share == pytest.approx(1, abs=1e-4)


def test_chains_are_dealt_out_again_on_another_number_of_processes() -> None:
    parts = [trainer(ranks=Ranks(rank, 2)) for rank in (0, 1)]
    assert [part.values.shape[1] for part in parts] == [6, 6]
    alone = trainer()
    tree = alone.tree()
    tree["ranks"] = [part.blocks[0].tree() for part in parts]
    alone.restore(tree)
    assert torch.equal(alone.values, torch.cat([part.values for part in parts], dim=1))
    assert alone.blocks[0].chains.walkers.shape == (2, 12)
    alone.step()


def lagging(weighted: bool) -> tuple[float, float]:
    """How far the chains' mean and log Z are from the model's after large steps and hardly a move."""
    space = Space(Language(predicate("p", "a")), {"a": 3})
    data, everything = torch.ones(20, 3, dtype=space.dtype), space.enumerate()
    chains = {"chains.replicas": 4000, "chains.kernel": "gibbs", "chains.moves": 1}
    steps = {"optimiser.learning_rate": 0.05, "optimiser.common": 0.0, "optimiser.warm_up": 0}
    steps |= {"training.batch": 20, "optimiser.trust": 0.0}
    rest = {"model.base": False, "chains.weighted": weighted, "chains.start": "model"}
    config = settings({**chains, **steps, **rest})
    model = Model.build(space, data, config)
    run = Trainer(model.potential, data, config)
    for _ in range(8):
        run.step()
    with torch.no_grad():
        scores = model.potential.score(everything.expand(2, -1, -1)).double()
    wanted = (scores.softmax(1) * everything.double().sum(1)).sum(1)
    found = run.values.double().sum(-1).mean(1)
    log_z = run.blocks[0].chains.log_z - scores.logsumexp(1)
    held_out = run.log_likelihood(data) - (scores.log_softmax(1)[:, -1])
    assert torch.allclose(held_out, -log_z, atol=1e-4)
    return float((found - wanted).abs().max()), float(log_z.abs().max())


def test_weights_keep_up_with_a_model_that_the_chains_lag_behind() -> None:
    mean, log_z = lagging(weighted=True)
    assert mean < 0.04
    assert log_z < 0.03
    mean, log_z = lagging(weighted=False)
    assert mean > 0.06
    assert log_z > 0.06


def test_weights_are_roots_where_an_update_would_leave_few_chains() -> None:
    rng = Generator().manual_seed(0)
    small = 0.1 * torch.randn(1, 50, generator=rng, dtype=torch.float64)
    large = 20 * torch.randn(1, 50, generator=rng, dtype=torch.float64)
    weights = tempered_weights(torch.cat([small, large]))
    assert torch.allclose(weights[:1], small.softmax(1))
    assert (effective_share(weights) >= 0.7).all()
    assert torch.equal(weights[1].argsort(), large[0].argsort())
    logs = weights[1].log()
    exponent = float((logs[1] - logs[0]) / (large[0, 1] - large[0, 0]))
    assert exponent in [pytest.approx(0.5**power) for power in range(1, 12)]


def test_chains_can_start_as_draws_of_the_untrained_model() -> None:
    space = Space(Language(predicate("p", "a")), {"a": 3})
    data, everything = torch.ones(20, 3, dtype=space.dtype), space.enumerate()
    config = settings({"chains.start": "model", "chains.replicas": 20_000})
    model = Model.build(space, data, config)
    run = Trainer(model.potential, data, config)
    with torch.no_grad():
        scores = model.potential.score(everything.expand(2, -1, -1)).double()
    assert torch.allclose(run.blocks[0].chains.log_z, scores.logsumexp(1), atol=0.02)
    for level in range(2):
        same_world = (run.values[level][:, None] == everything).all(-1)
        assert torch.allclose(same_world.double().mean(0), scores[level].softmax(0), atol=0.02)


def test_moves_follow_the_acceptance_within_bounds() -> None:
    run = trainer({"chains.changes": 3.0, "chains.moves": 4})
    for acceptance, moves in ((1.0, 4), (0.5, 6), (0.01, 16), (0.0, 16)):
        run.blocks[0].chains.acceptance = acceptance
        assert run.blocks[0].chains.moves == moves
        assert run.step().moves == moves
    fixed = trainer({"chains.moves": 4})
    fixed.blocks[0].chains.acceptance = 0.01
    assert fixed.blocks[0].chains.moves == 4


def test_shares_of_ranks_cover_everything_once() -> None:
    for total, count in ((10, 3), (7, 7), (2, 5)):
        pieces = [Ranks(rank, count).slice(total) for rank in range(count)]
        assert sum(size for _, size in pieces) == total
        assert all(a[0] + a[1] == b[0] for a, b in pairwise(pieces))


def test_a_model_is_saved_and_loaded_with_its_numbers(tmp_path) -> None:
    config = settings({"training.steps": 5})
    model = Model.fit(SPACE, worlds(), config)
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert again.config == model.config
    assert again.space == model.space
    values = worlds().expand(2, -1, -1)
    assert torch.equal(again.potential.score(values), model.potential.score(values))
    (sweep,) = again.sample(3, Generator().manual_seed(0), chains=4, burn_in=2)
    assert sweep.state.values.shape == (2, 4, SPACE.groups)


def test_minutes_become_a_recorded_number_of_steps() -> None:
    seen: list[Metrics | Return] = []
    model = Model.fit(SPACE, worlds(), settings({"training.minutes": 0.01}), report=seen.append)
    assert model.config.training.minutes is None
    assert model.config.training.steps == len(seen) > 1
    same_steps = {"training.steps": len(seen)}
    again = Model.fit(SPACE, worlds(), settings(same_steps))
    values = worlds().expand(2, -1, -1)
    assert torch.equal(again.potential.score(values), model.potential.score(values))


def test_what_cannot_be_trained_is_refused() -> None:
    config = settings()
    model = Model.build(SPACE, worlds(), config)
    with pytest.raises(InputError, match="no worlds to train on"):
        Trainer(model.potential, worlds()[:0], config)
    three = replace(config, ladder=replace(config.ladder, rates=(0.3, 0.2, 0.1)))
    with pytest.raises(InputError, match="trains 3 levels, but the potential has 2"):
        Trainer(model.potential, worlds(), three)
