"""Parsed data are kept in the run: read back as they were, and never used in place of other data."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from safetensors.torch import load, save

from nmln.config import DataConfig
from nmln.errors import InputError
from nmln.formats import mln
from nmln.molecules.chemistry import worlds as chemistry
from nmln.runs import combine as combining
from nmln.runs import data as sources
from nmln.runs import kept, likelihood
from nmln.runs import train as training
from nmln.runs.data import Source
from nmln.runs.folder import RunFolder
from nmln.runs.kept import keep_source, kept_source
from tests.golden.scenario import SMOKERS
from tests.runs.runs import Outcome, equal, settings, weights, whole_run, write_config

LINES = ("OCC", "NCC", "COC", "C=CO", "CC#N", "CC=O", "CCC", "C1CC1")  # not all canonical
LANGUAGE = """person = {Anna, Bob, "C d"}
smokes(person)
friends(person, person) symmetric irreflexive
1.25 smokes(x) ^ friends(x, y) => smokes(y)
-0.5e-1 !friends(x, Anna)
friends(x, y) v smokes(+x)
"""


def molecules(folder: Path) -> DataConfig:
    (folder / "mine.smi").write_text("\n".join([*LINES, "CCCC", "OCC", "no molecule"]) + "\n")
    return DataConfig(str(folder / "mine.smi"), nodes=3)


def worlds(folder: Path) -> DataConfig:
    (folder / "people.mln").write_text(LANGUAGE)
    (folder / "people.db").write_text('smokes("C d")\n---\nfriends(Bob, "C d")\n---\nsmokes(Bob)\n')
    return DataConfig(str(folder / "people.db"), str(folder / "people.mln"))


def graphs(folder: Path) -> DataConfig:
    (folder / "graphs").mkdir()
    for number in range(5):
        graph = nx.gnp_random_graph(4, 0.5, seed=number)
        nx.write_graphml(graph, folder / "graphs" / f"{number}.graphml")
    return DataConfig(str(folder / "graphs"))


KINDS = {"molecules": molecules, "db": worlds, "graphs": graphs}
EVERY = pytest.mark.parametrize("kind", KINDS)


def same(one: Source | None, other: Source) -> bool:
    return (
        one is not None
        and all(
            torch.equal(getattr(one, n), getattr(other, n)) for n in ("worlds", "train", "test")
        )
        and all(
            getattr(one, name) == getattr(other, name)
            for name in ("kind", "space", "formulas", "names", "dropped", "origin", "fingerprint")
        )
    )


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[DataConfig]:
    """Every parse of data files from now on."""
    found, parse = [], sources.load
    monkeypatch.setattr(sources, "load", lambda config: found.append(config) or parse(config))
    return found


# The file.


@EVERY
def test_parsed_data_are_read_back(kind: str, tmp_path: Path) -> None:
    source = sources.load(KINDS[kind](tmp_path))
    keep_source(tmp_path / "kept", source)
    assert source.kind == kind
    assert source.origin is not None
    assert same(kept_source(tmp_path / "kept"), source)
    assert same(kept_source(tmp_path / "kept", source.program), source)
    assert kept_source(tmp_path / "kept", "p(a)") is None
    first = (tmp_path / "kept").read_bytes()
    keep_source(tmp_path / "kept", source)
    assert (tmp_path / "kept").read_bytes() == first


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]) -> None:
    """Write a kept file again with other contents and a digest that fits them."""
    content, tensors = kept._content(path.read_bytes()), load(path.read_bytes())
    del content["digest"]
    change(content, tensors)
    content["digest"] = kept._digest(content, tensors)
    path.write_bytes(save(tensors, {"nmln": json.dumps(content)}))


FORGED: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]] = {
    "a newer format": lambda c, t: c.update(format=2),
    "an unknown kind": lambda c, t: c.update(kind="pictures"),
    "a kind that is a list": lambda c, t: c.update(kind=["db"]),
    "another program": lambda c, t: c.update(program="p(a)"),
    "no program": lambda c, t: c.update(program=3),
    "an endless program": lambda c, t: c.update(program="n = {1, ..., 999999999999}\np(n)"),
    "an origin that is a number": lambda c, t: c.update(origin=3),
    "dropped lines without counts": lambda c, t: c.update(dropped=[{"reason": "x"}]),
    "counts that are texts": lambda c, t: c.update(
        dropped=[{"reason": "x", "count": "3", "line": 1, "example": ""}]
    ),
    "a category too many": lambda c, t: t["worlds"].fill_(100),
    "worlds of another type": lambda c, t: t.update(worlds=t["worlds"].double()),
    "worlds of another width": lambda c, t: t.update(worlds=t["worlds"][:, 1:].clone()),
    "worlds of three axes": lambda c, t: t.update(worlds=t["worlds"][None].clone()),
    "no worlds": lambda c, t: t.update(worlds=t["worlds"][:0].clone()),
    "a name too few": lambda c, t: t.update(names=kept._to_bytes('["C"]')),
    "names that are numbers": lambda c, t: t.update(names=kept._to_bytes("[1, 2, 3]")),
    "names that are no JSON": lambda c, t: t.update(names=kept._to_bytes("[[[[")),
    "nested names": lambda c, t: t.update(names=kept._to_bytes("[" * 100_000)),
    "a world that is learned and held out": lambda c, t: t["test"].fill_(0),
    "a split of floats": lambda c, t: t.update(train=t["train"].double()),
    "a tensor more": lambda c, t: t.update(more=torch.zeros(3)),
    "a tensor less": lambda c, t: t.pop("names"),
}


@pytest.mark.parametrize("name", FORGED)
def test_contents_that_do_not_fit_together_are_not_used(name: str, tmp_path: Path) -> None:
    config = worlds(tmp_path)
    keep_source(tmp_path / "kept", sources.load(config))
    changed(tmp_path / "kept", lambda content, tensors: None)
    assert kept_source(tmp_path / "kept") is not None
    changed(tmp_path / "kept", FORGED[name])
    assert kept_source(tmp_path / "kept") is None


SEVERAL: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]] = {
    "a domain more": lambda c, t: c["domains"].append({"node": 5}),
    "a domain less": lambda c, t: c["domains"].pop(),
    "one domain": lambda c, t: c.update(domains=[{"node": 3}]),
    "domains that are a number": lambda c, t: c.update(domains=3),
    "no domains": lambda c, t: c.pop("domains"),
    "another first domain": lambda c, t: c["domains"].reverse(),
    "an endless domain": lambda c, t: c["domains"][1].update(node=10**15),
    "a home that is none": lambda c, t: t["homes"].fill_(7),
    "a home below all": lambda c, t: t["homes"][:1].fill_(-1),
    "a home too many": lambda c, t: t["homes"].fill_(1),
    "homes of floats": lambda c, t: t.update(homes=t["homes"].double()),
    "no homes": lambda c, t: t.pop("homes"),
    "worlds without a number": lambda c, t: t.update(worlds=t.pop("worlds-0")),
    "the format of one domain": lambda c, t: c.update(format=1),
    "no worlds of a size": lambda c, t: t.update({"worlds-1": t["worlds-1"][:0].clone()}),
    "a category too many": lambda c, t: t["worlds-1"].fill_(100),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_domains_that_do_not_fit_together_are_not_used(name: str, tmp_path: Path) -> None:
    config = replace(molecules(tmp_path), nodes=None, sizes=(3, 4))
    Path(config.source).write_text("\n".join([*LINES, "CCCC", "CCCO", "CCCN"]) + "\n")
    keep_source(tmp_path / "kept", sources.load(config))
    changed(tmp_path / "kept", lambda content, tensors: None)
    assert kept_source(tmp_path / "kept") is not None
    changed(tmp_path / "kept", SEVERAL[name])
    assert kept_source(tmp_path / "kept") is None


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    keep_source(path, sources.load(worlds(tmp_path)))
    written = path.read_bytes()
    for at in range(0, len(written), 7):
        path.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
        assert kept_source(path) is None, at
    for end in (0, 5, 100, len(written) - 1):
        path.write_bytes(written[:end])
        assert kept_source(path) is None
    path.write_bytes(written + b"x")
    assert kept_source(path) is None


def test_links_pipes_folders_and_large_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_source(tmp_path / "kept", sources.load(worlds(tmp_path)))
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ".", "missing", "missing/kept"):
        assert kept_source(tmp_path / name) is None
    monkeypatch.setattr(kept, "machine_memory", lambda: 4_000)
    assert kept_source(tmp_path / "kept") is None


# The origin.


def test_the_origin_is_of_all_that_reading_depends_on(tmp_path: Path) -> None:
    config = molecules(tmp_path)
    origin = sources.origin_of(config)
    assert origin is not None
    shutil.copy(config.source, tmp_path / "copy.smi")
    assert sources.origin_of(replace(config, source=str(tmp_path / "copy.smi"))) == origin
    shutil.copy(config.source, tmp_path / "copy.csv")
    others = [
        replace(config, source=str(tmp_path / "copy.csv")),
        replace(config, nodes=4),
        replace(config, split_seed=1),
    ]
    (tmp_path / "mine.smi").write_text("CCO\n")
    others.append(config)
    found = [sources.origin_of(one) for one in others]
    assert origin not in found
    assert sources.origin_of(replace(config, source=str(tmp_path / "gone.smi"))) is None


def test_the_origin_is_of_the_language_and_of_every_graph(tmp_path: Path) -> None:
    for config, file in (
        (worlds(tmp_path), tmp_path / "people.mln"),
        (graphs(tmp_path), tmp_path / "graphs" / "3.graphml"),
    ):
        origin = sources.origin_of(config)
        file.write_text(file.read_text() + "\n")
        assert sources.origin_of(config) not in (None, origin)


def test_a_named_set_has_the_hash_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sources.origin_of(DataConfig("pubchem-9")) != sources.origin_of(DataConfig("pubchem-10"))
    built_in = sources.origin_of(DataConfig("pubchem-9"))
    assert built_in is not None
    assert built_in["versions"].keys() == {"nmln", "rdkit"}
    monkeypatch.setenv("NMLN_DATA", str(tmp_path))
    assert sources.origin_of(DataConfig("mine-3")) is None
    (tmp_path / "mine_3.smi.gz").write_bytes(b"one")
    first = sources.origin_of(DataConfig("mine-3"))
    (tmp_path / "mine_3.smi.gz").write_bytes(b"other")
    assert sources.origin_of(DataConfig("mine-3")) not in (None, first)


# In a run.


@EVERY
def test_a_run_parses_its_data_once(kind: str, tmp_path: Path, parses: list[DataConfig]) -> None:
    config = KINDS[kind](tmp_path)
    small = replace(settings(Path(config.source), training__steps=2), data=config)
    training.run(training.begin(tmp_path / "run", small))
    parsed = sources.load(config)
    parses.clear()
    found = RunFolder(tmp_path / "run").read_source()
    assert same(found, replace(parsed, train=found.train, test=found.test))
    assert torch.equal(found.train, parsed.train)
    training.run(training.resume(tmp_path / "run"))
    likelihood.run(tmp_path / "run", chains=2, steps=2, sweeps=3)
    assert not parses


def test_data_that_were_parsed_before_are_handed_over(
    people: Path, parses: list[DataConfig]
) -> None:
    config = settings(people, training__steps=2)
    keep_source(people.parent / "parsed", sources.load(config.data))
    parses.clear()
    source = kept_source(people.parent / "parsed")
    training.run(training.begin(people.parent / "run", config, source=source))
    assert not parses
    assert equal(weights(people.parent / "run"), weights(whole_run(people, training__steps=2)))
    for name in ("config.json", "split.json", "worlds.safetensors"):
        one, other = (people.parent / run / name for run in ("run", "whole"))
        assert one.read_bytes() == other.read_bytes()


def test_data_that_have_moved_are_not_parsed_again(
    people: Path, run: Path, parses: list[DataConfig]
) -> None:
    moved = people.rename(people.with_name("moved.db"))
    assert len(RunFolder(run).read_source(data=str(moved)).worlds) == 30
    assert not parses


def test_data_that_have_changed_are_refused(people: Path, parses: list[DataConfig]) -> None:
    run = whole_run(people, training__steps=2)
    text = people.read_text()
    people.write_text(text.replace("smokes(Anna)", "smokes(Bob)", 1))
    parses.clear()
    with pytest.raises(InputError, match="not those that this run started with") as caught:
        training.resume(run)
    assert caught.value.kind == "conflict"
    assert len(parses) == 1
    people.write_text(f"// the same worlds, other bytes\n{text}")
    training.resume(run)
    assert len(parses) == 2
    people.unlink()
    with pytest.raises(InputError, match="--data NEW_PATH"):
        training.resume(run)


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "foreign": lambda path: path.write_text("precious"),
    "another version": lambda path: changed(path, lambda c, t: c["origin"]["versions"].update(nmln="0")),
    "without an origin": lambda path: changed(path, lambda c, t: c.update(origin=None)),
    "other worlds": lambda path: changed(path, lambda c, t: t["worlds"].fill_(0)),
    "another program": lambda path: changed(path, lambda c, t: c.update(program=c["program"] + "\n")),
    "other dropped lines": lambda path: changed(path, lambda c, t: c.update(
        dropped=[{"reason": "x", "count": 1, "line": 1, "example": ""}]
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_run_whose_kept_worlds_cannot_be_used_parses_the_data(
    name: str, run: Path, parses: list[DataConfig]
) -> None:
    good = RunFolder(run).read_source()
    assert not parses
    DAMAGED[name](run / "worlds.safetensors")
    before = Counter(path.name for path in run.iterdir())
    assert same(RunFolder(run).read_source(), good)
    assert len(parses) == 1
    training.run(training.resume(run))
    assert Counter(path.name for path in run.iterdir()) == before


def test_a_link_in_place_of_the_kept_worlds_is_refused(run: Path, tmp_path: Path) -> None:
    (run / "worlds.safetensors").rename(tmp_path / "elsewhere")
    (run / "worlds.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="links within a run folder are not followed"):
        RunFolder(run).read_source()


def test_a_combined_model_keeps_the_worlds_too(people: Path, parses: list[DataConfig]) -> None:
    one = whole_run(people, "one", training__steps=2)
    other = whole_run(people, "other", training__steps=2, model__seed=1)
    parses.clear()
    combining.combine([one, other], people.parent / "both")
    RunFolder(people.parent / "both").read_source()
    assert not parses


def test_kept_worlds_of_a_killed_start_are_written_again_and_no_others(people: Path) -> None:
    folder = people.parent / "run"
    config = settings(people, training__steps=2)
    keep_source(folder / "worlds.safetensors", sources.load(config.data))
    training.begin(folder, config)
    shutil.rmtree(folder)
    people.write_text(people.read_text().replace("smokes(Anna)", "smokes(Bob)", 1))
    keep_source(folder / "worlds.safetensors", sources.load(config.data))
    people.write_text(people.read_text().replace("smokes(Bob)", "smokes(Anna)", 1))
    before = (folder / "worlds.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"worlds\.safetensors: this was not written by a run"):
        training.begin(folder, config)
    assert (folder / "worlds.safetensors").read_bytes() == before


# Every line and every formula once.


def test_every_smiles_is_parsed_once_from_training_to_the_likelihood(
    tmp_path: Path, here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are written as canonical SMILES, so that lines of the data can be told from them."""
    lines = ("OCC", "NCC", "O(C)C", "OC=C", "N#CC", "O=CC", "C(C)C", "C1CC1", "FCC", "NCN")
    (tmp_path / "mine.smi").write_text("\n".join(lines) + "\n")
    config, parsed = write_config(tmp_path, training={"steps": 3}), Counter[str]()
    parse = chemistry.Chem.MolFromSmiles

    def counted(smiles: str, *arguments: Any, **options: Any) -> Any:
        parsed[smiles] += 1
        return parse(smiles, *arguments, **options)

    monkeypatch.setattr(chemistry.Chem, "MolFromSmiles", counted)
    monkeypatch.chdir(tmp_path)
    for command in (
        "train mine.smi --output run --processes 1 --config",
        "train --resume run --processes 1",
        "sample run --num-samples 20 --chains 4 --burn-in 2 --processes 1",
        "evaluate run --no-fcd --processes 1",
        "likelihood run --chains 4 --steps 4 --sweeps 4",
    ):
        done = here(*command.split(), *([config] if command.endswith("--config") else []))
        assert done.code == 0, (command, done.said)
    assert {line: parsed[line] for line in lines[:7]} == dict.fromkeys(lines[:7], 1)


def test_every_formula_is_parsed_once_from_the_program_to_the_marginal(
    tmp_path: Path, here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smokers.mln").write_text(SMOKERS)
    (tmp_path / "known.db").write_text("Smokes(Anna)\n")
    parsed, parse = Counter[str](), mln.parse

    def counted(text: str, start: str, *place: Any) -> Any:
        if start == "weighted":
            parsed[text] += 1
        return parse(text, start, *place)

    monkeypatch.setattr(mln, "parse", counted)
    monkeypatch.chdir(tmp_path)
    for how in ("--exact", "--sample"):
        parsed.clear()
        done = here(
            "infer", "-i", "smokers.mln", "-e", "known.db", "-q", "Cancer", how, "--seed", 0
        )
        assert done.code == 0, done.said
        formulas = [line for line in SMOKERS.splitlines() if line[0].isdecimal()]
        assert parsed == dict.fromkeys(formulas, 1)
