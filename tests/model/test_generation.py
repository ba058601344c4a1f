"""Decoded results: their kind comes from the language, their number and order from n and the seed."""

import subprocess
import sys
from typing import Any

import networkx as nx
import pytest
import torch

import nmln
from nmln.config import configure
from nmln.errors import InputError
from nmln.formats.mln import parse_mln
from nmln.model import Model
from nmln.model.generation import DECODERS, collect, decoder_for
from nmln.molecules.chemistry import encode_all, space_for
from nmln.space import Space

QUICK: dict[str, Any] = {"chains": 10, "burn_in": 5, "thin": 2}
SMOKERS = parse_mln("person = {Anna, Bob}\nsmokes(person)\nfriends(person, person)")
CONFIG = configure({"ladder": {"rates": [0.2, 0.02]}, "model": {"layers": 1, "hidden": 4}})


@pytest.fixture(scope="module")
def molecules() -> Model:
    space = space_for(("C", "O"), 3)
    return Model.build(space, encode_all(space, ["CCO", "COC", "CCC"]).worlds, CONFIG)


@pytest.fixture(scope="module")
def smokers() -> Model:
    space = Space(SMOKERS.language, SMOKERS.domain)
    return Model.build(space, space.enumerate(), CONFIG)


def test_molecules_are_valid_smiles(molecules: Model) -> None:
    found = molecules.generate(25, seed=3, **QUICK)
    assert len(found) == 25
    assert encode_all(molecules.space, found).smiles == tuple(found)
    assert molecules.generate(25, seed=3, **QUICK) == found
    assert molecules.generate(25, seed=4, **QUICK) != found


def test_every_attempt_is_shown_on_request(molecules: Model) -> None:
    found = molecules.generate(30, seed=3, valid_only=False, **QUICK)
    valid = [one for one in found if one is not None]
    assert len(found) == 30
    assert 0 < len(valid) < 30
    assert molecules.generate(len(valid), seed=3, **QUICK) == valid


def test_too_few_valid_ones_are_an_error(molecules: Model) -> None:
    with pytest.raises(InputError, match="valid_only=False"):
        molecules.generate(200, seed=3, attempts=200, **QUICK)


def test_molecules_agree_with_evidence(molecules: Model) -> None:
    oxygen = nmln.Evidence.of(molecules.space, [nmln.Literal("atom", ("0", "O"))])
    assert all("O" in one for one in molecules.generate(10, evidence=oxygen, **QUICK))


def test_graphs_are_networkx_graphs() -> None:
    space, worlds = nmln.from_networkx([nx.path_graph(4), nx.cycle_graph(4)])
    found = Model.build(space, worlds, CONFIG).generate(5, **QUICK)
    assert len(found) == 5
    assert all(isinstance(one, nx.Graph) and set(one) == set("0123") for one in found)
    again, _ = nmln.from_networkx(found, space)
    assert again == space


def test_other_worlds_are_sets_of_true_atoms(smokers: Model) -> None:
    found = smokers.generate(7, seed=1, **QUICK)
    sweeps = smokers.sample(
        7, torch.Generator().manual_seed(1), chains=7, burn_in=5, thin=2, evidence=None
    )
    (last,) = [sweep.state.values[-1] for sweep in sweeps]
    assert found == [frozenset(nmln.true_atoms(smokers.space, world)) for world in last]


def test_the_kind_can_be_named(molecules: Model, smokers: Model) -> None:
    found = molecules.generate(2, kind="atoms", **QUICK)
    assert all(isinstance(atom, nmln.GroundAtom) for one in found for atom in one)
    with pytest.raises(InputError, match="kind must be one of molecules, graphs, atoms"):
        molecules.generate(2, kind="smiles", **QUICK)
    with pytest.raises(InputError, match="cannot be decoded as graphs"):
        smokers.generate(2, kind="graphs", **QUICK)


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 2, "chains": 0}, {"n": 2, "attempts": -1}])
def test_numbers_below_one_are_refused(smokers: Model, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        smokers.generate(**wrong)


def test_attributes_of_other_names_or_values_are_no_molecules() -> None:
    lookalike = parse_mln(
        "kind = {A, B}\norder = {none, some}\nnode = {x, y}\n"
        "atom(node, kind!)\nbond(node, node, order!) symmetric irreflexive"
    )
    space = Space(lookalike.language, lookalike.domain)
    (graph,) = decoder_for(space)(torch.zeros(1, space.groups, dtype=space.dtype))
    assert isinstance(graph, nx.Graph)


def test_results_beyond_the_last_batch_are_not_asked_for() -> None:
    def batches():
        yield torch.zeros(2, 1)
        raise AssertionError("no more were needed")

    assert collect(batches(), lambda worlds: [1, 2], 1, valid_only=True) == [1]


def test_a_kind_of_your_own_is_an_entry(monkeypatch: pytest.MonkeyPatch, smokers: Model) -> None:
    monkeypatch.setitem(DECODERS, "text", f"{__name__}:text_decoder")
    assert all(isinstance(one, str) for one in smokers.generate(3, kind="text", **QUICK))


def text_decoder(space: Space):
    return lambda worlds: [nmln.to_text(space, world) for world in worlds]


def test_only_molecules_import_rdkit() -> None:
    code = (
        "import sys, nmln; from nmln.model.generation import decoder_for;"
        "p = nmln.parse_mln('person = {A, B}\\nsmokes(person)');"
        "s = nmln.Space(p.language, p.domain); decoder_for(s)(s.enumerate());"
        "assert 'rdkit' not in sys.modules and 'nmln.molecules.decoding' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
