"""Molecules of several sizes: which sizes are taken, their buckets, their split and their files."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.molecules import sizes as several
from nmln.molecules.datasets import load
from nmln.molecules.decoding import Decoder
from nmln.molecules.sizes import SizeChoice
from nmln.runs import data as sources
from nmln.runs.kept import keep_source, kept_source
from tests.runs.main_jobs import MOLECULES

THREE = ["CCO", "CCN", "COC", "C=CO", "CC#N", "CC=O", "CCC", "C1CC1", "CNC", "OCO"]
FIVE = ["CCCCC", "CCCCO", "CC(C)(C)C", "C1CCCC1", "CCCCN", "CCOCC"]
ONE = "CCCCCCF"
LINES = [line for three in zip(MOLECULES, THREE + [""] * 30, FIVE + [""] * 34, strict=True)
         for line in three if line]  # fmt: skip


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """40 molecules of 4 atoms, 10 of 3, 6 of 5, and one of 7."""
    path = tmp_path / "mixed.smi"
    path.write_text("\n".join([*LINES, ONE, "CCO", "?"]) + "\n")
    return path


def nodes(source: sources.Source) -> list[int]:
    return [len(space.domain["node"]) for space in source.spaces]


def test_all_common_sizes_are_taken_and_the_others_are_counted(mixed: Path) -> None:
    source = sources.load(DataConfig(str(mixed)))
    assert nodes(source) == [3, 4, 5]
    assert [len(bucket.worlds) for bucket in source.buckets] == [10, 40, 6]
    assert {one.reason: one.count for one in source.dropped} == {
        "another size": 1,
        "duplicate": 1,
        "not SMILES": 1,
    }
    assert source.domains_in_words == "heavy atoms (molecules): 3 (10), 4 (40), 5 (6)"
    assert source.notes == (
        "sizes left out (heavy atoms: molecules): 7: 1 (fewer than 2 molecules each).",
    )
    assert len({space.language for space in source.spaces}) == 1
    assert "F" not in source.space.language["atom"].values


@pytest.mark.parametrize(
    ("choice", "counts", "expected"),
    [
        (SizeChoice(), {3: 1000, 4: 2000, 5: 20, 6: 9, 7: 1},
         "5: 20, 6: 9 (less than 1 % of the molecules each, data.least_share; --sizes takes them); 7: 1 "
         "(fewer than 2 molecules each)."),
        (SizeChoice(least_share=0.07), {3: 90, 4: 6, 5: 50},
         "4: 6 (less than 7 % of the molecules each, data.least_share; --sizes takes them)."),
        (SizeChoice(largest=4), {3: 10, 4: 1, 5: 1}, "4: 1 (fewer than 2 molecules each)."),
        (SizeChoice(), {3: 10, 4: 10}, None),
        (SizeChoice(sizes=(3,)), {3: 10, 4: 1}, None),
    ],
)  # fmt: skip
def test_sizes_that_are_left_out_are_listed_with_the_rule(
    choice: SizeChoice, counts: dict[int, int], expected: str | None
) -> None:
    found = Counter(counts)
    notes = choice.left_out(found, choice.among(found, "mine.smi"))
    assert notes == (
        () if expected is None else (f"sizes left out (heavy atoms: molecules): {expected}",)
    )


def test_positions_are_those_of_the_file(mixed: Path) -> None:
    source = sources.load(DataConfig(str(mixed)))
    known = {name: number for number, name in enumerate(source.names)}
    assert len(known) == len(source) == 56
    for number, bucket in enumerate(source.buckets):
        found = [one.smiles for one in Decoder(bucket.space).decode(bucket.worlds)]
        places = torch.nonzero(source.homes == number).flatten().tolist()
        assert found == [source.names[place] for place in places]
        assert sorted(places) == places


@pytest.mark.parametrize("share", [0.8, 0.5, 0.95, 1.0])
def test_every_size_is_split_by_the_same_share(mixed: Path, share: float) -> None:
    source = sources.load(DataConfig(str(mixed), train_share=share))
    both = torch.cat([source.train, source.test])
    assert torch.equal(both.sort().values, torch.arange(len(source)))
    for learned, test in zip(source.learned, source.held_out, strict=True):
        count = len(learned.worlds) + len(test.worlds)
        assert len(learned.worlds) == min(round(share * count), count - (share < 1))
    again = sources.load(DataConfig(str(mixed), train_share=share))
    assert torch.equal(again.train, source.train)
    other = sources.load(DataConfig(str(mixed), train_share=share, split_seed=1))
    assert not torch.equal(other.train, source.train)


def test_two_molecules_of_a_size_are_one_to_learn_from_and_one_to_test() -> None:
    homes = torch.tensor([0, 1, 0, 1, 1, 1, 1, 1])
    train, test = sources.split_within(homes, seed=0, share=0.9)
    assert sorted(homes[test].tolist()) == [0, 1]
    assert sorted(homes[train].tolist()) == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"sizes": (5, 3)}, [3, 5]),
        ({"sizes": (4,)}, [4]),
        ({"sizes": (7,)}, [7]),
        ({"max_size": 4}, [3, 4]),
        ({"max_size": 3}, [3]),
        ({"least_share": 0.15}, [3, 4]),
        ({"nodes": 5}, [5]),
        ({"least_share": 0.5}, [4]),
    ],
)
def test_sizes_are_chosen(mixed: Path, config: dict, expected: list[int]) -> None:
    source = sources.load(DataConfig(str(mixed), **config))
    assert nodes(source) == expected
    assert len(source.names) == len(source)


def test_one_size_of_several_is_read_as_it_was_before(mixed: Path) -> None:
    """By whatever way the only size was chosen."""
    before = load(mixed, 4)
    for config in (DataConfig(nodes=4), DataConfig(sizes=(4,)), DataConfig(least_share=0.5)):
        source = sources.load(replace(config, source=str(mixed)))
        assert source.space == before.space
        assert torch.equal(source.worlds, before.worlds)
        assert source.names == before.smiles
        assert set(source.dropped) == set(before.dropped)


@pytest.mark.parametrize(
    ("choice", "kind", "token", "said"),
    [
        (SizeChoice(sizes=(8, 9)), "empty", "9", r"9 heavy atoms\. Available .*7: 1, 8: 9"),
        (SizeChoice(sizes=(7, 8)), "empty", "7", "only one molecule has 7 heavy atoms"),
        (SizeChoice(largest=6), "empty", "6", r"at most 6 heavy atoms\. Available"),
        (SizeChoice(least_share=0.95), "empty", None, r"share of 0\.95 .*data\.least_share"),
    ],
)
def test_sizes_that_cannot_be_taken_are_refused(
    choice: SizeChoice, kind: str, token: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=said) as error:
        choice.among(Counter({7: 1, 8: 9}), "mine.smi")
    assert (error.value.kind, error.value.token) == (kind, token)


def test_sizes_with_one_molecule_each_are_refused() -> None:
    with pytest.raises(InputError, match="no size has at least 2 molecules"):
        SizeChoice().among(Counter({7: 1, 8: 1}), "mine.smi")


def test_a_single_molecule_is_still_data(tmp_path: Path) -> None:
    (tmp_path / "one.smi").write_text("CCO\n")
    assert len(sources.load(DataConfig(str(tmp_path / "one.smi")))) == 1


def test_sizes_beyond_the_memory_are_refused(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmln.memory.machine_memory", lambda: 500)
    with pytest.raises(InputError, match=r"56 molecules of up to 5 .*of 4\. .*--max-size") as error:
        several.load_sizes(mixed, SizeChoice())
    assert error.value.kind == "size"


# The parsed data in a file.


def test_data_of_several_sizes_are_read_back(mixed: Path, tmp_path: Path) -> None:
    source = sources.load(DataConfig(str(mixed)))
    keep_source(tmp_path / "kept", source)
    back = kept_source(tmp_path / "kept", source.program)
    assert back is not None
    assert back.spaces == source.spaces
    assert back.fingerprint == source.fingerprint
    assert (back.names, back.dropped, back.origin) == (source.names, source.dropped, source.origin)
    assert back.notes == source.notes
    for name in ("homes", "train", "test"):
        assert torch.equal(getattr(back, name), getattr(source, name))
    for one, other in zip(back.buckets, source.buckets, strict=True):
        assert torch.equal(one.worlds, other.worlds)
    first = (tmp_path / "kept").read_bytes()
    keep_source(tmp_path / "kept", source)
    assert (tmp_path / "kept").read_bytes() == first


def test_the_fingerprint_depends_on_the_order_of_the_sizes(mixed: Path) -> None:
    source = sources.load(DataConfig(str(mixed)))
    lines = mixed.read_text().splitlines()
    at = next(i for i in range(20) if len(lines[i]) != len(lines[i + 1]))
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    mixed.write_text("\n".join(lines) + "\n")
    assert sources.load(DataConfig(str(mixed))).fingerprint != source.fingerprint
