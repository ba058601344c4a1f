"""Replicas that come with a model: kept, read with suspicion, and started from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Generator, Tensor

from nmln.buckets import Bucket
from nmln.checkpoint import load_model, save_model
from nmln.config import Config, configure
from nmln.errors import InputError
from nmln.evidence import Evidence
from nmln.language import Language, predicate
from nmln.model import Model
from nmln.model.replicas import BURN_IN, DECORRELATION, Replicas, chosen, decide
from nmln.space import Space
from nmln.training import Trainer, train
from nmln.training.mixing import Mixing, forgetting, mixing_sweeps
from tests.exact import distribution

pytestmark = pytest.mark.usefixtures("unchecked")

LANGUAGE = Language(
    predicate("red", "node"), predicate("edge", "node", "node", symmetric=True, reflexive=False)
)
SPACE, LARGER = (Space(LANGUAGE, {"node": size}) for size in (3, 4))


def config(**training: Any) -> Config:
    return configure(
        {
            "ladder": {"rates": [0.3, 0.15, 0.02]},
            "model": {"layers": 1, "hidden": 4},
            "chains": {"moves": 2, "replicas": 40, "sweeps": 10},
            "sampling": {"moves": 2},
            "training": {"steps": 30, "batch": 20, **training},
        }
    )


def worlds(space: Space, seed: int = 0) -> Tensor:
    """Worlds in which few nodes are red and most edges are there."""
    uniform = torch.rand(60, space.groups, generator=Generator().manual_seed(seed))
    likely = torch.full((space.groups,), 0.95)
    likely[: len(space.domain["node"])] = 0.05
    return (uniform < likely).to(space.dtype)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    """A training that is long enough for its chains to be kept."""
    found = Trainer(Model.build(SPACE, worlds(SPACE), config()).potential, worlds(SPACE), config())
    for _ in train(found):
        pass
    return found


@pytest.fixture(scope="module")
def model(trainer: Trainer) -> Model:
    """The model of that training, with its replicas."""
    built = Model.build(SPACE, worlds(SPACE), config()).averaged(trainer)
    return replace(built, replicas=Replicas.mixed(trainer))


def exact_replicas(model: Model, count: int) -> Replicas:
    """Independent draws from every level, by enumeration."""
    rng, listed = Generator().manual_seed(1), model.space.enumerate()
    sampled = model.chains().potential
    rows = [
        listed[
            torch.multinomial(distribution(sampled, level), count, replacement=True, generator=rng)
        ]
        for level in range(model.method.chain_levels)
    ]
    return Replicas((torch.stack(rows),), 0, 1)


def p_value(model: Model, drawn: Tensor, level: int = -1) -> float:
    """Whether worlds are draws from a level of a model; few are compared by their numbers of atoms."""
    listed = model.space.enumerate()
    exact = distribution(model.chains().potential, level)
    observed = (drawn[:, None] == listed).all(-1).double().sum(0)
    if len(drawn) < 1000:
        kinds = listed.long().sum(1)
        observed, exact = (
            torch.zeros(7).double().index_add(0, kinds, one) for one in (observed, exact)
        )
    wanted = exact * len(drawn)
    common = wanted >= 5
    one, other = (
        torch.cat([part[common], part[~common].sum()[None] + 1e-9]).numpy()
        for part in (observed, wanted)
    )
    return float(chisquare(one, other).pvalue)


def target(model: Model, **options: Any) -> Tensor:
    (sweep,) = model.sample(1, Generator().manual_seed(4), burn_in=0, **options)
    return sweep.state.values[-1]


def test_sampling_from_replicas_keeps_the_exact_distribution(model: Model) -> None:
    started = replace(model, replicas=exact_replicas(model, 4000))
    assert p_value(model, target(started, chains=4000, start="model")) > 1e-3


def test_the_check_rejects_chains_of_another_target(model: Model) -> None:
    (values,) = exact_replicas(model, 4000).values
    wrong = replace(model, replicas=Replicas((values.flip(0),), 0, 1))  # levels in the wrong order
    assert p_value(model, target(wrong, chains=4000, start="model")) < 1e-4


def test_the_chains_of_a_training_are_mixed_under_the_averaged_weights(model: Model) -> None:
    assert model.replicas is not None
    (values,) = model.replicas.values
    assert values.shape == (3, 80, SPACE.groups)  # 40 chains, kept twice in 50 sweeps
    assert model.replicas.sweeps == 50
    for level in range(3):
        assert p_value(model, values[level], level) > 1e-3


def test_the_check_rejects_the_chains_of_another_level(model: Model) -> None:
    assert model.replicas is not None
    (values,) = model.replicas.values
    assert p_value(model, values[0], -1) < 1e-4


def test_mixing_leaves_the_training_as_it_is_and_can_be_repeated(trainer: Trainer) -> None:
    before = [part.chains.values.clone() for block in trainer.blocks for part in block.parts]
    states = [block.chains.rng.get_state() for block in trainer.blocks]
    one, other = Replicas.mixed(trainer), Replicas.mixed(trainer)
    assert one is not None
    assert other is not None
    assert one.digest == other.digest
    after = [part.chains.values for block in trainer.blocks for part in block.parts]
    assert all(map(torch.equal, before, after))
    assert all(
        torch.equal(state, block.chains.rng.get_state())
        for state, block in zip(states, trainer.blocks, strict=True)
    )


@pytest.mark.parametrize(
    ("changes", "sweeps"), [({"steps": 29}, 0), ({"warm_start": 1}, 0), ({"steps": 3000}, 100)]
)
def test_only_chains_of_a_long_enough_training_are_kept(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sweeps: int
) -> None:
    asked = config(**changes)
    monkeypatch.setattr(trainer, "config", asked)
    monkeypatch.setattr(trainer, "step_number", asked.training.steps)
    assert mixing_sweeps(trainer) == sweeps
    if not sweeps:
        assert Replicas.mixed(trainer) is None


def test_a_score_that_is_not_a_number_keeps_no_chains(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mixing, "sweep", lambda self: False)
    assert Replicas.mixed(trainer) is None


def test_every_domain_has_replicas_of_its_own(tmp_path: Path) -> None:
    buckets = [Bucket(space, worlds(space)) for space in (SPACE, LARGER)]
    model = Model.fit(buckets, config=config())
    assert model.replicas is not None
    shapes = [values.shape[2] for values in model.replicas.values]
    assert shapes == [SPACE.groups, LARGER.groups]
    model.save(tmp_path / "model")
    model = Model.load(tmp_path / "model")
    for number, space in enumerate((SPACE, LARGER)):
        found = model.on(space).replicas
        assert found is not None
        assert model.replicas is not None
        assert torch.equal(found.values[0], model.replicas.values[number])
    with pytest.warns(UserWarning, match="extrapolation"):
        assert model.on(Space(LANGUAGE, {"node": 5})).replicas is None
    assert len(model.generate(6, chains=3, start="model")) == 6


def test_a_model_is_saved_with_its_replicas(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    found = Model.load(tmp_path / "model")
    assert found.replicas is not None
    assert model.replicas is not None
    assert found.replicas.digest == model.replicas.digest
    assert found.replicas.described() == model.replicas.described()
    draws = [one.generate(9, seed=2, chains=3, kind="atoms") for one in (model, found)]
    assert draws[0] == draws[1]


def test_a_model_without_replicas_is_saved_as_before(model: Model, tmp_path: Path) -> None:
    plain = replace(model, replicas=None)
    plain.save(tmp_path / "model")
    tensors, content = load_model(tmp_path / "model")
    assert content == plain.describe()
    assert tensors.keys() == plain.potential.state_dict().keys()
    assert Model.load(tmp_path / "model").replicas is None


BROKEN: dict[str, Callable[[dict, dict], Any]] = {
    "a category that does not exist": lambda tensors, _: tensors["replicas.0"].fill_(9),
    "another type": lambda tensors, _: tensors.update(
        {"replicas.0": tensors["replicas.0"].float()}
    ),
    "a level too few": lambda tensors, _: tensors.update(
        {"replicas.0": tensors["replicas.0"][:2].clone()}
    ),
    "no chain": lambda tensors, _: tensors.update(
        {"replicas.0": tensors["replicas.0"][:, :0].clone()}
    ),
    "a domain too many": lambda tensors, _: tensors.update(
        {"replicas.1": tensors["replicas.0"].clone()}
    ),
    "no worlds": lambda tensors, _: tensors.pop("replicas.0"),
    "no numbers": lambda _, content: content.pop("replicas"),
    "numbers of another type": lambda _, content: content.update(replicas={"sweeps": True}),
    "a list": lambda _, content: content.update(replicas=[1, 2]),
    "a negative number": lambda _, content: content["replicas"].update(forgetting=-1),
    "a huge number": lambda _, content: content["replicas"].update(sweeps=2**40),
}


@pytest.mark.parametrize("name", BROKEN)
def test_replicas_of_a_received_model_are_checked(model: Model, tmp_path: Path, name: str) -> None:
    model.save(tmp_path / "model")
    tensors, content = load_model(tmp_path / "model")
    BROKEN[name](tensors, content)
    save_model(tmp_path / "model", tensors, content)
    with pytest.raises(InputError, match="replicas") as caught:
        Model.load(tmp_path / "model")
    assert caught.value.kind == "damaged"


def test_a_burn_in_that_is_given_is_one_from_noise(model: Model) -> None:
    """Bit for bit what a model without replicas gives, as in earlier versions."""
    plain, rng = replace(model, replicas=None), lambda: Generator().manual_seed(3)
    given: tuple[dict[str, Any], ...] = ({"burn_in": 7}, {"start": "noise"})
    for options in given:
        ours, theirs = (
            [sweep.state.values for sweep in one.sample(110, rng(), chains=4, **options)]
            for one in (model, plain)
        )
        assert all(map(torch.equal, ours, theirs))
        drawn = [one.generate(6, chains=2, kind="atoms", **options) for one in (model, plain)]
        assert drawn[0] == drawn[1]


def test_a_burn_in_and_the_start_can_both_be_given(model: Model) -> None:
    quick = [sweep.number for sweep in model.sample(12, Generator(), chains=2, start="model")]
    longer = [
        sweep.number for sweep in model.sample(12, Generator(), chains=2, start="model", burn_in=11)
    ]
    assert quick[0] == max(DECORRELATION, model.replicas.forgetting) + 1  # pyright: ignore[reportOptionalMemberAccess]
    assert longer == [12]


def test_evidence_and_added_potentials_burn_in_from_noise(model: Model) -> None:
    evidence = Evidence.none(SPACE)
    plain = replace(model, replicas=None)
    ours, theirs = (
        one.generate(3, chains=3, kind="atoms", evidence=evidence) for one in (model, plain)
    )
    assert ours == theirs
    with pytest.raises(InputError, match="evidence, a potential or sharpening"):
        model.generate(3, kind="atoms", evidence=evidence, start="model")


def test_replicas_are_no_longer_those_of_a_model_that_is_changed(model: Model) -> None:
    assert Model.combined([model, model]).replicas is None
    assert replace(model, replicas=None).mixed(4, 2).replicas is not None


SOME = Replicas((torch.zeros(2, 3, 4, dtype=torch.uint8),), 100, 15)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (True, 15, "chains of the model")),
        ({"pace": 0.5}, (True, 30, "chains of the model")),
        ({"pace": 0.01}, (True, BURN_IN, "chains of the model")),
        ({"start": "noise"}, (False, BURN_IN, "noise: asked for")),
        ({"burn_in": 40}, (False, 40, "noise: a burn-in is given")),
        ({"start": "model", "burn_in": 2}, (True, 2, "chains of the model")),
        ({"condition": "a scaffold is given"}, (False, BURN_IN, "noise: a scaffold is given")),
        ({"replicas": [None]}, (False, BURN_IN, "noise: the model has no chains of its own")),
        (
            {"replicas": [SOME, None]},
            (False, BURN_IN, "noise: one of the sizes has no chains in the model"),
        ),
    ],
)
def test_where_chains_start(options: dict[str, Any], expected: tuple) -> None:
    given = {"start": "auto", "burn_in": None, "replicas": [SOME], **options}
    assert decide(**given) == expected


def test_starts_that_are_not_possible_are_refused() -> None:
    with pytest.raises(InputError, match="no chains of its own") as caught:
        decide("model", None, [None])
    assert caught.value.token == "model"
    with pytest.raises(InputError, match="auto, noise or model"):
        decide("chains", None, [SOME])  # pyright: ignore[reportArgumentType]


def test_each_replica_is_taken_once_before_any_is_taken_again() -> None:
    found = chosen(5, 12, Generator().manual_seed(0))
    assert sorted(found[:5].tolist()) == sorted(found[5:10].tolist()) == list(range(5))
    assert found[:5].tolist() != found[5:10].tolist()
    assert len(found) == 12


class TestForgetting:
    """How soon chains leave the worlds that they are in."""

    def test_independent_worlds_are_forgotten_at_once(self) -> None:
        drawn = torch.randint(4, (40, 30, 3), generator=Generator().manual_seed(0))
        assert forgetting(drawn) == 1  # one in 64 is the same by chance

    def test_chains_that_stay_for_ten_sweeps_are_forgotten_then(self) -> None:
        drawn = torch.randint(9, (8, 200, 6), generator=Generator().manual_seed(0))
        found = forgetting(drawn.repeat_interleave(10, dim=0))
        assert found in (9, 10)  # a chain stays with probability 1 - lag / 10

    def test_frozen_chains_never_forget(self) -> None:
        drawn = torch.randint(9, (1, 50, 6), generator=Generator().manual_seed(0))
        assert forgetting(drawn.expand(60, -1, -1)) is None


class TestSharing:
    """Two samplings from the same replicas have no more in common than two that burnt in."""

    space = Space(LANGUAGE, {"node": 5})

    def shared(self, model: Model, **options: Any) -> int:
        """How many of 50 worlds two seeds share, from 100 replicas; 32,768 worlds are possible."""
        one, other = (
            set(model.generate(50, seed=seed, chains=50, thin=1, kind="atoms", **options))
            for seed in (1, 2)
        )
        return len(one & other)

    def test_seeds_share_no_more_worlds(self) -> None:
        rng = Generator().manual_seed(0)
        data = torch.randint(2, (60, self.space.groups), generator=rng).to(self.space.dtype)
        model = Model.build(self.space, data, config()).mixed(100, 60)
        burnt_in = self.shared(model, start="noise", burn_in=60)
        assert burnt_in <= 3
        assert self.shared(model) <= 3
        assert model.replicas is not None
        (values,) = model.replicas.values
        starts = [
            {tuple(world.tolist()) for world in values[-1, chosen(100, 50, rng.manual_seed(seed))]}
            for seed in (1, 2)
        ]
        assert len(starts[0] & starts[1]) > 12  # without those sweeps they would be seen
