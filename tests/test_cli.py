import json
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def nmln(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nmln", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_version_and_help_answer() -> None:
    from nmln import __version__
    from nmln.potentials import compiled

    said = f"nmln {__version__}\nThe compiled kernel is {compiled.state()}.\n"
    assert nmln("--version").stdout == said
    assert "likelihood" in nmln("--help").stdout
    assert "Examples:" in nmln("run", "--help").stdout


def test_commands_have_the_defaults_of_what_they_call() -> None:
    from nmln.cli.likelihood import likelihood
    from nmln.cli.sample import sample
    from nmln.runs import likelihood as measuring
    from nmln.runs.specification import SamplingSettings

    asked = signature(likelihood).parameters
    done = signature(measuring.run).parameters
    for name in ("chains", "steps", "sweeps", "seed"):
        assert asked[name].default == done[name].default, name
    taken = signature(sample).parameters
    for name in ("moves", "kernel", "seed", "all_levels"):
        assert taken[name].default == getattr(SamplingSettings, name), name
    for name in ("chains", "burn_in", "thin"):  # they depend on where the chains start
        assert taken[name].default is None, name


def test_help_waits_for_nothing_heavy() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from nmln.cli import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "heavy = {'torch', 'numpy', 'scipy', 'networkx', 'lark', 'rdkit', 'arviz', 'arviz_stats',"
        "'pymbar', 'matplotlib'};"
        "heavy &= set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_corruption_writes_what_it_shows(tmp_path: Path) -> None:
    done = nmln(
        "data", "corrupt", "--output", "out", "--copies", "2000", "--seed", "1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "What corruption does" in done.stdout
    assert not done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [level["rate"] for level in summary["levels"]] == [0.1, 0.01, 0.005, 0.0025, 0.001]
    for level in summary["levels"]:
        assert abs(level["changed"] - level["changed_expected"]) < 0.2
    table = (tmp_path / "out" / "levels.csv").read_text().splitlines()
    assert len(table) == 6
    info = nmln(
        "data", "info", str(ROOT / "nmln/data/smokers.mln"), "out/corrupted.db", cwd=tmp_path
    )
    assert "worlds: 5 " in info.stdout


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = nmln("data", "corrupt", "--output", name, "--copies", "100", cwd=tmp_path)
        assert done.returncode == 0
    for file in ("summary.json", "levels.csv", "corrupted.db"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_warning_is_one_sentence(tmp_path: Path) -> None:
    done = nmln("data", "corrupt", "--rates", "0.9,0.1", "--output", "[bold]x", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: rate 0.9 is noisier than uniform")
    assert "noise.py" not in done.stderr
    assert "Written: [bold]x/corrupted.db" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "corrupt", "--rates", "0.1,0.2"], "error: corruption rates must fall from level"),
        (["data", "corrupt", "--rates", "many"], "error: --rates must be numbers"),
        (
            ["run", "--data", "bad.db"],
            "error: bad.db: the main job is for molecules, but this holds",
        ),
        (["run", "--data", "."], "error: .: the main job is for molecules, but this holds"),
        (["run", "--data", "none"], "error: none: this is a folder without a .graphml or .db file"),
        (["run", "--minutes", "0"], "error: training.minutes must be positive, got 0.0."),
        (["data", "info", "no.db"], "error: no.db: there is no such file"),
        (["data", "info", "x.xml"], "error: x.xml: files ending in .xml are not known here"),
        (["data", "info", "bad.db"], "error: bad.db:2:9: the line ends here; expected"),
        (["data", "corrupt", "--output", "bad.db"], "error: bad.db"),
        (["data", "info", "same.mln", "same.mln"], "error: one language at a time"),
    ],
)
def test_a_mistake_ends_in_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "bad.db").write_text("smokes(A)\nsmokes(B")
    (tmp_path / "none").mkdir()
    done = nmln(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
