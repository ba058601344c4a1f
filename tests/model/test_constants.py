"""Constants in questions: new domains, misspelt names, and numbers of constants without data."""

import warnings
from collections.abc import Sequence

import pytest
import torch

import nmln
from nmln.config import configure
from nmln.errors import InputError
from nmln.language import Language, predicate
from nmln.model import Model
from nmln.model.constants import refuse_misspelled
from nmln.model.domains import holding
from nmln.space import Space

LANGUAGE = Language(predicate("smokes", "person"), predicate("friends", "person", "person"))
CONFIG = configure(
    {
        "ladder": {"rates": [0.3, 0.1]},
        "model": {"layers": 1, "hidden": 4},
        "chains": {"replicas": 8},
        "training": {"batch": 8},
    }
)


def people(names: Sequence[str] | int) -> Space:
    return Space(LANGUAGE, {"person": names})


def trained(*domains: Space) -> Model:
    data = [
        nmln.Bucket(one, torch.zeros(4, one.groups, dtype=one.dtype).bernoulli_(0.5, generator=rng))
        for one, rng in ((one, torch.Generator().manual_seed(0)) for one in domains)
    ]
    return Model.build(data, config=CONFIG)


@pytest.fixture(scope="module")
def model() -> Model:
    return trained(people(["Anna", "Bob", "Carl"]))


def about(*names: str) -> nmln.Evidence:
    return nmln.Evidence.of(people(names), [nmln.Literal("smokes", (names[0],))])


@pytest.mark.parametrize(
    ("names", "unknown", "said"),
    [
        (("Ana",), "Ana", "Did you mean Anna"),
        (("anna", "Xaver"), "anna", "Did you mean Anna"),
        (("Ana", "Bob"), "Ana", "but Bob is. Did you mean Anna"),
        (("Bob", "Zoe"), "Zoe", "but Bob is. For a new domain"),
        (("Xaver", "Yann", "Carll"), "Carll", "Did you mean Carl"),
    ],
)
def test_constants_that_are_partly_known_or_misspelt_are_refused(
    model: Model, names: tuple[str, ...], unknown: str, said: str
) -> None:
    for ask in (
        lambda: holding(model.domains, model.space, {"person": names}),
        lambda: model.given(about(*names)),
    ):
        with pytest.raises(InputError) as error:
            ask()
        assert (error.value.token, error.value.kind) == (unknown, "unknown")
        assert f"{unknown} is not a constant of sort person" in str(error.value)
        assert said in str(error.value)
        assert "--size N" in str(error.value)


def test_names_that_are_all_new_are_a_new_domain(model: Model) -> None:
    names = ("Xaver", "Yann", "Zoe")
    assert holding(model.domains, model.space, {"person": names}) == (people(names), True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the data had three constants
        assert model.given(about(*names)).space == people(names)
        # On purpose, names are free.
        assert model.on(people(["Ana", "Bob", "Zoe"])).given(about("Ana", "Bob", "Zoe"))


def test_numbers_are_not_misspellings() -> None:
    some = [people(["p1", "p2", "p10"])]
    refuse_misspelled(some, {"person": ("p3", "p4")})
    refuse_misspelled(some, {"person": ("0", "1")})
    refuse_misspelled([people(3)], {"person": ("0", "1", "2", "3")})
    with pytest.raises(InputError, match=r"0 is not a constant .*, but p1 is\."):
        refuse_misspelled(some, {"person": ("p1", "0")})


def test_many_names_are_not_compared_one_by_one() -> None:
    """400 million pairs would take hours."""
    some = [people([f"a{'x' * 20}{number}" for number in range(20)])]
    new = [f"b{'x' * 20}{number}y" for number in range(20_000)]
    refuse_misspelled(some, {"person": new})


def test_constants_of_different_domains_are_refused() -> None:
    made = trained(people(["Anna", "Bob"]), people(["Carl", "Dora", "Eve"]))
    with pytest.raises(InputError, match=r"no domain .* has all of the constants Anna, Carl"):
        holding(made.domains, made.space, {"person": ("Anna", "Carl")})


def test_a_number_of_constants_without_data_is_an_extrapolation(model: Model) -> None:
    said = r"size 2: it was trained on 3\. .*extrapolation"
    with pytest.warns(UserWarning, match=said) as seen:
        model.given(about("Xaver", "Yann"))
    assert len(seen) == 1
    with pytest.warns(UserWarning, match=said):
        model.on(people(2))
    several = trained(people(2), people(3))
    with pytest.warns(UserWarning, match=r"size 4: it was trained on 2, 3\."):
        several.on(people(4))
    with pytest.warns(UserWarning, match="size 4") as seen:
        several.generate(2, size=4, chains=2, burn_in=1, thin=1)
    assert len(seen) == 1
