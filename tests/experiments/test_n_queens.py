import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from nmln.cli.reproduce import n_queens
from nmln.errors import InputError
from nmln.experiments import n_queens_runs
from nmln.experiments.n_queens import Compared, compare, gather, run
from nmln.experiments.n_queens_runs import (
    CROSSED,
    GRID,
    METHODS,
    GeneratedBoards,
    Method,
    QueensRun,
    QueensSettings,
    Task,
    comparisons,
    generate,
    load,
    measure,
    play,
    rank,
    searches,
)
from nmln.experiments.queens import board_space, boards_of, solved_boards
from nmln.model import Model
from nmln.training import DivergenceError
from tests.test_cli import nmln

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = QueensSettings(
    n=4, runs=2, steps=6, moves=2, replicas=4, batch=4, channels=2, layers=1, boards=4,
    sweeps=8, moves_per_sample=2,
)  # fmt: skip
ONE = replace(QUICK, kernels=("gibbs",))
FILES = ["results.json", "curves.csv", "figure.png", "figure.svg", "boards.png", "boards.svg"]


def timeless(content: object) -> object:
    """Without what is measured with a clock."""
    if isinstance(content, dict):
        return {key: timeless(value) for key, value in content.items() if "seconds" not in key}
    return [timeless(value) for value in content] if isinstance(content, list) else content


def a_run(
    attacks: float, count: float, share: float, *, method: Method = "noising", seed: int = 1
) -> QueensRun:
    """A run whose late samples measure this."""
    late = {"attacks": attacks, "queens": count, "solved": share}
    curves = {name: [value] * (1 + QUICK.sweeps) for name, value in late.items()}
    found = GeneratedBoards(
        curves, {name: [value] for name, value in late.items()}, [0.5], 0, [], 1, 1.0
    )
    generated = {str(method): found, CROSSED: found}
    return QueensRun(Task("gibbs", method, 1e-3, seed), generated, False, 0, 0.0, 1, 1.0)


def compared(
    noising: tuple[float, float, float], tempering: tuple[float, float, float]
) -> Compared:
    runs = [
        a_run(*numbers, method=method, seed=seed)
        for method, numbers in zip(METHODS, (noising, tempering), strict=True)
        for seed in (1, 2, 3)
    ]
    return compare(ONE, "gibbs", runs)


def test_a_quick_run_writes_everything(tmp_path: Path) -> None:
    ticks: list[int] = []
    outcome = run(QUICK, tmp_path, lambda: ticks.append(1))
    assert len(ticks) == QUICK.ticks == 8
    assert [path.name for path in outcome.written] == FILES
    assert all(path.stat().st_size for path in outcome.written)
    assert len(list((tmp_path / "runs").iterdir())) == 8
    header, *rows = (tmp_path / "curves.csv").read_text().splitlines()
    assert header.startswith("kernel,method,sample,attacks,attacks_low,attacks_high,queens")
    assert len(rows) == 2 * 3 * (1 + QUICK.sweeps)


def test_the_same_task_gives_the_same_run() -> None:
    task = Task("gibbs", "noising", 1e-3, 1)
    first, again, other = (play(ONE, task._replace(seed=seed)) for seed in (1, 1, 2))
    assert timeless(asdict(first)) == timeless(asdict(again))
    assert first.own.curves != other.own.curves


def test_what_is_finished_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[Task] = []

    def watched(settings: QueensSettings, task: Task) -> QueensRun:
        played.append(task)
        return play(settings, task)

    monkeypatch.setattr(n_queens_runs, "play", watched)
    first = gather(ONE, tmp_path)
    assert len(played) == 4
    (tmp_path / f"{played[1].name}.json").unlink()
    again = gather(ONE, tmp_path)
    assert played[4:] == [played[1]]
    assert first[0][0].late == again[0][0].late
    gather(replace(ONE, runs=3), tmp_path)
    assert [task.seed for task in played[5:]] == [3, 3]
    assert load(ONE, played[0], tmp_path) is not None
    assert load(replace(ONE, steps=7), played[0], tmp_path) is None
    assert load(ONE, played[0]._replace(learning_rate=0.5), tmp_path) is None


@pytest.mark.slow
def test_two_processes_find_the_same_as_one(tmp_path: Path) -> None:
    one, two = (gather(ONE, tmp_path / str(count), processes=count) for count in (1, 2))
    assert one[0][0].late == two[0][0].late


def test_each_method_takes_the_learning_rate_that_did_best() -> None:
    settings = replace(ONE, learning_rates=GRID)
    tasks = searches(settings)
    assert [(task.method, task.learning_rate) for task in tasks] == [
        (method, rate) for method in METHODS for rate in GRID
    ]
    best = {"noising": GRID[2], "tempering": GRID[0]}
    found = [
        replace(
            a_run(float(task.learning_rate != best[task.method]), 4, 0.5, method=task.method),
            task=task,
        )
        for task in tasks
    ]
    assert {(t.method, t.learning_rate) for t in comparisons(settings, found)} == set(best.items())
    assert settings.ticks == len(found) + 4
    assert not {task.seed for task in tasks} & {t.seed for t in comparisons(settings, found)}


def test_runs_are_ranked_by_attacks_only_where_the_queens_are_about_n() -> None:
    fewer, more = a_run(1, 4.4, 0.1), a_run(2, 4.0, 0.9)
    empty, half_empty = a_run(0, 1, 0.0), a_run(0.5, 3, 0.2)
    diverged = replace(a_run(0, 4, 1.0), diverged=True)
    runs = [diverged, empty, more, half_empty, fewer]
    assert sorted(runs, key=lambda one: rank(QUICK, one)) == [
        fewer, more, half_empty, empty, diverged,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("noising", "tempering", "decided_by", "ahead"),
    [
        ((1, 4, 0.1), (2, 4, 0.2), "attacks", "noising"),
        ((2, 4, 0.2), (1, 4, 0.1), "attacks", "tempering"),
        ((2, 4, 0.2), (0, 2, 0.1), "solved", "noising"),
        ((0, 2, 0.1), (2, 4, 0.2), "solved", "tempering"),
        ((1, 4, 0.1), (1, 4, 0.1), "attacks", "neither"),
    ],
)
def test_the_verdict_is_by_attacks_or_by_solved_boards(
    noising: tuple[float, float, float],
    tempering: tuple[float, float, float],
    decided_by: str,
    ahead: str,
) -> None:
    found = compared(noising, tempering)
    assert found.decided_by(4) == decided_by
    assert found.ahead(4) == ahead


@pytest.mark.parametrize("method", METHODS)
def test_generation_begins_with_the_random_boards_and_ends_with_the_last_ones(
    method: Method,
) -> None:
    task = Task("gradients", method, 1e-3, 5)
    space = board_space(4)
    worlds = solved_boards(space, 10, torch.Generator())
    model = Model.build(space, worlds, QUICK.config(task))
    found = generate(model, QUICK, 5)
    *_, last = model.sample(
        8,
        torch.Generator().manual_seed(5),
        chains=4,
        burn_in=0,
        moves=QUICK.moves_per_sample,
        kernel="gradients",
    )
    boards = boards_of(space, last.state.values)
    assert [found.curves[name][-1] for name in found.curves] == measure(boards[-1]).tolist()
    assert len(found.curves["attacks"]) == 9
    assert found.curves["queens"][0] == pytest.approx(8, abs=3)
    for level, kept in zip(boards, found.final, strict=True):
        for board, squares in zip(level, kept, strict=True):
            assert board.flatten().nonzero().flatten().tolist() == squares


def test_the_crossed_network_is_that_of_the_target() -> None:
    """With one corruption rate and one temperature both are the same model."""
    settings = replace(ONE, rates=(0.0,), temperatures=(1.0,))
    found = play(settings, Task("gibbs", "noising", 1e-3, 1)).generated
    assert found["noising"].curves == found[CROSSED].curves
    assert found["noising"].final == found[CROSSED].final


def test_a_run_that_diverges_says_so_and_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(trainer: object) -> object:
        yield from ()
        raise DivergenceError("gone")

    monkeypatch.setattr(n_queens_runs, "train", diverge)
    found = play(ONE, Task("gibbs", "tempering", 1e-3, 1))
    assert found.diverged
    assert len(found.own.curves["attacks"]) == 9


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="at least 4 rows"):
        QueensSettings(n=3)
    with pytest.raises(InputError, match="at least 2 runs"):
        QueensSettings(runs=1)
    with pytest.raises(InputError, match="no good learning rate is known for the kernel 'path'"):
        QueensSettings(kernels=("path",))
    with pytest.raises(InputError, match="no budget 'long'"):
        QueensSettings.of("long")
    assert QueensSettings.of("quick", n=None, steps=3) == QueensSettings(steps=3)


@pytest.mark.slow
def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    quick = ("--n", "4", "--runs", "2", "--steps", "3", "--sweeps", "4", "--kernel", "gibbs")
    done = nmln(
        "reproduce", "n-queens", *quick, "--processes", "1", "--output", "out", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert all(f"out/{name}" in done.stdout.replace("\n", "") for name in FILES)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert f"{found['kernels']['gibbs']['PN']['attacks']['value']:.3f}" in done.stdout
    assert found["command"] == (
        "nmln reproduce n-queens --budget quick --n 4 --runs 2 --steps 3 --sweeps 4 --kernel gibbs "
        "--seed 0"
    )


def test_rates_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--rates must be numbers"):
        n_queens(tmp_path, rates="0.2;0")


@pytest.mark.slow
def test_small_boards_are_learned_by_both_methods(tmp_path: Path) -> None:
    """Five queens are easy: trained a little, both put the right number on a board with few attacks."""
    settings = QueensSettings(n=5, kernels=("gibbs",), runs=2, steps=400, sweeps=100)
    ((found,), _) = gather(settings, tmp_path, processes=2)
    for method in METHODS:
        assert found.late[method]["queens"].value == pytest.approx(5, abs=0.5)
        assert found.late[method]["attacks"].value < 2
