"""Notations: splitting and joining are inverse, and what cannot be written is named."""

import sys

import pytest
import torch

from nmln.baselines.base import new
from nmln.baselines.notations import (
    CHAR_TOKENS,
    NOTATIONS,
    REGEX_TOKENS,
    Vocabulary,
    notation_named,
)
from nmln.errors import InputError
from nmln.extras import MissingExtraError
from nmln.molecules.chemistry import Refusal, parse
from nmln.molecules.chemistry.spelling import random_spellings

MOLECULES = (
    "Clc1ccc2[nH]cnc2c1", "O=C1C=CC(=O)N1CBr", "C%10CCCC%10Cl", "C[Si](C)(C)Br", "c1cc[se]c1",
    "C[N+](C)(C)CC(=O)[O-]", "CCP(=O)(OC)OCC", "N#CC#N", "OB(O)c1ccccc1", "FC(F)(F)SI",
)  # fmt: skip
EXACT = sorted(set(NOTATIONS) - {"selfies"})


def split(notation: str, smiles: str) -> list[str]:
    tokens = NOTATIONS[notation].split(smiles)
    assert not isinstance(tokens, Refusal), tokens
    return list(tokens)


@pytest.mark.parametrize("notation", EXACT)
@pytest.mark.parametrize("smiles", MOLECULES)
def test_joining_is_the_inverse_of_splitting(notation: str, smiles: str) -> None:
    for text in (smiles, *random_spellings(smiles, 5, seed=1)):
        assert NOTATIONS[notation].join(split(notation, text)) == text


@pytest.mark.parametrize("smiles", MOLECULES)
def test_selfies_are_read_back_as_the_same_molecule(smiles: str) -> None:
    for text in (smiles, *random_spellings(smiles, 5, seed=1)):
        tokens = split("selfies", text)
        assert parse(NOTATIONS["selfies"].join(tokens)).smiles == parse(smiles).smiles


def test_tokens_are_those_of_the_published_notations() -> None:
    assert len(set(CHAR_TOKENS)) == len(CHAR_TOKENS) == 48 - 3
    assert len(set(REGEX_TOKENS)) == len(REGEX_TOKENS) == 75 - 3
    text = "BrC%10Cl[nH]"
    assert split("char", text) == ["Br", "C", "%", "1", "0", "Cl", "[", "n", "H", "]"]
    assert split("regex", text) == ["R", "C", "%", "1", "0", "L", "[nH]"]
    assert split("plain", text) == list(text)
    assert split("char", "[SiH2]c1cc[se]c1")[:2] == ["[", "Si"]


@pytest.mark.parametrize("notation", ["char", "regex"])
@pytest.mark.parametrize("smiles", MOLECULES[:4])
def test_these_molecules_are_in_the_published_vocabularies(notation: str, smiles: str) -> None:
    published = NOTATIONS[notation].published
    assert published is not None
    assert Vocabulary(published).refuse(smiles, split(notation, smiles)) is None


@pytest.mark.parametrize(
    ("notation", "smiles", "reason"),
    [
        ("char", "C[C@H](O)F", "@ is not in the vocabulary"),
        ("regex", "C[GeH3]", "[GeH3] is not in the vocabulary"),
        ("regex", "[Li]C", "L is not in the vocabulary"),
        ("selfies", "O=I(=O)c1ccccc1", "SELFIES cannot write it"),
    ],
)
def test_what_cannot_be_written_is_counted_and_named(
    notation: str, smiles: str, reason: str
) -> None:
    baseline = new(f"rnn-{notation}", layers=1, units=2, embedded=2)
    torch.manual_seed(0)
    (dropped,) = baseline.build(["CCO", smiles, "CCN", smiles])
    assert (dropped.reason, dropped.count, dropped.line, dropped.example) == (reason, 2, 2, smiles)
    assert baseline.size == 2


def test_codes_are_read_back_as_the_same_tokens() -> None:
    given = [["C", "O"], [], ["O", "C", "C", "N"]]
    vocabulary = Vocabulary.of(given)
    assert vocabulary.tokens == ("C", "N", "O")
    codes = vocabulary.encode(given)
    assert codes.tolist() == [[1, 3, 0, 0, 0], [0] * 5, [3, 1, 1, 2, 0]]
    assert vocabulary.decode(codes) == given


def test_what_has_no_end_is_not_a_string() -> None:
    assert Vocabulary(("C",)).decode(torch.tensor([[1, 1], [1, 0]])) == [None, ["C"]]


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "selfies", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nmln\[baselines\]'") as refused:
        new("rnn-selfies")
    assert "\n" not in str(refused.value)
    new("rnn-char")


def test_an_unknown_notation_is_one_line() -> None:
    with pytest.raises(
        InputError, match=r"no notation 'morse'\. Take one of char, regex"
    ) as refused:
        notation_named("morse")
    assert refused.value.kind == "unknown"


def test_spellings_depend_on_the_seed_alone_and_stay_the_molecule() -> None:
    smiles = "Cc1ccncc1C#N"
    first, again, other = (random_spellings(smiles, 20, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) > 5
    assert {parse(one).smiles for one in first} == {parse(smiles).smiles}
    with pytest.raises(InputError, match="cannot be read as SMILES"):
        random_spellings("C(", 1, 0)
