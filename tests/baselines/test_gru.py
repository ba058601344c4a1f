"""GRU (ours): probabilities, samples and training of its networks."""

from collections import Counter
from itertools import product
from math import exp, log
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from nmln.baselines.base import Budget
from nmln.baselines.gru import GRU, Cell, GRUNetwork, GRUSettings
from nmln.baselines.notations import END
from nmln.baselines.strings import draw_codes
from nmln.baselines.training import BaselineTraining
from nmln.errors import InputError

CELLS: tuple[Cell, ...] = ("gru", "lstm")
THREE = (
    "CCC", "CCO", "CCN", "COC", "CNC", "C=CC", "C#CC", "CC#N", "CC=O", "C=C=C", "C1CC1", "C1CO1",
    "C1CN1", "CSC", "CCS", "CCF", "CCCl", "CCBr", "OCO", "NCN", "FCF",
)  # fmt: skip


def sharp(tokens: int, cell: Cell, seed: int = 0) -> GRUNetwork:
    """A small network with strong opinions."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GRUNetwork(tokens, cell, layers=2, units=6, embedded=4)
        for parameter in model.parameters():
            parameter.data *= 3
    return model


@torch.no_grad()
def measure(model: GRUNetwork, codes: Tensor) -> Tensor:
    return model.eval().nats(codes)


def small(**changes: Any) -> GRU:
    return GRU("gru", GRUSettings(**{"layers": 1, "units": 4, "embedded": 2, **changes}))


def all_strings(tokens: int, longest: int) -> list[tuple[int, ...]]:
    codes = range(1, tokens + 1)
    return [string for length in range(longest + 1) for string in product(codes, repeat=length)]


def as_codes(string_list: list[tuple[int, ...]], places: int) -> Tensor:
    return torch.tensor([[*string, *[END] * (places - len(string))] for string in string_list])


# Probabilities.


@pytest.mark.parametrize("cell", CELLS)
def test_nats_are_a_product_over_prefixes_that_are_fed_one_by_one(cell: Cell) -> None:
    model = sharp(3, cell).eval()
    for string in ((), (2,), (1, 3, 2)):
        expected = 0.0
        for length in range(len(string) + 1):
            fed = torch.tensor([[END, *string[:length]]])
            hidden, _ = model.recurrent(model.embedding(fed))
            chances = model.readout(hidden[0, -1]).softmax(-1)
            expected -= log(chances[(*string, END)[length]].item())
        found = measure(model, as_codes([string], 5))
        assert found.item() == pytest.approx(expected, rel=1e-5)


def test_nats_of_independent_tokens_are_those_of_the_known_distribution() -> None:
    chances = torch.tensor([0.2, 0.5, 0.3])  # of the end and of two tokens
    model = sharp(2, "gru")
    model.readout.weight.data.zero_()
    model.readout.bias.data = chances.log()
    listed = all_strings(2, 5)
    found = measure(model, as_codes(listed, 7)).tolist()
    for string, value in zip(listed, found, strict=True):
        assert exp(-value) == pytest.approx(0.2 * chances[list(string)].prod().item(), rel=1e-4)
    assert sum(exp(-value) for value in found) == pytest.approx(1 - 0.8**6, rel=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_places_behind_the_end_do_not_matter(cell: Cell) -> None:
    model, listed = sharp(2, cell), all_strings(2, 3)
    together = measure(model, as_codes(listed, 9))
    alone = torch.cat([measure(model, as_codes([string], 4)) for string in listed])
    torch.testing.assert_close(together, alone)


# Sampling.


def p_value(source: GRUNetwork, target: GRUNetwork) -> float:
    """Of the hypothesis that strings drawn from one model have the probabilities of another."""
    listed = all_strings(2, 2)
    torch.manual_seed(3)
    codes = draw_codes(source.eval(), 4000, longest=100)
    counts = Counter(tuple(row[: row.index(END)]) if END in row else None for row in codes.tolist())
    observed = [counts[string] for string in listed]
    expected = (4000 * measure(target, as_codes(listed, 3)).neg().exp()).tolist()
    return chisquare([*observed, 4000 - sum(observed)], [*expected, 4000 - sum(expected)]).pvalue


@pytest.mark.parametrize("cell", CELLS)
def test_samples_have_the_probabilities_that_nats_tell(cell: Cell) -> None:
    assert p_value(sharp(2, cell), sharp(2, cell)) > 1e-4


@pytest.mark.parametrize("cell", CELLS)
def test_the_check_rejects_samples_of_another_model(cell: Cell) -> None:
    assert p_value(sharp(2, cell, seed=1), sharp(2, cell)) < 1e-4


def test_sampling_stops_at_the_end_token() -> None:
    torch.manual_seed(0)
    codes = draw_codes(sharp(3, "gru").eval(), 500, longest=30)
    behind = (codes == END).cumsum(1) > 0
    assert behind.any()
    assert (codes[behind] == END).all()


def test_a_string_that_never_ends_is_given_up() -> None:
    writer = small()
    writer.build(["CO", "OC"])
    writer.network.readout.bias.data[END] = -1e9
    assert list(writer.generate(3)) == [None] * 3
    writer.network.readout.bias.data[END] = 1e9
    codes = draw_codes(writer.network, 3, longest=5)
    assert writer.vocabulary.decode(codes) == [[], [], []]


def test_the_same_seed_gives_the_same_strings_and_another_one_others() -> None:
    torch.manual_seed(0)
    writer = small()
    writer.build(["CNO", "CCC"])
    assert list(writer.generate(50, seed=1)) == list(writer.generate(50, seed=1))
    assert list(writer.generate(50, seed=1)) != list(writer.generate(50, seed=2))


# Training.


@pytest.mark.parametrize("cell", CELLS)
def test_a_few_units_memorise_three_strings_and_sample_them(cell: Cell) -> None:
    given = ["CCO", "C=CN", "N"]
    writer = small(cell=cell, units=24, embedded=8, rate=0.02, batch=30, patience=3)
    writer.fit(given * 80)
    assert writer.string_nats(given).mean() < log(3) + 0.2
    counts = Counter(writer.generate(600))
    assert sum(counts[string] for string in given) > 550
    assert min(counts[string] for string in given) > 120


def test_gradients_are_clipped() -> None:
    writer = small(clip=1e-3)
    training = BaselineTraining.start(writer, THREE, Budget(updates=1), 0)
    training.step()
    norms = [part.grad.norm() for part in writer.network.parameters() if part.grad is not None]
    assert torch.stack(norms).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_one_string_is_too_few_to_train_on() -> None:
    with pytest.raises(InputError, match="too few"):
        small().fit(["C"])


def test_the_gradient_of_nats_reaches_every_parameter() -> None:
    model = sharp(2, "gru")
    model.nats(as_codes(all_strings(2, 3), 4)).mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
