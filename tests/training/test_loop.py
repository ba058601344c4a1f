"""The guard: what it sees, where it goes back to, and that it survives a resume."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from nmln.checkpoint import flatten, unflatten
from nmln.config import configure, override
from nmln.language import Language, predicate
from nmln.model import Model
from nmln.space import Space
from nmln.training import DivergenceError, Metrics, Return, Trainer, train
from nmln.training.loop import Guard

pytestmark = pytest.mark.usefixtures("unchecked")

SPACE = Space(Language(predicate("edge", "node", "node", symmetric=True)), {"node": 4})
GOOD_EVERY = 4


class Stumbling(Trainer):
    """A trainer whose data and chains seem far apart from some step on, until the rate is lower."""

    stumbles = (10, 11)  # the steps that go wrong, at first and after one return

    def step(self) -> Metrics:
        metrics = super().step()
        returns = round(-torch.tensor(self.slowed).log2().item())
        if returns < len(self.stumbles) and metrics.step >= self.stumbles[returns]:
            return replace(metrics, gap=(1000.0,) * len(metrics.gap))
        return metrics


def stumbling(retries: int = 3) -> Stumbling:
    config = configure(
        {
            "ladder": {"rates": [0.2, 0.05]},
            "model": {"layers": 1, "hidden": 4},
            "chains": {"moves": 2, "replicas": 6},
            "optimiser": {"warm_up": 2},
            "training": {"steps": 36, "batch": 6},
        }
    )
    config = override(config, {"training.retries": retries})
    rng = Generator().manual_seed(0)
    worlds = (torch.rand(20, SPACE.groups, generator=rng) < 0.3).to(SPACE.dtype)
    return Stumbling(Model.build(SPACE, worlds, config).potential, worlds, config)


def outcome(run: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in run.potential.parameters()]


def events(run: Trainer, guard: Guard | None = None) -> list[Metrics | Return]:
    return list(train(run, good_every=GOOD_EVERY, guard=guard))


def test_a_run_goes_back_to_the_last_state_that_looked_healthy() -> None:
    seen = [event for event in events(stumbling()) if isinstance(event, Return)]
    # From step 10 on the gap is too wide; the twentieth such step is one too many.
    assert [(event.at, event.to) for event in seen] == [(29, 8), (30, 8)]
    assert "1000 apart" in str(seen[0])


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[list[Metrics | Return], list[torch.Tensor]]:
    run = stumbling()
    return events(run), outcome(run)


@pytest.mark.parametrize("after", [9, 15, 29, 33, 52])
def test_a_run_resumed_around_a_divergence_is_the_uninterrupted_one(
    after: int, uninterrupted: tuple[list[Metrics | Return], list[torch.Tensor]]
) -> None:
    expected, weights = uninterrupted
    part = stumbling()
    guard, told = Guard.of(part), []
    for event in train(part, good_every=GOOD_EVERY, guard=guard):
        told.append(event)
        if len(told) == after:
            break
    kept = flatten({"trainer": part.tree(), "guard": guard.tree()})
    again, tree = stumbling(), unflatten(*kept)
    again.restore(tree["trainer"])
    watching = Guard.of(again)
    watching.restore(tree["guard"])
    told += events(again, watching)
    assert repr(told) == repr(expected)
    assert all(map(torch.equal, outcome(again), weights))


def test_a_guard_that_forgets_does_not_go_back_where_the_uninterrupted_run_does() -> None:
    part, told = stumbling(), []
    for event in train(part, good_every=GOOD_EVERY):
        told.append(event)
        if len(told) == 15:
            break
    returns = [event for event in events(part) if isinstance(event, Return)]
    assert (returns[0].at, returns[0].to) != (29, 8)


def test_returns_before_a_resume_count() -> None:
    part = stumbling(retries=1)
    guard = Guard.of(part)
    for event in train(part, good_every=GOOD_EVERY, guard=guard):
        if isinstance(event, Return):
            break
    assert len(guard.reasons) == 1
    again = stumbling(retries=1)
    again.restore(part.tree())
    watching = Guard.of(again)
    watching.restore(guard.tree())
    with pytest.raises(DivergenceError, match="diverged 2 times"):
        events(again, watching)
