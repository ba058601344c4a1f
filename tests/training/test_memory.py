"""The memory of a training step on several sizes, counted before anything is allocated."""

import pytest
import torch

from nmln.buckets import Bucket
from nmln.errors import InputError
from nmln.model import Model
from nmln.space import Space
from nmln.training.sizes import check_training, dealt, step_memory
from nmln.training.trainer import Trainer
from tests.test_sizes import LANGUAGE, SMALL, SPACE


def of_sizes(large: int, worlds: int = 1) -> list[Bucket]:
    """A thousand worlds of three constants, and a few large ones."""
    spaces = [SPACE, Space(LANGUAGE, {"n": large})]
    return [
        Bucket(space, torch.zeros(count, space.groups, dtype=space.dtype))
        for space, count in zip(spaces, (1000, worlds), strict=True)
    ]


def test_a_rare_large_size_counts_with_the_chains_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = of_sizes(30)
    needed = step_memory(dealt(data, SMALL, 1), SMALL)
    assert needed < check_training(data[1].space, SMALL) / 5
    monkeypatch.setattr("nmln.memory.machine_memory", lambda: 2 * needed)
    assert len(Model.build(data, config=SMALL).domains) == 2


def test_all_sizes_together_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = of_sizes(30, worlds=1000)
    model = Model.build(data, config=SMALL)
    parts = dealt(data, SMALL, 1)
    needed = step_memory(parts, SMALL)
    monkeypatch.setattr("nmln.memory.machine_memory", lambda: needed)
    assert all(step_memory([one], SMALL) < needed for one in parts[:1])
    named = (
        r"training on 2 sizes, of which 30 with 50 chains per level takes .* GiB, needs at least"
    )
    for act in (
        lambda: Model.build(data, config=SMALL),
        lambda: Trainer(model.potential, data, SMALL),
    ):
        with pytest.raises(InputError, match=named) as error:
            act()
        assert "--max-size" in str(error.value)
