"""Models from run folders, model folders and names."""

import shutil
from pathlib import Path

import pytest
import torch

import nmln
from nmln import checkpoint
from nmln.errors import InputError
from nmln.model import Model, load_run, pretrained
from nmln.space import Space

PROGRAM = nmln.parse_mln("person = {Anna, Bob}\nsmokes(person)\nfriends(person, person)")


def same(one: Model, other: Model) -> bool:
    ours, theirs = one.potential.state_dict(), other.potential.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in {**ours, **theirs})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loading")
    space = Space(PROGRAM.language, PROGRAM.domain)
    config = nmln.configure({"model": {"layers": 1, "hidden": 4}})
    Model.build(space, space.enumerate(), config).save(folder / "model")
    return folder


def test_a_finished_run_and_its_model_folder_are_the_same_model(run: Path) -> None:
    assert same(nmln.load(run), Model.load(run / "model"))
    assert same(nmln.load(str(run / "model")), Model.load(run / "model"))


def test_an_unfinished_run_gives_its_newest_checkpoint(run: Path, tmp_path: Path) -> None:
    model = Model.load(run / "model")
    for step, factor in ((1, 2.0), (2, 3.0)):
        weights = {name: factor * one for name, one in model.potential.state_dict().items()}
        tensors, tree = checkpoint.flatten({"average": None, "potential": weights})
        checkpoint.save(tmp_path, step, tensors, {**model.describe(), "tree": tree})
    found = nmln.load(tmp_path).potential.state_dict()
    for name, tensor in model.potential.state_dict().items():
        assert torch.equal(found[name], 3.0 * tensor)
    shutil.copytree(run / "model", tmp_path / "model")
    assert same(load_run(tmp_path), model)


def test_a_name_is_that_of_a_model_in_the_package(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run / "model", tmp_path / "package" / "tiny" / "model")
    monkeypatch.setattr(pretrained, "_shipped", lambda: tmp_path / "package")
    monkeypatch.chdir(tmp_path)
    assert same(nmln.load("tiny"), Model.pretrained("tiny"))


def test_a_folder_comes_before_a_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package" / "tiny").mkdir(parents=True)
    monkeypatch.setattr(pretrained, "_shipped", lambda: tmp_path / "package")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run / "model", tmp_path / "tiny")
    assert same(nmln.load("tiny"), Model.load(run / "model"))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        nmln.load(tmp_path / "nothing")
    with pytest.raises(InputError, match="no checkpoint"):
        nmln.load(tmp_path)
