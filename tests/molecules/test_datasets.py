import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nmln.errors import InputError
from nmln.files import read_lines
from nmln.molecules.datasets import (
    BUILT_IN,
    DIRECTORY,
    Molecules,
    describe,
    is_source,
    known,
    load,
    read_smiles,
    split,
)
from nmln.molecules.decoding import Decoder

DATA = Path(__file__).parent.parent.parent / "nmln" / "data"

needs_directory = pytest.mark.skipif(
    not os.environ.get(DIRECTORY), reason=f"{DIRECTORY} does not name a directory of molecules"
)


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


# Built in.


@pytest.mark.parametrize(("name", "count"), [("pubchem-9", 2954), ("pubchem-10", 3518)])
def test_built_in_molecules_are_complete_neutral_and_as_many_as_documented(
    name: str, count: int
) -> None:
    molecules = load(name)
    nodes = int(name.split("-")[1])
    assert len(molecules) == len(set(molecules.smiles)) == len(molecules.worlds) == count
    assert molecules.dropped == ()
    assert len(molecules.space.domain["node"]) == nodes
    assert molecules.space.language["atom"].values == (
        "C", "N", "O", "F", "P", "S", "Cl", "Br", "I",
    )  # fmt: skip
    assert f"`{name}.smi` | {count:,} molecules" in (DATA / "PROVENANCE.md").read_text()
    head = next(read_lines(DATA / f"{name}.smi"))[1]
    assert head.startswith(f"# {count} neutral molecules of {nodes} heavy atoms")


# Files.


SMI = "# a comment\nsmiles name\n\nCCO ethanol\n  OCC again\nCCN\tamine\n"


@pytest.mark.parametrize("suffix", [".smi", ".smi.gz", ".SMI"])
def test_smi_files_may_have_names_comments_blank_lines_and_a_header(
    tmp_path: Path, suffix: str
) -> None:
    path = write(tmp_path / f"some{suffix}", SMI)
    assert read_smiles(path) == [(4, "CCO"), (5, "OCC"), (6, "CCN")]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id,SMILES,mass\n1,CCO,46\n2,CCN,45\n", [(2, "CCO"), (3, "CCN")]),
        ("id,canonical_smiles\n1,CCO\n", [(2, "CCO")]),
        ("iso_smiles,smiles\nC,CCO\n", [(2, "CCO")]),
        ("CCO,46\nCCN,45\n", [(1, "CCO"), (2, "CCN")]),
        ('name,smiles\n"two\nlines",CCO\nx,CCN\n', [(2, "CCO"), (4, "CCN")]),
        ('smiles,name\r\n"CCO","a, b"\r\n', [(2, "CCO")]),
        ("name,smiles\nx\ny,CCN\n", [(2, ""), (3, "CCN")]),
    ],
)
def test_csv_files_say_which_column_holds_smiles(
    tmp_path: Path, suffix: str, text: str, expected: list[tuple[int, str]]
) -> None:
    assert read_smiles(write(tmp_path / f"some{suffix}", text)) == expected


def test_bad_lines_are_dropped_with_reason_and_line_number(tmp_path: Path) -> None:
    text = "CCO\nC1CC\nOCC\nCC.O\nC[CH2]\nCCCC\nCC=O\nC1CCC\n"
    molecules = load(write(tmp_path / "bad.smi", text), nodes=3)
    assert molecules.smiles == ("CCO", "CC=O")
    assert {(drop.reason, drop.count, drop.line) for drop in molecules.dropped} == {
        ("not SMILES", 2, 2), ("duplicate", 1, 3), ("several fragments", 1, 4), ("radical", 1, 5),
        ("another size", 1, 6),
    }  # fmt: skip
    assert molecules.dropped[0].reason == "not SMILES"
    assert "first in line 2: 'C1CC' cannot be read" in str(molecules.dropped[0])
    duplicate = next(drop for drop in molecules.dropped if drop.reason == "duplicate")
    assert duplicate.example == "CCO is already in line 1."


def test_worlds_are_in_the_order_of_the_file_and_decode_to_their_smiles(tmp_path: Path) -> None:
    molecules = load(write(tmp_path / "some.smi", "OCC\nC[NH3+]\nBrCC\nNCC\n"), nodes=3)
    assert molecules.smiles == ("CCO", "CCBr", "CCN")
    assert molecules.space.language["atom"].values == ("C", "N", "O", "Br")
    answers = Decoder(molecules.space).decode(molecules.worlds)
    assert tuple(answer.smiles for answer in answers) == molecules.smiles


def test_a_given_language_drops_molecules_with_other_atoms(tmp_path: Path) -> None:
    path = write(tmp_path / "some.smi", "OCC\nBrCC\nNCC\n")
    molecules = load(path, atoms=("O", "C", "N"))
    assert molecules.space.language["atom"].values == ("O", "C", "N")
    assert molecules.smiles == ("CCO", "CCN")
    assert [(drop.reason, drop.line) for drop in molecules.dropped] == [
        ("atom Br is not in the language", 2)
    ]
    with pytest.raises(InputError, match="no molecule fits the atoms P"):
        load(path, atoms=("P",))


def test_several_sizes_must_be_chosen_from(tmp_path: Path) -> None:
    path = write(tmp_path / "sizes.smi", "C\nCC\nCO\nCCO\n")
    with pytest.raises(InputError, match=r"sizes\.smi: .*1: 1, 2: 2, 3: 1\. Choose .*size=2 in"):
        load(path)
    assert load(path, nodes=2).smiles == ("CC", "CO")
    with pytest.raises(InputError, match="no molecule has 7 heavy atoms"):
        load(path, nodes=7)


def test_a_file_without_molecules_says_what_was_dropped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.smi: no line is a molecule.*not SMILES"):
        load(write(tmp_path / "none.smi", "nothing\n"))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "absent.smi")
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "absent.smi.gz")
    with pytest.raises(InputError, match=r"\.smi, .*pubchem-9"):
        load("molecules.sdf")
    broken = tmp_path / "broken.smi.gz"
    broken.write_bytes(b"plain text")
    with pytest.raises(InputError, match="not a whole gzip file"):
        load(broken)
    broken.write_bytes(gzip.compress(b"CCO\n" * 1000)[:-10])
    with pytest.raises(InputError, match="not a whole gzip file"):
        load(broken)
    broken.write_bytes(gzip.compress(b"CCO\nC \xff\n"))
    with pytest.raises(InputError, match=r"gz:2:3: byte 0xff is not UTF-8"):
        load(broken)


# Names.


def test_a_name_without_the_directory_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    with pytest.raises(
        InputError, match=r"chembl-10 is not built in.*NMLN_DATA.*chembl_10\.smi\.gz"
    ):
        load("chembl-10")
    write(tmp_path / "qm9_3.smi.gz", "CCO\n")
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with pytest.raises(InputError, match=r"chembl_10\.smi\.gz.*NMLN_DATA.*sets there: qm9-3\)"):
        load("chembl-10")
    assert load("qm9-3").smiles == ("CCO",)


def test_unfiltered_sets_stand_in_their_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "unfiltered").mkdir()
    write(tmp_path / "qm9_3.smi.gz", "CCO\n")
    write(tmp_path / "unfiltered" / "qm9_3.smi.gz", "CCO\nCC[O-]\n")
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    assert load("qm9-3").smiles == ("CCO",)
    assert load("unfiltered/qm9-3").smiles == ("CCO", "CC[O-]")
    with pytest.raises(
        InputError, match=r"unfiltered/qm9_4\.smi\.gz is not in.*\(sets there: qm9-3\)"
    ):
        load("unfiltered/qm9-4")


def test_files_that_are_no_sets_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    for name in ("mine_7", "x_\xb23", "a_b_3", "other_"):
        (tmp_path / f"{name}.smi.gz").touch()
    assert [one.name for one in known() if one.place == DIRECTORY] == ["mine-7"]


def test_sources_are_known_by_their_names() -> None:
    assert all(map(is_source, (*BUILT_IN, "chembl-10", "a/b.smi", Path("x.csv.gz"), "X.SMI")))
    assert all(map(is_source, ("unfiltered/chembl-10", "QM9", "moses", Path("ZINC250k-15"))))
    assert not any(map(is_source, ("x.db", "x.mln", "x.tsv", "x.gz", "folder/a-9", "smokers")))


@needs_directory
@pytest.mark.parametrize("name", ["chembl-10", "qm9-9", "zinc250k-15", "chembl-20"])
def test_molecules_of_the_directory_come_back_as_their_canonical_smiles(
    name: str, tmp_path: Path
) -> None:
    family, nodes = name.split("-")
    lines = read_smiles(Path(os.environ[DIRECTORY]) / f"{family}_{nodes}.smi.gz")
    some = [text for _, text in lines[:: max(1, len(lines) // 500)]]
    molecules = load(write(tmp_path / "some.smi", "\n".join(some)), nodes=int(nodes))
    assert molecules.dropped == ()
    answers = Decoder(molecules.space).decode(molecules.worlds)
    assert [answer.smiles for answer in answers] == list(molecules.smiles)


# Splits and descriptions.


def test_a_split_is_a_partition_that_the_seed_repeats() -> None:
    train, test = split(101, seed=3)
    assert (len(train), len(test)) == (81, 20)
    assert sorted(torch.cat([train, test]).tolist()) == list(range(101))
    again, _ = split(101, seed=3)
    other, _ = split(101, seed=4)
    assert torch.equal(train, again)
    assert not torch.equal(train, other)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.cat(split(101, seed=3, share=0.5)), order)
    assert len(split(1, seed=0)[1]) == 0


def test_molecules_are_read_and_split_as_a_run_splits_them(tmp_path: Path) -> None:
    path = DATA / "pubchem-9.smi"
    some = "\n".join(text for _, text in read_smiles(path)[:200])
    some = write(tmp_path / "some.smi", f"CCO\n{some}")
    molecules = Molecules.read(some, size=9, atoms=("C", "O", "N"))
    assert molecules.space.language["atom"].values == ("C", "O", "N")
    train, test = molecules.split(seed=5)
    assert len(train) + len(test) == len(molecules)
    assert len(train) == round(0.8 * len(molecules))
    assert set(train.smiles) | set(test.smiles) == set(molecules.smiles)
    places, _ = split(len(molecules), seed=5)
    assert train.smiles == tuple(molecules.smiles[place] for place in places)
    assert torch.equal(train.worlds, molecules.worlds[places])
    answers = Decoder(test.space).decode(test.worlds[:50])
    assert tuple(answer.smiles for answer in answers) == test.smiles[:50]
    assert train.dropped == molecules.dropped


def test_of_very_many_sizes_the_most_common_are_reported(tmp_path: Path) -> None:
    lines = ["C" * size for size in range(1, 31)] + ["CCO", "CCN"]
    with pytest.raises(
        InputError, match=r": 1: 1, 2: 1, 3: 3, .*, and 10 others\. Choose .* --nodes 3"
    ):
        load(write(tmp_path / "sizes.smi", "\n".join(lines)))


@pytest.mark.parametrize(("count", "share"), [(0, 0.8), (10, 0.0), (10, 1.5), (10, -1.0)])
def test_a_split_without_training_data_is_refused(count: int, share: float) -> None:
    with pytest.raises(InputError, match="training set must"):
        split(count, 0, share)


def test_a_description_counts_sizes_atoms_and_what_is_dropped(tmp_path: Path) -> None:
    text = "smiles\nCC\nCCO\nOCC\nC[N+](=O)[O-]\nCCCl\nC1CC\n"
    found = describe(write(tmp_path / "some.csv", text))
    assert found.lines == 6
    assert found.sizes == {2: 1, 3: 2, 4: 1}
    assert found.atoms == {"C": 4, "N+": 1, "O": 2, "O-": 1, "Cl": 1}
    assert {(drop.reason, drop.line) for drop in found.dropped} == {
        ("duplicate", 4), ("not SMILES", 7),
    }  # fmt: skip


def test_the_command_line_shows_the_description(tmp_path: Path) -> None:
    path = write(tmp_path / "some.smi.gz", "CC\nCCO\nC[N+](=O)[O-]\n[13CH4]\nC1CC\n")
    command = [sys.executable, "-m", "nmln", "data", "info", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for shown in ("│ 4           │         1 │", "│ N+             │         1 │", "line 5"):
        assert shown in done.stdout
    assert "lines: 5   different molecules: 3" in done.stdout
    assert "[13CH4] has an isotope label" in done.stdout
    assert not done.stderr


def test_worlds_are_named_again_by_the_molecules_that_they_came_from() -> None:
    found = load("pubchem-9")
    worlds = found.worlds[:5].clone()
    worlds[0] = 0  # nine carbons without a bond
    assert found.decode(worlds) == [None, *found.smiles[1:5]]
