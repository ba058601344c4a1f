"""Weights taken over from another potential: by level, and by the values that both languages have."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from nmln.errors import InputError
from nmln.formats.mln import parse_formula
from nmln.language import Attribute, Language, difference, new_values, predicate
from nmln.potentials.base import BasePotential
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.graph import GraphPotential
from nmln.potentials.inheritance import inherit, labels_of
from nmln.space import Space
from tests.potentials.test_contract import CASES, LEVELS, MOLECULES, Case, build
from tests.potentials.test_domains import BOUND, values_on

TEMPLATES = {"formula", "total"}  # a new value is a new formula there, which old worlds satisfy too
NETWORKS = [case for case in CASES if case.name not in BOUND | TEMPLATES | {"independent"}] + [
    case for case in CASES if case.name == "fragment embedding"
]


def wider(space: Space) -> Space:
    """The same domain, with a new value in the middle of every attribute with values of its own."""

    def more(attribute: Attribute) -> Attribute:
        if attribute.boolean:
            return attribute
        first, *others = attribute.values
        return replace(attribute, values=(first, "new", *others))

    attributes = reversed(list(map(more, space.language)))
    language = Language(*sorted(attributes, key=lambda one: space.language.sorts.index(one.sorts[0])
                                if one.sorts else 0))  # fmt: skip
    return Space(language, space.domain)


def moved(space: Space, there: Space, values: Tensor) -> Tensor:
    """The same worlds in another space that has all of their values."""
    found = values.new_zeros(*values.shape[:2], there.groups)
    for block in there.blocks:
        old = space.block(block.attribute.name)
        places = [block.attribute.categories.index(one) for one in old.attribute.categories]
        found[..., block.groups] = torch.tensor(places, dtype=values.dtype)[
            values[..., old.groups].long()
        ]
    return found


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_worlds_without_new_values_keep_their_scores(case: Case) -> None:
    old, there = build(case), wider(case.space)
    assert there.language != case.space.language or all(one.boolean for one in there.language)
    new = case.build(there, Generator().manual_seed(5)).double()
    inherit(new, old, range(LEVELS))
    values = values_on(case.space, 3)
    same = moved(case.space, there, values)
    assert torch.allclose(new.score(same), old.score(values), atol=1e-10)


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_values_that_are_gone_are_left_out(case: Case) -> None:
    there = wider(case.space)
    old = case.build(there, Generator().manual_seed(5)).double()
    new = case.build(case.space, Generator().manual_seed(6)).double()
    inherit(new, old, range(LEVELS))
    values = values_on(case.space, 4)
    expected = old.score(moved(case.space, there, values))
    assert torch.allclose(new.score(values), expected, atol=1e-10)


def test_new_values_keep_the_weights_that_they_were_drawn_with() -> None:
    old, there = GraphPotential(MOLECULES, LEVELS, 2, 4), wider(MOLECULES)
    drawn, new = (GraphPotential(there, LEVELS, 2, 4, rng=Generator().manual_seed(9)) for _ in "ab")
    inherit(new, old, range(LEVELS))
    row = new.labels()["hear.0"][1].index(("atom", "new"))
    columns = [
        place
        for place, label in enumerate(new.labels()["hear.1"][2])
        if "('bond', 'new'" in str(label)
    ]
    assert torch.equal(new.hear[0][:, row], drawn.hear[0][:, row])
    assert len(columns) == 4
    assert torch.equal(new.hear[1][:, :, columns], drawn.hear[1][:, :, columns])
    assert not torch.equal(new.hear[1], drawn.hear[1])


def test_a_mistaken_label_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: rows are taken by their number."""
    case, there = NETWORKS[0], wider(MOLECULES)
    old, new = build(case), case.build(there, Generator().manual_seed(5)).double()
    monkeypatch.setattr(
        GraphPotential,
        "labels",
        lambda self: {
            f"hear.{n}": {axis: range(tensor.shape[axis]) for axis in (1, 2)}
            for n, tensor in enumerate(self.hear)
        },
    )
    inherit(new, old, range(LEVELS))
    values = values_on(MOLECULES, 3)
    found = new.score(moved(MOLECULES, there, values))
    assert not torch.allclose(found, old.score(values), atol=1e-3)


@pytest.mark.parametrize("levels", [(0,), (1, 1), (0, 0, 1)])
def test_levels_are_taken_from_the_given_ones(levels: tuple[int, ...]) -> None:
    old = GraphPotential(MOLECULES, LEVELS, 2, 4)
    new = GraphPotential(MOLECULES, len(levels), 2, 4, rng=Generator().manual_seed(9))
    inherit(new, old, levels)
    worlds = values_on(MOLECULES, 1)[:1]
    here = new.score(worlds.expand(len(levels), -1, -1))
    there = old.score(worlds.expand(LEVELS, -1, -1))
    assert torch.equal(here, there[list(levels)])


def test_weights_of_formulas_are_taken_by_their_text() -> None:
    language = MOLECULES.language
    texts = ("1 atom(x, +t)", "2 bond(x, y, double)")
    old = FormulaPotential(MOLECULES, [parse_formula(text, language) for text in texts])
    with torch.no_grad():
        old.weights.copy_(torch.tensor([[5.0, 6, 7, 8]]))
    there = wider(MOLECULES)
    texts = ("9 bond(x, y, double)", "3 bond(x, y, new)", "1 atom(x, +t)")
    new = FormulaPotential(there, [parse_formula(text, there.language) for text in texts])
    inherit(new, old, [0])
    assert new.weights.tolist() == [[8, 3, 5, 1, 6, 7]]


def test_another_form_is_refused_by_the_name_of_its_weights() -> None:
    old = GraphPotential(MOLECULES, LEVELS, 2, 4)
    with pytest.raises(InputError, match=r"hear\.1 are of shape \[2, 4, 12\]") as error:
        inherit(GraphPotential(MOLECULES, LEVELS, 2, 5), old, range(LEVELS))
    assert error.value.kind == "conflict"


def test_every_label_names_a_parameter() -> None:
    for case in CASES:
        potential: BasePotential = build(case)
        shapes = {name: parameter.shape for name, parameter in potential.named_parameters()}
        for name, axes in labels_of(potential).items():
            for axis, labels in axes.items():
                assert shapes[name][axis] == len(labels) == len(set(labels)), (case.name, name)


def test_differences_of_languages_are_named() -> None:
    one = MOLECULES.language
    names = ("the model", "the data set")
    assert difference(one, wider(MOLECULES).language, names) is None
    assert new_values(one, wider(MOLECULES).language) == ["bond new", "atom new"]
    assert new_values(wider(MOLECULES).language, one) == []
    more = Language(*one, predicate("charged", "node"))
    assert difference(one, more, names) == "only the data set has charged(node)."
    assert difference(more, one, names) == "only the model has charged(node)."
    sorts = [predicate("p", "a"), predicate("q", "b")]
    found = difference(Language(*sorts), Language(*sorts[::-1]), names)
    assert found == "the data set has the sorts b, a, in another order."
