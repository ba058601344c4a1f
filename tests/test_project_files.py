"""Files about the project that other programs read: they parse, and say what the code says."""

import re
import subprocess
from typing import Any

import yaml

import nmln
from tests.core_only import ROOT


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def versions() -> list[str]:
    """The headings of the changelog, from the newest."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)


def test_the_workflow_runs_the_tests_on_three_versions_of_python() -> None:
    workflow = read(".github/workflows/test.yml")
    job = workflow["jobs"]["test"]
    assert job["strategy"]["matrix"]["python-version"] == ["3.11", "3.12", "3.13"]
    steps = job["steps"]
    [python] = [step for step in steps if "setup-python" in step.get("uses", "")]
    assert python["with"]["python-version"] == "${{ matrix.python-version }}"
    assert any(step.get("run", "").startswith("make test") for step in steps)
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as true


def test_the_hooks_are_the_ruff_of_make_test() -> None:
    [local] = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    entries = [hook["entry"] for hook in local["hooks"]]
    assert [re.sub(r" --.*", "", entry) for entry in entries] == [
        ".venv/bin/ruff check",
        ".venv/bin/ruff format",
    ]


def test_the_citation_names_the_paper_and_the_last_version() -> None:
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["version"] == next(one for one in versions() if one != "Unreleased")
    paper = citation["preferred-citation"]
    assert paper["title"] == "Parallel Noising in Neural Markov Logic Networks"
    assert [one["family-names"] for one in paper["authors"]] == ["Jung", "Marra", "Kuželka"]


def test_the_changelog_has_a_release_below_what_is_not_released() -> None:
    newest, *released = versions()
    assert newest == "Unreleased"
    assert "0.1.0" in released
    assert nmln.__version__ not in released  # a version of development, not a released one
    assert ".dev" in nmln.__version__


def test_make_test_builds_the_pages() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("test", "test-all"):
        [needed] = re.findall(rf"^{target}:([^#\n]*)", makefile, re.MULTILINE)
        assert "checks" in needed.split()
    done = subprocess.run(
        ["make", "--dry-run", "checks"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for command in ("ruff format --check", "ruff check", "pyright", "lint-imports", "mkdocs build"):
        assert command in done.stdout
    assert "mkdocs build --strict" in makefile
