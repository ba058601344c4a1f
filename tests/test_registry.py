"""Registries, and what must exist for everything that is registered."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

import nmln
from nmln.config import ModelConfig, configure
from nmln.errors import InputError
from nmln.formats.registry import FORMATS
from nmln.kernels.combined import simple_kernels
from nmln.kernels.registry import KERNELS, kernel_named
from nmln.language import Language, predicate
from nmln.potentials.base import BasePotential, NeuralPotential
from nmln.potentials.registry import POTENTIALS
from nmln.registry import Registry
from nmln.space import Space
from tests.formats import test_contract as format_contract
from tests.kernels import test_exactness, test_structural
from tests.potentials import test_contract

ROOT = Path(__file__).parents[1]
SPACE = Space(Language(predicate("p", "a"), predicate("r", "a", "a", symmetric=True)), {"a": 3})
PAGES = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/**/*.md"))}


def kernel_classes(name: str) -> list[type]:
    """The classes that a registered kernel is made of, without the laziness around it."""
    return [type(kernel) for kernel in simple_kernels(kernel_named(name, SPACE))]


def potential_class(name: str) -> type:
    return POTENTIALS[name].family


REGISTERED = [
    *(
        pytest.param(name, family, id=f"kernel {name}, {family.__name__}")
        for name in KERNELS
        for family in kernel_classes(name)
    ),
    *(pytest.param(name, potential_class(name), id=f"potential {name}") for name in POTENTIALS),
]


@pytest.mark.parametrize(("name", "family"), REGISTERED)
def test_it_is_exported(name: str, family: type) -> None:
    assert getattr(nmln, family.__name__, None) is family, "add it to _HOMES of nmln/__init__.py"


@pytest.mark.parametrize(("name", "family"), REGISTERED)
def test_it_is_documented(name: str, family: type) -> None:
    reference = f"::: {family.__module__}\n"
    assert any(reference in text for text in PAGES.values()), f"add {reference!r} to the reference"
    rows = [line for text in PAGES.values() for line in text.splitlines() if line.startswith("|")]
    assert any(f"`{family.__name__}`" in row for row in rows), "add a row to the guide"
    assert any(f"`{name}`" in text for text in PAGES.values()), f"say that its name is `{name}`"


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_in_the_contract_tests(name: str) -> None:
    assert [case.name for case in format_contract.CASES].count(name) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_documented(name: str) -> None:
    module = FORMATS[name].read.__module__
    assert any(f"::: {module}\n" in text for text in PAGES.values()), (
        f"add {module} to the reference"
    )
    guide = PAGES[ROOT / "docs" / "how-to" / "formats.md"]
    rows = [line for line in guide.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"add a row that starts with `{name}` to the table of formats"
    for suffix in FORMATS[name].suffixes:
        assert f"`{suffix}`" in rows[0], f"say that files end in {suffix}"


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_its_transition_matrix_in_the_exactness_tests(name: str) -> None:
    built = {type(build(None)) for build, _ in test_exactness.KERNELS.values()}
    assert set(kernel_classes(name)) <= built | set(test_structural.MOVES)


@pytest.mark.parametrize("name", POTENTIALS)
def test_a_potential_is_in_the_contract_tests(name: str) -> None:
    assert potential_class(name) in contract_classes()


def test_every_class_of_the_room_of_potentials_is_in_the_contract_tests() -> None:
    list(POTENTIALS)  # imports the whole room
    missing = {one for one in concrete(BasePotential) if one.__module__.startswith("nmln.potent")}
    missing -= contract_classes()
    assert not missing


def contract_classes() -> set[type]:
    rng = torch.Generator().manual_seed(0)
    return {type(case.build(case.space, rng)) for case in test_contract.CASES}


def concrete(family: type) -> set[type]:
    below = family.__subclasses__()
    found = {one for one in below if not getattr(one, "__abstractmethods__", None)}
    return found.union(*(concrete(one) for one in below))


def test_the_settings_name_the_registered_potentials() -> None:
    assert sorted(get_args(get_type_hints(ModelConfig)["potential"])) == list(POTENTIALS)
    with pytest.raises(InputError, match=r"model\.potential must be one of 'graph', 'fragment'"):
        configure({"model": {"potential": "grahp"}})


def test_a_named_network_is_of_its_class() -> None:
    space = Space(Language(predicate("r", "a", "a")), {"a": 3})
    model = ModelConfig(layers=1, hidden=4)
    for name, named in POTENTIALS.items():
        if named.network is not None:
            network = named.network(space, 2, model, torch.Generator().manual_seed(0))
            assert type(network) is named.family, name
            assert network.levels == 2
            held = sum(tensor.numel() for tensor in network.parameters())
            assert 2 * named.fewest(space, model) <= held


def test_names_are_unique_sorted_and_unknown_ones_are_refused() -> None:
    registry: Registry[int] = Registry("number", "nmln.experiments", "nmln.report")
    registry.add("two", 2)
    registry.add("one", 1)
    assert list(registry) == ["one", "two"]
    assert len(registry) == registry.named("two") == 2
    with pytest.raises(InputError, match="twice"):
        registry.add("two", 3)
    with pytest.raises(InputError, match="no number 'three'") as caught:
        registry.named("three")
    assert caught.value.token == "three"


def test_classes_for_extension_are_public() -> None:
    assert nmln.BasePotential is BasePotential
    assert nmln.NeuralPotential is NeuralPotential
    assert isinstance(kernel_named("gibbs", SPACE), nmln.Kernel)
    assert nmln.parse_mln("p(a)") == nmln.Program(Language(predicate("p", "a")))
