"""One level of a model, alone."""

import pytest
import torch

from nmln.config import Config, configure
from nmln.formats.mln import parse_mln
from nmln.model import Model
from nmln.space import Space

PROGRAM = parse_mln(
    "person = {Anna, Bob, Carl}\nsmokes(person)\nfriends(person, person)\n"
    "0.7 smokes(x) ^ friends(x, y) => smokes(y)\n"
)
SPACE = Space(PROGRAM.language, PROGRAM.domain)
WORLDS = SPACE.enumerate()[::3]


def settings(method: str = "noising", **model: object) -> Config:
    ladder = {"method": method, "rates": [0.2, 0.1, 0.02], "temperatures": [3.0, 1.5, 1.0]}
    return configure({"ladder": ladder, "model": {"layers": 2, "hidden": 8, **model}})


def made(config: Config) -> Model:
    """A model whose numbers are all its own."""
    model = Model.build(SPACE, WORLDS[:50], config, PROGRAM.formulas)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.potential.state_dict().values():
            tensor.add_(0.3 * torch.randn(tensor.shape, generator=rng))
    return model


def built_anew(model: Model, level: int) -> Model:
    """A model of that level only, made from its description and filled with its tensors."""
    content = model.describe()
    content["config"]["ladder"]["rates"] = [model.config.ladder.rates[level]]
    alone = Model.described(content)
    own = {name: tensor[[level]] for name, tensor in model.potential.state_dict().items()}
    alone.take(own, "the test")
    return alone


@pytest.mark.parametrize("potential", ["graph", "fragment", "deepset", "formula"])
@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("level", [0, 1, -1])
def test_it_is_bit_for_bit_a_model_of_that_level(potential: str, pieces: bool, level: int) -> None:
    model = made(settings(potential=potential, pieces=pieces))
    alone, expected = model.level(level), built_anew(model, level).potential
    for found, wanted in zip(
        alone.score_and_slopes(WORLDS[None]), expected.score_and_slopes(WORLDS[None]), strict=True
    ):
        assert torch.equal(found, wanted)
    assert alone.state_dict().keys() == expected.state_dict().keys()
    whole = model.potential.score(WORLDS.expand(3, -1, -1))[level]
    assert torch.allclose(alone.score(WORLDS[None])[0], whole, atol=1e-5)


def test_a_level_is_a_temperature_where_the_ladder_is_one() -> None:
    model = made(settings("tempering"))
    whole = model.method.sampled(model.potential).score(WORLDS.expand(3, -1, -1))
    for level in range(3):
        assert torch.allclose(model.level(level).score(WORLDS[None])[0], whole[level], atol=1e-5)


def test_a_single_level_is_the_potential_itself() -> None:
    model = made(settings("single"))
    assert model.level(-1) is model.potential
