import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from nmln.config import Config, configure, override, read_config
from nmln.errors import InputError
from nmln.presets import PAPER_RATES, PRESETS


def test_a_file_is_laid_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "[ladder]\nrates = [0.2, 0.1]\n[chains]\nmoves = 3\n[optimiser]\nlearning_rate = 1\n"
    )
    config = read_config(path)
    assert config.ladder.rates == (0.2, 0.1)
    assert config.chains.moves == 3
    assert config.optimiser.learning_rate == 1.0
    assert config.model == Config().model


def test_a_configuration_comes_back_from_json() -> None:
    config = override(Config(), {"chains.kernel": "path", "data.nodes": 9})
    assert configure(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_can_be_built_on(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'preset = "{name}"\n[model]\nhidden = 32\n')
    config = read_config(path)
    assert config.model.hidden == 32
    assert config.model.layers == PRESETS[name].get("model", {}).get(
        "layers", Config().model.layers
    )


def test_molecules_count_pieces_and_others_do_not() -> None:
    assert configure({}, preset="molecules").model.pieces
    assert not configure({}).model.pieces
    assert not configure({"model": {"pieces": False}}, preset="molecules").model.pieces


def test_the_preset_of_the_paper_has_its_numbers() -> None:
    config = configure({}, preset="paper")
    assert config.ladder.rates == (0.1, 0.01, 0.005, 0.0025, 0.001)
    assert (config.model.layers, config.model.hidden) == (10, 128)
    assert config.chains.replicas == 100
    assert config.data.train_share == 0.8
    assert configure({}, preset="verbatim").optimiser.method == "sgd"


def test_the_presets_of_the_ablation_differ_only_in_potential_chains_and_levels() -> None:
    found = {name: configure({}, preset=name) for name in ("s1", "s2", "s3", "s4", "s5", "star")}
    assert [one.chains.replicas for one in found.values()] == [8, 40, 8, 100, 500, 100]
    assert [one.ladder.rates for one in found.values()] == [(0.001,)] * 5 + [PAPER_RATES]
    assert [one.model.sizes for one in found.values()] == [(150, 75)] * 2 + [None] * 4
    same = {"chains": ("replicas",), "ladder": ("rates", "method"),
            "model": ("potential", "width", "sizes")}  # fmt: skip
    for one in found.values():
        for section in fields(one):
            ours, theirs = getattr(one, section.name), getattr(found["s4"], section.name)
            free = {name: getattr(theirs, name) for name in same.get(section.name, ())}
            assert replace(ours, **free) == theirs


@pytest.mark.parametrize("sizes", ["[0, 5]", "[]", "[1.5]", '"x"'])
def test_sizes_of_layers_are_whole_and_positive(sizes: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\npotential = "deepset"\nsizes = {sizes}\n')
    with pytest.raises(InputError, match=r"model\.sizes"):
        read_config(path)


def test_sizes_of_layers_are_for_fragments_only() -> None:
    with pytest.raises(InputError, match="fragment and deepset") as error:
        configure({"model": {"sizes": [3]}})
    assert error.value.token == "model.sizes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[chain]\nmoves = 3", r"run.toml: unknown table: 'chain'. Did you mean 'chains'\?"),
        ("[chains]\nmove = 3", r"unknown key in \[chains\]: 'move'. Did you mean 'moves'\?"),
        ("[chains]\nzzz = 3", r"Available: kernel, replicas"),
        ("[chains]\nmoves = 2.5", "chains.moves .* whole number, got 2.5"),
        ("[chains]\nmoves = true", "chains.moves .* whole number, got True"),
        ("[chains]\nmoves = 0", "run.toml: chains.moves must be at least 1"),
        (
            '[chains]\nstart = "here"',
            "chains.start .* one of 'data', 'noise', 'model', got 'here'",
        ),
        ("[ladder]\nrates = []", r"ladder.rates .* list of numbers"),
        ('[ladder]\nrates = ["a"]', "ladder.rates .* number, got 'a'"),
        (
            '[ladder]\nrates = "even"',
            "ladder.rates must be 'auto' or a list of numbers, got 'even'",
        ),
        ("[ladder]\nswap = 1.0", "run.toml: ladder.swap must be above 0 and below 1, got 1.0"),
        ("[model]\nbase = 1", "model.base .* true or false, got 1"),
        ("[optimiser]\naverage = 1", "optimiser.average must be between 0 and 1"),
        ("[optimiser]\nlearning_rate = 0", "learning_rate must be positive"),
        ("[training]\nminutes = -1", "training.minutes must be positive"),
        ("[training]\nsteps = -1", "training.steps must not be negative"),
        ("chains = 3", r"\[chains\] .* table, got 3"),
        ("chains = ", "run.toml: this is not TOML"),
        ('preset = "big"', "preset 'big'. Take one of small, molecules, paper"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(path)


def test_bytes_are_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_config(path)


def test_single_keys_can_be_overridden() -> None:
    config = override(Config(), {"ladder.rates": (0.3, 0.1), "training.minutes": 2})
    assert config.ladder.rates == (0.3, 0.1)
    assert config.training.minutes == 2.0
    with pytest.raises(InputError, match=r"Did you mean 'ladder'") as caught:
        override(Config(), {"ladders.rates": 1})
    assert (caught.value.kind, caught.value.token) == ("unknown", "ladders")
    with pytest.raises(InputError, match="unknown key"):
        override(Config(), {"ladder.rate": 1})


@pytest.mark.parametrize("number", [float("inf"), float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["training.minutes", "optimiser.clip", "model.bound"])
def test_numbers_are_finite(name: str, number: float) -> None:
    with pytest.raises(InputError, match=rf"{name} .* finite number, got {number}"):
        override(Config(), {name: number})
