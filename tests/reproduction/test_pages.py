"""The page of claims: made from result files alone, number by number."""

import json
import re
from pathlib import Path

from nmln.reproduction.pages import markdown, recorded_in, write_html
from nmln.reproduction.story import Picture, rows_of_figure, story
from scripts import reproduction_page
from tests.reproduction.made import result, row

TWO = {
    "ablations": result(
        "ablations",
        row("star", 321, 123, by_probability={"points": [[1, 1.0]], "at": dict.fromkeys(
            ("100", "300", "1000", "3000", "10000"), 17.0)}),
        row("s1", 45, 6),
        row("s2", 50, 7),
        missing=["chembl-10/s5"],
        left_out=["s.9"],
    )
}  # fmt: skip


def test_the_page_of_the_documentation_is_that_of_the_recorded_results() -> None:
    text = reproduction_page.PAGE.read_text(encoding="utf-8")
    assert text == reproduction_page.page(), "run: python scripts/reproduction_page.py"
    for picture in story(reproduction_page.recorded()):
        if isinstance(picture, Picture):
            assert (reproduction_page.DOCS / reproduction_page.place_of(picture)).is_file()


def test_the_numbers_of_the_page_are_those_of_the_files() -> None:
    """Read back from the page, without the code that wrote them."""
    text = reproduction_page.PAGE.read_text(encoding="utf-8")
    for budget, results in reproduction_page.recorded().items():
        for name, content in results.items():
            if not content.get("rows") or "layout" not in content:
                continue
            part = text.split(f"![{content['title'].replace('*', chr(92) + '*')}.](")[-1]
            rows = [line for line in part.split("\n\n#")[0].splitlines() if line.startswith("| ")][
                2:
            ]
            assert len(rows) == len(content["rows"]), (budget, name)
            for line, one in zip(rows, content["rows"], strict=True):
                numbers = re.findall(r"-?[\d,]*\d(?:\.\d+)?", line.split(" | ", 1)[1])
                for value in (
                    f"{100 * one['valid']['value']:.1f}",
                    f"{one['unique']:,}",
                    f"{100 * one['covered']['value']:.1f}",
                    *(f"{one['recall']['at'][str(t)]:.0f}" for t in (100, 1000, 10_000)),
                    f"{one['minutes']['training']:.1f}",
                    f"{one['updates']:,}",
                ):
                    assert value in numbers, (budget, name, value)
    exact = json.loads((reproduction_page.DOCS / "results" / "exactness.json").read_text())
    for check in exact["checks"]:
        assert f"is {check['change']:.1e}" in text
    queens = json.loads((reproduction_page.DOCS / "results" / "n-queens.json").read_text())
    for kernel in queens["kernels"].values():
        assert f"{kernel['PN']['attacks']['value']:.2f} (" in text


def test_rows_of_a_figure_show_their_numbers() -> None:
    [first, *_] = rows_of_figure(TWO["ablations"]).rows
    assert first == (
        "STAR", "80.0% (78.9 to 81.1)", "2,345", "32.1% (29.3 to 35.1)", "100, 123, 123, 123, 123",
        "17, 17, 17, 17, 17", "9.5, 3.2", "77", "5,000",
    )  # fmt: skip


def test_a_claim_without_a_run_has_no_number() -> None:
    text = markdown(story({"quick": TWO}), lambda one: f"{one.budget}/{one.name}")
    judged = {part.split(":")[0]: part for part in re.split(r"\n## (?=C\d)", text)[1:]}
    assert judged["C5"].startswith("C5: holds")
    assert "Not run yet: chembl-10/s5." in text
    assert "Left out, because a cell would take too long: s.9." in text
    for name in ("C7", "C8", "C9", "C10", "C11", "C12"):
        assert judged[name].startswith(f"{name}: not run yet")
        body = judged[name].split("Missing:")[1].split("\n## ")[0]
        assert not re.search(r"\d", body)


def test_the_page_of_a_grid_has_its_figures_inside(tmp_path: Path) -> None:
    folder = tmp_path / "quick" / "results"
    folder.mkdir(parents=True)
    (folder / "ablations.json").write_text(json.dumps(TWO["ablations"]))
    assert recorded_in(tmp_path) == {"quick": TWO}
    text = write_html(tmp_path).read_text(encoding="utf-8")
    assert text.count("<svg") == 3  # of the claim, by count and by probability
    assert "Title of ablations" in text
    assert "src=" not in text
