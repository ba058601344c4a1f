"""`nmln kb` from a folder of triples to files, and its one-line complaints."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nmln.cli.kb import kb
from nmln.errors import InputError
from tests.knowledge.families import rows_of, write_family

SMALL = ("--hidden", "16", "--embedding", "4", "--rank", "4", "--batch", "64", "--rate", "0.02")


def nmln_kb(*arguments: str) -> Result:
    return CliRunner().invoke(kb, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kb")
    source = write_family(folder / "camps")
    done = nmln_kb(
        "train", str(source), "--output", str(folder / "run"), "--epochs", "12", *SMALL
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "12 constants, 4 relations, 576 ground atoms" in done.output
    assert "MiB of memory" in done.output
    assert "validation MRR" in done.output
    return folder / "run"


def test_training_writes_what_it_found(run: Path) -> None:
    told = json.loads((run / "training.json").read_text())
    assert told["valid"]["mrr"] > 0.6
    assert told["settings"]["epochs"] == 12
    history = rows_of(run / "history.csv")
    assert len(history) == 12
    assert float(history[-1]["loss"]) < float(history[0]["loss"])
    assert sorted(path.name for path in (run / "model").iterdir()) == [
        "content.json", "manifest.json", "tensors.safetensors",
    ]  # fmt: skip


def test_ranking_writes_qualities_and_every_rank(run: Path) -> None:
    done = nmln_kb("rank", str(run))
    assert done.exit_code == 0, done.output
    assert "Hits@10" in done.output
    summary = json.loads((run / "ranking.json").read_text())
    assert summary["valid"]["both"]["mrr"] == pytest.approx(
        json.loads((run / "training.json").read_text())["valid"]["mrr"]
    )
    ranks = rows_of(run / "ranks.csv")
    test = [row for row in ranks if row["split"] == "test"]
    assert 2 * len(test) == summary["test"]["both"]["queries"]
    mean = sum(1 / float(row[side]) for row in test for side in ("head_rank", "tail_rank"))
    assert mean / 2 / len(test) == pytest.approx(summary["test"]["both"]["mrr"])


def test_completion_writes_missing_triples(run: Path, tmp_path: Path) -> None:
    done = nmln_kb("complete", str(run), "--top", "5", "--held-out", "--relation", "ally")
    assert done.exit_code == 0, done.output
    rows = rows_of(run / "missing.csv")
    assert [row["relation"] for row in rows] == ["ally"] * 5
    chances = [float(row["probability"]) for row in rows]
    assert chances == sorted(chances, reverse=True)
    assert rows[0]["split"] in ("valid", "test")
    other = tmp_path / "other.csv"
    done = nmln_kb("complete", str(run), "--top", "3", "--surprising", "--output", str(other))
    assert len(rows_of(other)) == 3


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    source = str(write_family(tmp_path / "camps"))
    for name in ("a", "b"):
        nmln_kb("train", source, "--output", str(tmp_path / name), "--epochs", "2", *SMALL)
        nmln_kb("rank", str(tmp_path / name))
    for file in ("ranks.csv", "ranking.json", "model/tensors.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_triples_for_training_alone_can_be_completed_but_not_ranked(tmp_path: Path) -> None:
    source = write_family(tmp_path / "camps")
    (source / "valid.tsv").unlink()
    (source / "test.tsv").unlink()
    done = nmln_kb("train", str(source), "--output", str(tmp_path / "run"), "--epochs", "1", *SMALL)
    assert "without validation triples" in done.output
    assert nmln_kb("complete", str(tmp_path / "run"), "--top", "2").exit_code == 0
    with pytest.raises(InputError, match="nothing to rank"):
        nmln_kb("rank", str(tmp_path / "run"))


def test_mistakes_are_reported_in_one_line(run: Path, tmp_path: Path) -> None:
    source = str(write_family(tmp_path / "camps"))
    for arguments, message in (
        (("train", "no/such/place"), "no/such/place: neither a folder"),
        (("train", source, "--output", str(run)), "holds a trained model"),
        (("train", source, "--width", "4"), "width .* got 4"),
        (("train", source, "--objective", "x"), "conditional or likelihood"),
        (("train", source, "--minutes", "-1"), "must be positive"),
        (("train", source, "--width", "3", "--batch", "10000000"), r"GiB.*--negatives 16"),
        (("rank", str(tmp_path)), "no trained knowledge base in this folder"),
        (("complete", str(run), "--relation", "loves"), "loves is not a relation"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            nmln_kb(*arguments)
        assert "\n" not in str(caught.value)
