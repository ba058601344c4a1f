"""The grid as data: which cells there are, and what their commands say."""

from itertools import pairwise
from pathlib import Path

import pytest

from nmln.cli.common import settings_in
from nmln.config import Config, configure, override
from nmln.errors import InputError
from nmln.reproduction import grid
from nmln.reproduction.budgets import BUDGETS, budget
from nmln.reproduction.cells import Cell
from nmln.reproduction.datasets import DATA_SETS, by_key, chosen
from nmln.reproduction.methods import ABLATION, STAR, baselines, method
from tests.baselines import fake

QUICK, HOUR, FULL = BUDGETS.values()


def words_of(cell: Cell, step: str = "training", of: grid.Budget = QUICK) -> list[str]:
    [found] = [one for one in cell.steps(of, Path("here")) if one.name == step]
    return list(found.words)


def config_of(cell: Cell, of: grid.Budget) -> Config:
    """The settings that the training command of an NMLN's cell asks for."""
    words = words_of(cell, of=of)
    changes = [after for word, after in pairwise(words) if word == "--set"]
    preset = words[words.index("--preset") + 1]
    return override(configure({}, preset=preset), settings_in(changes))


@pytest.mark.parametrize("of", [QUICK, FULL], ids=["quick", "paper"])
@pytest.mark.parametrize("equal", ["minutes", "updates"])
def test_the_ablations_differ_only_in_potential_chains_and_levels(of, equal) -> None:
    cells = [Cell(by_key("chembl-10"), one, 0, equal) for one in ABLATION]
    flat = {}
    for cell in cells:
        tables = config_of(cell, of).to_dict()
        flat[cell.method.name] = {
            f"{table}.{name}": value for table, own in tables.items() for name, value in own.items()
        }
    names = {name for one in flat.values() for name in one}
    different = {name for name in names if len({repr(one.get(name)) for one in flat.values()}) > 1}
    of_network = {"model.layers", "model.hidden", "model.initial_scale"} if of.full else set()
    assert different == {
        "model.potential", "model.width", "model.sizes", "chains.replicas", "ladder.method",
        "ladder.rates",
    } | of_network  # fmt: skip
    graphs = ("s3", "s4", "s5", "star")
    for name in ("model.potential", "model.layers", "model.hidden", "model.initial_scale"):
        assert len({repr(flat[one].get(name)) for one in graphs}) == 1
    chains = [flat[one]["chains.replicas"] for one in ("s1", "s2", "s3", "s4", "s5", "star")]
    assert chains == [8, 40, 8, 100, 500, 100]
    assert flat["star"]["ladder.rates"] == [0.1, 0.01, 0.005, 0.0025, 0.001]
    assert {tuple(flat[one]["ladder.rates"]) for one in flat if one != "star"} == {(0.001,)}
    assert (flat["s3"]["model.layers"], flat["s3"]["model.hidden"]) == (
        (10, 128) if of.full else (4, 64)
    )
    samplings = {tuple(words_of(cell, "sampling", of)[4:]) for cell in cells}
    levels = {("--all-levels",), ()}
    assert len({tuple(w for w in one if w != "--all-levels") for one in samplings}) == 1, levels


def test_equal_minutes_and_equal_updates() -> None:
    data = by_key("chembl-10")
    minutes, updates = words_of(Cell(data, STAR)), words_of(Cell(data, STAR, 0, "updates"))
    assert minutes[minutes.index("--minutes") + 1] == "10"
    assert "training.clock=processor" in minutes
    assert updates[updates.index("--steps") + 1] == "1000"
    assert "--minutes" not in updates


def test_names_are_different_and_every_data_set_has_all_methods() -> None:
    for one in BUDGETS.values():
        jobs = grid.jobs_of(grid.everything(one), experiments=True)
        assert len({job.name for job in jobs}) == len(jobs)
        covered = {
            figure.name: {cell.method.kind for cell in figure.cells} for figure in grid.recall(one)
        }
        for data in DATA_SETS:
            assert covered[f"recall-{data.key}-graphs"] == {"nmln", "graphs"}
            assert covered[f"recall-{data.key}-strings"] == {"nmln", "strings"}
    seeds = [job.name for job in grid.jobs_of(grid.ablations(QUICK)) if "/star" in job.name]
    assert seeds == [
        "chembl-10/star", "chembl-10/star-seed-1", "chembl-10/star-seed-2", "chembl-10/star-updates",
        "chembl-10/star-updates-seed-1", "chembl-10/star-updates-seed-2",
    ]  # fmt: skip


@pytest.mark.parametrize("of", [QUICK, HOUR], ids=["quick", "hour"])
def test_no_cell_below_full_size_takes_much_more_than_two_hours(of) -> None:
    jobs = grid.jobs_of(grid.everything(of), experiments=True)
    assert max(job.expected(of) for job in jobs) <= grid.LONGEST
    assert sum(job.expected(FULL) for job in jobs) > 30 * sum(job.expected(of) for job in jobs)


def test_published_schedules_are_rows_where_they_end_by_themselves() -> None:
    small = {one.name for one in baselines(by_key("chembl-10"), QUICK)}
    large = {one.name for one in baselines(by_key("qm9-9"), QUICK)}
    assert {"rnn-char", "rnn-char-converged", "svae-per-molecule", "digress-s"} <= small
    assert "rnn-char" not in large
    assert "rnn-char-converged" in large
    assert "rnn-char" in {one.name for one in baselines(by_key("qm9-9"), FULL)}
    assert not {"gru", "digress-uniform-s"} & (small | large)
    full = {one.name for one in baselines(by_key("qm9-9"), FULL) if one.kind == "graphs"}
    assert full == {"congress", "digress-9l"}


def test_a_new_baseline_is_in_every_recall_figure_of_its_kind() -> None:
    fake.register()
    for figure in grid.recall(QUICK):
        found = "fake" in {cell.method.name for cell in figure.cells}
        assert found == figure.name.endswith("-strings")
    assert method("fake").title == "Fake"


def test_a_file_is_a_data_set() -> None:
    [nine, ten] = chosen("somewhere/mine.smi", (9, 10))
    assert (nine.key, str(nine)) == ("mine-9", "mine 9")
    words = words_of(Cell(ten, method("ours")))
    assert words[1:4] == ["somewhere/mine.smi", "--size", "10"]
    assert {one.name for one in baselines(nine, QUICK)} >= {"digress-s", "rnn-char", "svae"}


@pytest.mark.parametrize(
    ("family", "sizes", "token"),
    [("chembl", (9, 11), "--sizes"), ("pubchem", None, "pubchem"), ("mine.smi", None, "--sizes")],
)
def test_unknown_data_are_refused(family: str, sizes: tuple[int, ...] | None, token: str) -> None:
    with pytest.raises(InputError) as refused:
        chosen(family, sizes)
    assert refused.value.token == token


def test_a_budget_can_be_changed_and_wrong_ones_are_refused() -> None:
    own = budget("quick", minutes=0.5, samples=30, updates=4)
    assert (own.minutes, own.sampling, own.samples, own.updates) == (0.5, 0.5, 30, 4)
    with pytest.raises(InputError) as refused:
        budget("week")
    assert refused.value.token == "week"
    with pytest.raises(InputError):
        budget("quick", minutes=0.0)
