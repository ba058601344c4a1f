"""Files as people have them, through the command line: handled or named by line, never a traceback."""

import gzip
import hashlib
import re
import sys
from pathlib import Path

import pytest
import typer

from nmln.cli import main
from nmln.cli.data import data
from nmln.cli.evaluate import evaluate
from nmln.cli.train import train
from nmln.molecules.datasets import DIRECTORY
from nmln.molecules.downloads import CACHE


class Nmln:
    """Runs the command line in this process, as `nmln` does."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.monkeypatch, self.capsys, self.folder = monkeypatch, capsys, folder

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["nmln", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int | None)
        assert "Traceback" not in out + err
        return code or 0, out, err

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)


@pytest.fixture
def nmln(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Nmln:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(DIRECTORY, raising=False)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.add_typer(data, name="data")
    app.command()(train)
    app.command()(evaluate)
    monkeypatch.setattr("nmln.cli.app", app)  # without --version, which only looks at a flag
    monkeypatch.setattr("nmln.runs.evaluate.write", lambda outcome, _: outcome)  # no figures
    return Nmln(monkeypatch, capsys, tmp_path)


PACKED = gzip.compress("".join(f"{'C' * (1 + i % 9)}O\n" for i in range(5000)).encode())

HANDLED = {
    "windows.smi": b"CCO a\r\nCCN\r\n",
    "old-mac.smi": b"CCO\rCCN\r",
    "mixed-ends.smi": b"CCO\rCCN\r\n",
    "old-mac.csv": b"id,smiles\r1,CCO\r2,CCN\r",
    "mark.csv": "\ufeffsmiles,y\nCCO,1\nCCN,2\n".encode(),
    "windows-mark.csv": "\ufeffid,SMILES\r\n1,CCO\r\n2,CCN\r\n".encode(),
    "wide.csv": "id\tsmiles\r\n1\tCCO\r\n2\tCCN\r\n".encode("utf-16"),
    "wide.smi": b"\xfe\xff" + "CCO\nCCN\n".encode("utf-16-be"),
    "tabs.csv": b"id\tsmiles\n1\tCCO\n2\tCCN\n",
    "semicolons.csv": b"id;Canonical SMILES;y\n1;CCO;0,5\n2;CCN;0,7\n",
    "quotes.csv": b'"id","smiles"\n"a, b","CCO"\n"say ""x""","CCN"\n',
    "packed.smi.gz": gzip.compress(b"CCO\nCCN\n"),
    "packed.csv.gz": gzip.compress(b"smiles\r\nCCO\r\nCCN\r\n"),
    "packed-unnamed.smi": gzip.compress(b"CCO\nCCN\n"),
    "no-last-line-end.smi": b"CCO\nCCN",
    "no-header.csv": b"CCO,1\nCCN,2\n",
    "blank.csv": b"\n\nsmiles,y\n\nCCO,1\n\nCCN,2\n\n",
    "names.smi": "CCO Äthanol\nCCN\n".encode(),
    "UPPER.CSV": b"SMILES\nCCO\nCCN\n",
    "comment.csv": b"# made, by hand; smiles\nsmiles,y\nCCO,1\nCCN,2\n",
    "numbered.csv": b"#,Canonical SMILES\n1,CCO\n2,CCN\n",
    "hash.csv": b"#smiles,y\nCCO,1\nCCN,2\n",
    "two-forms.csv": b"isomeric_smiles,canonical_smiles\nx,CCO\ny,CCN\n",
    "many-columns.csv": b"smiles" + b",property" * 20_000 + b"\nCCO\nCCN\n",
}


@pytest.mark.parametrize("name", HANDLED)
def test_what_programs_save_is_read(nmln: Nmln, name: str) -> None:
    code, out, err = nmln("data", "info", nmln.write(name, HANDLED[name]))
    assert (code, err) == (0, "")
    assert "lines: 2   different molecules: 2" in out
    assert "dropped" not in out


OTHERS = b"CCF\nCCS\nCCCl\n"


def compare(nmln: Nmln, samples: str, learnt: str, held_out: str) -> tuple[int, str, str]:
    return nmln("evaluate", samples, "--train", learnt, "--test", held_out, "--no-fcd")


@pytest.mark.parametrize("name", HANDLED)
def test_what_programs_save_is_read_alike_by_an_evaluation(nmln: Nmln, name: str) -> None:
    mine, others = nmln.write(name, HANDLED[name]), nmln.write("others.smi", OTHERS)
    code, out, err = compare(nmln, mine, mine, others)
    assert (code, err) == (0, "")
    assert "2 training and 3 test molecules of 3 heavy atoms, 5 together" in out
    assert re.search(r"│ attempts +│ +│ +2 ", out)
    assert re.search(r"│ valid +│ attempts +│ +100\.0% ", out)
    assert re.search(r"│ covered +│ train +│ +100\.0% ", out)
    code, out, err = compare(nmln, others, others, mine)
    assert (code, err) == (0, "")
    assert "3 training and 2 test molecules of 3 heavy atoms, 5 together" in out


NAMED = {
    "empty.smi": (b"", "empty.smi: there are no molecules: the file is empty"),
    "empty.csv.gz": (gzip.compress(b""), "there are no molecules"),
    "nothing.smi.gz": (b"", "there are no molecules"),
    "comments.smi": (b"# one\n\n# two\n", "there are no molecules"),
    "header.csv": (b"id,smiles\n", "there are no molecules: the file is empty, or has nothing below"),
    "column.csv": (b"id,structure\n1,CCO\n", "column.csv:1: no column is named smiles"),
    "plain.smi.gz": (b"CCO\nCCN\n", "plain.smi.gz: this is not a whole gzip file"),
    "cut.smi.gz": (PACKED[:-40], "cut.smi.gz: this is not a whole gzip file: Compressed file ended"),
    "damaged.smi.gz": (PACKED[:60] + b"\0\1\2\3" + PACKED[64:], "this is not a whole gzip file"),
    "latin.smi": ("CCO\nCCN \xc4thyl\n".encode("latin-1"), "latin.smi:2:5: byte 0xc4 is not UTF-8"),
    "wide-unmarked.smi": ("CCO\n".encode("utf-16-le"), "wide-unmarked.smi:1:2: a zero byte"),
    "wide-cut.smi": ("CCO\nCCN\n".encode("utf-16") + b"C", "not valid UTF-16"),
    "open.csv": (b'smiles,y\nCCN,1\n"CCO,2\nCCC,3\n', "open.csv:3: this is not comma-separated text"),
    "two.csv": (b'smiles,y\n"CCO,2\nCCC",3\n', "two.csv:2: the cell with the SMILES runs over"),
    "bad.smi": (b"C1CC\nhello\n", "bad.smi: no line is a molecule that can be used. Dropped: 2 x not"),
    "binary.smi": (bytes(range(256)), "binary.smi:"),
    "binary.csv": (bytes(range(1, 256)), "binary.csv:1:1: byte 0x01 has no place in a header: this"),
    "stray.csv": (b'smiles,y\nCCO,1\n"CCN,2\nCCF,3\nCCS,4', "stray.csv:3: this is not comma-separated"),
    "endless.csv": (b"smiles," + b"x" * 140_000 + b"\nCCO,1\n", "endless.csv:1: this is not comma-sep"),
    "endless-row.csv": (b"smiles\nCCO\n" + b"x" * 140_000, "endless-row.csv:3: this is not comma-sep"),
    "columns.csv": (b",\xe2\x80\x8ba," + b"b" * 90 + b",c" * 30 + b"\n",
                    f"The columns are: (no name), ?a, {'b' * 40}..., c, c, c"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("verb", [("data", "info"), ("train", "--processes", "1")])
def test_what_cannot_be_read_is_one_line_that_names_it(
    nmln: Nmln, name: str, verb: tuple[str, ...]
) -> None:
    content, message = NAMED[name]
    code, out, err = nmln(*verb, nmln.write(name, content))
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not out
    assert not (nmln.folder / "runs").exists()


@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_read_is_named_alike_by_an_evaluation(nmln: Nmln, name: str) -> None:
    content, message = NAMED[name]
    mine, others = nmln.write(name, content), nmln.write("others.smi", OTHERS)
    for samples, learnt, held_out in (
        (others, mine, others), (others, others, mine), (mine, others, others),
    ):  # fmt: skip
        if samples == mine and name == "bad.smi":
            continue  # samples may all be invalid
        code, out, err = compare(nmln, samples, learnt, held_out)
        assert code == 2
        assert err.startswith("error: ")
        wanted = message.replace("no molecules", "no samples") if samples == mine else message
        assert wanted in err
        assert err.count("\n") == 1
        assert not out


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("bad.smi", b"# by hand\nhello\nC1CC\n", "2: not SMILES (2 of 2 attempts): 'hello' cannot be"),
        ("empty.csv", b"id,smiles\n1,\n2,\n3,CC\n", "2: nothing (2 of 3 attempts): the place of the"),
        ("large.smi", b"CCCC\n", "1: another size (1 of 1 attempts): CCCC has 4 heavy atoms, but 3 are"),
        ("samples.csv", b"level,status,smiles\n0,invalid,\n", "2: invalid (1 of 1 attempts): as the"),
    ],
)  # fmt: skip
def test_where_nothing_is_valid_the_console_says_why(
    nmln: Nmln, name: str, content: bytes, why: str
) -> None:
    mine, others = nmln.write(name, content), nmln.write("others.smi", OTHERS)
    code, out, err = compare(nmln, mine, others, others)
    assert code == 0
    assert re.search(r"│ valid +│ attempts +│ +0\.0% ", out)
    assert f"note: {mine}:{why}" in err


def test_where_something_is_valid_the_console_is_silent(nmln: Nmln) -> None:
    mine = nmln.write("mine.smi", b"CCO\nhello\n")
    learnt, held_out = nmln.write("train.smi", b"CCF\n"), nmln.write("test.smi", b"CCS\n")
    code, _, err = compare(nmln, mine, learnt, held_out)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("verb", [("data", "info"), ("train", "--processes", "1")])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.smi", "no such file"),
        ("absent.csv.gz", "no such file"),
        ("chembl-10", "Fetch it: nmln data fetch chembl --size 10"),
        ("unfiltered/chembl-10", "Set the environment variable NMLN_DATA"),
        ("qm9", "nmln data fetch qm9"),
        ("nobody-9", "nobody-9 is not built in"),
    ],
)
def test_a_source_that_is_not_there_says_what_to_do(
    nmln: Nmln, verb: tuple[str, ...], name: str, message: str
) -> None:
    code, _, err = nmln(*verb, name)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_is_no_file_of_molecules(nmln: Nmln) -> None:
    (nmln.folder / "folder.smi").mkdir()
    code, _, err = nmln("data", "info", "folder.smi")
    assert code == 2
    assert "folder.smi: this is a directory. Name a file in it." in err


MESSY = (
    "id,smiles\n1,CCO\n2,OCC\n3,C1CC\n4,CC.O\n5,CCN\n6,C[CH2]\n7,CCCC\n8,\n9,[13CH3]CC\n10,CC(C)(C)(C)C\n"
    "11,*CC\n12,C~C\n13,CCF\n"
)


def test_bad_lines_salts_duplicates_and_sizes_are_reported_with_their_lines(nmln: Nmln) -> None:
    code, out, err = nmln("data", "info", nmln.write("messy.csv", MESSY))
    assert (code, err) == (0, "")
    assert "lines: 13   different molecules: 4" in out
    for reason, line in {
        "not SMILES": 4, "duplicate": 3, "several fragments": 5, "radical": 7, "isotope label": 10,
        "impossible by its valences": 11, "wildcard atom": 12, "bond of another kind": 13,
    }.items():  # fmt: skip
        assert re.search(rf"│ {reason} +│ +\d+ │ +line {line} │", out), reason
    assert re.search(r"│ 3 +│ +3 │", out)
    assert re.search(r"│ 4 +│ +1 │", out)
    assert re.search(r"│ F +│ +1 │", out)
    assert "nmln train" in out


def test_the_option_that_chooses_one_of_several_sizes_is_shown(nmln: Nmln) -> None:
    path = nmln.write("messy.csv", MESSY)
    _, out, _ = nmln("data", "info", path)
    option = re.search(r"or only some: (--\w+) 3", out.replace("\n", " "))
    assert option
    _, shown, _ = nmln("train", "--help")
    assert option[1] in shown
    code, _, err = nmln("train", path, option[1], "3", "--processes", "1", "--steps", "1")
    assert code == 0, err
    assert (nmln.folder / "runs" / "messy" / "model").exists()


def test_the_names_of_all_sets_are_listed(nmln: Nmln, monkeypatch: pytest.MonkeyPatch) -> None:
    (nmln.folder / "unfiltered").mkdir()
    for name in ("mine_9", "mine_10", "unfiltered/mine_9", "notes", "a_b_3"):
        (nmln.folder / f"{name}.smi.gz").write_bytes(gzip.compress(b"CCO\n"))
    monkeypatch.setenv(DIRECTORY, str(nmln.folder))
    for verb in ("info", "list"):
        code, out, _ = nmln("data", verb)
        assert code == 0
        for shown in (
            "pubchem-9, pubchem-10", "mine-9, mine-10 ", "unfiltered/mine-9 ", "nmln data fetch qm9",
            "CC BY-SA 3.0", str(nmln.folder / "cache"),
        ):  # fmt: skip
            assert shown in out
        assert "notes" not in out
    code, out, _ = nmln("data", "info", "unfiltered/mine-9")
    assert "different molecules: 1" in out


def test_fetching_without_a_network_is_one_line(
    nmln: Nmln, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMLN_MIRROR", "http://127.0.0.1:9/files")
    code, _, err = nmln("data", "fetch", "QM9-9")
    assert code == 2
    assert "http://127.0.0.1:9/files/qm9.csv could not be fetched: connection refused" in err
    assert f"put the file at {nmln.folder / 'cache' / 'qm9.csv'} by hand" in err
    assert err.count("\n") == 1


def test_a_file_put_by_hand_is_taken_and_filtered(nmln: Nmln) -> None:
    (nmln.folder / "cache").mkdir()
    packed = gzip.compress(b"chembl_id\tcanonical_smiles\nX\tCCO\nY\tCC[O-]\nZ\tCCCC\n")
    nmln.write("cache/chembl_36_chemreps.txt.gz", packed)
    code, _, err = nmln("data", "fetch", "chembl", "--size", "3", "--processes", "1")
    assert code == 2
    assert f"it has {len(packed)} bytes, but the official file has about 274 MB" in err
    own = ("--sha256", hashlib.sha256(packed).hexdigest())
    code, out, err = nmln("data", "fetch", "chembl", "--size", "3", "--processes", "1", *own)
    assert (code, err) == (0, "")
    for shown in (
        "licence: CC BY-SA 3.0", "as expected", "chembl-3: 1 molecules out of 3 lines in 0 s",
        "charged atom", "another size", "nmln train chembl-3",
    ):  # fmt: skip
        assert shown in out
    code, out, _ = nmln("data", "fetch", "chembl-3")
    assert "selected earlier" in out
    assert ", as expected" in out
    code, out, _ = nmln("data", "fetch", "chembl")
    assert "chembl-SIZE" in out
    code, out, _ = nmln("data", "info", "chembl-3")
    assert "different molecules: 1" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["zinc"],
            "Take one of qm9, zinc250k, moses, chembl",
        ),
        (["qm9-9", "--size", "10"], "contradict"),
        (["qm9", "--sha256", "12"], "64 hexadecimal digits"),
    ],
)
def test_mistakes_in_fetching_are_one_line(nmln: Nmln, arguments: list[str], message: str) -> None:
    code, _, err = nmln("data", "fetch", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
