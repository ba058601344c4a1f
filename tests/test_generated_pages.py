"""Pages that scripts write say what the code says, and the tutorials run as notebooks."""

import json
import os
import re
from pathlib import Path

import pytest

from scripts import cli_reference, module_table, notebooks, settings_reference
from tests.core_only import ROOT

pytestmark = pytest.mark.usefixtures("unchecked")

PAGES = {
    "scripts/cli_reference.py": (cli_reference.PAGE, cli_reference.page),
    "scripts/settings_reference.py": (settings_reference.PAGE, settings_reference.page),
    "scripts/module_table.py": (module_table.PAGE, module_table.page),
}
TUTORIALS = notebooks.tutorials()


@pytest.mark.parametrize("script", PAGES)
def test_the_page_is_up_to_date(script: str) -> None:
    path, page = PAGES[script]
    assert path.read_text(encoding="utf-8") == page(), f"run: python {script}"


def test_every_setting_has_a_meaning() -> None:
    rows = [row for row in settings_reference.page().splitlines() if row.startswith("| `")]
    assert rows
    assert not [row for row in rows if row.endswith("|  |")]


def test_every_module_says_what_it_is_for() -> None:
    rows = module_table.module_table().splitlines()[2:]
    listed = {
        re.findall(r"`([^`]+)`", row)[0].removesuffix("/").removesuffix(".py") for row in rows
    }
    package = ROOT / "nmln"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    assert listed == modules | rooms
    assert not [row for row in rows if row.endswith("|  |")]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_the_notebook_is_up_to_date(page: Path) -> None:
    found = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert found == notebooks.notebook(page), "run: python scripts/notebooks.py"


def test_every_notebook_has_its_page() -> None:
    found = {path.stem for path in notebooks.FOLDER.glob("*.ipynb")}
    assert found == {path.stem for path in TUTORIALS}


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_the_cells_of_the_notebook_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    content = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))
    namespace: dict[str, object] = {}
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        source = "".join(cell["source"])
        exec(compile(source, f"{page.stem}:{cell['id']}", "exec"), namespace)
        printed = capsys.readouterr().out
        assert bool(printed) == bool(cell["outputs"]), f"{cell['id']} prints: {printed}"


def test_every_link_between_files_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:|#", link)
        and not os.path.exists(page.parent / link.partition("#")[0])
    ]
    assert not broken


NAMED = re.compile(r"`((?:nmln|tests|scripts|benchmarks|examples|docs)/[\w./-]+\.(?:py|md|json))`")


def test_every_file_that_a_page_names_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in NAMED.findall(page.read_text(encoding="utf-8"))
        if "NAME" not in name and not (ROOT / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("name", ["smiles-to-report", "formula-to-marginal"])
def test_a_path_through_the_code_lists_each_file_once(name: str) -> None:
    text = (ROOT / "docs" / "explanation" / f"{name}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(nmln/[\w/]+\.py)` \|", text, re.MULTILINE)
    assert len(listed) > 10
    assert len(listed) == len(set(listed))
