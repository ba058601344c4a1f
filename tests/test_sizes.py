"""Sizes are counted before anything is expanded or allocated, and what cannot fit ends in one line."""

import json
from collections.abc import Callable
from math import log
from pathlib import Path

import pytest
import torch
from torch import Generator
from typer.testing import CliRunner

from nmln import cli, memory
from nmln.checkpoint import load_model, save_model
from nmln.config import Config, configure, override, read_config
from nmln.errors import InputError
from nmln.formats.mln import parse_formula, parse_mln
from nmln.inference import Conditional, Plan
from nmln.kernels.gibbs import Gibbs
from nmln.knowledge.data import KnowledgeBase
from nmln.knowledge.potential import Shape
from nmln.knowledge.settings import KnowledgeSettings, expected_bytes
from nmln.ladders import Temperatures
from nmln.language import Language, predicate
from nmln.logic import DEEPEST, Atom, Not, Variable, WeightedFormula, nesting
from nmln.memory import bytes_text, is_out_of_memory, machine_memory, refuse_size
from nmln.model import Model
from nmln.noise import uniform
from nmln.partition import annealed
from nmln.potentials.formula import FormulaPotential
from nmln.potentials.fragment import FragmentPotential
from nmln.potentials.function import OneHotPotential
from nmln.potentials.independent import IndependentPotential
from nmln.runs.likelihood import log_z_of
from nmln.space import Space
from nmln.training.sizes import check_model, check_training, fewest_parameters
from nmln.training.trainer import Trainer
from nmln.training.weights import Recipe, learn_weights
from tests.knowledge.families import write_family

LANGUAGE = Language(predicate("p", "n"), predicate("q", "n", "n"))
SPACE = Space(LANGUAGE, {"n": 3})
SMALL = override(Config(), {"model.hidden": 4, "model.layers": 1, "ladder.rates": [0.1, 0.01]})
BILLION, TRILLION = 10**9, 10**12
NEEDS = r"needs at least [\d,.^]+ (GiB|bytes) of memory, but the machine has [\d,.]+ GiB"


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 16 GiB, so that the same is refused everywhere."""
    for name in ("nmln.memory", "nmln.space", "nmln.knowledge.settings"):
        monkeypatch.setattr(f"{name}.machine_memory", lambda: 2**34)


# Programs.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "n = {1, ..., 1000000000}\np(n)",
            r"text:1: the sort n of 1,000,000,000 constants " + NEEDS,
        ),
        ('n = {"1", ..., "1000000000"}\np(n)', "the sort n of 1,000,000,000 constants"),
        (f"n = {{1, ..., {'9' * 30}}}\np(n)", "18 digits"),
        (f"n = {{1, ..., {'9' * 5000}}}\np(n)", "18 digits"),
        ("p(n)\nm = {A}\nn = {1, ..., 1000000000}", "text:3: the sort n of"),
    ],
)
def test_a_sort_is_counted_before_it_is_written_out(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_mln(text)


def test_sorts_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmln.memory.machine_memory", lambda: 200_000)
    parse_mln("a = {1, ..., 1000}\np(a)")
    with pytest.raises(InputError, match=r"text:2: a domain of 1,999 constants needs"):
        parse_mln("a = {1, ..., 1000}\nb = {1, ..., 999}\np(a, b)")


def test_templates_are_counted_before_they_are_written_out() -> None:
    many = Space(Language(predicate("p", "n", "n", "n")), {"n": 500})
    formula = parse_formula("p(+x, +y, +z)", many.language)
    with pytest.raises(InputError, match=f"stands for 125,000,000 formulas, {NEEDS}"):
        FormulaPotential(many, [formula])


def test_a_space_counts_its_constants_too() -> None:
    with pytest.raises(InputError, match="this domain is too large"):
        Space(Language(predicate("p", "n")), {"n": 1, "unused": BILLION})


def described(**changes: object) -> dict:
    content = Model.build(SPACE, SPACE.enumerate()[:5], SMALL).describe()
    content["config"]["model"].update(changes)
    return content


def test_a_received_model_with_a_large_program_or_shape_is_refused(tmp_path: Path) -> None:
    model = Model.build(SPACE, SPACE.enumerate()[:5], SMALL)
    model.save(tmp_path / "good")
    tensors, content = load_model(tmp_path / "good")
    for name, change in {
        "program": {"program": "n = {1, ..., 1000000000}\np(n)"},
        "networks": {"config": described(networks=BILLION)["config"]},
        "hidden": {"config": described(hidden=BILLION)["config"]},
    }.items():
        save_model(tmp_path / name, tensors, {**content, **change})
        with pytest.raises(InputError, match=NEEDS):
            Model.load(tmp_path / name)


# Configurations.


@pytest.mark.parametrize("kind", ["graph", "fragment", "deepset", "image", "formula"])
@pytest.mark.parametrize(("layers", "hidden"), [(1, 3), (3, 7)])
def test_the_count_of_parameters_is_never_above_what_a_network_has(
    kind: str, layers: int, hidden: int
) -> None:
    language = Language(predicate("q", "n", "n")) if kind == "image" else LANGUAGE
    space = Space(language, {"n": 3})
    changes = {"model.potential": kind, "model.layers": layers, "model.hidden": hidden}
    config = override(SMALL, {**changes, "model.base": False, "model.bound": 0})
    formulas = [parse_formula("q(x, y)", language)] if kind == "formula" else []
    network = Model.build(space, space.enumerate()[:5], config, formulas).potential
    real = sum(one.numel() for one in network.parameters())
    assert 2 * fewest_parameters(space, config.model) <= real


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.networks", BILLION),
        ("model.hidden", BILLION),
        ("model.hidden", 100_000),
        ("model.layers", BILLION),
        ("chains.replicas", TRILLION),
        ("training.batch", TRILLION),
    ],
)
@pytest.mark.parametrize("kind", ["graph", "fragment", "deepset"])
def test_a_configuration_that_cannot_fit_is_refused(key: str, value: int, kind: str) -> None:
    config = override(Config(), {"model.potential": kind, "model.layers": 3, key: value})
    with pytest.raises(InputError, match=NEEDS):
        Model.build(SPACE, SPACE.enumerate()[:5], config)


def test_a_trainer_counts_its_chains_also_when_a_run_is_resumed() -> None:
    model = Model.build(SPACE, SPACE.enumerate()[:5], SMALL)
    with pytest.raises(InputError, match=f"chains.replicas=1,000,000,000,000 at 2 levels {NEEDS}"):
        Trainer(
            model.potential,
            SPACE.enumerate()[:5],
            override(SMALL, {"chains.replicas": TRILLION}),
        )


def test_what_fits_is_not_refused() -> None:
    changes = {"model.hidden": 512, "model.layers": 12, "chains.replicas": 10_000}
    large = override(Config(), {**changes, "ladder.rates": (0.08, 0.045, 0.02, 0.006, 0.001)})
    assert 0 < check_model(SPACE, 5, large.model) < check_training(SPACE, large) < 2**34


def test_fragments_wider_than_the_domain_or_the_memory_are_refused() -> None:
    with pytest.raises(InputError, match="need as many constants"):
        FragmentPotential(SPACE, 1, BILLION)
    wide = Space(LANGUAGE, {"n": 300})
    with pytest.raises(InputError, match=f"the table of fragments of width 5 {NEEDS}"):
        FragmentPotential(wide, 1, 5)


# Flags, which end in these.


def learn_with(chains: int) -> object:
    formula = parse_formula("p(x)", LANGUAGE)
    worlds, rng = SPACE.enumerate()[:5], Generator()
    return learn_weights(SPACE, [formula], worlds, rng, Recipe(chains=chains), exactly=False)


@pytest.mark.parametrize(
    "act",
    [
        lambda: Temperatures.geometric(10.0, BILLION),
        lambda: Conditional.of_formulas(SPACE, [parse_formula("p(x)", LANGUAGE)], levels=BILLION),
        lambda: uniform(SPACE, 5, TRILLION, Generator()),
        lambda: Conditional.of_formulas(SPACE, [parse_formula("p(x)", LANGUAGE)]).marginals(
            "p", plan=Plan(chains=TRILLION), exactly=False
        ),
        lambda: IndependentPotential(SPACE, torch.zeros(1, SPACE.entries)).draw(
            TRILLION, Generator()
        ),
        lambda: next(
            Model.build(SPACE, SPACE.enumerate()[:5], SMALL).sample(1, Generator(), chains=TRILLION)
        ),
        lambda: learn_with(TRILLION),
        lambda: annealed(
            IndependentPotential(SPACE, torch.zeros(1, SPACE.entries)),
            Gibbs(SPACE),
            2,
            TRILLION,
            Generator(),
        ),
        lambda: log_z_of(
            Model.build(SPACE, SPACE.enumerate()[:5], SMALL), SPACE.enumerate()[:5], sweeps=TRILLION
        ),
    ],
    ids=["ladder", "levels", "uniform", "infer", "draw", "sample", "learn", "anneal", "record"],
)
def test_levels_and_chains_that_cannot_fit_are_refused(act: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=NEEDS):
        act()


@pytest.mark.parametrize("part", ["hidden", "embedding", "rank", "paths"])
def test_the_shape_of_a_knowledge_base_is_counted_in_every_part(part: str, tmp_path: Path) -> None:
    base = KnowledgeBase.read(str(write_family(tmp_path)))
    assert expected_bytes(base, Shape(**{part: TRILLION}), KnowledgeSettings()) > TRILLION


def test_a_failed_allocation_of_torch_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def allocate(**_: object) -> None:
        torch.empty(2**50)

    monkeypatch.setattr(cli, "app", allocate)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "memory" in line

    def fail(**_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(RuntimeError, match="something else"):
        cli.main()


@pytest.mark.parametrize("size", [2**50, 2**61, 2**62])
def test_every_way_in_which_torch_says_so_is_known(size: int) -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(size, 4)
    assert is_out_of_memory(raised.value)


def test_memory_in_words() -> None:
    assert bytes_text(3 * 2**29) == "1.5 GiB"
    assert bytes_text(10**30) == "10^30 bytes"
    assert refuse_size(10, "this", "Less.") == 10
    assert machine_memory() > 2**20
    assert memory.machine_memory() == 2**34


# Numbers in configurations.


@pytest.mark.parametrize("name", ["training.seed", "model.seed", "data.split_seed"])
@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, 10**400])
def test_seeds_are_bounded_as_the_flags_are(name: str, seed: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{name} must be between 0 and 2\^63 - 1"):
        override(Config(), {name: seed})
    section, key = name.split(".")
    path = tmp_path / "run.toml"
    path.write_text(f"[{section}]\n{key} = {seed}\n")
    with pytest.raises(InputError, match=r"run.toml: .* must be between 0 and 2\^63 - 1"):
        read_config(path)


def test_the_largest_seed_trains_and_a_negative_one_of_an_older_run_still_loads() -> None:
    worlds = SPACE.enumerate()[:5]
    config = override(
        SMALL, {"training.seed": 2**63 - 1, "model.seed": 2**63 - 1, "chains.replicas": 4}
    )
    trainer = Trainer(Model.build(SPACE, worlds, config).potential, worlds, config)
    assert trainer.step().step == 1
    assert configure({"training": {"seed": -3}}).training.seed == -3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\nbound = 1e400", "model.bound .* finite number, got inf"),
        ("[model]\nbound = nan", "model.bound .* finite number, got nan"),
        ("[ladder]\nrates = [inf]", "ladder.rates .* finite number, got inf"),
        ("[training]\nsteps = inf", "training.steps .* whole number, got inf"),
        (f"[model]\nbound = {'9' * 400}", "model.bound .* finite number, got more than 300"),
        (f"[model]\nbound = {'9' * 5000}", "this has a number with too many digits"),
        (f"[training]\nsteps = {'9' * 30}", r"must be between -2\^63 and 2\^63 - 1, got about"),
        ("[optimiser]\nlearning_rate = 1e300", "learning_rate must be at most 1e\\+06"),
        ("[optimiser]\ncommon = 1e300", "common must be at most 1e\\+06"),
        ("[training]\nminutes = 1e300", "minutes must be at most 1e\\+07"),
        (f"x = {'[' * 5000}{']' * 5000}", "nested too deeply"),
        ("preset = [1]", "preset must be"),
    ],
)
def test_numbers_that_are_none_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(path)


def test_infinite_numbers_of_json_are_refused() -> None:
    for text in ('{"model": {"bound": 1e400}}', '{"ladder": {"rates": [0.1, NaN]}}'):
        with pytest.raises(InputError, match="finite number"):
            configure(json.loads(text))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"penalty": -1.0}, "penalty must be finite"),
        ({"penalty": float("nan")}, "penalty must be"),
        ({"calibration": float("inf")}, "calibration must be"),
        ({"negatives": -1}, "negatives must be"),
        ({"rate": 1e300}, "rate must be at most 1e"),
        ({"rate": 0.0}, "rate and minutes must be positive"),
    ],
)
def test_settings_of_knowledge_bases_are_checked(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        KnowledgeSettings(**changes)


@pytest.mark.parametrize("prior", [1e-300, 1e-160, 1e-7])
def test_a_prior_that_leaves_no_weight_is_refused(prior: float) -> None:
    with pytest.raises(InputError, match="standard deviation must be at least 1e-06"):
        Recipe(prior=prior)


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("prior", [1e-6, 1e200, 1e300, float("inf")])
def test_a_very_wide_or_narrow_prior_is_learned_with(prior: float, exactly: bool) -> None:
    space = Space(Language(predicate("p", "n")), {"n": 2})
    worlds = torch.tensor([[0, 1], [1, 1], [1, 0], [0, 0], [1, 1]], dtype=torch.uint8)
    formula = parse_formula("p(x)", space.language)
    recipe = Recipe(prior=prior, updates=20, chains=20, final_sweeps=20)
    rng = Generator().manual_seed(1)
    found = learn_weights(space, [formula], worlds, rng, recipe, exactly=exactly)
    wanted = 0.0 if prior < 1 else log(0.6 / 0.4)
    assert float(found.weights[0]) == pytest.approx(wanted, abs=1e-4 if exactly else 0.5)


# Formulas that are nested too deeply, or weigh too much.


@pytest.mark.parametrize(
    "text",
    [
        " <=> ".join(["p(x)"] * 401),
        "(" * 400 + "p(x)" + " <=> p(x))" * 400,
        "(p(x) <=> " * 400 + "p(x)" + ")" * 400,
        "!" * 400 + "p(x)",
        "!" * 5000 + "p(x)",
    ],
    ids=["chain", "left", "right", "not", "thousands"],
)
def test_a_formula_nested_too_deeply_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match="nested") as refused:
        parse_formula(f"1 {text}", LANGUAGE)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_the_deepest_formula_that_is_read_is_also_grounded_and_printed() -> None:
    text = "p(x)" + " <=> p(x)" * DEEPEST
    formula = parse_formula(f"0.5 {text}", LANGUAGE)
    assert nesting(formula.formula) == DEEPEST
    assert parse_formula(str(formula), LANGUAGE) == formula
    space = Space(LANGUAGE, {"n": 1})
    answers = Conditional.of_formulas(space, [formula], levels=2).marginals(f"p(0), {text}")
    assert 0 < answers["p(0)"].value < 1
    deeper = Not(Not(formula.formula))
    with pytest.raises(InputError, match=f"up to {DEEPEST} connectives"):
        WeightedFormula(deeper)


@pytest.mark.parametrize("weight", [1e21, -1e300, 1e308])
def test_a_weight_that_outweighs_hard_formulas_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match="Make the formula hard"):
        Conditional.of_formulas(SPACE, [parse_formula(f"{weight} p(x)", LANGUAGE)])


# Complex numbers.


def test_complex_weights_of_a_saved_model_are_refused(tmp_path: Path) -> None:
    model = Model.build(SPACE, SPACE.enumerate()[:5], SMALL)
    model.save(tmp_path / "good")
    tensors, content = load_model(tmp_path / "good")
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    save_model(tmp_path / "bad", {**tensors, name: tensors[name].to(torch.complex64)}, content)
    with pytest.raises(
        InputError, match=f"weights must be real numbers, but {name} is torch.complex64"
    ):
        Model.load(tmp_path / "bad")


def test_complex_scores_are_refused() -> None:
    rotating = OneHotPotential(SPACE, lambda onehot: onehot.sum(-1) * 1j)
    with pytest.raises(InputError, match="must return floating-point scores"):
        rotating.score(SPACE.enumerate()[:3][None])
    with pytest.raises(InputError, match="real numbers, but OneHotPotential gives"):
        rotating._check_real(torch.zeros(2, dtype=torch.complex64))
    rotating._check_real(torch.zeros(2))


def test_complex_weights_of_formulas_are_refused() -> None:
    unchecked = object.__new__(WeightedFormula)  # the tests would check the type of an argument
    for name, value in (("formula", Atom("p", (Variable("x"),))), ("weight", 1j), ("hard", False)):
        object.__setattr__(unchecked, name, value)
    with pytest.raises(InputError, match="real number"):
        unchecked.__post_init__()


def test_the_command_line_refuses_them_all_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("big.mln").write_text("n = {1, ..., 1000000000}\np(n)\n1 p(x)\n")
    Path("small.mln").write_text("n = {A, B}\np(n)\n1 p(x)\n")
    small = ["infer", "-i", "small.mln", "-q", "p"]
    for line in (
        ["infer", "-i", "big.mln", "-q", "p"],
        [*small, "--levels", "1000000000"],
        [*small, "--chains", "1000000000000", "--sample"],
        ["infer", "-i", "small.mln", "-q", f"p/{'9' * 5000}"],
        [*small, "--formula", f"1 {'!' * 400}p(x)"],
        [*small, "--formula", "1e308 p(x)"],
    ):
        result = CliRunner().invoke(cli.app, line)
        assert isinstance(result.exception, InputError), (line, result.exception)
        assert "\n" not in str(result.exception)
        assert len(str(result.exception)) < 600
