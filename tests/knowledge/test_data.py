"""Reading knowledge bases, and what is said of those that cannot be read."""

import os
from pathlib import Path

import pytest
import torch

from nmln.errors import InputError
from nmln.knowledge.data import KnowledgeBase
from nmln.worlds import true_atoms

needs_data = pytest.mark.skipif(
    not (Path(os.environ.get("NMLN_DATA", "/nowhere")) / "kb").is_dir(),
    reason="set NMLN_DATA to a directory with kb/ in it",
)


def write(folder: Path, **splits: str) -> Path:
    for split, text in splits.items():
        (folder / f"{split}.tsv").write_text(text)
    return folder


FAMILY = "ann\tparent\tbob\nbob\tparent\tcy\nann\tlikes\tcy\n"


def test_splits_are_read_over_the_names_of_training(tmp_path: Path) -> None:
    write(tmp_path, train=FAMILY, valid="cy\tlikes\tann\n", test="bob\tlikes\tann\n")
    base = KnowledgeBase.read(tmp_path)
    assert base.constants == ("ann", "bob", "cy")
    assert base.relations == ("likes", "parent")
    assert {base.text(tuple(t)) for t in base.train.tolist()} == {  # pyright: ignore[reportArgumentType]
        tuple(line.split("\t")) for line in FAMILY.splitlines()
    }
    assert base.valid.tolist() == [[2, 0, 0]]
    assert base.test.tolist() == [[1, 0, 0]]
    assert len(base.known) == 5
    assert not base.notes
    assert "3 constants, 2 relations, 18 ground atoms; triples: 3 train, 1 valid" in base.sizes


def test_the_world_has_the_triples_and_nothing_else(tmp_path: Path) -> None:
    base = KnowledgeBase.read(write(tmp_path, train=FAMILY))
    atoms = {str(atom) for atom in true_atoms(base.space, base.world(base.train))}
    assert atoms == {"parent(ann, bob)", "parent(bob, cy)", "likes(ann, cy)"}


def test_training_triples_alone_are_enough(tmp_path: Path) -> None:
    base = KnowledgeBase.read(write(tmp_path, train=FAMILY, test=""))
    assert (len(base.train), len(base.valid), len(base.test)) == (3, 0, 0)
    (tmp_path / "train.tsv").rename(tmp_path / "train.txt")
    assert torch.equal(KnowledgeBase.read(tmp_path).train, base.train)


def test_repeated_and_leaked_triples_are_reported(tmp_path: Path) -> None:
    write(tmp_path, train=FAMILY + FAMILY, test="ann\tlikes\tcy\n")
    notes = KnowledgeBase.read(tmp_path).notes
    assert notes[0] == "train.tsv repeats 3 of its 6 triples; each counts once."
    assert notes[1] == "1 triples of test are training triples too: too easy a test."


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": FAMILY, "test": "ann\tlikes\tbob\nann\tparents\tcy\n"},
         r"test\.tsv:2: .* relation parents\. .* nearest .* parent\."),
        ({"train": FAMILY, "valid": "\nann\tlikes\tbobo\n"},
         r"valid\.tsv:2: .* constant bobo\. .* nearest .* bob\."),
        ({"train": ""}, r"no triples in .*train\.tsv"),
        ({"train": "a\tr\tb\na\tr\n"}, r"train\.tsv:2: .* three fields .* this one has 2"),
        ({"train": FAMILY, "test": "ann\tlikes\n"}, r"test\.tsv:1: .* three fields"),
        ({"valid": FAMILY}, r"must contain train\.tsv .* got valid\.tsv"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_their_place(
    tmp_path: Path, splits: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        KnowledgeBase.read(write(tmp_path, **splits))


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    write(tmp_path, train=FAMILY)
    (tmp_path / "train.txt").write_text(FAMILY)
    with pytest.raises(InputError, match=r"one of train\.tsv and train\.txt"):
        KnowledgeBase.read(tmp_path)


def test_a_domain_that_does_not_fit_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    lines = "".join(f"a{i}\tr{i % 40}\tb{i}\n" for i in range(30_000))
    with pytest.raises(InputError, match=r"train\.tsv: this domain is too large: .* may be used"):
        KnowledgeBase.read(write(tmp_path, train=lines))


def test_unknown_names_are_reported_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nation: .* mean nations"):
        KnowledgeBase.read("nation")
    path = tmp_path / "train.tsv"
    path.write_text(FAMILY)
    with pytest.raises(InputError, match="got a file"):
        KnowledgeBase.read(path)


def test_known_sets_are_found_beside_pykeen_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NMLN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pykeen" / "datasets" / "kinships"
    folder.mkdir(parents=True)
    (tmp_path / "pykeen" / "__init__.py").write_text("raise SystemExit('it was run')")
    (folder / "train.txt").write_text(FAMILY)
    monkeypatch.syspath_prepend(tmp_path)
    base = KnowledgeBase.read("kinship")
    assert (base.name, len(base.train)) == ("kinship", 3)
    with pytest.raises(InputError, match=r"umls were not found.*nmln\[knowledge\]"):
        KnowledgeBase.read("umls")


@needs_data
@pytest.mark.parametrize(
    ("name", "constants", "relations", "sizes"),
    [
        ("nations", 14, 55, (1592, 199, 201)),
        ("kinship", 104, 25, (8544, 1068, 1074)),
        ("umls", 135, 46, (5216, 652, 661)),
    ],
)
def test_the_public_sets_are_read_whole(name, constants, relations, sizes) -> None:
    base = KnowledgeBase.read(name)
    assert (len(base.constants), len(base.relations)) == (constants, relations)
    assert (len(base.train), len(base.valid), len(base.test)) == sizes
    assert not base.notes
