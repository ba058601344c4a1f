"""Likelihoods of runs, held against enumeration: 65,536 worlds of four atoms can be summed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmln.cli.likelihood import likelihood as command
from nmln.config import configure
from nmln.errors import InputError
from nmln.formats.mln import parse_formula, parse_mln
from nmln.language import Language, predicate
from nmln.logic import WeightedFormula
from nmln.model import Model, load_run
from nmln.molecules.decoding import Decoder
from nmln.molecules.likelihood import molecule_log_likelihood
from nmln.partition import LogZBracket
from nmln.partition.estimate import bennett
from nmln.runs import data as sources
from nmln.runs import likelihood
from nmln.space import Space
from tests.runs.runs import SMALL, settings, whole_run

pytestmark = pytest.mark.usefixtures("unchecked")

SMILES = [
    *("CCCC", "CCCO", "CCOC", "CC(C)C", "CC(C)O", "C1CCC1", "C1CCO1", "C=CC=C"),
    *("CC(C)=O", "CC(=O)O", "C#CCO", "CC#CC", "OCCO"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on molecules of four atoms."""
    place = tmp_path_factory.mktemp("molecules")
    (place / "four.smi").write_text("\n".join(SMILES))
    return whole_run(place / "four.smi")


@pytest.fixture(scope="module")
def exact(folder: Path) -> float:
    """log Z of the run's target level, summed over all worlds."""
    return sum_up(load_run(folder))


def sum_up(model: Model) -> float:
    worlds = model.space.enumerate()
    with torch.no_grad():
        parts = [
            model.potential.score(some.expand(model.potential.levels, -1, -1))[-1].double()
            for some in worlds.split(8192)
        ]
    return float(torch.cat(parts).logsumexp(0))


def test_the_likelihood_of_molecules_agrees_with_enumeration(folder: Path, exact: float) -> None:
    found = likelihood.run(folder, chains=200, steps=100, sweeps=40)
    part = found.partition
    assert part.error < 0.15
    assert abs(part.value - exact) < 4 * part.error
    assert part.interval[0] < exact < part.interval[1]
    assert part.interval[1] - part.interval[0] < 1

    model, source = load_run(folder), sources.load(settings(folder.parent / "four.smi").data)
    for places, told in (
        (source.train, found.train_molecules),
        (source.test, found.test_molecules),
    ):
        names = [source.names[place] for place in places.tolist()]
        wanted = molecule_log_likelihood(model.potential, model.space, names, exact)
        assert told is not None
        assert told.value + part.value - exact == pytest.approx(float(wanted.mean()), abs=1e-4)
        assert told.error == pytest.approx(float(wanted.std()) / len(names) ** 0.5, rel=1e-3)


def test_the_likelihoods_of_all_molecules_make_the_share_of_valid_worlds(
    folder: Path, exact: float
) -> None:
    model = load_run(folder)
    worlds = model.space.enumerate()
    answers = Decoder(model.space).decode(worlds)
    valid = torch.tensor([answer.smiles is not None for answer in answers])
    names = sorted({answer.smiles for answer in answers if answer.smiles is not None})
    with torch.no_grad():
        chances = [
            (model.potential.score(some.expand(2, -1, -1))[-1].double() - exact).exp()
            for some in worlds[valid].split(8192)
        ]
    found = molecule_log_likelihood(model.potential, model.space, names, exact)
    assert float(found.exp().sum()) == pytest.approx(float(torch.cat(chances).sum()), rel=1e-4)


def test_what_is_kept_are_plain_numbers_and_the_command_reports_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(folder, chains=20, steps=10, sweeps=4, seed=1)
    kept = json.loads((folder / "likelihood.json").read_text())
    assert all(isinstance(number, int | float) for number in kept.values())
    assert kept["worlds"] == len(SMILES)
    assert kept["log_z_least"] < kept["log_z_low"]
    assert kept["log_z_most"] > kept["log_z_high"]
    said = capsys.readouterr().out
    assert f"nats per world: train {kept['train']:.2f}" in said
    assert f"nats per molecule: train {kept['train_molecules']:.2f}" in said
    assert f", test {kept['test_molecules']:.2f} +- {kept['test_molecules_error']:.2f}" in said


def test_the_same_seed_gives_the_same_numbers(folder: Path) -> None:
    one, same, other = (
        likelihood.run(folder, chains=10, steps=5, sweeps=3, seed=seed).partition
        for seed in (3, 3, 4)
    )
    assert one == same != other


def test_worlds_that_are_no_molecules_have_no_likelihood_per_molecule(
    people: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = whole_run(people)
    command(folder, chains=10, steps=5, sweeps=3, seed=0)
    kept = json.loads((folder / "likelihood.json").read_text())
    assert not [name for name in kept if "molecule" in name]
    assert "molecule" not in capsys.readouterr().out


def test_progress_counts_up_to_the_end(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    likelihood.run(
        folder, chains=4, steps=6, sweeps=5, progress=lambda done, of: told.append((done, of))
    )
    assert told[-1] == (17, 17)
    assert sorted(told) == told


@pytest.mark.parametrize("given", [{"chains": 1}, {"steps": 0}, {"sweeps": 2}], ids=str)
def test_too_little_of_anything_is_refused(folder: Path, given: dict[str, int]) -> None:
    (name,) = given
    numbers = {"chains": 2, "steps": 1, "sweeps": 3, **given}
    with pytest.raises(InputError, match=f"{name} must be at least"):
        likelihood.run(
            folder, chains=numbers["chains"], steps=numbers["steps"], sweeps=numbers["sweeps"]
        )


# The parts of the estimate.

FORMULAS = """
smokes(person)
friends(person, person) irreflexive
1.1 smokes(x) ^ friends(x, y) => smokes(y)
"""


def build(potential: str, formulas: str = FORMULAS, **ladder: object) -> tuple[Model, torch.Tensor]:
    """An untrained model with other parameters at every level, and worlds that it is built on."""
    program = parse_mln(formulas)
    space = Space(program.language, {"person": 3})
    rng = torch.Generator().manual_seed(0)
    worlds = (torch.rand(40, space.groups, generator=rng) < 0.3).to(space.dtype)
    content = {**SMALL, "model": {"potential": potential, "layers": 1, "hidden": 4}}
    content["ladder"] = {**SMALL["ladder"], **ladder}
    model = Model.build(space, worlds, configure(content), program.formulas)
    with torch.no_grad():
        for parameter in model.potential.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=rng)
    return model, worlds


@pytest.mark.parametrize("potential", ["graph", "fragment", "deepset", "formula"])
def test_a_level_alone_scores_as_it_does_among_the_others(potential: str) -> None:
    model, worlds = build(potential)
    alone = model.level(-1)
    assert alone.levels == 1
    wanted = model.potential.score(worlds.expand(2, -1, -1))
    torch.testing.assert_close(alone.score(worlds[None])[0], wanted[1])
    assert not torch.allclose(wanted[0], wanted[1])
    noisiest = model.level(0)
    torch.testing.assert_close(noisiest.score(worlds[None])[0], wanted[0])


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("method", ["noising", "tempering", "single"])
def test_log_z_agrees_with_enumeration_for_every_method(method: str, hard: bool) -> None:
    rules = f"{FORMULAS}\nsmokes(x) => !friends(x, x2)." if hard else FORMULAS
    model, worlds = build("graph", rules, method=method)
    found = likelihood.log_z_of(model, worlds, 400, 30, 30)
    assert found.error < 0.1
    assert abs(found.value - sum_up(model)) < 4 * found.error
    assert abs(found.low - sum_up(model)) < 4 * found.low_error + 0.1
    assert abs(found.high - sum_up(model)) < 4 * found.high_error + 0.1


def test_formulas_that_forbid_nearly_everything_are_refused() -> None:
    rules = f"{FORMULAS}\nsmokes(x).\nfriends(x, y).\n!friends(x, y)."
    with pytest.raises(InputError, match="hard formulas forbid all but 0"):
        likelihood.log_z_of(*build("formula", rules), 2, 1, 3)


def test_estimates_on_the_wrong_sides_contradict_each_other() -> None:
    fine = LogZBracket(1.0, 0.1, low=0.9, low_error=0.2, high=0.8, high_error=0.2, effective_size=9)
    assert not fine.contradictory
    assert fine.interval == pytest.approx((0.5, 1.2))
    crossed = replace(fine, low=2.0)
    assert crossed.contradictory
    assert crossed.interval == pytest.approx((0.8, 1.2))


def gaussian_works(difference: float, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Works both ways as they must be: exp(work) has the mean exp(difference) on the way there."""
    rng = torch.Generator().manual_seed(0)
    noise = spread * torch.randn(2, 4000, generator=rng, dtype=torch.float64)
    return difference - spread**2 / 2 + noise[0], difference + spread**2 / 2 + noise[1]


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_the_ratio_is_found_from_works_both_ways(spread: float) -> None:
    found, error = bennett(*gaussian_works(-7.0, spread))
    assert abs(found + 7) < 4 * error
    assert error < 0.02 * (1 + spread) ** 2


def test_the_check_rejects_works_that_do_not_belong_together() -> None:
    there, back = gaussian_works(-7.0, 1.0)
    found, error = bennett(there, back + 1)
    assert abs(found + 7) > 4 * error


def test_the_error_of_the_ratio_is_how_far_it_scatters() -> None:
    there, back = gaussian_works(2.0, 2.0)
    parts = [
        bennett(one, other) for one, other in zip(there.split(100), back.split(100), strict=True)
    ]
    scatter = float(torch.tensor([value for value, _ in parts]).std())
    told = float(torch.tensor([error for _, error in parts]).mean())
    assert 0.7 < scatter / told < 1.4


def test_log_z_is_never_below_what_the_data_alone_add_up_to() -> None:
    plain = LogZBracket(
        1.0, 0.1, low=0.9, low_error=0.1, high=1.1, high_error=0.1, effective_size=9
    )
    below, above = plain.with_data(0.0), plain.with_data(3.0)
    assert (below.value, below.missed, below.interval) == (1.0, False, plain.interval)
    assert (above.value, above.missed, above.interval) == (3.0, True, (3.0, 3.2))


def test_a_world_that_chains_never_find_is_noticed() -> None:
    space = Space(Language(predicate("up", "site")), {"site": 16})
    worlds = torch.ones(4, 16, dtype=space.dtype)  # all alike
    levels = {"ladder": {"rates": [0.08, 0.045, 0.02, 0.006, 0.001]}}
    config = configure(
        {"model": {"potential": "formula", "base": False}, "training": {"steps": 0}, **levels}
    )
    every = parse_formula("FORALL x up(x)", space.language)
    lonely = WeightedFormula(every.formula, 60.0)  # e^60 for one world of 65,536, and no way to it
    model = Model.build(space, worlds, config, [lonely])
    found = likelihood.measure(model, worlds, worlds[:0], chains=10, steps=5, sweeps=10)
    assert found.partition.missed
    assert found.partition.data == pytest.approx(60.0)
    assert found.train <= 0, "no world is likelier than certain"
