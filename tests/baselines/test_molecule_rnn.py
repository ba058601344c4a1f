"""Molecule-RNN: exact probabilities by enumeration, its published size and its schedule."""

from collections import Counter
from itertools import product
from math import exp, log
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from nmln.baselines.base import BASELINES, Budget, Generator, new
from nmln.baselines.molecule_rnn import (
    MoleculeRNN,
    MoleculeRNNNetwork,
    MoleculeRNNSettings,
    slow_down,
)
from nmln.baselines.notations import END
from nmln.baselines.strings import draw_codes
from nmln.baselines.training import BaselineTraining
from nmln.errors import InputError
from nmln.molecules.chemistry import parse

TINY: dict[str, Any] = {"layers": 1, "units": 8, "embedded": 4, "longest": 30}
MOLECULES = ("CCO", "CCN", "C=CC", "CC#N", "COC", "CCF", "OCO", "C1CC1", "CNC", "CC=O")


def sharp(tokens: int, seed: int = 0) -> MoleculeRNNNetwork:
    """A small network with strong opinions, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MoleculeRNNNetwork(tokens, embedded=4, units=6, layers=2).double().eval()
        for parameter in model.parameters():
            parameter.data *= 3
    return model


def all_strings(tokens: int, longest: int) -> list[tuple[int, ...]]:
    codes = range(1, tokens + 1)
    return [string for length in range(longest + 1) for string in product(codes, repeat=length)]


def as_codes(strings: list[tuple[int, ...]], places: int) -> Tensor:
    return torch.tensor([[*string, *[END] * (places - len(string))] for string in strings])


def log_prefix(model: MoleculeRNNNetwork, string: tuple[int, ...]) -> float:
    """The log-probability that a string begins like this, by feeding code after code."""
    last, state = model.first(1)
    total = 0.0
    for code in string:
        logits, state = model.step(last, state)
        total += logits.log_softmax(-1)[0, code].item()
        last = torch.tensor([code])
    return total


@pytest.mark.parametrize(
    ("vocabulary", "parameters"), [(48, 4_370_478), (75, 4_391_241), (78, 4_393_548)]
)
def test_the_network_has_the_published_size(vocabulary: int, parameters: int) -> None:
    model = MoleculeRNNNetwork(vocabulary - 3, embedded=256, units=512, layers=3)
    assert sum(part.numel() for part in model.parameters()) == parameters


@pytest.mark.parametrize(("name", "parameters"), [("char", 4_370_478), ("regex", 4_391_241)])
def test_the_published_vocabularies_give_the_published_size(name: str, parameters: int) -> None:
    baseline = new(f"rnn-{name}")
    baseline.build(["CCO"])
    assert sum(part.numel() for part in baseline.network.parameters()) == parameters


@torch.no_grad()
def test_probabilities_of_short_strings_and_the_unfinished_mass_are_one() -> None:
    model, longest = sharp(2), 5
    listed = all_strings(2, longest)
    finished = model.nats(as_codes(listed, longest + 1)).neg().exp().sum().item()
    whole = product((1, 2), repeat=longest + 1)
    unfinished = sum(exp(log_prefix(model, string)) for string in whole)
    assert unfinished > 1e-4
    assert finished + unfinished == pytest.approx(1, abs=1e-12)


@torch.no_grad()
def test_the_packed_loss_is_the_sum_over_strings_that_are_fed_one_by_one() -> None:
    model, listed = sharp(3), [(), (2,), (1, 3, 2), (3, 3), (1, 2, 3, 1, 2)]
    together = model.nats(as_codes(listed, 9))
    alone = torch.tensor([-log_prefix(model, (*one, END)) for one in listed], dtype=torch.double)
    assert torch.allclose(together, alone, atol=1e-12)


def p_value(source: MoleculeRNNNetwork, target: MoleculeRNNNetwork) -> float:
    """Of the hypothesis that strings drawn from one network have the probabilities of another."""
    listed, count = all_strings(2, 2), 4000
    with torch.random.fork_rng():
        torch.manual_seed(3)
        codes = draw_codes(source, count, longest=20)
    counts = Counter(tuple(row[: row.index(END)]) if END in row else None for row in codes.tolist())
    observed = [counts[string] for string in listed]
    with torch.no_grad():
        expected = (count * target.nats(as_codes(listed, 3)).neg().exp()).tolist()
    return chisquare([*observed, count - sum(observed)], [*expected, count - sum(expected)]).pvalue


def test_samples_have_the_probabilities_that_nats_tell() -> None:
    assert p_value(sharp(2), sharp(2)) > 1e-4


def test_the_check_rejects_samples_of_another_network() -> None:
    assert p_value(sharp(2, seed=1), sharp(2)) < 1e-4


def test_start_and_pad_are_never_written() -> None:
    model = sharp(3)
    assert model.embedding.num_embeddings == 3 + 3
    assert model.readout.out_features == 3 + 1
    torch.manual_seed(0)
    assert draw_codes(model, 500, longest=30).max() == 3


def test_finished_strings_leave_the_batch() -> None:
    class Watched(MoleculeRNNNetwork):
        def step(self, last: Tensor, state: tuple[Tensor, ...]) -> Any:
            fed.append(len(last))
            return super().step(last, state)

    fed: list[int] = []
    torch.manual_seed(0)
    codes = draw_codes(Watched(1, 4, 6, 2), 200, longest=40)
    going = [200, *((codes[:, : place + 1] != END).all(1).sum().item() for place in range(39))]
    assert fed == [count for count in going if count]
    assert fed[1] < 200


def test_the_rate_falls_as_by_the_scheduler_of_torch() -> None:
    torch.manual_seed(0)
    losses = (5 - torch.arange(80).clamp(max=12) / 4 + 0.01 * torch.rand(80)).tolist()
    parts = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    ours, theirs = (torch.optim.Adam([part], 1e-3) for part in parts)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, factor=0.5, patience=5, cooldown=10, min_lr=1e-4
    )
    memory: dict[str, Any] = {}
    rates = []
    for loss in losses:
        slow_down(loss, ours, memory)
        scheduler.step(loss)
        rates.append(ours.param_groups[0]["lr"])
        assert rates[-1] == theirs.param_groups[0]["lr"]
    assert len(set(rates)) > 2


# Molecules.


def small(name: str = "rnn-char", **changes: Any) -> MoleculeRNN:
    baseline = new(name, **{**TINY, **changes})
    assert isinstance(baseline, MoleculeRNN)
    torch.manual_seed(0)
    baseline.build(MOLECULES)
    return baseline


@pytest.mark.parametrize("name", ["rnn-char", "rnn-regex", "rnn-selfies"])
def test_the_probability_of_a_molecule_is_summed_over_its_distinct_spellings(name: str) -> None:
    baseline = small(name, spellings=30, tokens=("[N]", "[#C]"))
    smiles = "CC#N"
    strings = baseline.spellings(smiles)
    assert len(set(strings)) == len(strings) > 1
    assert {parse(baseline.notation.join(one)).smiles for one in strings} == {smiles}
    each = [baseline.string_nats([one]).neg().exp().item() for one in strings]
    found = baseline.log_prob([smiles, "CCO"])
    assert found is not None
    assert not found.exact
    assert found.values[0].item() == pytest.approx(log(sum(each)), rel=1e-5)


def test_more_spellings_give_a_larger_bound_and_what_cannot_be_written_none() -> None:
    values = []
    for spellings in (0, 5, 40):
        found = small(spellings=spellings).log_prob(["CCOC#N", "C[GeH3]"])
        assert found is not None
        values.append(found.values.tolist())
    assert values[0][0] < values[1][0] < values[2][0] < 0
    assert [one[1] for one in values] == [float("-inf")] * 3


def test_the_epoch_with_the_most_valid_samples_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 5, 5, 2])
    monkeypatch.setattr(MoleculeRNN, "_valid", lambda _: next(counts))
    baseline = new("rnn-char", **TINY, epochs=4)
    kept: list[Tensor] = []
    training = BaselineTraining.start(baseline, MOLECULES, Budget(), 0)
    while not training.done:
        training.step()
        kept.append(baseline.network.readout.bias.detach().clone())  # type: ignore[union-attr]
    training.finish()
    assert training.memory["best_epoch"] == 2
    assert torch.equal(baseline.network.readout.bias, kept[2])  # type: ignore[arg-type]


def test_valid_samples_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = small()
    monkeypatch.setattr(baseline, "draw", lambda _: ["CCO", None, "C(", "C.C", "c1ccccc1"])
    assert baseline._valid() == 2


def test_early_stopping_brings_back_the_best_epoch() -> None:
    baseline = new("rnn-char-converged", **TINY, rate=0.05, patience=3, batch=4, held_out=0.3)
    training = BaselineTraining.start(baseline, MOLECULES, Budget(), seed=2)
    assert isinstance(baseline, MoleculeRNN)
    assert (len(baseline.held_out), baseline.size) == (3, 7)
    while not training.done:
        training.step()
    training.finish()
    epochs = training.update // training.per_epoch
    assert training.stopped
    assert epochs == training.memory["best_epoch"] + 1 + 3
    found = baseline.string_nats(baseline.held_out).mean().item()
    assert found == pytest.approx(training.memory["best"], rel=1e-6)


def test_one_molecule_is_too_few_to_hold_a_part_out() -> None:
    with pytest.raises(InputError, match="too few to train on") as refused:
        new("rnn-char-converged", **TINY).fit(["CCO"])
    assert refused.value.kind == "empty"


def test_randomised_strings_are_new_in_every_epoch_and_stay_the_molecules() -> None:
    baseline = small("rnn-randomised")
    everything = torch.arange(baseline.size)
    seen = []
    for _ in range(3):
        rows = baseline.vocabulary.decode(baseline.codes(everything))
        texts = ["".join(row) for row in rows if row is not None]
        assert [parse(text).smiles for text in texts] == baseline.molecules
        seen.append(texts)
    assert seen[0] != seen[1] != seen[2]


def test_a_few_units_memorise_three_molecules() -> None:
    given = ["CCO", "C=CN", "CCC"]
    baseline = new("rnn-char", layers=1, units=24, embedded=8, rate=0.02, batch=3, judged=0)
    baseline.fit(given, Budget(updates=120))
    counts = Counter(baseline.generate(600))
    assert sum(counts[text] for text in given) > 550
    assert min(counts[text] for text in given) > 120
    found = baseline.log_prob(given)
    assert found is not None
    assert found.values.mean() > -log(3) - 0.2


@pytest.mark.parametrize("name", ["rnn-char", "rnn-regex", "rnn-selfies"])
def test_the_published_schedule(name: str) -> None:
    settings = BASELINES[name].settings
    assert isinstance(settings, MoleculeRNNSettings)
    assert (settings.batch, settings.epochs, settings.rate, settings.decay) == (512, 10, 1e-3, 1e-4)
    assert (settings.longest, settings.judged, settings.held_out) == (141, 1024, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"judged": -5}, "judged must be at least 0, got -5"),
        ({"held_out": 1.0}, "held_out must be at least 0 and below 1"),
        ({"notation": "morse"}, "no notation 'morse'"),
    ],
)
def test_bad_settings_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        new("rnn-char", **changes)
    assert "\n" not in str(refused.value)


def test_an_empty_set_is_refused() -> None:
    baseline: Generator = new("rnn-char", **TINY)
    with pytest.raises(InputError, match="none of 0 molecules can be learned by rnn-char"):
        baseline.fit([])
