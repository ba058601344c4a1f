"""Training: losses against formulas, and rules that are found within seconds."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch
from torch import Generator

from nmln.files import InputError
from nmln.knowledge.completion import complete
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.defaults import facts_per_pair, recommended
from nmln.knowledge.objectives import (
    Conditionals,
    Queries,
    blank_loss,
    conditional_loss,
    sampled_loss,
)
from nmln.knowledge.potential import KnowledgePotential, Shape
from nmln.knowledge.ranking import rank
from nmln.knowledge.scoring import scorer
from nmln.knowledge.storing import TrainedBase
from nmln.knowledge.training import Progress, Settings, train
from tests.knowledge.families import family
from tests.knowledge.test_data import needs_data

SMALL = Shape(hidden=24, embedding=4, rank=4)
QUICK = Settings(
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


def test_the_conditional_loss_is_that_of_its_formula() -> None:
    odds = torch.tensor([[0.3, -0.7, 1.1, 0.2]], dtype=torch.float64)
    true = torch.tensor([[True, False, True, False]])
    p = odds.sigmoid()[0]
    alone = -(p[0].log() + p[2].log() + (1 - p[1]).log() + (1 - p[3]).log())
    e = odds.exp()[0]
    wrong = e[1] + e[3]
    one_of = -((e[0] / (e[0] + wrong)).log() + (e[2] / (e[2] + wrong)).log())
    for calibration in (0.0, 0.5):
        expected = (one_of + calibration * alone) / 2
        assert torch.allclose(conditional_loss(odds, true, calibration), expected)


def test_losses_stay_finite_where_everything_or_nothing_is_true() -> None:
    odds = torch.tensor([[0.5, -inf, 2.0], [0.5, 1.0, 2.0]], requires_grad=True)
    true = torch.tensor([[True, False, False], [True, True, True]])
    loss = conditional_loss(odds, true, 1.0)
    (slopes,) = torch.autograd.grad(loss, odds)
    assert bool(loss.isfinite())
    assert bool(slopes.isfinite().all())


def test_the_pair_conditional_among_candidates_is_exact() -> None:
    """Given that exactly one of some atoms of different pairs is true, which one? By enumeration."""
    from tests.knowledge.test_potential import SHAPES, potential_of, triples_space
    from tests.strategies import random_worlds

    space = triples_space(4, 2)
    potential = potential_of(SHAPES["pairs"], space)
    world = random_worlds(space, 1, seed=2)[0]
    groups = [int(space.block("r0").first_group + space.table("r0")[0, b]) for b in (1, 2, 3)]
    worlds = world.repeat(3, 1)
    worlds[:, groups] = torch.eye(3, dtype=world.dtype)
    with torch.no_grad():
        expected = potential.score(worlds[None])[0].softmax(0)
        prepared = potential.prepare(potential.bits(world))
        odds = prepared.of_tails(torch.tensor([0]), torch.tensor([0]))[0, 1:]
    assert torch.allclose(odds.softmax(0), expected)


@pytest.mark.parametrize("tails", [True, False])
def test_drawing_all_wrong_answers_is_the_whole_loss(base: KnowledgeBase, tails: bool) -> None:
    potential = KnowledgePotential(base.space, SMALL, rng=Generator().manual_seed(0)).double()
    bits = potential.bits(base.world(base.train))
    queries = Queries.of(bits, tails)
    with torch.no_grad():
        world = potential.prepare(bits)
        for asks_loops in (True, False):
            loops = torch.full(queries.given.shape, asks_loops)
            whole = conditional_loss(queries.log_odds(world, loops), queries.true, 0.3)
            single = queries.one_by_one()
            loops = torch.full(single.given.shape, asks_loops)
            drawn = sampled_loss(world, single, loops, 12, 0.3, Generator().manual_seed(0))
            assert torch.allclose(whole, drawn)


@pytest.mark.parametrize("tails", [True, False])
def test_questions_without_an_answer_count_by_all_their_atoms(
    base: KnowledgeBase, tails: bool
) -> None:
    potential = KnowledgePotential(base.space, SMALL, rng=Generator().manual_seed(0))
    facts = base.train[base.train[:, 0] % 3 > 0]
    facts = facts[facts[:, 2] % 3 > 0]  # some constants have no fact at all
    bits = potential.bits(base.world(facts))
    blank = Queries.of(bits, tails, answered=False)
    assert len(blank.given) + len(Queries.of(bits, tails).given) == 12 * 4
    assert not bool(blank.true.any())
    with torch.no_grad():
        world = potential.prepare(bits)
        odds = blank.log_odds(world, torch.zeros(len(blank.given), dtype=torch.bool))
        every = torch.nn.functional.softplus(odds).sum()  # loops are minus infinity here
        drawn = blank_loss(world, blank, 20_000, Generator().manual_seed(0))
    assert float(drawn / every) == pytest.approx(1, abs=0.02)


def test_training_on_drawn_wrong_answers_finds_the_rules(base: KnowledgeBase) -> None:
    shape = Shape(width=3, hidden=8, embedding=4, rank=4)
    potential = KnowledgePotential(base.space, shape, rng=Generator().manual_seed(0))
    train(potential, base, replace(QUICK, epochs=8, batch=64, negatives=4))
    assert mrr(potential, base) > 0.7


def test_an_epoch_asks_every_question_once(base: KnowledgeBase) -> None:
    potential = KnowledgePotential(base.space, SMALL)
    bits = potential.bits(base.world(base.train))
    sides = [Queries.of(bits, tails) for tails in (True, False)]
    for side in sides:
        heads, relations, tails = side.atoms()
        found = torch.stack([heads, relations, tails], 1).unique(dim=0)
        assert torch.equal(found, base.train.unique(dim=0))
    questions = Conditionals(potential, bits, Generator().manual_seed(0), batch=16)
    assert questions.steps == sum(-(-len(side.given) // 16) for side in sides)
    for epoch in range(2):
        asked: list[tuple[bool, int, int]] = []
        before = questions.order
        for step in range(questions.steps):
            assert bool(questions.loss(step).isfinite())
            side, _, rows = questions.asked(int(questions.order[step]))
            some = side.some(rows)
            pairs = zip(some.given.tolist(), some.relations.tolist(), strict=True)
            asked += [(side.tails, given, relation) for given, relation in pairs]
        assert len(set(asked)) == len(asked) == sum(len(side.given) for side in sides)
        assert not torch.equal(before, questions.order), f"epoch {epoch} has the order before it"


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


def test_bad_settings_and_wishes_are_refused(base: KnowledgeBase) -> None:
    for change, message in (
        ({"objective": "guess"}, "conditional or likelihood"),
        ({"hide": 1.0}, "hide is a share"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"rate": -1.0}, "rate and minutes must be positive"),
    ):
        with pytest.raises(InputError, match=message):
            replace(Settings(), **change)
    potential = KnowledgePotential(base.space, SMALL)
    with pytest.raises(InputError, match="has no relation loves"):
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
