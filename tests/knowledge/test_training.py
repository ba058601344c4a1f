"""Training finds rules within seconds; settings, completion and saved models."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator

from nmln.errors import InputError
from nmln.knowledge.completion import complete
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.knowledge.ranking import rank, scorer
from nmln.knowledge.settings import KnowledgeSettings, facts_per_pair, recommended
from nmln.knowledge.storing import TrainedBase
from nmln.knowledge.training import Progress, train
from tests.knowledge.families import family
from tests.knowledge.test_data import needs_data

SMALL = Shape(hidden=24, embedding=4, rank=4)
QUICK = KnowledgeSettings(
    epochs=20, batch=32, rate=0.02, hide=0.1, dropout=0.1, penalty=0, average=0, check_every=4
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    return family(tmp_path_factory.mktemp("kb"))


def mrr(potential: KnowledgePotential, base: KnowledgeBase) -> float:
    with torch.no_grad():
        return rank(scorer(potential, base), base.test, base.known).both.mrr


@pytest.mark.parametrize("objective", ["conditional", "likelihood"])
def test_training_finds_the_rules(base: KnowledgeBase, objective) -> None:
    potential = KnowledgePotential(base.space, SMALL, rng=Generator().manual_seed(0))
    chance = mrr(potential, base)
    settings = QUICK
    if objective == "likelihood":
        settings = replace(QUICK, objective="likelihood", epochs=3, check_every=1)
    seen: list[Progress] = []
    result = train(potential, base, settings, seen.append)
    assert chance < 0.5
    assert mrr(potential, base) > (0.85 if objective == "conditional" else 0.6)
    assert result.epochs == len(seen) == len(result.history)
    assert result.valid is not None
    assert result.valid.mrr == max(step.mrr for step in seen if step.mrr is not None)


def test_the_same_seed_gives_the_same_parameters(base: KnowledgeBase) -> None:
    runs = []
    for seed in (1, 1, 2):
        potential = KnowledgePotential(base.space, SMALL, rng=Generator().manual_seed(0))
        train(potential, base, replace(QUICK, epochs=2, seed=seed))
        runs.append(torch.cat([p.detach().flatten() for p in potential.parameters()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_without_validation_the_last_epoch_stays(base: KnowledgeBase) -> None:
    alone = replace(base, valid=base.valid[:0])
    potential = KnowledgePotential(base.space, SMALL)
    result = train(potential, alone, replace(QUICK, epochs=3, average=0.5))
    assert (result.epoch, result.valid) == (3, None)


def test_the_best_parameters_stay_and_waiting_ends(base: KnowledgeBase) -> None:
    potential = KnowledgePotential(base.space, SMALL)
    settings = replace(QUICK, epochs=200, check_every=1, patience=2)
    result = train(potential, base, settings)
    assert result.epochs - result.epoch == 2
    with torch.no_grad():
        again = rank(scorer(potential, base), base.valid, base.known).both
    assert again == result.valid


def test_time_and_an_interrupt_end_it_with_what_was_reached(base: KnowledgeBase) -> None:
    potential = KnowledgePotential(base.space, SMALL)
    result = train(potential, base, replace(QUICK, epochs=10_000, minutes=0.005))
    assert result.epochs < 10_000
    assert result.valid is not None

    def stop(progress: Progress) -> None:
        if progress.epoch == 4:
            raise KeyboardInterrupt

    result = train(potential, base, QUICK, stop)
    assert (result.interrupted, result.epoch) == (True, 4)


def test_training_on_drawn_wrong_answers_finds_the_rules(base: KnowledgeBase) -> None:
    shape = Shape(width=3, hidden=8, embedding=4, rank=4)
    potential = KnowledgePotential(base.space, shape, rng=Generator().manual_seed(0))
    train(potential, base, replace(QUICK, epochs=8, batch=64, negatives=4))
    assert mrr(potential, base) > 0.7


def test_what_is_saved_comes_back(base: KnowledgeBase, tmp_path: Path) -> None:
    potential = KnowledgePotential(base.space, Shape(width=3, hidden=4, embedding=2, paths=2))
    TrainedBase(base, potential, {"seed": 3}).save(tmp_path / "model")
    again = TrainedBase.load(tmp_path / "model")
    assert again.settings == {"seed": 3}
    assert again.base.space == base.space
    for split in ("train", "valid", "test"):
        assert torch.equal(getattr(again.base, split), getattr(base, split))
    world = base.world(base.train)[None, None]
    assert torch.equal(again.potential.score(world), potential.score(world))
    assert not list(tmp_path.rglob("*.pkl"))


def test_completion_lists_what_is_missing_with_its_probability(base: KnowledgeBase) -> None:
    potential = KnowledgePotential(base.space, SMALL, rng=Generator().manual_seed(0))
    train(potential, base, QUICK)
    found = complete(potential, base, top=15, unseen=False)
    assert [one.probability for one in found] == sorted(
        (o.probability for o in found), reverse=True
    )
    assert sum(one.split != "" for one in found) >= 10  # most are true, and were held out
    first = found[0]
    names = base.constants.index(first.head), base.constants.index(first.tail)
    atom = torch.tensor([names[0]]), torch.tensor([base.relations.index(first.relation)])
    with torch.no_grad():
        world = potential.prepare(potential.bits(base.world(base.train)))
        odds = world.log_odds(*atom, torch.tensor([names[1]]))
    assert first.probability == pytest.approx(float(odds.sigmoid()), rel=1e-4)
    known = {base.text(tuple(triple)) for triple in base.known.tolist()}  # pyright: ignore[reportArgumentType]
    unseen = complete(potential, base, top=1000, relations=("leads",))
    assert {one.relation for one in unseen} == {"leads"}
    assert not known & {(one.head, one.relation, one.tail) for one in unseen}
    leads = sum(relation == "leads" for _, relation, _ in known)
    assert len(unseen) == 12 * 12 - leads
    surprising = complete(potential, base, top=10, surprising=True)
    assert [s.surprise for s in surprising] == sorted(
        (s.surprise for s in surprising), reverse=True
    )


def test_bad_settings_and_conditions_are_refused(base: KnowledgeBase) -> None:
    for change, message in (
        ({"objective": "guess"}, "conditional or likelihood"),
        ({"hide": 1.0}, "hide must be"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"rate": -1.0}, "rate and minutes must be positive"),
    ):
        with pytest.raises(InputError, match=message):
            replace(KnowledgeSettings(), **change)
    potential = KnowledgePotential(base.space, SMALL)
    with pytest.raises(InputError, match="loves is not a relation"):
        complete(potential, base, relations=("loves",))
    with pytest.raises(InputError, match="top must be"):
        complete(potential, base, top=0)


def test_dense_facts_are_hidden_more_often(base: KnowledgeBase) -> None:
    assert 1 < facts_per_pair(base) < 2
    sparse, gentle = recommended(base, {"rank": 3}, {"seed": 5})
    assert (sparse.rank, gentle.seed) == (3, 5)
    dense = replace(base, train=torch.cat([base.train] * 3))  # as if there were three times as many
    wide, strict = recommended(dense)
    assert wide.hidden > sparse.hidden
    assert strict.hide > gentle.hide
    assert recommended(dense, settings={"hide": 0.0})[1].hide == 0


@needs_data
@pytest.mark.slow
def test_nations_are_learnt_far_above_chance() -> None:
    base = KnowledgeBase.read("nations")
    shape, settings = recommended(base, settings={"epochs": 40})
    potential = KnowledgePotential(base.space, shape, rng=Generator().manual_seed(0))
    result = train(potential, base, settings)
    assert result.valid is not None
    assert result.valid.mrr > 0.77
    assert mrr(potential, base) > 0.7
