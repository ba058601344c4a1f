"""Several models as one: its score is the mean of theirs, whatever they are made of."""

from pathlib import Path

import pytest
import torch

from nmln.config import configure, override
from nmln.errors import InputError
from nmln.formats.mln import parse_mln
from nmln.model import Model
from nmln.potentials.total import TotalPotential
from nmln.space import Space
from tests.model.test_domains import CONFIG as DOMAIN_CONFIG
from tests.model.test_domains import buckets

pytestmark = pytest.mark.usefixtures("unchecked")

PROGRAM = parse_mln(
    "person = {Anna, Bob}\nsmokes(person)\nfriends(person, person)\n"
    "0.7 smokes(x) ^ friends(x, y) => smokes(y)\n"
)
SPACE = Space(PROGRAM.language, PROGRAM.domain)
WORLDS = SPACE.enumerate()
CONFIG = configure(
    {
        "ladder": {"rates": [0.2, 0.02]},
        "model": {"layers": 1, "hidden": 4},
        "chains": {"replicas": 30, "sweeps": 1, "moves": 4},
        "training": {"batch": 30},
    }
)


def made(seed: int, *, formulas: bool = False, **settings: object) -> Model:
    """A model whose numbers are all its own, betas included."""
    config = override(
        CONFIG, {"model.seed": seed, **{f"model.{k}": v for k, v in settings.items()}}
    )
    model = Model.build(SPACE, WORLDS[:20], config, PROGRAM.formulas if formulas else ())
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.potential.state_dict().values():
            tensor.add_(0.3 * torch.randn(tensor.shape, generator=rng))
    return model


def scores(model: Model) -> torch.Tensor:
    return model.potential.score(WORLDS.expand(2, -1, -1))


@pytest.mark.parametrize("potential", ["graph", "fragment", "deepset", "formula"])
@pytest.mark.parametrize("bound", [0.0, 50.0])
@pytest.mark.parametrize("pieces", [False, True])
def test_the_score_is_the_mean(potential: str, bound: float, pieces: bool) -> None:
    models = [
        made(seed, formulas=True, potential=potential, bound=bound, pieces=pieces)
        for seed in range(3)
    ]
    whole = Model.combined(models)
    assert whole.config.model.networks == (1 if potential == "formula" else 3)
    mean = torch.stack([scores(model) for model in models]).mean(0)
    assert torch.allclose(scores(whole), mean, atol=1e-5)
    assert torch.allclose(
        whole.level(-1).score(WORLDS[None])[0], scores(whole)[-1], atol=1e-5
    )  # one level alone


def test_one_local_part_and_the_mean_of_them_serve_several_networks() -> None:
    config = override(
        DOMAIN_CONFIG, {"model.local": True, "model.pieces": True, "ladder.noise": "marginals"}
    )
    data = buckets()[1]
    models = [
        Model.build([data], config=override(config, {"model.seed": seed, "model.networks": 2}))
        for seed in range(2)
    ]
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for model in models:
            for name, tensor in model.potential.state_dict().items():
                if not name.endswith("known_sizes"):
                    tensor.add_(0.3 * torch.randn(tensor.shape, generator=rng))
    worlds = data.worlds.expand(3, -1, -1)
    whole = Model.combined(models)
    assert isinstance(whole.potential, TotalPotential)
    kinds = [type(part).__name__ for part in whole.potential.parts]
    assert kinds[4:] == ["IndependentPotential", "LocalPotential", "PiecesPotential"]
    mean = torch.stack([model.potential.score(worlds) for model in models]).mean(0)
    assert torch.allclose(whole.potential.score(worlds), mean, atol=1e-4)
    weighed = whole.weighed(data.worlds, steps=1)
    assert not any(
        torch.equal(one, other)
        for name, one in weighed.potential.named_parameters()
        if name.startswith("betas") and one.requires_grad
        for other in [dict(whole.potential.named_parameters())[name]]
        if name in ("betas.0", "betas.1")
    )
    with pytest.raises(InputError, match=r"differ in ladder\.noise"):
        Model.combined(
            [models[0], Model.build([data], config=override(config, {"ladder.noise": "uniform"}))]
        )


def test_a_combination_is_one_model_among_others(tmp_path: Path) -> None:
    one, two, three = (made(seed) for seed in range(3))
    both = Model.combined([one, two])
    both.save(tmp_path / "both")
    whole = Model.combined([Model.load(tmp_path / "both"), three])
    expected = (scores(one) + scores(two)) / 4 + scores(three) / 2
    assert torch.allclose(scores(whole), expected, atol=1e-5)


def test_several_networks_begin_different_and_as_a_mean() -> None:
    whole = Model.build(SPACE, WORLDS[:20], override(CONFIG, {"model.networks": 2}))
    first, second = (
        Model.build(SPACE, WORLDS[:20], override(CONFIG, {"model.seed": seed, "model.base": False}))
        for seed in range(2)
    )
    base = Model.build(SPACE, WORLDS[:20], CONFIG)
    without = override(CONFIG, {"model.base": False})
    alone = scores(base) - scores(Model.build(SPACE, WORLDS[:20], without))
    assert not torch.allclose(scores(first), scores(second))
    assert torch.allclose(scores(whole), (scores(first) + scores(second)) / 2 + alone, atol=1e-5)


def test_the_weights_of_networks_are_fitted_by_likelihood() -> None:
    """A model that was weakened is made strong again, and nothing but its betas changes."""
    friends = WORLDS[:, 2:].sum(1) == 2
    config = override(CONFIG, {"training.steps": 80, "optimiser.learning_rate": 0.03})
    taught = Model.fit(SPACE, WORLDS[friends], override(config, {"model.hidden": 16}))

    @torch.no_grad()
    def nats(model: Model) -> float:
        last = scores(model)[-1]
        return float((last - last.logsumexp(0))[friends].mean())

    best = nats(taught)
    with torch.no_grad():
        taught.potential.get_parameter("betas.0").mul_(0.3)
    whole = Model.combined([taught, taught])
    fitted = whole.weighed(WORLDS[friends], 80)
    assert nats(whole) < best - 0.3
    assert nats(fitted) > best - 0.1
    before, after = whole.potential.state_dict(), fitted.potential.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"betas.0", "betas.1"}
    learns = [parameter.requires_grad for parameter in whole.potential.parameters()]
    assert learns == [parameter.requires_grad for parameter in fitted.potential.parameters()]


def test_what_a_piece_costs_can_be_learned_by_a_combination() -> None:
    """Networks that know nothing of pieces, data that are all in one: a further one has a cost."""
    models = [made(seed) for seed in range(2)]
    whole = Model.combined(models, pieces=True)
    assert torch.allclose(scores(whole), scores(Model.combined(models)), atol=1e-5)
    linked = WORLDS[WORLDS[:, 3] + WORLDS[:, 4] > 0]  # Anna and Bob, either way round
    fitted = whole.weighed(linked, 60)
    assert bool((fitted.potential.get_parameter("parts.3.weight") > 0.05).all())

    @torch.no_grad()
    def one_piece(model: Model) -> float:
        last = scores(model)[-1].softmax(0)
        return float(last[WORLDS[:, 3] + WORLDS[:, 4] > 0].sum())

    assert one_piece(fitted) > one_piece(whole) + 0.1
    with pytest.raises(InputError, match=r"differ in model\.pieces"):
        Model.combined([made(0), made(1, pieces=True)])


def test_a_model_of_formulas_has_nothing_to_weigh() -> None:
    whole = Model.combined([made(seed, formulas=True, potential="formula") for seed in range(2)])
    with pytest.raises(InputError, match="no networks to weigh"):
        whole.weighed(WORLDS[:20], 5)


def test_what_has_no_mean_is_refused() -> None:
    with pytest.raises(InputError, match="no models to combine"):
        Model.combined([])
    with pytest.raises(InputError, match=r"differ in model\.hidden: 4 and 5"):
        Model.combined([made(0), made(0, hidden=5)])
    with pytest.raises(InputError, match="different languages, domains or formulas"):
        Model.combined([made(0), made(0, formulas=True)])
    colder = override(CONFIG, {"ladder.rates": [0.2, 0.01]})
    with pytest.raises(InputError, match=r"differ in ladder\.rates"):
        Model.combined([made(0), Model.build(SPACE, WORLDS[:20], colder)])
    with pytest.raises(InputError, match=r"model\.networks must be at least 1"):
        override(CONFIG, {"model.networks": 0})
    with pytest.raises(InputError, match="a formula model has no networks"):
        configure({"model": {"potential": "formula", "networks": 2}})
