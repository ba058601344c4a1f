"""A model of several domains: sizes by their shares, other sizes, files, and what it refuses."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

import nmln
from nmln.buckets import Bucket
from nmln.config import configure
from nmln.errors import InputError
from nmln.language import Attribute, Language, predicate
from nmln.model import Model
from nmln.model.assembly import from_description
from nmln.model.domains import choose, holding
from nmln.molecules.chemistry import encode_all, space_for
from nmln.noise import uniform
from nmln.potentials.graph import GraphPotential
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from tests.molecules.test_sizes import FIVE, THREE
from tests.runs.main_jobs import MOLECULES

QUICK: dict[str, Any] = {"chains": 10, "burn_in": 5, "thin": 2}
CONFIG = configure(
    {
        "ladder": {"rates": [0.3, 0.1, 0.02]},
        "model": {"layers": 1, "hidden": 4},
        "chains": {"replicas": 16, "moves": 2},
        "training": {"steps": 3, "batch": 16},
    }
)
ATOMS = ("C", "N", "O")
SMILES = {3: THREE, 4: MOLECULES, 5: FIVE}


def buckets() -> list[Bucket]:
    """As many sizes as levels: an axis of domains must not be taken for one of levels."""
    spaces = {size: space_for(ATOMS, size) for size in SMILES}
    return [Bucket(spaces[size], encode_all(spaces[size], SMILES[size]).worlds) for size in SMILES]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.build(buckets(), config=CONFIG)


def sizes(found: list[Any]) -> Counter[int]:
    letters = {text: sum(letter in "CNOcno" for letter in text) for text in found}
    return Counter(letters[text] for text in found)


def test_results_have_the_sizes_of_the_data(model: Model) -> None:
    found = model.generate(280, seed=3, **QUICK)
    counts = sizes(found)
    assert counts.keys() == {3, 4, 5}
    for size, share in zip((3, 4, 5), (10 / 56, 40 / 56, 6 / 56), strict=True):
        assert abs(counts[size] - 280 * share) < 4 * (280 * share * (1 - share)) ** 0.5
    assert model.generate(280, seed=3, **QUICK) == found
    assert model.generate(280, seed=4, **QUICK) != found
    assert [one.share for one in model.domains] == [10 / 56, 40 / 56, 6 / 56]


def test_sizes_can_be_chosen(model: Model) -> None:
    assert sizes(model.generate(20, size=5, **QUICK)) == {5: 20}
    counts = sizes(model.generate(320, sizes=(3, 5), **QUICK))
    assert counts.keys() == {3, 5}
    assert abs(counts[3] - 200) < 4 * (320 * 10 * 6 / 256) ** 0.5
    assert None in model.generate(60, seed=1, valid_only=False, **QUICK)


def test_a_size_that_was_not_in_the_data_is_an_extrapolation(model: Model) -> None:
    with pytest.warns(UserWarning, match=r"size 6: it was trained on 3, 4, 5\. .*extrapolation"):
        found = model.generate(5, size=6, **QUICK)
    assert sizes(found) == {6: 5}
    with pytest.warns(UserWarning, match="size 6"):
        counts = sizes(model.generate(100, sizes=(4, 6), **QUICK))
    assert 30 <= counts[6] <= 70, "evenly, since nothing is known about its share"


def test_a_model_of_one_domain_has_its_size_and_others() -> None:
    single = Model.build(buckets()[1].space, buckets()[1].worlds, CONFIG)
    assert not single.domains
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert single.generate(8, size=4, **QUICK) == single.generate(8, **QUICK)
    with pytest.warns(UserWarning, match="trained on 4"):
        assert sizes(single.generate(4, size=3, **QUICK)) == {3: 4}


def test_one_bucket_is_the_same_as_its_space_and_worlds() -> None:
    bucket = buckets()[1]
    one, other = (
        Model.build(bucket.space, bucket.worlds, CONFIG),
        Model.build([bucket], config=CONFIG),
    )
    assert one.describe() == other.describe()
    for name, tensor in one.potential.state_dict().items():
        assert torch.equal(tensor, other.potential.state_dict()[name])


def test_parameters_are_shared_with_every_domain(model: Model) -> None:
    there = model.on(model.domains[2].space)
    assert there.space == model.domains[2].space
    assert not there.domains
    own = {parameter.data_ptr() for parameter in model.potential.parameters()}
    assert {parameter.data_ptr() for parameter in there.potential.parameters()} == own


def test_a_fitted_model_has_the_domains_of_its_data() -> None:
    found = Model.fit(buckets(), config=CONFIG)
    assert len(found.domains) == 3
    assert len(found.generate(6, **QUICK)) == 6


def test_a_saved_model_is_read_back(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    back = nmln.load(tmp_path / "model")
    assert back.domains == model.domains
    assert back.generate(12, seed=5, **QUICK) == model.generate(12, seed=5, **QUICK)
    world = model.domains[1].space
    values = encode_all(world, MOLECULES[:5]).worlds.expand(3, -1, -1)
    assert torch.equal(
        back.on(world).potential.score(values), model.on(world).potential.score(values)
    )


def test_the_model_of_one_domain_is_saved_without_the_others(model: Model, tmp_path: Path) -> None:
    for number, size in enumerate((4, 7)):
        one = model.on(Space(model.space.language, {"node": size}), warn=False)
        one.save(tmp_path / str(number))
        again = Model.load(tmp_path / str(number))
        assert again.space == one.space
        assert not again.domains
        worlds = uniform(one.space, 3, 20, Generator().manual_seed(0))
        torch.testing.assert_close(again.potential.score(worlds), one.potential.score(worlds))


def test_levels_are_taken_on_every_domain(model: Model) -> None:
    for domain in model.domains:
        there = model.on(domain.space)
        values = encode_all(domain.space, SMILES[len(domain.space.domain["node"])]).worlds
        whole = there.potential.score(values.expand(3, -1, -1))
        for level in (0, 1, 2, -1):
            alone = there.level(level).score(values[None])
            assert torch.allclose(alone, whole[level][None])
            again = model.level(level).on(domain.space).score(values[None])
            assert torch.allclose(again, whole[level][None])


def test_a_model_of_one_domain_is_described_as_before() -> None:
    bucket = buckets()[0]
    assert Model.build(bucket.space, bucket.worlds, CONFIG).describe().keys() == {
        "program",
        "config",
    }


FORGED: dict[str, Any] = {
    "no list": 3,
    "no table": [1, 2],
    "one domain": [{"domain": {"node": 3}, "share": 1.0}],
    "no share": [{"domain": {"node": 3}}, {"domain": {"node": 4}}],
    "shares beyond one": [{"domain": {"node": n}, "share": 0.7} for n in (3, 4)],
    "a negative share": [{"domain": {"node": n}, "share": 4.0 * (n == 3) - 1.5} for n in (3, 4)],
    "a share of nothing": [{"domain": {"node": n}, "share": float("nan")} for n in (3, 4)],
    "another first domain": [{"domain": {"node": n}, "share": 0.5} for n in (4, 3)],
    "an endless domain": [{"domain": {"node": n}, "share": 0.5} for n in (3, 10**12)],
}


@pytest.mark.parametrize("name", FORGED)
def test_domains_that_are_none_are_refused(model: Model, name: str) -> None:
    with pytest.raises(InputError) as error:
        from_description({**model.describe(), "domains": FORGED[name]}, "model.json")
    assert error.value.source == "model.json"


@pytest.mark.filterwarnings("ignore:this model has not seen worlds of size [26]:UserWarning")
def test_a_query_is_about_the_domain_of_its_evidence(model: Model) -> None:
    for size in (3, 6):  # one of the data, and another one
        space = space_for(ATOMS, size)
        evidence = nmln.Evidence.of(space, [nmln.Literal("atom", ("0", "O"))])
        asked = model.given(evidence)
        assert asked.space == space
        worlds = encode_all(space, ["C" * (size - 1) + "O"]).worlds
        score = model.on(space).level(-1).score(worlds[None])
        assert torch.equal(asked.target.score(worlds[None]), score)
    space = space_for(ATOMS, 2)
    with torch.no_grad():
        chances = model.on(space).level(-1).score(space.enumerate()[None])[0].double().softmax(0)
    exact = float(chances[space.enumerate()[:, 0] == 2].sum())
    evidence = nmln.Evidence.none(space)
    assert model.given(evidence).marginals("atom(0, O)").answers[0].value == pytest.approx(exact)
    report = nmln.VirtualEvidence.of(space, [(nmln.Literal("atom", ("0", "O")), 0.8)], evidence)
    odds = exact / (1 - exact) * 4
    found = model.given(None, report).marginals("atom(0, O)").answers[0].value
    assert found == pytest.approx(odds / (1 + odds))
    other = Space(Language(predicate("p", "node")), {"node": 2})
    with pytest.raises(InputError, match="another language"):
        model.given(nmln.Evidence.none(other))


def test_constants_find_their_domain(model: Model) -> None:
    assert holding(model.domains, model.space, {"node": ("4",)}) == (model.domains[2].space, False)
    with pytest.raises(InputError, match=r"\(4, 5\)\. Choose one: --size N"):
        holding(model.domains, model.space, {"node": ("3", "1")})
    with pytest.raises(InputError, match=r"numbered from 0 to 4 in this model, got 5\."):
        holding(model.domains, model.space, {"node": ("0", "5")})
    space, new = holding(model.domains, model.space, {"node": ("a", "b")})
    assert (space.domain, new) == ({"node": ("a", "b")}, True)
    language = Language(predicate("owns", "person", "thing"))
    space = Space(language, {"person": ["Anna"], "thing": ["car", "cat"]})
    assert holding((), space, {"person": (), "thing": ("cat",)}) == (space, False)
    found, new = holding((), space, {"person": ("Bob", "Carl"), "thing": ()})
    assert (found.domain, new) == ({"person": ("Bob", "Carl"), "thing": ("car", "cat")}, True)
    found, new = holding((), space, {"person": ("Bob", "Carl"), "thing": ("cat",)})
    assert (found.domain, new) == ({"person": ("Bob", "Carl"), "thing": ("car", "cat")}, True)
    with pytest.raises(InputError, match=r"Bob is not a constant of sort person .*, but Anna is"):
        holding((), space, {"person": ("Bob", "Anna"), "thing": ()})


def test_what_needs_one_domain_says_so(model: Model) -> None:
    with pytest.raises(InputError, match=r"several \(3, 4, 5\)\. Choose one: model\.on") as error:
        next(model.sample(3, Generator()))
    assert error.value.kind == "unsupported"
    with pytest.raises(InputError, match="a query needs a model of one domain"):
        model.given()
    with pytest.raises(InputError, match="fitting betas"):
        model.weighed(buckets()[0].worlds, 2)
    with pytest.raises(InputError, match="several domains cannot be combined"):
        Model.combined([model, model])
    evidence = nmln.Evidence.of(model.space, [nmln.Literal("atom", ("0", "O"))])
    with pytest.raises(InputError, match="Choose one with size"):
        model.generate(3, evidence=evidence, **QUICK)
    assert all("O" in one for one in model.generate(3, evidence=evidence, size=3, **QUICK))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 3, "sizes": (3, 4)}, "both choose"),
        ({"sizes": ()}, "at least one"),
        ({"sizes": (3, 3)}, "different numbers"),
        ({"size": 0}, "at least 1"),
    ],
)
def test_sizes_that_are_none_are_refused(model: Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        model.generate(4, **QUICK | options)


def test_a_size_is_that_of_one_sort() -> None:
    language = Language(predicate("owns", "person", "thing"))
    spaces = [Space(language, {"person": n, "thing": 2}) for n in (2, 3)]
    made = Model.build(
        [Bucket(one, one.enumerate()) for one in spaces],
        config=configure(
            {"ladder": {"rates": [0.2, 0.02]}, "model": {"potential": "deepset", "sizes": [4]}}
        ),
    )
    with pytest.raises(InputError, match="one sort, but this language has person, thing"):
        made.generate(3, size=4, **QUICK)
    assert len(made.generate(6, **QUICK)) == 6


PEOPLE = Language(predicate("smokes", "person"), predicate("friends", "person", "person"))


def people(size_or_names: Any, count: int, chance: float) -> Bucket:
    space = Space(PEOPLE, {"person": size_or_names})
    drawn = torch.rand(count, space.groups, generator=Generator().manual_seed(count))
    return Bucket(space, (drawn < chance).to(space.dtype))


def test_domains_of_one_size_count_together() -> None:
    data = [people(["Anna", "Bob"], 100, 0.1), people(["X", "Y"], 300, 0.9), people(3, 100, 0.5)]
    made = Model.build(data, config=CONFIG)
    assert isinstance(made.potential, TotalPotential)
    with torch.no_grad():
        for beta in made.potential.betas[:-1]:
            beta.zero_()  # the base term alone
    for domain in made.domains[:2]:
        asked = made.given(nmln.Evidence.none(domain.space))
        name = domain.space.domain["person"][1]
        found = asked.marginals(f"smokes({name})").answers[0].value
        assert found == pytest.approx(0.7, abs=0.05)
    chosen = choose(made.domains, made.space, [2, 3])
    assert [one.space for one in chosen] == [made.domains[0].space, made.domains[2].space]
    assert [one.share for one in chosen] == pytest.approx([0.8, 0.2])
    assert [made.share_of(one.space) for one in data] == [0.2, 0.6, 0.2]


def test_a_domain_is_given_once() -> None:
    data = [people(["Anna", "Bob"], 5, 0.1), people(["Anna", "Bob"], 6, 0.1), people(3, 5, 0.5)]
    with pytest.raises(InputError, match=r"2 have the same one of 2\. Put their worlds into one"):
        Model.build(data, config=CONFIG)


def test_a_size_far_beyond_the_data_is_announced_with_its_groups(model: Model) -> None:
    with pytest.warns(UserWarning, match=r"has 231 groups, the largest of the data 15: .* long"):
        choose(model.domains, model.space, [21])
    with pytest.warns(UserWarning, match=r"an extrapolation\.$"):
        choose(model.domains, model.space, [20])


def test_data_are_given_in_one_way() -> None:
    bucket = buckets()[0]
    with pytest.raises(InputError, match="either a space and worlds, or buckets"):
        Model.build([bucket], bucket.worlds)
    with pytest.raises(InputError, match="no worlds"):
        Model.build(bucket.space)
    with pytest.raises(InputError, match="no worlds"):
        Model.build([bucket, Bucket(bucket.space, bucket.worlds[:0])])
    with pytest.raises(InputError, match="no worlds"):
        Model.build([])


def test_sampled_sizes_and_worlds_have_the_exact_probabilities() -> None:
    """On spaces of two sizes: P(world) = P(size) P(world | size), held against enumeration."""
    language = Language(
        Attribute("type", ("node",), tuple("AB")),
        predicate("bond", "node", "node", symmetric=True, reflexive=False),
    )
    spaces = [Space(language, {"node": n}) for n in (2, 3)]
    data = [
        Bucket(spaces[0], spaces[0].enumerate()[:2].repeat(10, 1)),
        Bucket(spaces[1], spaces[1].enumerate()[:30]),
    ]
    config = configure({"ladder": {"rates": [0.2, 0.1]}, "model": {"layers": 1, "hidden": 8}})
    made = Model.build(data, config=config)
    assert any(isinstance(part, GraphPotential) for part in made.potential.modules())
    found = Counter(made.generate(4000, seed=1, chains=400, burn_in=30, thin=2, kind="atoms"))
    exact: dict[Any, float] = {}
    for domain in made.domains:
        there = made.on(domain.space)
        worlds = domain.space.enumerate()
        with torch.no_grad():
            chances = there.level(-1).score(worlds[None])[0].double().softmax(0) * domain.share
        for world, chance in zip(worlds, chances.tolist(), strict=True):
            exact[frozenset(nmln.true_atoms(domain.space, world))] = chance
    distance = sum(abs(found[one] / 4000 - chance) for one, chance in exact.items()) / 2
    assert distance < 0.08
    assert abs(sum(exact.values()) - 1) < 1e-9
