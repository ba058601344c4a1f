"""Models that start from the weights of another one."""

from dataclasses import replace

import pytest
import torch

from nmln.config import Config, override
from nmln.errors import InputError
from nmln.ladders import Ladder
from nmln.model import Model
from nmln.model.start import started_settings
from nmln.training.method import Method
from nmln.training.rates import with_rates
from tests.model.test_domains import CONFIG, buckets


def first() -> Model:
    """A model of one size whose weights differ from level to level."""
    model = Model.build([buckets()[1]], config=CONFIG)
    with torch.no_grad():
        for parameter in model.potential.parameters():
            scale = torch.arange(1.0, 4.0).view(-1, *[1] * (parameter.ndim - 1))
            parameter.mul_(scale if parameter.requires_grad else 1)
    return model


def test_the_nearest_level_is_the_one_with_the_nearest_rate() -> None:
    ladder = Ladder((0.3, 0.1, 0.02))
    assert [ladder.nearest(rate) for rate in (0.5, 0.3, 0.19, 0.07, 0.05, 0.001)] == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip


def test_settings_of_the_potential_are_taken_over_and_others_are_not() -> None:
    old = first()
    config = started_settings(old)
    assert (config.model.layers, config.model.hidden) == (1, 4)
    assert config.ladder == Config().ladder
    made = Model.build(buckets(), start=old)
    assert made.config == with_rates(config, buckets())
    own, known = (dict(model.potential.named_parameters()) for model in (made, old))
    noise = Method.of(CONFIG.ladder).noise
    levels = [noise.nearest(rate) for rate in made.method.noise]
    name = "parts.0.potential.update.0"
    assert torch.equal(own[name], known[name][levels])
    assert own[name].data_ptr() != known[name].data_ptr(), "copied, not shared"


@pytest.mark.parametrize(
    "change", [{"model.hidden": 5}, {"model.base": False}, {"model.potential": "fragment"}]
)
def test_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError) as error:
        Model.build(buckets(), config=override(CONFIG, change), start=first())
    assert (error.value.kind, error.value.token) == ("conflict", next(iter(change)))


def test_pieces_can_be_counted_from_now_on_and_a_fit_starts_there() -> None:
    old = first()
    config = replace(CONFIG, model=replace(CONFIG.model, pieces=True))
    made = Model.build([buckets()[1]], config=config, start=old)
    values = buckets()[1].worlds[:5].expand(3, -1, -1)
    assert torch.allclose(made.potential.score(values), old.potential.score(values))
    weights = made.potential.state_dict()
    assert weights["parts.2.weight"].tolist() == [0, 0, 0]
    fitted = Model.fit([buckets()[1]], config=override(config, {"training.steps": 1}), start=old)
    moved = fitted.potential.state_dict()["parts.0.potential.update.0"]
    assert torch.allclose(moved, weights["parts.0.potential.update.0"], atol=0.1)


def test_rings_are_for_graph_networks_only() -> None:
    with pytest.raises(InputError, match="only the potential graph can be shown rings") as error:
        override(CONFIG, {"model.rings": True, "model.potential": "fragment"})
    assert (error.value.kind, error.value.token) == ("conflict", "model.rings")
    seeing = override(CONFIG, {"model.rings": True})
    again = override(seeing, {"model.potential": "fragment", "model.rings": False})
    assert again.model.potential == "fragment", "checked together, in whatever order they come"


@pytest.mark.parametrize("bound", [0.0, 50.0])
def test_rings_that_are_shown_from_now_on_mean_nothing_at_first(bound: float) -> None:
    plain = override(CONFIG, {"model.bound": bound})
    old = Model.build([buckets()[1]], config=plain)
    made = Model.build([buckets()[1]], config=override(plain, {"model.rings": True}), start=old)
    values = buckets()[1].worlds[:5].expand(3, -1, -1)
    assert torch.allclose(made.potential.score(values), old.potential.score(values))
    fresh = Model.build([buckets()[1]], config=override(plain, {"model.rings": True}))
    assert not torch.allclose(made.potential.score(values), fresh.potential.score(values))


@pytest.mark.parametrize("pieces", [False, True])
def test_a_local_part_that_is_added_starts_at_zero(pieces: bool) -> None:
    plain = replace(CONFIG, model=replace(CONFIG.model, pieces=pieces))
    data = [buckets()[1]]
    old = Model.build(data, config=plain)
    with torch.no_grad():
        for parameter in old.potential.parameters():
            if parameter.requires_grad:
                parameter += 0.1
    config = replace(CONFIG, model=replace(CONFIG.model, pieces=True, local=True))
    made = Model.build(data, config=config, start=old)
    values = data[0].worlds[:5].expand(3, -1, -1).clone()
    values[:, 0] = 0  # with several pieces
    assert torch.allclose(made.potential.score(values), old.potential.score(values))
    fresh = Model.build(data, config=config).potential.score(values)
    assert not torch.allclose(made.potential.score(values), fresh)


def test_a_local_part_keeps_its_learned_weights_and_gets_the_start_of_the_new_data() -> None:
    config = override(CONFIG, {"model.local": True, "ladder.noise": "marginals"})
    old = Model.build([buckets()[1]], config=config)
    with torch.no_grad():
        for name, parameter in old.potential.named_parameters():
            if name.endswith(("node_weight", "tie_weight")):
                parameter += torch.arange(3.0)[:, None]
    made = Model.build([buckets()[2]], config=config, start=old)
    fresh = Model.build([buckets()[2]], config=config)
    here, there, new = (one.potential.state_dict() for one in (made, old, fresh))
    for name in here:
        if name.endswith("_weight") and ".parts.0." in name:
            assert torch.equal(here[name], there[name])
            assert here[name].any()
        elif name.endswith("_start"):
            assert torch.equal(here[name], new[name])
            assert not torch.equal(here[name], there[name])


def test_a_local_part_cannot_be_left_out() -> None:
    old = Model.build([buckets()[1]], config=override(CONFIG, {"model.local": True}))
    with pytest.raises(InputError) as error:
        Model.build([buckets()[1]], config=CONFIG, start=old)
    assert error.value.token == "model.local"
