import gzip
import json
from pathlib import Path

import pytest

from nmln.errors import InputError
from nmln.molecules import sample_files
from nmln.molecules.sample_files import locate, read_reference, read_samples


def write(path: Path, text: str | bytes) -> Path:
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def counts(path: Path, **options: object) -> tuple[dict[str, int], int]:
    (found,) = read_samples(path, **options)  # type: ignore[arg-type]
    return dict(found.counts.counts), found.counts.attempts


ETHANOL = {"CCO": 2, "CCN": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.smi", "# a comment\nsmiles name\nOCC ethanol\n\nC(O)C\tagain\nCCN\nC1C\n"),
        ("a.txt", "OCC\r\nCCO\r\nCCN\r\nC1C\r\n"),
        ("a.smi.gz", "\ufeffOCC\nCCO\nCCN\nC1C"),
        ("a.csv", "id,SMILES\n1,OCC\n2,CCO\n3,CCN\n4,\n"),
        ("a.csv.gz", 'canonical_smiles,note\r\nOCC,"a, b"\r\nCCO,\r\nCCN,x\r\nCC(,y\r\n'),
        ("a.csv", "#,smiles\n1,OCC\n2,CCO\n3,CCN\n4,C.C\n"),
        ("counts.csv", "smiles,count\nOCC,1\nCCO,1\nCCN,1\nC1C,1\nCC,0\n"),
        ("counts.csv", "#smiles;Count\nOCC;1\nCCO;1\nCCN;1\nC1C;1\nCC;0\n".encode("utf-16")),
        ("a.smi", "OCC\rCCO\nCCN\r\nC1C"),
        ("a.csv", "smiles\rOCC\rCCO\rCCN\rC1C\r"),
        ("a.csv", "id;Canonical SMILES\n1;OCC\n2;CCO\n3;CCN\n4;\n"),
        ("a.csv", "OCC,1\nCCO,2\nCCN,3\nC1C,4\n"),
        ("a.csv", 'smiles,note\nOCC,"two\nlines"\nCCO,\nCCN,\n,\n'),
    ],
)
def test_samples_of_every_kind_are_read_alike(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path / name, text)
    assert counts(path) == (ETHANOL, 4)
    (found,) = read_samples(path)
    assert [drop.count for drop in found.refused] == [1]
    assert read_reference(str(path)).smiles - {"CC"} == ETHANOL.keys()


def test_an_empty_cell_is_an_attempt_and_a_blank_line_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'smiles\nCCO\n\n""\n" "\nCCN\n')
    assert counts(path) == ({"CCO": 1, "CCN": 1}, 4)
    (found,) = read_samples(path)
    assert [(drop.reason, drop.count, drop.line) for drop in found.refused] == [("nothing", 2, 4)]


def test_a_row_is_reported_by_the_line_that_it_begins_in(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '# by hand\nnote,smiles\n"1\n2\n3",CCO\n"4\n5",C1C\n')
    (found,) = read_samples(path)
    assert [drop.line for drop in found.refused] == [6]


def test_files_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_files, "_PARCEL", 1000)
    reached: list[int] = []
    real = sample_files._Names.learn

    def learn(names: sample_files._Names, rows: list) -> None:
        reached.append(len(rows))
        real(names, rows)

    monkeypatch.setattr(sample_files._Names, "learn", learn)
    path = write(tmp_path / "a.csv.gz", b"smiles,y\n" + b"CCO,1\n" * 20_000 + b'"CCO')
    with pytest.raises(InputError, match=r"a\.csv\.gz:20002: this is not comma-separated text"):
        read_samples(path)
    assert reached == [1000] * 20


def test_another_size_is_not_valid_and_reported_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "CCO\nCC\nCCN\nC\n")
    (found,) = read_samples(path, size=3)
    assert (found.counts.valid, found.counts.attempts) == (2, 4)
    (drop,) = found.refused
    assert (drop.reason, drop.count, drop.line) == ("another size", 2, 2)
    assert drop.example == "CC has 2 heavy atoms, but 3 are wanted."


def test_a_hash_is_a_comment_only_above_the_first_molecule(tmp_path: Path) -> None:
    assert counts(write(tmp_path / "a.smi", "# made by hand\nCCO\n#CC\n")) == ({"CCO": 1}, 2)


def test_attempts_of_counts_are_those_that_the_sampling_recorded(tmp_path: Path) -> None:
    path = write(tmp_path / "counts.csv", "smiles,count\nCCO,7\nC1C,2\n")
    assert counts(path) == ({"CCO": 7}, 9)
    write(tmp_path / "sampling.json", json.dumps({"attempts": 20}))
    assert counts(path) == ({"CCO": 7}, 20)
    noisy = write(tmp_path / "counts-0.csv", "smiles,count\nCCO,1\n")
    assert counts(noisy) == ({"CCO": 1}, 20)
    assert counts(write(tmp_path / "others.csv", "smiles,count\nCCO,1\n")) == ({"CCO": 1}, 1)
    write(tmp_path / "sampling.json", json.dumps({"attempts": 8}))
    with pytest.raises(InputError, match=r"sampling\.json: .*9 .* got 8") as caught:
        read_samples(path)
    assert (caught.value.kind, caught.value.token) == ("conflict", "attempts")
    write(tmp_path / "sampling.json", "{")
    with pytest.raises(InputError, match=r"sampling\.json is not readable as JSON"):
        read_samples(path)
    write(tmp_path / "sampling.json", json.dumps({"attempts": 10**20}))
    with pytest.raises(InputError, match=r"sampling\.json: .* 1,000,000,000,000") as caught:
        read_samples(path)
    assert (caught.value.kind, caught.value.token) == ("size", "attempts")


ROWS = (
    "sample,level,status,smiles\n0,0,invalid,\n0,2,valid,CCO\n1,0,valid,CCN\n1,2,normalised,\n"
    "2,0,disconnected,\n2,2,valid,CCO\n"
)


def test_rows_of_our_own_are_counted_by_level_and_status(tmp_path: Path) -> None:
    noisy, target = read_samples(write(tmp_path / "samples.csv.gz", ROWS), size=3)
    assert (noisy.level, target.level) == (0, 2)
    assert (dict(noisy.counts.counts), noisy.counts.attempts) == ({"CCN": 1}, 3)
    assert (dict(target.counts.counts), target.counts.attempts) == ({"CCO": 2}, 3)
    assert [drop.reason for drop in noisy.refused] == ["disconnected", "invalid"]
    assert [drop.reason for drop in target.refused] == ["normalised"]


def test_the_order_of_our_own_rows_means_nothing(tmp_path: Path) -> None:
    """They are those of one process after the other: its few chains would be the first thousand."""
    smiles = ["CCO"] * 1000 + ["CCN"] * 1000
    ours = "".join(f"{number},0,valid,{one}\n" for number, one in enumerate(smiles))
    (own,) = read_samples(write(tmp_path / "s.csv", "sample,level,status,smiles\n" + ours))
    (other,) = read_samples(write(tmp_path / "s.smi", "\n".join(smiles)))
    assert own.counts.counts == other.counts.counts
    assert (dict(own.counts.firsts), dict(other.counts.firsts)) == ({}, {1000: 1})


def test_the_column_of_the_samples_is_not_asked_of_the_sets(tmp_path: Path) -> None:
    path = write(tmp_path / "set.csv", "smiles,mol\nCCO,CCN\n")
    assert read_reference(str(path), "mol").smiles == {"CCN"}
    assert read_reference(str(path), "molecule").smiles == {"CCO"}
    with pytest.raises(InputError, match="no column is called molecule"):
        read_samples(path, "molecule")


def test_our_own_names_are_believed_only_if_they_are_canonical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    real = sample_files.parse_all

    def watched(texts: list[str], processes: int = 1) -> list:
        parsed.extend(texts)
        return real(texts, processes)

    monkeypatch.setattr(sample_files, "parse_all", watched)
    monkeypatch.setattr(sample_files, "_CHECKED", 2)
    head = "sample,level,status,smiles\n"
    names = ["CCO", "CCN", "CCC", "CCF"]
    rows = "".join(f"{n},0,valid,{name}\n" for n, name in enumerate(names))
    assert counts(write(tmp_path / "good.csv", head + rows)) == (dict.fromkeys(names, 1), 4)
    assert parsed == names[:2]
    old = write(tmp_path / "old.csv", head + rows.replace("CCN", "NCC").replace("CCF", "FCC"))
    assert counts(old) == (dict.fromkeys(names, 1), 4)
    assert sorted(parsed[2:]) == ["CCC", "CCO", "FCC", "NCC"]
    small = write(tmp_path / "small.csv", head + rows + "4,0,valid,CC\n")
    assert counts(small, size=2) == ({"CC": 1}, 5)


def test_long_files_are_read_in_parcels_without_forgetting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_files, "_PARCEL", 3)
    monkeypatch.setattr(sample_files, "_REMEMBERED", 2)
    path = write(tmp_path / "a.smi", "CCO\nOCC\nCCN\nC(\nCCC\n" * 7)
    assert counts(path) == ({"CCO": 14, "CCN": 7, "CCC": 7}, 35)


@pytest.mark.parametrize(
    ("name", "text", "kind", "message"),
    [
        ("a.smi", "", "empty", r"a\.smi: there are no samples"),
        ("a.csv", "\r\n", "empty", r"a\.csv: there are no samples"),
        ("a.csv", "smiles\n", "empty", r"a\.csv: there are no samples"),
        ("a.csv", "name,text\nx,CCO\n", "columns", r"a\.csv:1: .*smiles, .* --column"),
        ("a.csv", "x,smiles\n1,CCO\n\n2\n", "syntax", r"a\.csv:4: .* cells .* got 1"),
        ("a.csv", "smiles,count\nCCO,many\n", "value", r"a\.csv:2: a count .*'many'"),
        ("a.csv", "smiles,count\nCCO,-1\n", "value", r"a\.csv:2: a count .*'-1'"),
        ("a.csv", f"smiles,count\nCCO,{10**20}\n", "value", r"a\.csv:2: a count .* 1,000,000,000,000,"),
        ("a.csv", f"smiles,count\nCCO,{'9' * 5000}\n", "value", r"a\.csv:2: .* 5,000 digits"),
        ("a.csv", "smiles,count\nCCO," + "x" * 5000, "value", r"a\.csv:2: .* 'x{40}'\."),
        ("a.csv", f"smiles,count\nCCO,{10**12}\nCCN,1\n", "size", r"a\.csv: .* add up to 1,000,000,0"),
        ("a.csv", f"level,status,smiles\n{10**20},valid,C\n", "value", r"a\.csv:2: a level"),
        ("a.csv", "level,status,smiles\n0,good,C\n", "unknown", r"a\.csv:2: a status .* valid, norm"),
        ("a.pdf", "CCO", "unsupported", r"a\.pdf: .*\.smi"),
        ("a.smi", b"CCO\nC\xffC\n", "encoding", r"a\.smi:2:2: .* UTF-8"),
        ("a.csv.gz", b"smiles\nC\xffC\n", "encoding", r"a\.csv\.gz:2:2: .* UTF-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_by_line(
    tmp_path: Path, name: str, text: str | bytes, kind: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_samples(write(tmp_path / name, text))
    assert caught.value.kind == kind


def test_a_column_of_another_name_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "molecule,smiles\nCCO,CC\n")
    assert counts(path, column="Molecule") == ({"CCO": 1}, 1)
    with pytest.raises(InputError, match=r"called mol\. .*: molecule, smiles\.") as caught:
        read_samples(path, column="mol")
    assert caught.value.kind == "columns"
    assert read_reference(str(path), "molecule").smiles == {"CCO"}
    numbered = write(tmp_path / "b.csv", "#;my molecule\n1;CCO\n")
    assert counts(numbered, column="my molecule") == ({"CCO": 1}, 1)


def test_a_broken_gzip_file_and_missing_ones_are_named(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{'C' * (n % 90 + 1)}\n" for n in range(5000)).encode())
    path = tmp_path / "a.smi.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"not a whole gzip file: Compressed file .*, after line"):
        read_samples(path)
    with pytest.raises(InputError, match="there is no such file"):
        read_samples(tmp_path / "none.smi")
    with pytest.raises(InputError, match="this folder has no samples"):
        locate(tmp_path)
    write(tmp_path / "counts.csv", "smiles,count\nC,1\n")
    assert locate(tmp_path) == tmp_path / "counts.csv"
    write(tmp_path / "samples.csv.gz", ROWS)
    assert locate(tmp_path) == tmp_path / "samples.csv.gz"


def test_a_reference_set_is_a_file_or_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.smi", "OCC\nCCO\nCC\nC.C\n")
    found = read_reference(str(path))
    assert found.smiles == {"CCO", "CC"}
    assert found.sizes == {2, 3}
    assert [drop.reason for drop in found.dropped] == ["several fragments"]
    assert read_reference(str(path), size=3).smiles == {"CCO"}
    with pytest.raises(InputError, match=r"no line is a molecule .* Dropped: 3 x another size"):
        read_reference(str(path), size=8)
    with pytest.raises(InputError, match="there is no such file"):
        read_reference(str(tmp_path / "b.smi"))
    named = read_reference("pubchem-9")
    assert len(named.smiles) == 2954
    assert named.sizes == {9}
