"""Baselines on molecules of several sizes: sizes by their shares, then molecules of that size."""

from collections import Counter
from math import log
from pathlib import Path

import pytest
import torch

from nmln.baselines import base
from nmln.baselines.digress_common import GraphGenerator, Graphs
from nmln.baselines.training import BaselineTraining
from nmln.config import DataConfig
from nmln.runs import baseline as runs
from nmln.runs.baseline_sample import sample
from nmln.runs.folder import RunFolder
from tests.baselines.test_digress_network import TINY
from tests.baselines.test_training import through_files
from tests.molecules.test_sizes import FIVE, THREE
from tests.runs.main_jobs import MOLECULES

TRAIN = [*THREE[:6], *FIVE[:3], "C"]
NAMES = ("digress-s", "congress-s")
BOTH = pytest.mark.parametrize("name", NAMES)


def tiny(name: str) -> GraphGenerator:
    made = base.new(name, **TINY, batch=4, times=8, sampling_steps=4)
    assert isinstance(made, GraphGenerator)
    return made


@BOTH
def test_molecules_of_several_sizes_are_learned_together(name: str) -> None:
    made = tiny(name)
    dropped = made.fit(TRAIN, base.Budget(updates=3))
    assert [(one.reason, one.count) for one in dropped] == [("a single atom", 1)]
    assert [graphs.nodes for graphs in made.sizes] == [3, 5]
    assert made.counts == (6, 3)
    assert made.size == 9
    loss = made.loss(torch.arange(9), 0)
    loss.backward()
    assert any(one.grad is not None for one in made.network.parameters())


@BOTH
def test_sizes_are_drawn_by_their_shares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny(name)
    made.fit(TRAIN, base.Budget(updates=1))
    names = {3: "CCO", 5: "CCCCO"}
    monkeypatch.setattr(Graphs, "decode", lambda self, worlds: [names[self.nodes]] * len(worlds))
    found = Counter(made.generate(1200, seed=2))
    assert abs(found["CCO"] - 800) < 4 * (1200 * 2 / 9) ** 0.5
    assert found.total() == 1200


@BOTH
def test_a_saved_model_of_several_sizes_draws_the_same(name: str, tmp_path: Path) -> None:
    made = tiny(name)
    made.fit(TRAIN, base.Budget(updates=2))
    made.save(tmp_path / "model")
    again = base.load(tmp_path / "model")
    assert list(again.generate(60, seed=3)) == list(made.generate(60, seed=3))


@BOTH
def test_a_resumed_training_of_several_sizes_continues_bit_for_bit(
    name: str, tmp_path: Path
) -> None:
    budget = base.Budget(updates=6)
    whole = BaselineTraining.start(tiny(name), TRAIN, budget, 4)
    first = BaselineTraining.start(tiny(name), TRAIN, budget, 4)
    losses = [whole.step() for _ in range(6)]
    for _ in range(3):
        first.step()
    second = BaselineTraining.start(tiny(name), TRAIN, budget, 4)
    second.restore(through_files(first, tmp_path))
    assert [second.step() for _ in range(3)] == losses[3:]


def test_the_loss_is_the_mean_over_all_nodes_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a network that knows nothing, every node and pair counts alike."""
    made = tiny("digress-s")
    made.fit(TRAIN, base.Budget(updates=1))
    kinds = len(made.graphs.atoms)

    def ignorant(worlds: torch.Tensor, times: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nodes = made.graphs_of(worlds).nodes
        pairs = worlds.shape[1] - nodes
        return torch.zeros(len(worlds), nodes, kinds), torch.zeros(len(worlds), pairs, 4)

    monkeypatch.setattr(made, "logits", ignorant)
    found = float(made.loss(torch.arange(9), 0))
    assert found == pytest.approx(log(kinds) + 5 * log(4))


def test_the_likelihood_counts_the_probability_of_the_size() -> None:
    made = tiny("digress-s")
    made.fit(TRAIN, base.Budget(updates=5))
    found = made.log_prob(["CCO", "CCCCO", "CCCC"])
    assert found is not None
    made.counts = (1, 8)
    other = made.log_prob(["CCO", "CCCCO", "CCCC"])
    assert other is not None
    change = other.values[:2] - found.values[:2]
    assert change.tolist() == pytest.approx([log((1 / 9) / (6 / 9)), log((8 / 9) / (3 / 9))])
    assert float(found.values[2]) == float("-inf")


def test_a_string_baseline_may_write_every_size_of_its_training(tmp_path: Path) -> None:
    data = tmp_path / "mixed.smi"
    data.write_text("\n".join([*THREE, *MOLECULES]) + "\n")
    changes = {"units": 8, "embedded": 4, "layers": 1}
    budget = base.Budget(updates=2)
    job = runs.begin(tmp_path / "run", "gru", DataConfig(str(data)), budget, 0, changes)
    runs.run(job)
    opened = runs.open_baseline(tmp_path / "run")
    assert opened.head.sizes == (3, 4)

    def batch(number: int, seed: int = 0) -> list[str | None]:
        return (["CCO", "CCCO", "CCCCO", None] * opened.generator.at_once)[
            : opened.generator.at_once
        ]

    opened.generator.batch = batch  # pyright: ignore[reportAttributeAccessIssue]
    found = sample(opened, 40)
    assert found["levels"][0]["valid"] == 20
    assert len(RunFolder(tmp_path / "run").read_source(opened.head.run).spaces) == 2
